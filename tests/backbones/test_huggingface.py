from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from quintet.backbones.create import create_tower
from quintet.backbones.huggingface import preprocess_from_config, token_grid
from quintet.errors import QuintetError

transformers = pytest.importorskip("transformers")

VIT_CONFIG = {
    "image_processor_type": "ViTImageProcessor",
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_resize": True,
    "size": {"height": 32, "width": 32},
    "resample": 2,
}
CROP_CONFIG = VIT_CONFIG | {
    "size": {"shortest_edge": 40},
    "do_center_crop": True,
    "crop_size": {"height": 32, "width": 32},
    "resample": 3,
}


def small_vit(**more: Any) -> dict[str, Any]:
    return {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "image_size": 32,
        "patch_size": 8,
    } | more


def save(folder: Path, model: Any, processor: dict[str, Any] | None) -> str:
    model.eval().save_pretrained(folder)
    if processor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return f"hf:{folder}"


def models() -> dict[str, tuple[Any, dict[str, Any], tuple[int, int, int], int]]:
    """name -> model, processor, (dim, h, w), tokens before the patches (0 for feature maps)."""
    t = transformers
    resnet = t.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    convnext = t.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2)
    registers = t.Dinov2WithRegistersConfig(**small_vit(num_register_tokens=4))
    swin = t.SwinConfig(embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=2, image_size=32, patch_size=4)
    clip = t.CLIPConfig(
        vision_config=small_vit(),
        text_config={"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16},
    )
    return {
        "resnet": (t.ResNetModel(resnet), CROP_CONFIG, (16, 4, 4), 0),
        "convnext": (t.ConvNextModel(convnext), CROP_CONFIG, (16, 4, 4), 0),
        "vit": (t.ViTModel(t.ViTConfig(**small_vit())), VIT_CONFIG, (16, 4, 4), 1),
        "dinov2": (t.Dinov2Model(t.Dinov2Config(**small_vit())), CROP_CONFIG, (16, 4, 4), 1),
        "dinov2-registers": (t.Dinov2WithRegistersModel(registers), CROP_CONFIG, (16, 4, 4), 5),
        "swin": (t.SwinModel(swin), VIT_CONFIG, (16, 4, 4), 0),
        "clip": (t.CLIPModel(clip), CROP_CONFIG, (16, 4, 4), 1),
    }


@pytest.mark.parametrize("kind", ["resnet", "convnext", "vit", "dinov2", "dinov2-registers", "swin", "clip"])
def test_models_of_many_kinds_from_a_folder(tmp_path: Path, kind: str) -> None:
    torch.manual_seed(0)
    model, processor, (dim, height, width), prefix = models()[kind]
    tower = create_tower(save(tmp_path, model, processor))
    assert tower.dim == dim
    pixels = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        grid = tower(pixels)
        output = getattr(model, "vision_model", model)(pixel_values=pixels).last_hidden_state
    assert grid.shape == (2, dim, height, width)
    if output.dim() == 4:
        assert torch.equal(grid, output)
    else:
        for row in range(height):
            for column in range(width):
                assert torch.equal(grid[:, :, row, column], output[:, prefix + row * width + column])


def test_weights_are_those_of_the_folder_unless_random_ones_are_asked_for(tmp_path: Path) -> None:
    model = transformers.ViTModel(transformers.ViTConfig(**small_vit()))
    name = save(tmp_path, model, VIT_CONFIG)
    wanted = model.state_dict()
    for pretrained in (True, False):
        found = create_tower(name, pretrained=pretrained).get_submodule("model").state_dict()
        assert all(torch.equal(found[key], wanted[key]) for key in wanted) == pretrained


@pytest.mark.parametrize(
    ("config", "size", "crop", "short_side"),
    [
        (VIT_CONFIG, (32, 32), "squeeze", None),
        (CROP_CONFIG, (32, 32), "center", 40),
        (VIT_CONFIG | {"size": 48}, (48, 48), "squeeze", None),  # older spellings
        (CROP_CONFIG | {"size": 40, "crop_size": 32}, (32, 32), "center", 40),
        (VIT_CONFIG | {"size": {"shortest_edge": 224}, "crop_pct": 0.875}, (224, 224), "center", 256),  # ConvNeXt
        (VIT_CONFIG | {"size": {"shortest_edge": 384}, "crop_pct": 1.0}, (384, 384), "squeeze", None),
        (VIT_CONFIG | {"size": {"height": 32, "width": 64}}, (32, 64), "squeeze", None),
    ],
)
def test_processor_configurations(
    config: dict[str, Any], size: tuple[int, int], crop: str, short_side: int | None
) -> None:
    preprocess = preprocess_from_config(config)
    assert (preprocess.size, preprocess.crop, preprocess.short_side) == (size, crop, short_side)


def test_pixels_are_what_the_models_own_processor_makes() -> None:
    processors = transformers.models.vit
    own = getattr(processors, "ViTImageProcessorPil", None) or getattr(processors, "ViTImageProcessor", None)
    try:
        processor = own(**{key: value for key, value in VIT_CONFIG.items() if key != "image_processor_type"})
    except ImportError as error:
        pytest.skip(f"the model's own processor cannot run here: {error}")
    image = Image.effect_noise((50, 40), 80).convert("RGB")
    wanted = torch.as_tensor(processor(image, return_tensors="np")["pixel_values"][0])
    assert torch.allclose(preprocess_from_config(VIT_CONFIG)(image), wanted, atol=1e-4)


def test_errors_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = transformers.ViTModel(transformers.ViTConfig(**small_vit()))
    with pytest.raises(QuintetError, match=r"no preprocessor_config\.json"):
        create_tower(save(tmp_path / "bare", model, None))
    lacking = {key: value for key, value in VIT_CONFIG.items() if key != "image_mean"}
    with pytest.raises(QuintetError, match="image_mean"):
        create_tower(save(tmp_path / "lacking", model, lacking))
    (tmp_path / "nothing").mkdir()
    with pytest.raises(QuintetError, match="folder with a model"):
        create_tower(f"hf:{tmp_path / 'nothing'}")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(QuintetError, match=r"quintet-retrieval\[hf\]"):
        create_tower(f"hf:{tmp_path / 'bare'}")


def test_a_text_model_is_refused(tmp_path: Path) -> None:
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=20
    )
    with pytest.raises(QuintetError, match="not a vision model"):
        create_tower(save(tmp_path, transformers.BertModel(config), VIT_CONFIG))


def test_token_grids() -> None:
    assert token_grid(197, (224, 224), 16) == (14, 14)  # ViT: class token
    assert token_grid(261, (224, 224), 14) == (16, 16)  # DINOv2 with four registers
    assert token_grid(196, (224, 224), 16) == (14, 14)  # SigLIP: no class token
    assert token_grid(1 + 14 * 28, (224, 448), 16) == (14, 28)
    assert token_grid(49, (224, 224), 4) == (7, 7)  # Swin
    assert token_grid(7, (224, 224), 16) is None
