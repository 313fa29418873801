"""Any vision model of Hugging Face transformers as a tower: `hf:FOLDER` or `hf:HUB_NAME`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from quintet.backbones.preprocess import RESAMPLE, PatchPreprocess, Preprocess
from quintet.backbones.tower import ImageTower, fold_tokens
from quintet.data.hub import hub_source
from quintet.errors import QuintetError, first_line

MAX_PREFIX_TOKENS = 16  # class and register tokens
NAME_OF_RESAMPLE = {number: name for name, number in RESAMPLE.items()}


class HuggingFaceTower(ImageTower):
    """The last feature map (ResNet, ConvNeXt), or the patch tokens in their grid (ViT, DINOv2, CLIP, Swin)."""

    def __init__(self, name: str, pretrained: bool = True) -> None:
        super().__init__()
        self.name = name
        self.model = _load_model(name, pretrained)
        self.preprocess = _load_preprocess(name)
        self.patch = _patch_size(self.model.config)
        height, width = self.preprocess.size
        with torch.no_grad():  # a blank image tells the dimension, and whether the output is a grid at all
            self.dim = self.eval()(torch.zeros(1, 3, height, width)).shape[1]

    def forward(self, pixels: Tensor) -> Tensor:
        output = self.model(pixel_values=pixels).last_hidden_state
        if output.dim() == 4:
            return output  # (n, dim, h, w)
        height, width = pixels.shape[2:]
        grid = None
        if output.dim() == 3 and self.patch is not None:
            grid = token_grid(output.shape[1], (height, width), self.patch)
        if grid is None:
            raise QuintetError(
                f"hf:{self.name}: an output of shape {tuple(output.shape)} for {height} x {width} pixels is neither a "
                "feature map nor a grid of patch tokens; this model cannot serve as an image tower"
            )
        return fold_tokens(output, *grid)  # (n, prefix + h w, dim) -> (n, dim, h, w)


def token_grid(tokens: int, size: tuple[int, int], patch: int) -> tuple[int, int] | None:
    """Rows and columns of `tokens` patch tokens of an image of `size`; None where they make no grid.

    A hierarchical network (Swin) has merged its patches two by two several times, so larger strides are tried too.

    >>> token_grid(1 + 4 + 256, (224, 224), 14), token_grid(49, (224, 224), 4), token_grid(1000, (224, 224), 16)
    ((16, 16), (7, 7), None)
    """
    for merged in (1, 2, 4, 8, 16):
        height, width = (side // (patch * merged) for side in size)
        prefix = tokens - height * width
        if height and width and 0 <= prefix <= (MAX_PREFIX_TOKENS if merged == 1 else 0):
            return height, width
    return None


def _load_model(name: str, pretrained: bool) -> nn.Module:
    try:
        from transformers import AutoConfig, AutoModel
    except ImportError as error:
        raise QuintetError(
            f"the image tower hf:{name} needs the `hf` extra: `pip install 'quintet-retrieval[hf]'` ({error})"
        ) from None
    source = hub_source(name)
    try:
        # Code from a model's own repository is never run: trust_remote_code stays off.
        model = (
            AutoModel.from_pretrained(source)
            if pretrained
            else AutoModel.from_config(AutoConfig.from_pretrained(source))
        )
    except (OSError, ValueError) as error:
        raise QuintetError(
            f"hf:{name} is neither a folder with a model nor one the hub gives ({first_line(error)})"
        ) from None
    model = getattr(model, "vision_model", model)  # of CLIP and SigLIP the image's half
    if getattr(model, "main_input_name", "pixel_values") != "pixel_values":
        raise QuintetError(f"hf:{name} is not a vision model: it takes {model.main_input_name}, not pixels")
    return model.float()


@contextmanager
def quiet_loading() -> Iterator[None]:
    """No bar of transformers for weights that are read from the disk, which takes a second; downloads keep theirs."""
    from transformers.utils import logging

    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


def _load_preprocess(name: str) -> Preprocess:
    from transformers.image_processing_base import ImageProcessingMixin

    source = hub_source(name)
    try:
        config, _ = ImageProcessingMixin.get_image_processor_dict(source)
    except OSError as error:
        raise QuintetError(
            f"hf:{name} has no preprocessor_config.json, so how it wants its images is unknown ({first_line(error)})"
        ) from None
    try:
        return preprocess_from_config(config)
    except (KeyError, TypeError, ValueError) as error:
        raise QuintetError(f"hf:{name}: its preprocessor_config.json is not understood: {error!r}") from None


def preprocess_from_config(config: dict[str, Any], exact: bool = False) -> Preprocess:
    """The `Preprocess` that an image processor's JSON describes. `exact`: with its way of rounding sizes to pixels."""
    mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    if config.get("do_normalize", True):
        mean, std = tuple(config["image_mean"]), tuple(config["image_std"])
    scale = config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1.0
    if exact and "max_num_patches" in config:
        resample = NAME_OF_RESAMPLE[config["resample"]]
        numbers = {"mean": mean, "std": std, "scale": scale, "resample": resample}
        return PatchPreprocess.of(config["patch_size"], config["max_num_patches"], **numbers)
    size, short_side = _view(config)
    return Preprocess(
        size,
        crop="squeeze" if short_side is None else "resize" if exact else "center",
        short_side=short_side,
        mean=mean,
        std=std,
        scale=scale,
        resample=NAME_OF_RESAMPLE[config.get("resample", RESAMPLE["bilinear"])],
    )


def _view(config: dict[str, Any]) -> tuple[tuple[int, int], int | None]:
    """(height, width) of the input and the short side before the central crop; None where the image is squeezed."""
    size = config["size"]
    crops = config.get("do_center_crop", False)
    crop = config.get("crop_size")
    if isinstance(size, int):  # an older way to write it: the short side where a crop follows, else the square
        size = {"shortest_edge": size} if crops or "crop_pct" in config else {"height": size, "width": size}
    if "shortest_edge" not in size:
        height, width = size["height"], size["width"]
        if not crops or crop is None or _pair(crop) == (height, width):
            return (height, width), None
        return _pair(crop), min(height, width)
    edge = int(size["shortest_edge"])
    if config.get("crop_pct"):  # ConvNeXt's convention: a margin for small inputs, none and no crop from 384 on
        return (edge, edge), None if edge >= 384 else int(edge / config["crop_pct"])
    return (_pair(crop) if crops and crop is not None else (edge, edge)), edge


def _pair(size: int | dict[str, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size["height"], size["width"])


def _patch_size(config: Any) -> int | None:
    config = getattr(config, "vision_config", config)
    patch = getattr(config, "patch_size", None)
    return patch[0] if isinstance(patch, (list, tuple)) else patch
