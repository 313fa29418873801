from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tests.models.dual_encoders import KINDS, reference_inputs, save_dual_encoder

import quintet
from quintet.data.batches import ImageBatch, TextBatch
from quintet.errors import QuintetError
from quintet.models import create_model
from quintet.runs.onnx_export import export_onnx

transformers = pytest.importorskip("transformers")

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


@pytest.mark.parametrize("kind", ["clip", "siglip", "altclip"])
def test_towers_are_exported_with_pixels_and_ids_as_their_input(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("onnxruntime")
    save_dual_encoder(tmp_path / "model", kind)
    report = export_onnx(quintet.load(f"hf:{tmp_path / 'model'}", device="cpu"), tmp_path / "towers")
    inputs = json.loads((tmp_path / "towers" / "towers.json").read_text())["inputs"]
    assert inputs == {"images": {"pixels": ["n"]}, "texts": {"tokens": ["n", "words"], "lengths": ["n"]}}
    assert max(report.difference.values()) < 1e-5


def test_longer_texts_are_cut_as_transformers_cuts_them_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_dual_encoder(tmp_path, limit=9)
    run = quintet.load(f"hf:{tmp_path}", device="cpu")
    long = "dog cat dog cat dog cat dog cat dog cat"
    ids = transformers.AutoTokenizer.from_pretrained(tmp_path)(long, truncation=True).input_ids
    assert run.tokenizer is not None
    assert run.tokenizer.ids(long) == ids
    with caplog.at_level(logging.WARNING):
        run.encode_texts(["dog", long, long])
    assert "2 of 3 texts are longer than the 9 tokens" in caplog.text
    caplog.clear()
    run.encode_texts(["dog", "cat"])
    assert not caplog.text


def test_images_of_any_mode_are_taken(tmp_path: Path) -> None:
    save_dual_encoder(tmp_path)
    run = quintet.load(f"hf:{tmp_path}", device="cpu")
    image = noise()[0]
    images = [image.convert(mode) for mode in ("L", "P", "CMYK", "RGBA", "1", "LA", "I;16")]
    vectors = run.encode_images([image, *images]).embedding
    assert vectors.isfinite().all()
    torch.testing.assert_close(vectors[4], vectors[0])  # nothing of it is transparent


# Folders that are not a whole dual encoder


def remove(*names: str) -> Callable[[Path], None]:
    return lambda folder: [(folder / name).unlink() for name in names] and None


def change(name: str, **values: Any) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(content | values))

    return changed


def cut_short(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


def without_a_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("logit_scale")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def of_other_sizes(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["text_projection.weight"] = torch.zeros(3, 4)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def as_pickle(folder: Path, more: Any = None) -> None:
    tensors: dict[str, Any] = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors | ({} if more is None else {"more": more}), folder / "pytorch_model.bin")


class Harm:
    def __reduce__(self) -> Any:
        return os.mkdir, ("harmed",)


def with_a_larger_tokenizer(folder: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["new", "words"])
    tokenizer.save_pretrained(folder)


DAMAGED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no processor": (remove("preprocessor_config.json"), r"no preprocessor_config"),
    "no tokenizer": (remove("tokenizer.json", "tokenizer_config.json"), "no tokenizer"),
    "no weights": (remove("model.safetensors"), "no weights"),
    "no configuration": (remove("config.json"), r"no config\.json"),
    "cut short": (cut_short, "cannot be read"),
    "a tensor is missing": (without_a_tensor, "lack 1"),
    "a tensor of another size": (of_other_sizes, "cannot be read"),
    "a pickle with more than tensors": (lambda folder: as_pickle(folder, Harm()), "more than tensors"),
    "text only": (change("config.json", model_type="bert", vision_config=None), "both images and texts"),
    "videos": (change("config.json", model_type="xclip"), "videos"),
    "no text encoder": (change("config.json", text_config=None), "describes no text"),
    "another image size": (change("preprocessor_config.json", crop_size=48, size={"shortest_edge": 48}), "48 x 48"),
    "an unknown processor": (change("preprocessor_config.json", image_processor_type="Mine"), "not understood"),
    "a larger tokenizer": (with_a_larger_tokenizer, "different models"),
    "JSON cut short": (lambda folder: (folder / "config.json").write_text("{"), "valid JSON"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_what_is_wrong_with_a_folder_is_said(tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_dual_encoder(tmp_path / "model")
    make, message = DAMAGED[damage]
    make(tmp_path / "model")
    with pytest.raises(QuintetError, match=message):
        quintet.load(f"hf:{tmp_path / 'model'}", device="cpu")
    assert not (tmp_path / "harmed").exists()


def test_weights_in_parts_and_pickled_tensors_are_read(tmp_path: Path) -> None:
    model = save_dual_encoder(tmp_path / "whole")
    wanted = quintet.load(f"hf:{tmp_path / 'whole'}", device="cpu")
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    (tmp_path / "parts" / "model.safetensors").unlink()
    model.save_pretrained(tmp_path / "parts", max_shard_size="10KB")
    parts = sorted((tmp_path / "parts").glob("model-*.safetensors"))
    assert len(parts) > 1
    shutil.copytree(tmp_path / "whole", tmp_path / "pickled")
    as_pickle(tmp_path / "pickled")
    for name in ("parts", "pickled"):
        found = quintet.load(f"hf:{tmp_path / name}", device="cpu")
        assert torch.equal(found.encode_texts(TEXTS).embedding, wanted.encode_texts(TEXTS).embedding)
        assert found.weights_checksum != wanted.weights_checksum
    parts[0].unlink()
    with pytest.raises(QuintetError, match="weights files are missing"):
        quintet.load(f"hf:{tmp_path / 'parts'}", device="cpu")


@pytest.mark.parametrize(
    ("name", "message"),
    [("hf:nowhere/at-all/here", "no such folder"), ("hf:clip-b23", "clip-b32"), ("hf:owner/name", "cannot be reached")],
)
def test_a_name_that_is_not_here_is_answered_without_a_network(
    name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(QuintetError, match=message):
        quintet.load(name, device="cpu")


def test_folders_of_other_libraries_are_named(tmp_path: Path) -> None:
    save_dual_encoder(tmp_path / "clip")
    with pytest.raises(QuintetError, match=f"hf:{tmp_path / 'clip'}"):
        quintet.load(tmp_path / "clip")
    (tmp_path / "sentences").mkdir()
    (tmp_path / "sentences" / "modules.json").write_text("[]")
    for name in (tmp_path / "sentences", f"hf:{tmp_path / 'sentences'}"):
        with pytest.raises(QuintetError, match="sentence-transformers"):
            quintet.load(name)


@pytest.mark.parametrize("kind", KINDS)
def test_fragments_are_kept_in_training_alone_and_in_the_size_of_the_embedding(tmp_path: Path, kind: str) -> None:
    save_dual_encoder(tmp_path, kind)
    run = quintet.load(f"hf:{tmp_path}", device="cpu")
    plain: Any = run.matcher
    matcher: Any = create_model("clip", source=f"hf:{tmp_path}", keep_fragments=True).eval()
    assert run.tokenizer is not None
    texts = TextBatch.from_ids([run.tokenizer.ids(text) for text in TEXTS], run.tokenizer.pad)
    images = ImageBatch(pixels=torch.stack([run.preprocess(image) for image in noise()]))
    with torch.no_grad():
        assert matcher.encode_texts(texts).fragments is None
        assert matcher.encode_images(images).fragments is None
        matcher.train().model.eval()  # BERT has dropout
        text_codes, image_codes = matcher.encode_texts(texts), matcher.encode_images(images)
        torch.testing.assert_close(text_codes.embedding, plain.encode_texts(texts).embedding)
        torch.testing.assert_close(image_codes.embedding, plain.encode_images(images).embedding)
        assert image_codes.fragments.shape == (len(SIZES), 16, matcher.embed_dim)
        assert text_codes.real().sum(dim=1).tolist() == texts.lengths.tolist()
        if kind == "clip":  # whose embedding of a text is that of its last token
            last = text_codes.fragments[torch.arange(len(TEXTS)), texts.lengths - 1]
            torch.testing.assert_close(torch.nn.functional.normalize(last), text_codes.embedding)


def siglip_pieces(folder: Path) -> Any:
    """Give a SigLIP the tokenizer of its first releases: a SentencePiece model alone."""
    pieces = pytest.importorskip("sentencepiece")
    words = [
        *TEXTS[1].split(),
        "the",
        "red",
        "blue",
        "snow",
        "under",
        "tree",
        "small",
        "large",
        "green",
        "café",
        "sits",
    ]
    texts = [" ".join(words[(start * step) % len(words)] for step in range(3, 9)) for start in range(60)]
    pieces.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_prefix=str(folder / "spiece"), vocab_size=40, model_type="unigram",
        character_coverage=1.0, bos_id=-1, pad_id=-1, eos_id=1, unk_id=0, minloglevel=2,
    )  # fmt: skip
    (folder / "spiece.vocab").unlink()
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (folder / name).unlink(missing_ok=True)
    tokenizer = transformers.SiglipTokenizer(vocab_file=str(folder / "spiece.model"), model_max_length=16)
    tokenizer.save_pretrained(folder)
    return tokenizer


@pytest.mark.parametrize("beside", [False, True])
def test_a_sentencepiece_model_alone_is_read_as_transformers_reads_it(tmp_path: Path, beside: bool) -> None:
    save_dual_encoder(tmp_path, "siglip")
    kept = (tmp_path / "tokenizer.json").read_bytes()
    slow = siglip_pieces(tmp_path)
    texts = ["A red dog, under the tree!", "two  cats -- and (a) bench", "snow", "Café über 日本", "blue\tgreen\nlarge"]
    texts.append("the small dog sits on a large bench in the snow and the two cats sit under a tree")
    wanted = [slow(text, truncation=True).input_ids for text in texts]
    if beside:  # transformers still gives the tokenizer of spiece.model, and the file beside it is the model's own
        (tmp_path / "tokenizer.json").write_bytes(kept)
        assert quintet.load(f"hf:{tmp_path}", device="cpu").tokenizer is not None
        return
    tokenizer = quintet.load(f"hf:{tmp_path}", device="cpu").tokenizer
    assert tokenizer is not None
    assert [tokenizer.ids(text) for text in texts] == wanted
    assert len(wanted[-1]) == 16
