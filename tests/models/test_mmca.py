from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import quintet
from quintet.data.batches import ImageBatch, TextBatch
from quintet.data.corpus import Corpus
from quintet.errors import RecipeError
from quintet.files import read_json
from quintet.models.mmca import MMCA, build_mmca
from quintet.training.recipe import load_recipe, parse_recipe
from quintet.training.stages import train_recipe

SMALL: dict[str, Any] = {
    "image_dim": 6,
    "vocabulary_size": 12,
    "embed_dim": 8,
    "heads": 2,
    "text_dim": 4,
    "text_heads": 2,
    "filters": 5,
}


def make(seed: int = 0, **more: Any) -> MMCA:
    torch.manual_seed(seed)
    return build_mmca(**SMALL | more).double().eval()


def pictures(lengths: tuple[int, ...] = (5, 3, 4)) -> ImageBatch:
    generator = torch.Generator().manual_seed(1)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    fragments = torch.randn(len(lengths), max(lengths), 6, generator=generator, dtype=torch.float64)
    return ImageBatch(fragments=fragments * mask[..., None], mask=mask, boxes=torch.rand(len(lengths), max(lengths), 4))


TEXTS = TextBatch.from_ids([[1, 5, 6, 2], [1, 7, 2], [1, 2], [1, 8, 9, 4, 3, 2]])


class Twin:
    """MMCA by its equations, one pair at a time, for the weights of a matcher. No batches, no masks."""

    def __init__(self, matcher: MMCA, *, scale: str, layernorm: bool, gelu: bool, inside: bool, alpha: float) -> None:
        self.m, self.scale, self.layernorm, self.gelu, self.inside, self.alpha = (
            matcher, scale, layernorm, gelu, inside, alpha,
        )  # fmt: skip

    def unit(self, unit: Any, f: Tensor) -> Tensor:
        heads, width = unit.heads, unit.dim // unit.heads
        divisor = math.sqrt(width if self.scale == "sqrt_dk" else unit.dim)
        found = []
        for head in range(heads):
            part = slice(head * width, (head + 1) * width)
            q, k, v = (layer(f)[:, part] for layer in (unit.query, unit.key, unit.value))
            found.append(torch.softmax(q @ k.T / divisor, dim=1) @ v)  # Eq. 1, 2 and 11
        rest = unit.rest
        x = self.norm(f + rest.output(torch.cat(found, dim=1)), rest.norm_attention)  # Eq. 3
        inner = rest.ffn_in(x)
        inner = inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2))) if self.gelu else inner.clamp(min=0)
        return self.norm(x + rest.ffn_out(inner), rest.norm_ffn)  # Eq. 4

    def norm(self, x: Tensor, layer: Any) -> Tensor:
        centred = x - x.mean(dim=-1, keepdim=True)
        return centred / (centred.square().mean(dim=-1, keepdim=True) + layer.eps).sqrt() * layer.weight + layer.bias

    def cnn(self, cnn: Any, words: Tensor) -> Tensor:
        q = []
        for window, bank in zip((1, 2, 3), cnn.filter_banks, strict=True):
            best = torch.zeros(cnn.filters, dtype=words.dtype)
            for k in range(len(words)):
                if self.inside and k + window > len(words):
                    continue
                e = [words[k + j] if k + j < len(words) else torch.zeros_like(words[0]) for j in range(window)]
                best = torch.maximum(best, bank(torch.cat(e)))  # Eq. 6, ReLU and maximum in one
            q.append(best)
        c = cnn.fc(torch.cat(q))  # Eq. 7
        c = self.norm(c, cnn.norm) if self.layernorm else c
        return c / c.norm()

    def score(self, features: Tensor, tokens: Tensor) -> Tensor:
        m: Any = self.m
        r = m.regions.fc(features)
        e = m.text_encoder(tokens[None], torch.tensor([len(tokens)]))[0]
        total = torch.zeros((), dtype=r.dtype)
        if m.region_unit is not None:
            i0 = self.unit(m.region_unit, r).mean(dim=0)  # Eq. 5
            c0 = self.cnn(m.sentence_cnn, m.words(e) if m.cnn_reads_projection else e)
            total = (i0 / i0.norm()) @ c0
        if m.cross is None:
            return total
        y = self.unit(m.cross.unit, torch.cat([r, m.words(e)]))  # Eq. 8 to 14
        i1 = y[: len(r)].mean(dim=0)
        return total + self.alpha * (i1 / i1.norm()) @ self.cnn(m.cross.cnn, y[len(r) :])

    def scores(self, images: ImageBatch, texts: TextBatch) -> Tensor:
        assert images.fragments is not None
        rows = [
            [self.score(f[real], ids[: int(n)]) for ids, n in zip(texts.tokens, texts.lengths, strict=True)]
            for f, real in zip(images.fragments, images.real(), strict=True)
        ]
        return torch.stack([torch.stack(row) for row in rows])


CHOICES: list[dict[str, Any]] = [
    {},
    {"scale": "sqrt_d", "alpha": 0.8},
    {"sentence_norm": "layernorm", "windows": "inside", "sentence_cnn": "projected"},
    {"sentence_cnn": "shared", "activation": "gelu", "ffn_dim": 12, "attention_bias": True},
    {"text_dim": 8, "project_words": False},
    {"self_attention": False, "alpha": 1.0},
    {"cross": False},
    {"cross": False, "sentence_cnn": "projected"},
]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_scores_are_those_of_the_equations_pair_by_pair(choice: dict[str, Any]) -> None:
    matcher = make(**choice)
    twin = Twin(
        matcher,
        scale=choice.get("scale", "sqrt_dk"),
        layernorm="sentence_norm" in choice,
        gelu=choice.get("activation") == "gelu",
        inside=choice.get("windows") == "inside",
        alpha=choice.get("alpha", 0.2),
    )
    images, texts = pictures(), TEXTS
    with torch.no_grad():
        image_codes, text_codes = matcher.encode_images(images), matcher.encode_texts(texts)
        expected = twin.scores(images, texts)
        assert (matcher.score(image_codes, text_codes) - expected).abs().max() < 1e-12
        pairs = matcher.score_pairs(image_codes, text_codes[:3])
        assert (pairs - expected.diagonal()).abs().max() < 1e-12
        single = matcher.float()
        images32 = ImageBatch(fragments=images.fragments.float(), mask=images.mask)  # type: ignore[union-attr]
        found = single.score(single.encode_images(images32), single.encode_texts(texts))
        assert (found - expected).abs().max() < 1e-5


def test_padding_and_neighbours_change_nothing() -> None:
    matcher = make()
    images = pictures()
    assert images.fragments is not None
    with torch.no_grad():
        whole = matcher.score(matcher.encode_images(images), matcher.encode_texts(TEXTS))
        longer = TextBatch(torch.nn.functional.pad(TEXTS.tokens, (0, 3), value=9), TEXTS.lengths)
        more = ImageBatch(
            fragments=torch.nn.functional.pad(images.fragments, (0, 0, 0, 2), value=7.0),
            mask=torch.nn.functional.pad(images.real(), (0, 2)),
        )
        assert (matcher.score(matcher.encode_images(more), matcher.encode_texts(longer)) - whole).abs().max() < 1e-12
        order = torch.tensor([3, 1, 0, 2])
        shuffled = TextBatch(TEXTS.tokens[order], TEXTS.lengths[order])
        found = matcher.score(matcher.encode_images(images), matcher.encode_texts(shuffled))
        assert (found - whole[:, order]).abs().max() < 1e-12
        regions = torch.tensor([2, 0, 1, 3, 4])
        turned = ImageBatch(fragments=images.fragments[:, regions], mask=images.real()[:, regions])
        found = matcher.score(matcher.encode_images(turned), matcher.encode_texts(TEXTS))
        assert (found - whole).abs().max() < 1e-12


def test_the_work_of_an_item_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    matcher = make(budget=1)
    with torch.no_grad():
        image_codes, text_codes = matcher.encode_images(pictures()), matcher.encode_texts(TEXTS)
        assert matcher.cross is not None
        for part in ("project", "attend_own", "forward"):
            monkeypatch.setattr(matcher.cross.unit, part, None)
        assert matcher.score(image_codes, text_codes).shape == (3, 4)


def test_the_embedding_part_is_the_score_at_alpha_zero() -> None:
    matcher = make()
    plain = make(alpha=0.0)
    plain.load_state_dict(matcher.state_dict())
    with torch.no_grad():
        codes = matcher.encode_images(pictures()), matcher.encode_texts(TEXTS)
        without = plain.encode_images(pictures()), plain.encode_texts(TEXTS)
        assert without[0].fragments is None
        assert torch.equal(matcher.score_embeddings(*codes), plain.score(*without))
        pairs = plain.score_pairs(without[0], without[1][:3])
        assert (pairs - plain.score(*without).diagonal()).abs().max() < 1e-13


def test_attention_shows_real_words_and_regions() -> None:
    matcher = make()
    codes = matcher.encode_images(pictures()), matcher.encode_texts(TEXTS)
    shown = matcher.attention(codes[0][1], codes[1][0])
    assert shown.weights.shape == (4, 3)
    assert shown.boxes is not None
    assert len(shown.boxes) == 3
    assert (shown.weights.sum(dim=1) - 1).abs().max() < 1e-12
    with pytest.raises(RecipeError, match="without its cross-attention"):
        make(cross=False).attention(codes[0][1], codes[1][0])
    joint = matcher.joint_attention(codes[0][1], codes[1][0])
    assert joint.shape == (3 + 4, 3 + 4)
    assert (joint.sum(dim=1) - 1).abs().max() < 1e-12


def test_the_cross_module_alone_has_no_embedding() -> None:
    matcher = make(self_attention=False, alpha=1.0)
    codes = matcher.encode_images(pictures()), matcher.encode_texts(TEXTS)
    assert codes[0].embedding is None
    assert codes[1].embedding is None
    assert matcher.score(*codes).abs().max() <= 1 + 1e-12, "i1 . c1, not weighted"
    pairs = matcher.score_pairs(codes[0], codes[1][:3])
    assert (pairs - matcher.score(*codes)[:, :3].diagonal()).abs().max() < 1e-12
    assert not any(name.startswith(("region_unit", "sentence_cnn")) for name in matcher.state_dict())
    with pytest.raises(RecipeError, match="without its self-attention"):
        matcher.score_embeddings(*codes)
    for options in ({"cross": False}, {"alpha": 0.0}, {"sentence_cnn": "shared"}):
        with pytest.raises(RecipeError, match=r"self.attention"):
            make(self_attention=False, **options)


def test_features_in_the_batch_stand_in_for_the_encoder() -> None:
    matcher = make()
    with torch.no_grad():
        features = matcher.text_encoder(TEXTS.tokens, TEXTS.lengths)
        given = TextBatch(TEXTS.tokens, TEXTS.lengths, features)
        expected = matcher.encode_texts(TEXTS)
        matcher.text_encoder = None  # type: ignore[assignment]
        found = matcher.encode_texts(given)
    assert found.embedding is not None
    assert expected.embedding is not None
    assert torch.equal(found.embedding, expected.embedding)
    with pytest.raises(ValueError, match="features must be"):
        TextBatch(TEXTS.tokens, TEXTS.lengths, features[:, :2])


def test_every_weight_learns() -> None:
    matcher = build_mmca(**SMALL, budget=1).train()
    images = pictures((5, 3, 4, 2))
    batch = ImageBatch(fragments=images.fragments.float(), mask=images.mask)  # type: ignore[union-attr]
    scores = matcher.score(matcher.encode_images(batch), matcher.encode_texts(TEXTS))
    (scores * torch.randn(4, 4)).sum().backward()
    for name, parameter in matcher.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_autocast_leaves_scores_in_float32() -> None:
    matcher = build_mmca(**SMALL).eval()
    images = ImageBatch(fragments=torch.randn(3, 5, 6))
    exact = matcher.score(matcher.encode_images(images), matcher.encode_texts(TEXTS))
    with torch.autocast("cpu", torch.bfloat16):
        codes = matcher.encode_images(images), matcher.encode_texts(TEXTS)
        rough = matcher.score(*codes)
    assert codes[0].embedding is not None
    assert codes[0].embedding.dtype == rough.dtype == torch.float32
    assert (rough - exact).abs().max() < 0.05


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"heads": 3}, "8 channels cannot be divided among 3 heads"),
        ({"scale": "none"}, "scale cannot be 'none'"),
        ({"sentence_cnn": "share"}, "did you mean 'shared'"),
        ({"text": "bert"}, "hf:FOLDER_OR_HUB_NAME"),
        ({"project_words": False}, "leave project_words on"),
        ({"cross": False, "sentence_cnn": "shared"}, "use 'projected'"),
    ],
)
def test_wrong_choices_are_named(choice: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        quintet.create_model("mmca", **SMALL | choice)


def test_pixels_are_refused() -> None:
    with pytest.raises(RecipeError, match="extract features first"):
        make().encode_images(ImageBatch(pixels=torch.zeros(1, 3, 8, 8)))


MATCHER: dict[str, Any] = {
    "name": "mmca",
    "embed_dim": 8,
    "heads": 2,
    "filters": 8,
    "budget": 60_000,  # several blocks a batch
}


def test_a_run_is_trained_saved_and_opened(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    tiny_recipe["matcher"] = {**MATCHER, "text_dim": 8, "text_heads": 2, "dropout": 0.1}
    tiny_recipe["stages"][0]["epochs"] = 1
    summary = train_recipe(parse_recipe(tiny_recipe), tmp_path / "run", device="cpu")
    assert summary["online"]["metrics"]["rsum"] > 0
    run = quintet.load(tmp_path / "run")
    corpus = Corpus.open(Path(tiny_recipe["data"]["corpus"]))
    split = corpus.split("test")
    with torch.no_grad():
        images = run.matcher.encode_images(next(run.image_batches(corpus, split.images, 4)))
        texts = run.matcher.encode_texts(next(run.text_batches(split.texts, 4)))
        first = run.matcher.score(images, texts)
        assert torch.equal(quintet.load(tmp_path / "run").score(images, texts), first)
    assert first.isfinite().all()


def tiny_bert(folder: Path) -> Path:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=60
    )
    transformers.BertModel(config).save_pretrained(folder)
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [
        "a",
        "thing",
        "red",
        "green",
        "blue",
        "small",
        "large",
        "round",
        "square",
        "striped",
        "plain",
        "old",
        "new",
    ]
    (folder / "vocab.txt").write_text("\n".join([*marks, *words, "odd"]) + "\n")
    return folder


def test_a_frozen_encoder_is_read_from_disk_and_the_run_opens_without_its_folder(
    tiny_recipe: dict[str, Any], tmp_path: Path
) -> None:
    folder, corpus = tiny_bert(tmp_path / "bert"), tmp_path / "corpus"
    shutil.copytree(tiny_recipe["data"]["corpus"], corpus)
    tiny_recipe["matcher"] = {**MATCHER, "text": f"hf:{folder}", "budget": None}
    tiny_recipe["data"] |= {
        "corpus": str(corpus),
        "tokenizer": {"kind": "wordpiece", "source": str(folder), "max_length": 32},
    }
    tiny_recipe["stages"][0]["epochs"] = 1
    for run, cache in (("live", "none"), ("kept", "float32")):
        train_recipe(parse_recipe(tiny_recipe, [f"data.text_cache={cache}"]), tmp_path / run, device="cpu")
    kept = sorted((corpus / "texts").iterdir())
    assert [path.name.split("-")[0] for path in kept] == ["dev", "train"]
    before = [(path / "features.npy").stat().st_mtime_ns for path in kept]
    train_recipe(parse_recipe(tiny_recipe, ["data.text_cache=float32", "seed=1"]), tmp_path / "again", device="cpu")
    assert [(path / "features.npy").stat().st_mtime_ns for path in kept] == before, "computed once"
    folder.rename(tmp_path / "gone")
    images = ImageBatch(fragments=torch.randn(3, 4, 8))
    scores = []
    with torch.no_grad():
        for run in ("live", "kept", "again"):
            matcher = quintet.load(tmp_path / run).matcher
            scores.append(matcher.score(matcher.encode_images(images), matcher.encode_texts(TEXTS)))
    assert (scores[0] - scores[1]).abs().max() < 1e-3, "kept features train the same matcher"
    assert (scores[0] - scores[2]).abs().max() > 1e-2
    assert read_json(tmp_path / "kept" / "model.json")["arguments"]["text_config"]["hidden_size"] == 8


def test_keeping_outputs_of_a_trained_encoder_is_refused(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    tiny_recipe["matcher"] = {**MATCHER, "text_dim": 8, "text_heads": 2}
    tiny_recipe["data"]["text_cache"] = "float16"
    with pytest.raises(RecipeError, match="frozen text encoder"):
        train_recipe(parse_recipe(tiny_recipe), tmp_path / "run", device="cpu")


@pytest.mark.parametrize("name", ["mmca-f30k", "mmca-coco"])
def test_published_settings(name: str) -> None:
    recipe = load_recipe(name)
    (stage,) = recipe.stages
    assert (stage.optimizer.name, stage.optimizer.lr, stage.batches.size, stage.epochs) == ("adam", 2e-4, 64, 20)
    assert (stage.schedule.kind, stage.schedule.every, stage.schedule.factor) == ("step", 10, 0.1)
    assert stage.loss["triplet"] == {"margin": 0.2, "negatives": "hardest"}
    arguments = recipe.matcher.arguments
    assert arguments["text"] == "hf:bert-base-uncased"
    assert recipe.data.text_cache != "none"
