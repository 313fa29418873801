"""From an original checkpoint to a matcher's name, its arguments, and weights under our names."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quintet.data.vocabulary import WordVocabulary
from quintet.data.wordpiece import WordPiece
from quintet.errors import QuintetError, RecipeError, suggest
from quintet.files import read_bytes, user_path
from quintet.models import MODELS
from quintet.models.size_limit import ELEMENT, build_within
from quintet.runs.convert.kinds import KINDS, Kind, Names, count_blocks, matrix_shapes, resolve
from quintet.runs.convert.original import ConversionError, OriginalCheckpoint, is_plain

LARGEST_VOCABULARY = 2**28  # bytes; the published ones have at most 2 million


class _Holder:
    """Stands in for the pickled `Vocabulary`: keeps its attributes, has no code."""

    def __new__(cls, *_: object) -> _Holder:
        return object.__new__(cls)

    def __init__(self, *_: object) -> None:
        pass


class _Refused(pickle.UnpicklingError):
    pass


class _HolderUnpickler(pickle._Unpickler):  # the C one fills a table of any size
    """Makes nothing but plain values and holders, whatever the file asks for."""

    def find_class(self, module: str, name: str) -> Any:
        if name == "Vocabulary":
            return _Holder
        # How the oldest protocols make an object, under the names of Python 2 and 3.
        if module in ("copyreg", "copy_reg") and name == "_reconstructor":
            return lambda cls, *_: _Holder() if cls is _Holder else _refuse("an object that is no vocabulary")
        if module in ("builtins", "__builtin__") and name == "object":
            return object
        return _refuse(f"{module}.{name}")

    def persistent_load(self, pid: object) -> Any:
        return _refuse("a persistent id")


def _refuse(what: str) -> Any:
    raise _Refused(what)


def read_vocabulary(path: Path | str) -> WordVocabulary | WordPiece:
    """An original vocabulary, or BERT's `vocab.txt`. Nothing in the file is executed."""
    path = user_path(path)
    data = read_bytes(path, LARGEST_VOCABULARY)
    try:
        if path.suffix == ".txt":
            return WordPiece.load(path)
        if data.lstrip()[:1] == b"{":
            return WordVocabulary.load_scan_json(path)
        return WordVocabulary(_in_order(path, _unpickle(path, data)))
    except QuintetError:
        raise
    except Exception as error:  # noqa: BLE001  # whatever a reader raises, the file is not one that it can read
        raise ConversionError(f"{path} cannot be read as a vocabulary: {type(error).__name__}: {error}") from None


def _unpickle(path: Path, data: bytes) -> object:
    try:
        content = _HolderUnpickler(io.BytesIO(data), encoding="latin1").load()
    except _Refused as error:
        raise ConversionError(
            f"{path} holds {error}, which a vocabulary has no need of; it was refused, and nothing was executed"
        ) from None
    except Exception as error:  # noqa: BLE001  # whatever pickle raises, the file is no pickle of a vocabulary
        raise ConversionError(f"{path} is neither SCAN's JSON nor a pickled vocabulary: {error}") from None
    return getattr(content, "word2idx", None)


def _in_order(path: Path, word2idx: object) -> list[str]:
    if not isinstance(word2idx, Mapping):
        raise ConversionError(f"{path} has no table 'word2idx' from words to ids")
    if not all(isinstance(word, str) and isinstance(number, int) for word, number in word2idx.items()):
        raise ConversionError(f"{path}: 'word2idx' must lead from words to whole numbers")
    words = sorted(word2idx, key=lambda word: word2idx[word])
    if [word2idx[word] for word in words] != list(range(len(words))):
        raise ConversionError(f"{path}: the ids are not 0 to {len(words) - 1}, each once")
    return words


# Options of the authors' programs that change what a matcher computes, with the values that are supported, and why no
# others. A kind that reads one of them (`Kind.options`) takes all values.
FIXED: dict[str, tuple[tuple[Any, ...], str]] = {
    "no_imgnorm": ((False,), "its program normalises images"),
    "no_txtnorm": ((False,), "its program normalises texts"),
    "use_abs": ((False,), "its program takes no absolute values"),
    "measure": (("cosine",), "matchers here score with a product of vectors, not with order embeddings"),
    "precomp_enc_type": (("basic", "weight_norm"), "matchers here read region features, without an image network"),
}


WEIGHT_NORM = (
    ("weight_v", "weight_g"),
    ("parametrizations.weight.original1", "parametrizations.weight.original0"),  # torch's newer names
)

# A matcher may be as large as the tensors that are there, twice (a layer is made and copied), and a little more.
MOST_TIMES, SPARE = 2, 2**24


@dataclass(frozen=True)
class Translation:
    model: str
    arguments: dict[str, Any]
    state: dict[str, Tensor]
    assumed: dict[str, Any]  # options that the checkpoint does not tell, and the values taken for them
    dropped: list[str]  # what the checkpoint holds and a matcher does not need


def translate(kind: str, checkpoint: OriginalCheckpoint, overrides: Mapping[str, Any] | None = None) -> Translation:
    """`overrides` replace options of the checkpoint, by the authors' names for them."""
    name = resolve(kind, checkpoint)
    entry = KINDS[name]
    for key in overrides or {}:
        if key not in entry.options:
            raise ConversionError(f"kind {kind!r} has no option {key!r}; {suggest(key, entry.options)}")
    options = checkpoint.options | dict(overrides or {})
    _check_options(checkpoint, name, options)
    checkpoint = _without_weight_norm(checkpoint)
    chosen, assumed = _choices(entry, options)
    try:
        arguments = (entry.sizes or _sizes)(checkpoint) | chosen | entry.arguments(checkpoint, options)
    except (LookupError, TypeError, ValueError) as error:
        raise ConversionError(f"{checkpoint.path} is no {name} checkpoint: its tensors have other shapes") from error
    assumed |= _told_by_tensors(arguments, options)
    there = sum(tensor.numel() * ELEMENT for part in checkpoint.parts for tensor in part.values())
    try:
        matcher = build_within(MODELS, entry.model, arguments, limit=MOST_TIMES * there + SPARE)
    except RecipeError as error:
        raise ConversionError(f"{checkpoint.path} has options that cannot be used: {error}") from None
    checkpoint, dropped = _without_unused(checkpoint, entry)
    state = rename_tensors(checkpoint, name, entry.names(checkpoint), matcher.state_dict())
    dropped += [entry.third] if len(checkpoint.parts) > 2 else []
    return Translation(entry.model, arguments, state, assumed, dropped)


def _without_unused(checkpoint: OriginalCheckpoint, entry: Kind) -> tuple[OriginalCheckpoint, list[str]]:
    unused = {
        name for part in checkpoint.parts for name in part for pattern in entry.unused if fnmatchcase(name, pattern)
    }
    parts = [{name: tensor for name, tensor in part.items() if name not in unused} for part in checkpoint.parts]
    dropped = [what for pattern, what in entry.unused.items() if any(fnmatchcase(name, pattern) for name in unused)]
    return replace(checkpoint, parts=parts), dropped


def _without_weight_norm(checkpoint: OriginalCheckpoint) -> OriginalCheckpoint:
    """Linear maps that are kept as a direction v and a length g (`precomp_enc_type=weight_norm`) as g v / |v|."""
    parts = []
    for part in checkpoint.parts:
        part = dict(part)
        for direction, length in WEIGHT_NORM:
            for name in [name for name in part if name.endswith(f".{direction}")]:
                start = name.removesuffix(direction)
                g, size = part.get(start + length), part[name].float().norm()
                if g is not None and g.numel() == 1 and size > 0:
                    part[f"{start}weight"] = part.pop(name).float() * (g.float() / size)
                    del part[start + length]
        parts.append(part)
    return replace(checkpoint, parts=parts)


def _choices(entry: Kind, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments from options, and those options nobody has given."""
    arguments, assumed = {}, {}
    for key, option in entry.options.items():
        value = options.get(key, option.default)
        if key not in options and option.default is not None:
            assumed[key] = value
        if option.argument is not None:
            arguments[option.argument] = option.words.get(value, value)
    return arguments, assumed


def _told_by_tensors(arguments: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Options that were not given, and what the tensors make likely."""
    found = {}
    if "text_config" in arguments and "bert_heads" not in options:
        found["bert_heads"] = arguments["text_config"]["num_attention_heads"]
    if "normalise_input" in arguments and "data_name" not in options:
        found["data_name"] = "coco_precomp" if arguments["normalise_input"] else "f30k_precomp"
    return found


def _check_options(checkpoint: OriginalCheckpoint, name: str, options: Mapping[str, Any]) -> None:
    for key in {*KINDS[name].options, *FIXED} & options.keys():
        if not is_plain(options[key]):
            raise ConversionError(
                f"{checkpoint.path}: option {key} is a {type(options[key]).__name__}, no text or number of usual size"
            )
    # SCAN and BFAN have the same tensors; only the options tell them apart.
    declared = "bfan" if "focal_type" in options else "scan" if "cross_attn" in options else None
    if declared not in (None, name):
        raise ConversionError(f"{checkpoint.path} is no {name} checkpoint: by its options it is one of {declared!r}")
    for key, (values, why) in FIXED.items():
        if key not in KINDS[name].options and options.get(key, values[0]) not in values:
            raise ConversionError(
                f"{checkpoint.path} was trained with {key}={options[key]!r}, which cannot be converted as {name}: {why}"
            )


def _sizes(checkpoint: OriginalCheckpoint) -> dict[str, Any]:
    embed_dim, image_dim, vocabulary_size, word_dim = matrix_shapes(checkpoint, "fc.weight", "embed.weight")
    return {"image_dim": image_dim, "embed_dim": embed_dim, "vocabulary_size": vocabulary_size, "word_dim": word_dim}


def rename_tensors(
    checkpoint: OriginalCheckpoint, kind: str, names: Names, wanted: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The weights under our names; every tensor of the checkpoint is used, every parameter of the matcher filled."""
    state: dict[str, Tensor] = {}
    unexpected, misshapen = [], []
    for part, prefixes in zip(checkpoint.parts[:2], names, strict=True):
        for name, tensor in part.items():
            ours, shaped = _rename(name, prefixes), _shape(tensor)
            if ours not in wanted:
                unexpected.append(name)
                continue
            if shaped.shape != wanted[ours].shape:
                misshapen.append(f"{name} {tuple(shaped.shape)} instead of {tuple(wanted[ours].shape)}")
            state[ours] = shaped
    for name, tensor in wanted.items():
        if name.endswith("num_batches_tracked"):
            state.setdefault(name, torch.zeros_like(tensor))  # torch before 0.4.1 kept no such count
    back = {ours: theirs for prefixes in names for theirs, ours in prefixes.items()}
    missing = [_rename(name, back) for name in wanted if name not in state]
    problems = {"missing": missing, "of another shape": misshapen, "unexpected": unexpected}
    if any(problems.values()):
        listed = "; ".join(f"{what}: {_listed(which)}" for what, which in problems.items() if which)
        raise ConversionError(f"{checkpoint.path} is no {kind} checkpoint{_hint(checkpoint, kind)}. Tensors {listed}")
    return state


def _listed(names: list[str], most: int = 20) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _rename(name: str, prefixes: Mapping[str, str]) -> str:
    for theirs, ours in prefixes.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return name


def _shape(tensor: Tensor) -> Tensor:
    """Convolutions of width 1 are matrices here; floats are float32."""
    tensor = tensor[..., 0] if tensor.dim() == 3 and tensor.shape[2] == 1 else tensor
    return (tensor.float() if tensor.is_floating_point() else tensor).contiguous()


def _hint(checkpoint: OriginalCheckpoint, kind: str) -> str:
    image, text = checkpoint.parts[:2]
    if any(name.startswith("cnn.") for name in image):
        return ": it holds an image network, and only matchers on precomputed features can be converted"
    both = "rnn.weight_ih_l0_reverse" in text
    likely = (
        ["hrem"]
        if "fc.fc.weight" in image
        else ["vse-infinity"]
        if "gpool.linear.weight" in image
        else ["vsrn"]
        if count_blocks(image)
        else ["scan", "bfan"]
        if both
        else ["vsepp"]
    )
    return "" if kind in likely else f": by its tensors it may be of kind {' or '.join(likely)}"
