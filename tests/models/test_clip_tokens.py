from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tests.models.dual_encoders import KINDS, reference_inputs, save_dual_encoder

import quintet
from quintet.data.batches import ImageBatch, TextBatch
from quintet.errors import RecipeError
from quintet.models import create_model

pytest.importorskip("transformers")

TEXTS = ["a dog", "two cats and a dog on a mat", "cat"]
SMALL: dict[str, dict[str, Any]] = {
    "scan": {"embed_dim": 8},
    "bfan": {"embed_dim": 8},
    "mmca": {"embed_dim": 8, "heads": 2, "filters": 4},
    "hrem": {"embed_dim": 8},
}


def batches(folder: Path, kind: str) -> tuple[ImageBatch, TextBatch, dict[str, Any]]:
    run = quintet.load(f"hf:{folder}", device="cpu")
    images = [Image.effect_noise((40 + 9 * number, 50), 90).convert("RGB") for number in range(3)]
    assert run.tokenizer is not None
    texts = TextBatch.from_ids([run.tokenizer.ids(text) for text in TEXTS], run.tokenizer.pad)
    pixels = ImageBatch(pixels=torch.stack([run.preprocess(image) for image in images]))
    return pixels, texts, reference_inputs(folder, kind, images, TEXTS)


@pytest.mark.parametrize("kind", KINDS)
def test_patches_and_words_are_the_last_layer_of_transformers(tmp_path: Path, kind: str) -> None:
    model = save_dual_encoder(tmp_path, kind)
    images, texts, inputs = batches(tmp_path, kind)
    encoder: Any = create_model("clip", source=f"hf:{tmp_path}").eval()
    with torch.no_grad():
        patches, real, image_codes = encoder.patches(images)
        words, text_codes = encoder.words(texts)
        wanted = model(**inputs)
    found = wanted.vision_model_output.last_hidden_state[:, 0 if kind.startswith("siglip") else 1 :]
    torch.testing.assert_close(patches, found, atol=1e-5, rtol=1e-5)
    assert (real is None) == (kind != "siglip2")
    for row, length in enumerate(texts.lengths.tolist()):
        torch.testing.assert_close(
            words[row, :length], wanted.text_model_output.last_hidden_state[row, :length], atol=1e-5, rtol=1e-5
        )
    assert (patches.shape[2], words.shape[2]) == encoder.widths
    torch.testing.assert_close(image_codes.embedding, wanted.image_embeds, atol=1e-5, rtol=0)
    torch.testing.assert_close(text_codes.embedding, wanted.text_embeds, atol=1e-5, rtol=0)


@pytest.mark.parametrize("method", SMALL)
def test_stored_patches_and_words_score_as_those_of_pixels(tmp_path: Path, method: str) -> None:
    save_dual_encoder(tmp_path)
    images, texts, _ = batches(tmp_path, "clip")
    torch.manual_seed(0)
    pixels: Any = create_model("clip-tokens", source=f"hf:{tmp_path}", method=method, arguments=SMALL[method]).eval()
    stored: Any = create_model(
        "clip-tokens", source=f"hf:{tmp_path}", method=method, arguments=SMALL[method], images="features"
    ).eval()
    stored.load_state_dict(pixels.state_dict())
    encoder = stored.frozen_text_encoder()
    with torch.no_grad():
        patches, _, codes = pixels.encoder.patches(images)
        words = encoder(texts.tokens, texts.lengths)
        kept = TextBatch(texts.tokens, texts.lengths, words * texts.real()[..., None])
        whole = pixels.encode_images(images), pixels.encode_texts(texts)
        parts = stored.encode_images(ImageBatch(fragments=patches)), stored.encode_texts(kept)
        torch.testing.assert_close(stored.score(*parts), pixels.score(*whole), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(pixels.score(*whole).diagonal(), pixels.score_pairs(*whole), atol=1e-5, rtol=1e-5)
    if method in ("scan", "bfan"):  # CLIP's own vector, for the first stage of a search
        assert torch.equal(whole[0].embedding, codes.embedding)
        assert parts[0].embedding is None
    else:
        assert whole[0].embedding.shape == (3, 8)


@pytest.mark.parametrize("trainable", [True, False])
def test_the_encoder_is_trained_where_that_is_asked_for(tmp_path: Path, trainable: bool) -> None:
    save_dual_encoder(tmp_path)
    images, texts, _ = batches(tmp_path, "clip")
    matcher: Any = create_model(
        "clip-tokens", source=f"hf:{tmp_path}", method="scan", arguments=SMALL["scan"], trainable=trainable
    ).train()
    matcher.score(matcher.encode_images(images), matcher.encode_texts(texts)).sum().backward()
    moved = {name for name, parameter in matcher.named_parameters() if parameter.grad is not None}
    assert any(name.startswith("method.") for name in moved)
    assert any(name.startswith("encoder.model.vision_model") for name in moved) == trainable
    assert any(name.startswith("encoder.model.text_model") for name in moved) == trainable
    assert matcher.encoder.training == trainable


def test_one_index_lets_clip_choose_and_scan_rank(tmp_path: Path) -> None:
    save_dual_encoder(tmp_path / "clip")
    corpus = quintet.import_corpus("scenes", "-", tmp_path / "scenes", train=12, dev=4, test=4, size=32)
    overrides = [
        f"matcher.source=hf:{tmp_path / 'clip'}",
        "matcher.images=pixels",
        "matcher.arguments.embed_dim=8",
        "data.features=null",
        "data.text_cache=none",
        "stages.online.epochs=3",
        "stages.online.batches.size=6",
    ]
    run = quintet.train("scan-clip", corpus, out=tmp_path / "run", overrides=overrides, device="cpu")
    photos = tmp_path / "scenes" / "images"
    quintet.build_index(run, photos, tmp_path / "index", precision="float32", device="cpu")
    index = quintet.open_index(tmp_path / "index", device="cpu")
    images = sorted(photos.iterdir())
    codes, text = run.encode_images(images), run.encode_texts("a dog")
    scan, clip = run.score(codes, text)[:, 0], (codes.embedding @ text.embedding.T)[:, 0]
    first = [hit.path.name for hit in index.search("a dog", k=1, rerank=1)]
    assert first == [images[int(clip.argmax())].name]
    ranked = index.search("a dog", k=len(images), rerank=len(images))
    assert ranked[0].path.name == images[int(scan.argmax())].name
    assert ranked[0].score == pytest.approx(float(scan.max()), abs=1e-5)


def test_recipes_train_on_stored_patches_and_words(tmp_path: Path) -> None:
    save_dual_encoder(tmp_path / "clip")
    corpus = quintet.import_corpus("scenes", "-", tmp_path / "scenes", train=12, dev=4, test=4, size=32)
    quintet.extract_features(corpus, name="clip-b32", backbone=f"hf:{tmp_path / 'clip'}", grid="4", device="cpu")
    small = [f"matcher.source=hf:{tmp_path / 'clip'}", "stages.online.epochs=3", "stages.online.batches.size=6"]
    for recipe in ("scan-clip", "hrem-clip"):
        more = ["matcher.arguments.embed_dim=16"]
        more += ["stages.online.loss.relation.sampling_dim=8"] if recipe == "hrem-clip" else []
        run = quintet.train(recipe, corpus, out=tmp_path / recipe, overrides=[*small, *more], device="cpu")
        assert list((tmp_path / "scenes" / "texts").iterdir())
        assert run.encode_images([tmp_path / "scenes" / "images" / "test-00000.png"]) is not None


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    save_dual_encoder(tmp_path)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"method": "scann"}, "scan"),
        ({"images": "pixel"}, "pixels"),
        ({"arguments": {"text": "bigru"}}, "follow from its encoder"),
        ({"arguments": {"lambda": 3}}, "arguments of 'scan'"),
        ({"images": "features", "trainable": True}, "do not change"),
        ({"images": "features", "image_dim": 99}, "99 channels"),
    ]
    for arguments, message in wrong:
        with pytest.raises(RecipeError, match=message):
            create_model("clip-tokens", source=f"hf:{tmp_path}", **arguments)
