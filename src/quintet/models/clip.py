"""CLIP and its kin: any dual encoder of `transformers` as a matcher; the score is the cosine of its two embeddings.

Radford et al.: Learning Transferable Visual Models From Natural Language Supervision, ICML 2021 (CLIP).
Zhai, Mustafa, Kolesnikov, Beyer: Sigmoid Loss for Language Image Pre-Training, ICCV 2023 (SigLIP).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.backbones.huggingface import preprocess_from_config, quiet_loading
from quintet.backbones.preprocess import PatchPreprocess, Preprocess
from quintet.codes import Codes
from quintet.data.batches import ImageBatch, TextBatch
from quintet.data.pretrained import PretrainedFiles, dual_encoder_files
from quintet.data.pretrained_tokenizer import PretrainedTokenizer
from quintet.errors import QuintetError, RecipeError, first_line
from quintet.layers.normalize import l2norm, widen
from quintet.scores import dot_score_pairs, dot_scores

CAUSAL = ("clip", "metaclip_2")  # no token sees those after it, so padding needs no mask
FULL_LENGTH = ("siglip", "siglip2")  # the text is read at the last position, padded or not
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True)
class TextInput:
    """How a model wants its token ids."""

    pad: int = 0
    length: int | None = None  # every text is padded to so many tokens; None: to the longest of its batch
    side: Literal["left", "right"] = "right"  # of the padding, where there is a length
    mask: bool = True  # whether the model is told which tokens are padding

    def __call__(self, texts: TextBatch) -> tuple[Tensor, Tensor | None]:
        """(n, L) ids, and (n, L) which are real, or None."""
        tokens, real = texts.tokens, texts.real()
        if self.length is not None:
            more = (0, self.length - tokens.shape[1])
            tokens, real = F.pad(tokens, more), F.pad(real, more)
        tokens = tokens.masked_fill(~real, self.pad)
        if self.length is not None and self.side == "left":
            places = torch.arange(tokens.shape[1], device=tokens.device) + texts.lengths[:, None]  # (n, L)
            places = places % tokens.shape[1]
            tokens, real = tokens.gather(1, places), real.gather(1, places)
        return tokens, real.long() if self.mask else None


class DualEncoder(nn.Module):
    """An embedding matcher: `score` gives cosines, `logits` the `logits_per_image` of transformers."""

    image_input: Literal["fragments", "pixels"] = "pixels"

    def __init__(self, model: Any, preprocess: Preprocess, text: TextInput, keep_fragments: bool = False) -> None:
        super().__init__()
        self.model: Any = model
        self.keep_fragments = keep_fragments  # in training
        self.preprocess = preprocess
        self.text = text
        self.embed_dim = _embed_dim(model.config)
        self.max_length = _positions(model.config)  # of a text, in tokens

    @property
    def logit_scale(self) -> Tensor:
        """What cosines are multiplied with; positive, and trained as the model's own parameter."""
        return self.model.logit_scale.exp()

    @property
    def logit_bias(self) -> Tensor | float:
        """What is added to scaled cosines: SigLIP's parameter, else 0."""
        return getattr(self.model, "logit_bias", 0.0)

    def encode_images(self, images: ImageBatch) -> Codes:
        if not (self.keep_fragments and self.training):
            return _codes(self.model.get_image_features(**self._image_input(images)))
        patches, real, codes = self.patches(images)
        if self.model.config.model_type not in FULL_LENGTH:  # SigLIP's patches are of the embedding's size
            patches = self.model.visual_projection(self.model.vision_model.post_layernorm(patches))  # (n, L, d)
        return replace(codes, fragments=patches, mask=real)

    def patches(self, images: ImageBatch) -> tuple[Tensor, Tensor | None, Codes]:
        """The last layer's patches (n, L, width), which of them are real (None: all), and the Codes of the images."""
        given = self._image_input(images)
        output = self.model.get_image_features(**given)
        tokens = self._tokens(output, self.model.vision_model, given)
        real = given.get("pixel_attention_mask")
        if self.model.config.model_type not in FULL_LENGTH:
            tokens = tokens[:, 1:]  # the first is of the whole image
        return tokens, None if real is None else real.bool(), _codes(output)

    def words(self, texts: TextBatch) -> tuple[Tensor, Codes]:
        """The last layer's tokens (n, L, width), undefined at padding, and the Codes of the texts."""
        given = self._text_input(texts)
        output = self.model.get_text_features(**given)
        tokens = self._tokens(output, self.model.text_model, given)
        if self.text.length is not None and self.text.side == "left":
            places = torch.arange(texts.tokens.shape[1], device=tokens.device) + self.text.length
            places = (places - texts.lengths[:, None]).clamp(max=self.text.length - 1)  # (n, L)
            return tokens.gather(1, places[..., None].expand(-1, -1, tokens.shape[2])), _codes(output)
        return tokens[:, : texts.tokens.shape[1]], _codes(output)

    @staticmethod
    def _tokens(output: Any, half: Any, given: dict[str, Tensor]) -> Tensor:
        """Older versions of transformers give the vector of the item alone, so the half is computed again."""
        tokens: Tensor = (half(**given) if isinstance(output, Tensor) else output).last_hidden_state
        return tokens

    @property
    def widths(self) -> tuple[int, int]:
        """The channels of patches and of words."""
        config = self.model.config
        words = config.text_config.project_dim if config.model_type == "altclip" else config.text_config.hidden_size
        return int(config.vision_config.hidden_size), int(words)

    def _image_input(self, images: ImageBatch) -> dict[str, Tensor]:
        pixels = images.pixels
        if pixels is None:
            raise ValueError("this matcher has an image tower and takes pixels, not features")
        if not isinstance(self.preprocess, PatchPreprocess):
            return {"pixel_values": pixels}
        if pixels.shape[1] != 1:
            raise RecipeError("this matcher takes patches of whole images; leave data.augment.crop and flip out")
        grid, patches = pixels[:, 0, 0, :2].long(), pixels[:, 0, 1:]  # (n, 2) rows and columns, (n, L, d)
        real = torch.arange(patches.shape[1], device=pixels.device) < grid.prod(dim=1)[:, None]  # (n, L)
        return {"pixel_values": patches, "pixel_attention_mask": real.long(), "spatial_shapes": grid}

    def encode_texts(self, texts: TextBatch) -> Codes:
        if not (self.keep_fragments and self.training):
            return _codes(self.model.get_text_features(**self._text_input(texts)))
        words, codes = self.words(texts)
        siglip = self.model.config.model_type in FULL_LENGTH
        project = self.model.text_model.head if siglip else self.model.text_projection
        return replace(codes, fragments=project(words), mask=texts.real())  # (n, L, d)

    def _text_input(self, texts: TextBatch) -> dict[str, Tensor]:
        if texts.tokens.shape[1] > self.max_length:
            raise RecipeError(
                f"a text has {texts.tokens.shape[1]} tokens, the model takes {self.max_length}; cut texts with "
                "data.tokenizer.max_length"
            )
        tokens, mask = self.text(texts)
        return {"input_ids": tokens, **({} if mask is None else {"attention_mask": mask})}

    def score(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        return dot_scores(image_codes, text_codes)

    def score_pairs(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        return dot_score_pairs(image_codes, text_codes)

    def logits(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        """(n_images, n_texts): scores times `logit_scale`, plus `logit_bias`."""
        return self.score(image_codes, text_codes) * self.logit_scale + self.logit_bias


def _codes(output: Any) -> Codes:
    """Newer versions of transformers give the vectors of the tokens beside the one of the item."""
    vectors = output if isinstance(output, Tensor) else output.pooler_output
    return Codes(embedding=l2norm(widen(vectors), eps=0))


def _embed_dim(config: Any) -> int:
    if config.model_type in FULL_LENGTH:
        return int(config.text_config.projection_size)
    return int(config.projection_dim)


def _positions(config: Any) -> int:
    positions = int(config.text_config.max_position_embeddings)
    # RoBERTa counts from there.
    return positions - config.text_config.pad_token_id - 1 if config.model_type == "altclip" else positions


def build_clip(
    *,
    source: str | None = None,
    config: dict[str, Any] | None = None,
    preprocess: dict[str, Any] | None = None,
    text: dict[str, Any] | None = None,
    pretrained: bool = True,
    vocabulary_size: int | None = None,
    end_token: int | None = None,
    keep_fragments: bool = False,
) -> DualEncoder:
    """A dual encoder of transformers: CLIP, SigLIP, SigLIP 2, AltCLIP, Chinese-CLIP, or MetaCLIP.

    - `source`: "hf:FOLDER" or "hf:HUB_NAME"; its configuration, preprocessing and weights are used.
    - `config`: a configuration of transformers instead, with its `model_type`, for a model that starts from nothing.
      What its `text_config` leaves out about the vocabulary is that of the tokenizer: `vocabulary_size`, `end_token`.
    - `preprocess`, `text`: how it wants images and token ids; by default as its processor says.
    - `pretrained=False` makes the model of `source` without reading its weights.
    - `keep_fragments` keeps patches and words, projected as their whole is, in the Codes of training, for the loss
      `relation`.

    A run keeps `config`, `preprocess` and `text`, so that it opens without `source`.
    """
    if source is None and config is None:
        raise RecipeError("matcher 'clip' needs a source ('hf:FOLDER' or 'hf:HUB_NAME') or a config")
    files = None
    if source is not None and (pretrained or config is None or preprocess is None or text is None):
        files = dual_encoder_files(source)
    if files is not None:
        facts = dual_encoder_facts(files)
        config, preprocess, text = config or facts["config"], preprocess or facts["preprocess"], text or facts["text"]
    assert config is not None
    if source is None and vocabulary_size is not None:
        config = _with_vocabulary(config, vocabulary_size, end_token)
    model = _load(files) if files is not None and pretrained else _from_config(config)
    size = int(model.config.text_config.vocab_size)
    if vocabulary_size is not None and vocabulary_size > size:
        raise RecipeError(
            f"the tokenizer has {vocabulary_size} ids, but the text encoder knows {size}; use the model's own: "
            "data.tokenizer={kind: pretrained}"
        )
    view = Preprocess.from_state(preprocess) if preprocess is not None else _default_view(model.config)
    _check_image_size(view, model.config, source or "the configuration")
    return DualEncoder(model, view, _text_input(text, model.config), keep_fragments)


def _with_vocabulary(config: dict[str, Any], size: int, end: int | None) -> dict[str, Any]:
    tokens = {
        "vocab_size": size,
        "pad_token_id": 0,
        "bos_token_id": None,
        **({} if end is None else {"eos_token_id": end}),
    }
    if config.get("model_type") == "clip" and end == 2:  # which transformers takes for a mistake in old files
        raise RecipeError("CLIP cannot read a text at token 2; choose data.tokenizer={kind: wordpiece}")
    return config | {"text_config": tokens | config.get("text_config", {})}


def _text_input(text: dict[str, Any] | None, config: Any) -> TextInput:
    if text is None:
        length = config.text_config.max_position_embeddings if config.model_type in FULL_LENGTH else None
        return TextInput(length=length, mask=config.model_type not in CAUSAL)
    known = {field.name for field in fields(TextInput)}
    if unknown := set(text) - known:
        raise RecipeError(f"matcher 'clip': text takes {', '.join(sorted(known))}, not {', '.join(sorted(unknown))}")
    return TextInput(**text)


def _default_view(config: Any) -> Preprocess:
    if config.model_type == "siglip2":
        return PatchPreprocess.of(config.vision_config.patch_size, config.vision_config.num_patches)
    side = int(config.vision_config.image_size)
    return Preprocess((side, side), crop="squeeze", mean=CLIP_MEAN, std=CLIP_STD, resample="bicubic")


def dual_encoder_facts(files: PretrainedFiles, tokenizer: PretrainedTokenizer | None = None) -> dict[str, Any]:
    """The arguments of `build_clip` that make the model of these files again without them."""
    tokenizer = tokenizer or load_text_side(files)
    text = TextInput(
        pad=tokenizer.pad,
        length=tokenizer.max_length if files.kind in FULL_LENGTH else None,
        side="left" if tokenizer.padding_side == "left" else "right",
        mask=tokenizer.mask and files.kind not in CAUSAL,
    )
    config = _config(files).to_dict()
    config.pop("_name_or_path", None)  # of this machine
    return {"config": config, "preprocess": _read_preprocess(files).state(), "text": asdict(text)}


def load_text_side(files: PretrainedFiles, max_length: int | None = None) -> PretrainedTokenizer:
    """The tokenizer of a dual encoder, which cuts texts where the model's positions end."""
    config = _config(files)
    positions = _positions(config)
    tokenizer = PretrainedTokenizer.load(files.folder, min(max_length or positions, positions))
    size = config.text_config.vocab_size
    if len(tokenizer) > size:
        raise QuintetError(
            f"{files.folder}: the tokenizer has {len(tokenizer)} ids, but the model knows {size}; "
            "these files are of different models"
        )
    return tokenizer


def _config(files: PretrainedFiles) -> Any:
    try:
        from transformers import AutoConfig
    except ImportError as error:
        raise QuintetError(
            f"{files.folder} needs the `hf` extra: `pip install 'quintet-retrieval[hf]'` ({error})"
        ) from None
    try:
        return AutoConfig.from_pretrained(str(files.folder), trust_remote_code=False)
    except Exception as error:  # noqa: BLE001  # whatever a class of transformers raises for wrong values
        raise QuintetError(f"{files.folder / 'config.json'} is not understood: {first_line(error)}") from None


def _load(files: PretrainedFiles) -> Any:
    from transformers import AutoModel

    config = _config(files)
    try:
        with quiet_loading():
            # Code from a model's own repository is never run; a .bin file may hold tensors and nothing else.
            model, found = AutoModel.from_pretrained(
                str(files.folder),
                config=config,
                trust_remote_code=False,
                weights_only=True,
                use_safetensors=files.weights[0].suffix == ".safetensors",
                output_loading_info=True,
            )
    except Exception as error:  # noqa: BLE001  # of a file that ends early, of other sizes, of a pickled object
        raise QuintetError(
            f"the weights in {files.folder} cannot be read ({first_line(error)}); they are damaged, of another "
            "model, or hold more than tensors: download them again"
        ) from None
    if missing := sorted(found["missing_keys"]):
        raise QuintetError(
            f"the weights in {files.folder} lack {len(missing)} of the model's tensors, first {missing[0]}; "
            "they are of another model, or were not saved completely"
        )
    return model.float()


def _from_config(config: dict[str, Any]) -> Any:
    try:
        from transformers import AutoConfig, AutoModel
    except ImportError as error:
        raise QuintetError(
            f"matcher 'clip' needs the `hf` extra: `pip install 'quintet-retrieval[hf]'` ({error})"
        ) from None
    settings = dict(config)
    kind = settings.pop("model_type", None)
    try:
        return AutoModel.from_config(AutoConfig.for_model(kind, **settings), trust_remote_code=False).float()
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise RecipeError(f"matcher 'clip': its config is not understood: {first_line(error)}") from None


def _read_preprocess(files: PretrainedFiles) -> Preprocess:
    from transformers import AutoImageProcessor

    where = files.folder
    try:
        processor = AutoImageProcessor.from_pretrained(str(where), trust_remote_code=False)
        return preprocess_from_config(processor.to_dict(), exact=True)
    except Exception as error:  # noqa: BLE001  # whatever a class of transformers raises for wrong values
        raise QuintetError(f"{where}: its image processor is not understood: {first_line(error)}") from None


def _check_image_size(view: Preprocess, config: Any, where: str) -> None:
    settings = config.vision_config
    if isinstance(view, PatchPreprocess):
        if view.patch != settings.patch_size:
            raise QuintetError(
                f"{where}: its processor makes patches of {view.patch} pixels, its model takes {settings.patch_size}; "
                "these files are of different models"
            )
        return
    side = settings.image_size
    wanted = (side, side) if isinstance(side, int) else tuple(side)
    if view.size != wanted:
        raise QuintetError(
            f"{where}: its processor makes images of {view.size[0]} x {view.size[1]} pixels, its model takes "
            f"{wanted[0]} x {wanted[1]}; these files are of different models"
        )
