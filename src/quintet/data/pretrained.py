"""Models that `transformers` wrote, from a folder or from the hub: finding them, and checking their files.

Nothing here imports torch or transformers, so that a mistake is answered at once.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quintet.data.hub import download
from quintet.errors import QuintetError, suggest
from quintet.files import check_shape, file_checksum, read_json, user_path

PREFIX = "hf:"
CONFIG = "config.json"
SAFETENSORS, BIN = "model.safetensors", "pytorch_model.bin"
TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
PROCESSORS = ("preprocessor_config.json", "processor_config.json")

# What transformers calls the dual encoders that the matcher `clip` opens.
DUAL_ENCODERS = ("clip", "siglip", "siglip2", "altclip", "chinese_clip", "metaclip_2")
NOT_OPENED = {  # of those that look like one, why not
    "xclip": "X-CLIP reads videos, and texts depend on them",
    "clvp": "it matches speech, not images",
    "clap": "it matches sounds, not images",
    "blip": "its scores come from attention between image and text",
    "blip-2": "its scores come from attention between image and text",
    "flava": "it has no scores of images and texts alone",
}


@dataclass(frozen=True)
class Alias:
    """A public model under a short name."""

    name: str  # on the hub
    size: str  # of its weights
    licence: str


ALIASES = {
    "clip-b32": Alias("openai/clip-vit-base-patch32", "605 MB", "MIT"),
    "clip-l14": Alias("openai/clip-vit-large-patch14", "1.7 GB", "MIT"),
    "laion-b32": Alias("laion/CLIP-ViT-B-32-laion2B-s34B-b79K", "605 MB", "MIT"),
    "siglip-b16": Alias("google/siglip-base-patch16-224", "813 MB", "Apache-2.0"),
    "siglip2-b16": Alias("google/siglip2-base-patch16-224", "1.5 GB", "Apache-2.0"),
    "metaclip-b32": Alias("facebook/metaclip-b32-400m", "605 MB", "CC-BY-NC-4.0"),
}


def is_pretrained(name: Path | str) -> bool:
    """Whether a name means a model of transformers: `hf:FOLDER` or `hf:HUB_NAME`."""
    return str(name).startswith(PREFIX)


def pretrained_folder(name: Path | str) -> Path:
    """The folder of `hf:NAME`, after a download where NAME is on the hub and not in its cache."""
    bare = str(name).removeprefix(PREFIX)
    folder = user_path(bare)
    if folder.is_dir():
        return folder.resolve()
    return _from_hub(ALIASES[bare].name if bare in ALIASES else bare)


def _from_hub(name: str) -> Path:
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) or name.endswith((".git", ".safetensors", ".bin")):
        raise QuintetError(f"{PREFIX}{name}: there is no such folder, and no model of the hub can be called so")
    if "/" not in name:
        raise QuintetError(
            f"{PREFIX}{name}: there is no such folder; models of the hub are named OWNER/NAME; of the short names, "
            f"{suggest(name, ALIASES)}"
        )
    files = ["*.json", "*.txt", "*.model", SAFETENSORS, "model-*.safetensors"]
    folder = download(name, files)
    if not _weights_there(folder):
        folder = download(name, [BIN, "pytorch_model-*.bin"])
    return folder


@dataclass(frozen=True)
class PretrainedFiles:
    """The files of a dual encoder that transformers wrote, all of them there."""

    folder: Path
    config: dict[str, Any]
    weights: tuple[Path, ...]

    @property
    def kind(self) -> str:
        """What transformers calls the model."""
        return str(self.config["model_type"])

    def identity(self) -> str:
        """SHA-256 of the weights file, or where there are several, of their checksums."""
        found = [file_checksum(path) for path in self.weights]
        return found[0] if len(found) == 1 else hashlib.sha256("\n".join(found).encode()).hexdigest()

    def all(self) -> list[Path]:
        """Weights and everything small beside them: what another folder needs to be the same model."""
        small = [path for pattern in ("*.json", "*.txt", "*.model") for path in sorted(self.folder.glob(pattern))]
        return [*small, *self.weights]


def dual_encoder_files(name: Path | str) -> PretrainedFiles:
    """The files of `hf:NAME`; raises where one is missing, or where the model is no dual encoder."""
    folder = pretrained_folder(name)
    config = _config(folder)
    kind = config.get("model_type")
    shown = f"{PREFIX}{str(name).removeprefix(PREFIX)}"
    if kind not in DUAL_ENCODERS:
        raise QuintetError(_not_a_dual_encoder(shown, folder, config))
    for part, what in (("vision_config", "image"), ("text_config", "text")):
        if not isinstance(config.get(part), dict):
            raise QuintetError(f"{shown}: {CONFIG} describes no {what} encoder ({part}); get the file again")
    weights = _weights(folder, shown)
    if not any((folder / file).is_file() for file in PROCESSORS):
        raise QuintetError(
            f"{shown} has no preprocessor_config.json, so how it wants its images is unknown; "
            "save its processor there: processor.save_pretrained(FOLDER)"
        )
    if not any((folder / file).is_file() for file in TOKENIZERS):
        raise QuintetError(
            f"{shown} has no tokenizer, so texts mean nothing to it; save it there: tokenizer.save_pretrained(FOLDER)"
        )
    return PretrainedFiles(folder, config, weights)


def is_dual_encoder(name: Path | str) -> bool:
    """Whether a folder, or a model of the hub, is a dual encoder by its configuration."""
    return _config(pretrained_folder(name)).get("model_type") in DUAL_ENCODERS


def _config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        known = foreign_model(folder)
        raise QuintetError(
            f"{folder} {f'is {known}' if known else 'holds no model of transformers'}: it has no {CONFIG}"
        )
    return check_shape(read_json(path), dict[str, Any], str(path))


def _not_a_dual_encoder(shown: str, folder: Path, config: dict[str, Any]) -> str:
    kind = config.get("model_type")
    if kind in NOT_OPENED:
        reason = NOT_OPENED[str(kind)]
    elif config.get("vision_config") and config.get("text_config"):
        reason = "no dual encoder that Quintet knows"
    else:
        reason = "it does not encode both images and texts"
    what = foreign_model(folder) or f"a model of type {kind!r}"
    return f"{shown} cannot stand for a run: it is {what}; {reason}. Dual encoders are: {', '.join(DUAL_ENCODERS)}"


def _weights_there(folder: Path) -> bool:
    return any((folder / f"{file}{more}").is_file() for file in (SAFETENSORS, BIN) for more in ("", ".index.json"))


def _weights(folder: Path, shown: str) -> tuple[Path, ...]:
    """Safetensors before .bin, a single file before parts."""
    for file in (SAFETENSORS, BIN):
        if (folder / file).is_file():
            return (folder / file,)
        index = folder / f"{file}.index.json"
        if index.is_file():
            content = check_shape(read_json(index), dict[str, Any], str(index))
            table = check_shape(content.get("weight_map"), dict[str, str], f"{index}: weight_map")
            parts = sorted(set(table.values()))
            if any(Path(part).name != part for part in parts):
                raise QuintetError(f"{index} names files outside its folder")
            missing = [part for part in parts if not (folder / part).is_file()]
            if missing:
                raise QuintetError(
                    f"{shown} is not complete: {len(missing)} of {len(parts)} weights files are missing, first "
                    f"{missing[0]}; download it again"
                )
            return tuple(folder / part for part in parts)
    raise QuintetError(f"{shown} holds no weights ({SAFETENSORS}, in one file or in parts); download it again")


def foreign_model(folder: Path) -> str | None:
    """What a folder is that another library wrote, in words; None: nothing that is known."""
    if (folder / "modules.json").is_file() or (folder / "config_sentence_transformers.json").is_file():
        return "a sentence-transformers model"
    try:
        kind = read_json(folder / CONFIG).get("model_type")
    except (QuintetError, AttributeError):
        return None
    return None if kind is None else f"a transformers model of type {kind!r}"
