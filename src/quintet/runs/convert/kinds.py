"""The kinds of original checkpoints: which matcher each becomes, where its tensors go, what its options mean here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from quintet.errors import suggest
from quintet.runs.convert.original import ConversionError, OriginalCheckpoint

# Prefixes of the authors' names and of ours, for the image encoder and for the text encoder.
Names = tuple[dict[str, str], dict[str, str]]


@dataclass(frozen=True)
class Option:
    """An option by its name in the authors' program: our argument for it, its default there, its values."""

    argument: str | None  # None: looked at by `Kind.arguments` only
    default: Any = None  # None: nothing has to be assumed
    words: dict[Any, Any] = field(default_factory=dict)  # the authors' value -> ours


@dataclass(frozen=True)
class Kind:
    model: str
    names: Callable[[OriginalCheckpoint], Names]
    options: dict[str, Option] = field(default_factory=dict)
    # what the tensors tell, and where the released code is not the paper
    arguments: Callable[[OriginalCheckpoint, Mapping[str, Any]], dict[str, Any]] = lambda checkpoint, options: {}
    sizes: Callable[[OriginalCheckpoint], dict[str, Any]] | None = None  # where the tensors have other names than usual
    unused: dict[str, str] = field(default_factory=dict)  # patterns of tensors that no matcher needs -> what they are
    third: str = "the caption model, which only training needs"  # what a third state dict holds
    added_words: tuple[str, ...] = ()  # what the authors' program adds to the vocabulary in its file


NO_IMAGE_NORM = {"no_imgnorm": Option("normalise_images", False, {True: False, False: True})}
NO_TEXT_NORM = {"no_txtnorm": Option("normalise_texts", False, {True: False, False: True})}
ABSOLUTE = {"use_abs": Option("absolute", False)}

TEXT_NAMES = {"embed.": "text_encoder.embed.", "rnn.": "text_encoder.rnn."}


def _flat_names(checkpoint: OriginalCheckpoint) -> Names:
    return {"fc.": "image_encoder.fc."}, TEXT_NAMES


def _vse_names(checkpoint: OriginalCheckpoint) -> Names:
    return {"fc.": "image_encoder.projection.fc."}, TEXT_NAMES


def _scan_arguments(checkpoint: OriginalCheckpoint, options: Mapping[str, Any]) -> dict[str, Any]:
    """The released code lets a tenth of negative products through; its GRU may go one way only."""
    text = checkpoint.parts[1]
    both = "rnn.weight_ih_l0_reverse" in text
    return {"relu_slope": 0.1, "bidirectional": both, "gru_layers": count_layers(text)}


def _bfan_arguments(checkpoint: OriginalCheckpoint, options: Mapping[str, Any]) -> dict[str, Any]:
    return {"relu_slope": 0.1, "bidirectional": True, "gru_layers": count_layers(checkpoint.parts[1])}


def _vse_arguments(checkpoint: OriginalCheckpoint, options: Mapping[str, Any]) -> dict[str, Any]:
    return {"gru_layers": count_layers(checkpoint.parts[1])}


def count_layers(text: Mapping[str, Tensor]) -> int:
    """How many layers the GRU of a text encoder has (`num_layers`)."""
    return max(1, sum(name.startswith("rnn.weight_hh_l") and not name.endswith("_reverse") for name in text))


def count_blocks(image: Mapping[str, Tensor]) -> int:
    """How many region relation blocks of VSRN an image encoder has."""
    return sum(name.startswith("Rs_GCN_") and name.endswith(".g.weight") for name in image)


def vsrn_names(blocks: int) -> Names:
    image = {"fc.": "image_encoder.projection.fc.", "img_rnn.": "image_encoder.rnn.", "bn.": "image_encoder.norm."}
    for number in range(blocks):
        theirs, ours = f"Rs_GCN_{number + 1}.", f"image_encoder.relations.{number}."
        image |= {f"{theirs}{layer}.": f"{ours}{layer}." for layer in ("g", "theta", "phi")}
        image |= {f"{theirs}W.0.": f"{ours}project.", f"{theirs}W.1.": f"{ours}norm."}
    return image, TEXT_NAMES


def _vsrn_arguments(checkpoint: OriginalCheckpoint, options: Mapping[str, Any]) -> dict[str, Any]:
    """The released code goes by the name of the data: f30k_precomp has a batch normalisation and no norm of its input.

    Its first version had the norm and no batch normalisation whatever the data, so the tensors decide.
    """
    image, text = checkpoint.parts[:2]
    batchnorm, data = "bn.weight" in image, options.get("data_name")
    if batchnorm and data not in (None, "f30k_precomp"):
        raise ConversionError(
            f"{checkpoint.path} has the batch normalisation of data_name=f30k_precomp, but says data_name={data!r}"
        )
    return {
        "blocks": count_blocks(image),
        "normalise_input": not batchnorm,
        "final_batchnorm": batchnorm,
        "normalise_over": "regions",
        "gru_layers": count_layers(text),
    }


BERT_HEAD = 64  # channels of an attention head in every published BERT
BERT_WORDS = "bert.embeddings.word_embeddings.weight"
BERT_UNUSED = {
    "bert.pooler.*": "BERT's pooler, which nothing reads",
    "bert.embeddings.position_ids": "the numbers of BERT's positions, which are counted anew",
}
NORM_UNUSED = "a batch normalisation that the released code makes and never applies"


def _hrem_names(checkpoint: OriginalCheckpoint) -> Names:
    image = {"fc.": "image_encoder.projection.", "aggr.layers.0.": "image_encoder.aggregation.layer."}
    text = {
        "bert.": "text_encoder.words.model.",
        "linear.": "text_encoder.linear.",
        "aggr.layers.0.": "text_encoder.aggregation.layer.",
    }
    return image, text


def matrix_shapes(checkpoint: OriginalCheckpoint, image: str, text: str, hint: str = "") -> tuple[int, int, int, int]:
    """The shapes of a matrix of the image encoder and of one of the text encoder."""
    shapes: list[int] = []
    for part, where, name in zip(checkpoint.parts, ("first", "second"), (image, text), strict=False):
        if name not in part or part[name].dim() != 2:
            found = ", ".join(sorted(part)[:6]) or "nothing"
            raise ConversionError(
                f"{checkpoint.path}: no matrix {name!r} in the {where} state dict, which holds {found}{hint}"
            )
        shapes += part[name].shape
    return shapes[0], shapes[1], shapes[2], shapes[3]


def _hrem_sizes(checkpoint: OriginalCheckpoint) -> dict[str, Any]:
    hint = "; of HREM the released checkpoints with BERT can be read"
    embed_dim, image_dim, vocabulary_size, _ = matrix_shapes(checkpoint, "fc.fc.weight", BERT_WORDS, hint)
    return {"image_dim": image_dim, "embed_dim": embed_dim, "vocabulary_size": vocabulary_size}


def bert_config(text: Mapping[str, Tensor], heads: int | None = None) -> dict[str, Any]:
    """The configuration of a BERT, read off its tensors (`bert.*`); the number of heads leaves no trace in them.

    The authors' programs have no option for it: `bert_heads` is ours.
    """
    shapes = {
        name.removeprefix("bert."): tuple(tensor.shape) for name, tensor in text.items() if name.startswith("bert.")
    }
    vocab_size, width = shapes["embeddings.word_embeddings.weight"]
    if heads is not None and (not isinstance(heads, int) or heads < 1 or width % heads):
        raise ConversionError(f"bert_heads={heads!r} does not divide the {width} channels of this BERT")
    layers = {name.split(".")[2] for name in shapes if name.startswith("encoder.layer.")}
    return {
        "model_type": "bert",
        "vocab_size": vocab_size,
        "hidden_size": width,
        "num_hidden_layers": len(layers),
        "num_attention_heads": heads or max(1, width // BERT_HEAD),
        "intermediate_size": shapes.get("encoder.layer.0.intermediate.dense.weight", (4 * width,))[0],
        "max_position_embeddings": shapes.get("embeddings.position_embeddings.weight", (512,))[0],
        "type_vocab_size": shapes.get("embeddings.token_type_embeddings.weight", (2,))[0],
    }


def _hrem_arguments(checkpoint: OriginalCheckpoint, options: Mapping[str, Any]) -> dict[str, Any]:
    """The released code: a residual MLP beside the linear map, the two largest values of a channel, padding counted."""
    image, text = checkpoint.parts[:2]
    hidden = image.get("aggr.layers.0.linear1.weight")
    return {
        "text": "hf:bert-base-uncased",
        "text_config": bert_config(text, options.get("bert_heads")),
        "text_pretrained": False,
        "projection": "mlp" if "fc.mlp.layers.0.weight" in image else "linear",
        "top": 2,
        "padding": "counted",
        "hidden": None if hidden is None else len(hidden),
    }


def _has_bert(checkpoint: OriginalCheckpoint) -> bool:
    return any(name.startswith("bert.") for name in checkpoint.parts[1])


def _infinity_names(checkpoint: OriginalCheckpoint) -> Names:
    projection, words, pooling = "image_encoder.projection.", "text_encoder.words.", {"gpool.": "text_encoder.pooling."}
    image = {"fc.": f"{projection}fc.", "mlp.": f"{projection}mlp.", "gpool.": "image_encoder.pooling."}
    if _has_bert(checkpoint):
        return image, {"bert.": f"{words}encoder.model.", "linear.": f"{words}linear.", **pooling}
    return image, {"embed.": f"{words}embed.", "rnn.": f"{words}rnn.", **pooling}


def _infinity_sizes(checkpoint: OriginalCheckpoint) -> dict[str, Any]:
    words = BERT_WORDS if _has_bert(checkpoint) else "embed.weight"
    embed_dim, image_dim, vocabulary_size, width = matrix_shapes(checkpoint, "fc.weight", words)
    sizes = {"image_dim": image_dim, "embed_dim": embed_dim, "vocabulary_size": vocabulary_size}
    return sizes if _has_bert(checkpoint) else sizes | {"word_dim": width}


def _infinity_arguments(checkpoint: OriginalCheckpoint, options: Mapping[str, Any]) -> dict[str, Any]:
    """Generalised pooling on both sides; the released code counts ranks from 0."""
    image, text = checkpoint.parts[:2]
    arguments: dict[str, Any] = {"pooling": "gpo", "text_pooling": "gpo", "first_rank": 0}
    arguments["projection"] = "mlp" if "mlp.layers.0.weight" in image else "linear"
    if not _has_bert(checkpoint):
        return arguments | {"bidirectional": "rnn.weight_ih_l0_reverse" in text, "gru_layers": count_layers(text)}
    config = bert_config(text, options.get("bert_heads"))
    return arguments | {"text": "hf:bert-base-uncased", "text_config": config, "text_pretrained": False}


KINDS: dict[str, Kind] = {
    "vsepp": Kind("vse++", _vse_names, NO_IMAGE_NORM | ABSOLUTE, _vse_arguments),
    "scan": Kind(
        "scan",
        _flat_names,
        {
            "cross_attn": Option("direction", "t2i"),
            "agg_func": Option(
                "aggregation", "LogSumExp", {"LogSumExp": "lse", "Mean": "mean", "Max": "max", "Sum": "sum"}
            ),
            "lambda_lse": Option("lambda_lse", 6.0),
            "lambda_softmax": Option("lambda_softmax", 9.0),
            "raw_feature_norm": Option("norm", "clipped_l2norm", {"no_norm": "none"}),
            **NO_IMAGE_NORM,
            **NO_TEXT_NORM,
        },
        _scan_arguments,
    ),
    "bfan": Kind(
        "bfan",
        _flat_names,
        {
            "focal_type": Option("focal", "equal"),
            "lambda_softmax": Option("lambda_softmax", 20.0),
            **NO_IMAGE_NORM,
            **NO_TEXT_NORM,
        },
        _bfan_arguments,
    ),
    "vsrn": Kind(
        "vsrn",
        lambda checkpoint: vsrn_names(count_blocks(checkpoint.parts[0])),
        {"data_name": Option(None), **NO_IMAGE_NORM, **ABSOLUTE},
        _vsrn_arguments,
    ),
    "hrem": Kind(
        "hrem",
        _hrem_names,
        {
            "residual_weight": Option("beta", 0.8),
            "nhead": Option("heads", 16),
            "dropout": Option("dropout", 0.1),
            "bert_heads": Option(None),
            **NO_IMAGE_NORM,
            **NO_TEXT_NORM,
        },
        _hrem_arguments,
        _hrem_sizes,
        {"fc.mlp.bns.1.*": NORM_UNUSED, **BERT_UNUSED},
        "the relation graph, which only training needs",
    ),
    "vse-infinity": Kind(
        "vse++",
        _infinity_names,
        {"bert_heads": Option(None), **NO_IMAGE_NORM, **NO_TEXT_NORM},
        _infinity_arguments,
        _infinity_sizes,
        {"mlp.bns.1.*": NORM_UNUSED, **BERT_UNUSED},
        added_words=("<mask>",),
    ),
}


def kinds() -> list[str]:
    """The kinds that can be read."""
    return sorted([*KINDS, "aoq"])


def resolve(kind: str, checkpoint: OriginalCheckpoint) -> str:
    """The entry of KINDS to use: AOQ trains VSRN or BFAN, and its checkpoints are distinguished by their tensors."""
    if kind == "aoq":
        return "vsrn" if count_blocks(checkpoint.parts[0]) else "bfan"
    if kind not in KINDS:
        raise ConversionError(f"there is no kind of checkpoint {kind!r}; {suggest(kind, kinds())}")
    return kind
