"""The image towers an index needs to look at new images, kept inside it so that it can be moved anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quintet.backbones.create import FAMILIES, create_tower
from quintet.files import write_json
from quintet.runs.checkpoint import save_tensors
from quintet.search.errors import StaleIndex


def keep_tower(folder: Path, state: dict[str, Any] | None) -> None:
    """Write a tower's weights under `folder`, unless they are there, or it is not known which tower it was.

    `state`: as `FeatureExtractor.state` gives it.
    """
    if not state or "checksum" not in state:
        return
    place = folder / str(state["checksum"])
    if (place / "tower.safetensors").is_file():
        return
    name = str(state["name"])
    tower = create_tower(name, state["weights"])
    if name.startswith("hf:"):
        _keep_description(place, name.removeprefix("hf:"))
    family = any(name.startswith(prefix) for prefix in FAMILIES)
    model: Any = tower.model if family else tower
    save_tensors(place / "tower.safetensors", model.state_dict(), {"tower": name})


def kept_tower(folder: Path, state: dict[str, Any]) -> tuple[dict[str, Any], Path]:
    """What `FeatureExtractor.from_state` takes to make the tower from the index's own files."""
    place = folder / str(state.get("checksum"))
    weights = place / "tower.safetensors"
    if not weights.is_file():
        raise StaleIndex(f"{weights} is missing, the weights of the image tower; build the index again")
    name = str(state["name"])
    return state | {"name": f"hf:{place}" if name.startswith("hf:") else name}, weights


def _keep_description(place: Path, name: str) -> None:
    """What transformers needs besides the weights: the shape of the model, and how it wants its images."""
    from transformers import AutoConfig
    from transformers.image_processing_base import ImageProcessingMixin

    source = str(Path(name).expanduser()) if Path(name).expanduser().is_dir() else name
    AutoConfig.from_pretrained(source).save_pretrained(place)
    write_json(place / "preprocessor_config.json", ImageProcessingMixin.get_image_processor_dict(source)[0])
