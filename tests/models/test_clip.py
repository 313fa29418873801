from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tests.models.dual_encoders import KINDS, reference_inputs, save_dual_encoder

import quintet

pytest.importorskip("transformers")

SIZES = [(50, 40), (31, 90), (32, 32), (200, 10)]
TEXTS = ["a dog", "two cats sit on a long, long bench and look at a dog!", "cat", "dogs. and 2 cats"]


def noise() -> list[Image.Image]:
    return [Image.effect_noise(size, 90).convert("RGB") for size in SIZES]


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_transformers_with_and_without_its_scale(tmp_path: Path, kind: str) -> None:
    model = save_dual_encoder(tmp_path, kind)
    images = noise()
    inputs = reference_inputs(tmp_path, kind, images, TEXTS)
    with torch.no_grad():
        wanted = model(**inputs)
    run = quintet.load(f"hf:{tmp_path}", device="cpu")
    image_codes, text_codes = run.encode_images(images), run.encode_texts(TEXTS)
    with torch.no_grad():
        logits = run.matcher.logits(image_codes, text_codes)
    torch.testing.assert_close(logits, wanted.logits_per_image, atol=1e-5, rtol=0)
    cosines = wanted.image_embeds @ wanted.text_embeds.T
    torch.testing.assert_close(run.score(image_codes, text_codes), cosines, atol=1e-5, rtol=0)
    assert wanted.logits_per_image.std() > 1e-3  # else everything would be equal
    assert run.matcher.embed_dim == image_codes.embedding.shape[1]
    for number, text in enumerate(TEXTS):  # alone, so without the padding of a batch
        alone = run.encode_texts(text)
        torch.testing.assert_close(alone.embedding[0], text_codes.embedding[number], atol=1e-5, rtol=0)


def test_an_index_of_a_published_model_searches_after_its_folder_is_gone(tmp_path: Path) -> None:
    model = tmp_path / "model"
    save_dual_encoder(model)
    (tmp_path / "photos").mkdir()
    images = noise()
    for number, image in enumerate(images):
        image.save(tmp_path / "photos" / f"{number}.png")
    run = quintet.load(f"hf:{model}", device="cpu")
    wanted = run.score(run.encode_images(images), run.encode_texts("a dog"))[:, 0]
    first, again = (
        quintet.build_index(f"hf:{model}", tmp_path / "photos", tmp_path / "index", device="cpu", precision="float32")
        for _ in range(2)
    )
    assert (first.encoded, again.encoded, quintet.verify_index(tmp_path / "index")) == (len(SIZES), 0, [])
    shutil.rmtree(model)
    hits = quintet.open_index(tmp_path / "index", device="cpu").search("a dog", k=len(SIZES))
    found = {int(hit.path.stem): hit.score for hit in hits}
    for number, score in found.items():
        assert score == pytest.approx(float(wanted[number]), abs=1e-5)
    kept = next((tmp_path / "index" / "runs").iterdir())
    assert str(tmp_path) not in "".join(path.read_text() for path in kept.glob("*.json"))


def test_a_trained_model_opens_without_the_one_it_started_from(tmp_path: Path) -> None:
    save_dual_encoder(tmp_path / "model")
    corpus = quintet.import_corpus("scenes", "-", tmp_path / "scenes", train=12, dev=4, test=4, size=32)
    recipe: dict[str, Any] = {
        "name": "tiny",
        "data": {"tokenizer": {"kind": "pretrained"}},
        "matcher": {"name": "clip", "source": f"hf:{tmp_path / 'model'}"},
        "stages": [{"name": "one", "loss": {"contrastive": {}}, "batches": {"size": 6, "per": "images"}, "epochs": 1}],
    }
    trained = quintet.train(recipe, corpus, out=tmp_path / "run", device="cpu")
    start = quintet.load(f"hf:{tmp_path / 'model'}", device="cpu")
    moved = [
        name
        for name, value in start.matcher.state_dict().items()
        if not value.equal(trained.matcher.state_dict()[name])
    ]
    assert any("vision_model" in name for name in moved)
    assert any("text_model" in name for name in moved)
    wanted = trained.encode_texts(TEXTS).embedding
    shutil.rmtree(tmp_path / "model")
    assert torch.equal(quintet.load(tmp_path / "run", device="cpu").encode_texts(TEXTS).embedding, wanted)
