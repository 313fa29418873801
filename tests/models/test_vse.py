from __future__ import annotations

from fnmatch import fnmatchcase
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quintet.data.batches import ImageBatch, TextBatch
from quintet.errors import RecipeError
from quintet.models import vse
from quintet.models.vse import VSE, build_vse
from quintet.training.recipe import load_recipe

MASK = torch.tensor([[True, True, True, False], [True, True, False, False], [True] * 4])
TEXTS = TextBatch.from_ids([[1, 5, 6, 2], [1, 2], [1, 8, 9, 4, 2]])
OPTIONS = [
    {"pooling": pooling, "text_pooling": text_pooling, "bidirectional": both, "projection": projection}
    for (pooling, projection), (text_pooling, both) in zip(
        product(["mean", "max", "gpo"], ["linear", "mlp"]),
        [("last", False), ("last", True), ("mean", True), ("max", False), ("gpo", True), ("gpo", False)],
        strict=True,
    )
]
EVERY_OPTION = pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, options.values())))


def matcher(**options: Any) -> VSE:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocabulary_size": 10, "image_dim": 8, "embed_dim": 6, "word_dim": 4}
    return build_vse(**sizes | options).double()


def fragments(seed: int = 1) -> Tensor:
    return torch.randn(3, 4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def images() -> ImageBatch:
    return ImageBatch(fragments=fragments(), mask=MASK)


def embedding(codes: Any) -> Tensor:
    assert codes.embedding is not None
    return codes.embedding


@EVERY_OPTION
def test_fragments_are_kept_in_training_and_pool_to_the_same_vectors(options: dict[str, Any]) -> None:
    kept, plain = matcher(keep_fragments=True, **options), matcher(**options)
    assert kept.eval().encode_images(images()).fragments is None
    for module in (kept, plain):
        module.train()
    found, expected = kept.encode_images(images()), plain.encode_images(images())
    torch.testing.assert_close(embedding(found), embedding(expected))
    assert expected.fragments is None
    assert torch.equal(found.real(), MASK)
    pooled = kept.image_encoder.pooling(found.fragments, MASK)
    torch.testing.assert_close(pooled / pooled.norm(dim=1, keepdim=True), embedding(found))
    words = kept.encode_texts(TEXTS)
    torch.testing.assert_close(embedding(words), embedding(plain.encode_texts(TEXTS)))
    assert words.real().sum(dim=1).tolist() == TEXTS.lengths.tolist()
    assert words.fragments is not None
    if options["text_pooling"] == "last" and not options["bidirectional"]:
        for row, length in enumerate(TEXTS.lengths.tolist()):
            last = words.fragments[row, length - 1]
            torch.testing.assert_close(last / last.norm(), embedding(words)[row])


def test_the_defaults_are_vse_plus_plus() -> None:
    model = matcher()
    codes = model.encode_images(images())
    assert codes.fragments is None
    projection = model.image_encoder.projection.fc
    for row in range(3):
        pooled = sum(fragments()[row, place] for place in range(4) if MASK[row, place]) / MASK[row].sum()
        vector = projection.weight @ pooled + projection.bias
        torch.testing.assert_close(embedding(codes)[row], vector / vector.norm())
    texts = model.encode_texts(TEXTS)
    for row, length in enumerate(TEXTS.lengths.tolist()):
        states, _ = model.text_encoder.rnn(model.text_encoder.embed(TEXTS.tokens[row : row + 1, :length]))
        torch.testing.assert_close(embedding(texts)[row], states[0, -1] / states[0, -1].norm())
    expected = torch.tensor([[(a @ b).item() for b in embedding(texts)] for a in embedding(codes)], dtype=torch.float64)
    torch.testing.assert_close(model.score(codes, texts), expected)
    torch.testing.assert_close(model.score_pairs(codes, texts), expected.diagonal())


@EVERY_OPTION
def test_unit_length_and_shape(options: dict[str, Any]) -> None:
    model = matcher(**options)
    for codes in (model.encode_images(images()), model.encode_texts(TEXTS)):
        assert embedding(codes).shape == (3, 6)
        torch.testing.assert_close(embedding(codes).norm(dim=1), torch.ones(3, dtype=torch.float64))
    assert model.image_input == "fragments"
    assert model.embed_dim == 6


@EVERY_OPTION
def test_padding_and_order_change_nothing(options: dict[str, Any]) -> None:
    model = matcher(**options).eval()
    expected_images, expected_texts = embedding(model.encode_images(images())), embedding(model.encode_texts(TEXTS))
    rubbish = torch.cat([fragments(), torch.full((3, 2, 8), 50.0, dtype=torch.float64)], dim=1)
    rubbish[:, :4][~MASK] = -9
    longer = ImageBatch(fragments=rubbish, mask=torch.nn.functional.pad(MASK, (0, 2)))
    torch.testing.assert_close(embedding(model.encode_images(longer)), expected_images)
    tokens = torch.nn.functional.pad(TEXTS.tokens, (0, 3), value=7)
    torch.testing.assert_close(embedding(model.encode_texts(TextBatch(tokens, TEXTS.lengths))), expected_texts)
    order = torch.tensor([2, 0, 1])
    turned = ImageBatch(fragments=fragments()[order], mask=MASK[order])
    torch.testing.assert_close(embedding(model.encode_images(turned)), expected_images[order])
    turned_texts = TextBatch(TEXTS.tokens[order], TEXTS.lengths[order])
    torch.testing.assert_close(embedding(model.encode_texts(turned_texts)), expected_texts[order])
    for row in range(3):
        alone = ImageBatch(fragments=fragments()[row : row + 1, : int(MASK[row].sum())])
        torch.testing.assert_close(embedding(model.encode_images(alone))[0], expected_images[row])


@EVERY_OPTION
def test_padding_changes_nothing_in_training_either(options: dict[str, Any]) -> None:
    model = matcher(**options).train()
    expected = embedding(model.encode_images(images()))
    rubbish = torch.nn.functional.pad(fragments(), (0, 0, 0, 3), value=50.0)
    longer = ImageBatch(fragments=rubbish, mask=torch.nn.functional.pad(MASK, (0, 3)))
    torch.testing.assert_close(embedding(model.encode_images(longer)), expected)


@EVERY_OPTION
def test_gradients_reach_every_parameter(options: dict[str, Any]) -> None:
    model = matcher(**options)
    scores = model.score(model.encode_images(images()), model.encode_texts(TEXTS))
    (scores * torch.randn_like(scores)).sum().backward()
    still = [name for name, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()]
    assert still == []


@EVERY_OPTION
def test_state_dict_round_trip(options: dict[str, Any]) -> None:
    first, second = matcher(**options).eval(), matcher(**options).eval()
    for parameter in second.parameters():
        nn.init.zeros_(parameter)
    second.load_state_dict(first.state_dict())
    scores = [model.score(model.encode_images(images()), model.encode_texts(TEXTS)) for model in (first, second)]
    assert scores[0].equal(scores[1])


def test_a_max_is_taken_after_the_projection() -> None:
    model = matcher(pooling="max")
    projected = model.image_encoder.projection(fragments())
    expected = torch.stack([projected[row, MASK[row]].max(dim=0).values for row in range(3)])
    torch.testing.assert_close(embedding(model.encode_images(images())), expected / expected.norm(dim=1, keepdim=True))


def test_dropout_is_for_training() -> None:
    model = matcher(dropout=0.5)
    assert not embedding(model.encode_images(images())).equal(embedding(model.encode_images(images())))
    assert not embedding(model.encode_texts(TEXTS)).equal(embedding(model.encode_texts(TEXTS)))
    model.eval()
    assert embedding(model.encode_images(images())).equal(embedding(model.encode_images(images())))


def test_half_precision_gives_float32_codes() -> None:
    model = matcher(pooling="gpo", text_pooling="gpo", projection="mlp").float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        codes = model.encode_images(ImageBatch(fragments=fragments().float(), mask=MASK))
        texts = model.encode_texts(TEXTS)
    assert embedding(codes).dtype == embedding(texts).dtype == torch.float32
    assert embedding(codes).isfinite().all()


class Tower(nn.Module):
    dim = 8
    preprocess = "how"

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 2, stride=2)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.norm(self.conv(pixels))


PIXELS = ImageBatch(pixels=torch.randn(3, 3, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5)))


@pytest.fixture
def tower(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    calls: list[tuple[Any, ...]] = []

    def create(name: str, weights: Any = None, pretrained: bool = True) -> nn.Module:
        calls.append((name, weights, pretrained))
        return Tower().eval()

    monkeypatch.setattr(vse, "create_tower", create)
    return calls


def pixel_matcher(**options: Any) -> VSE:
    return matcher(image_dim=None, tower="resnet50", **options)


def test_grid_cells_are_the_fragments(tower: list[tuple[Any, ...]]) -> None:
    model = pixel_matcher(pooling="gpo", tower_weights="file.pth").eval()
    assert tower == [("resnet50", "file.pth", True)]
    assert (model.image_input, model.preprocess) == ("pixels", "how")
    grid = model.image_encoder.tower(PIXELS.pixels)  # (3, 8, 3, 2)
    cells = torch.stack([grid[:, :, row, column] for row in range(3) for column in range(2)], dim=1)
    expected = matcher(pooling="gpo").eval()
    expected.image_encoder.load_state_dict(model.image_encoder.fragments.state_dict())
    torch.testing.assert_close(
        embedding(model.encode_images(PIXELS)), embedding(expected.encode_images(ImageBatch(fragments=cells)))
    )


@pytest.mark.usefixtures("tower")
def test_a_frozen_tower_stays_as_it_is() -> None:
    model = pixel_matcher().train()
    parts = model.image_encoder
    assert not parts.tower.training
    assert parts.fragments.training
    assert not any(parameter.requires_grad for parameter in parts.tower.parameters())
    before = {name: value.clone() for name, value in parts.tower.state_dict().items()}
    embedding(model.encode_images(PIXELS)).sum().backward()
    assert parts.fragments.projection.fc.weight.grad is not None
    assert all(parameter.grad is None for parameter in parts.tower.parameters())
    assert all(value.equal(before[name]) for name, value in parts.tower.state_dict().items())


@pytest.mark.usefixtures("tower")
def test_a_trained_tower_learns_until_names_are_frozen() -> None:
    model = pixel_matcher(tower_trainable=True).train()
    assert model.image_encoder.tower.training
    embedding(model.encode_images(PIXELS)).sum().backward()
    assert model.image_encoder.tower.conv.weight.grad is not None
    for name, parameter in model.named_parameters():  # what a stage's `freeze: ["*.tower.*"]` does
        if ".tower." in name:
            parameter.requires_grad_(False)
    model.train()
    assert not model.image_encoder.tower.training
    for parameter in model.image_encoder.tower.parameters():
        parameter.requires_grad_(True)
    model.train()
    assert model.image_encoder.tower.training
    assert not model.eval().image_encoder.tower.training


def test_a_tower_that_starts_from_nothing_is_trained() -> None:
    small = build_vse(vocabulary_size=10, embed_dim=6, word_dim=4, tower="small-cnn")
    assert all(parameter.requires_grad for parameter in small.parameters())
    codes = small.encode_images(ImageBatch(pixels=torch.randn(2, 3, 64, 64)))
    assert embedding(codes).shape == (2, 6)
    assert small.preprocess is small.image_encoder.tower.preprocess
    frozen = build_vse(vocabulary_size=10, embed_dim=6, word_dim=4, tower="small-cnn", tower_trainable=False)
    assert not any(parameter.requires_grad for parameter in frozen.image_encoder.tower.parameters())


@pytest.mark.usefixtures("tower")
def test_the_wrong_kind_of_images_is_refused() -> None:
    with pytest.raises(ValueError, match="takes features, not pixels"):
        matcher().encode_images(PIXELS)
    with pytest.raises(ValueError, match="takes pixels, not features"):
        pixel_matcher().encode_images(images())
    assert not hasattr(matcher(), "preprocess")
    with pytest.raises(ValueError, match=r"8 channels.* 9"):
        matcher(image_dim=9).encode_images(images())


@pytest.mark.usefixtures("tower")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pooling": "median"}, "pooling cannot be 'median'; did you mean 'mean'"),
        ({"text_pooling": "lst"}, "text_pooling cannot be 'lst'; did you mean 'last'"),
        ({"projection": "conv"}, "projection cannot be 'conv'"),
        ({"image_dim": None}, "needs image_dim .* or a tower"),
        ({"image_dim": 9, "tower": "resnet50"}, "gives 8 channels; leave image_dim=9 out"),
    ],
)
def test_impossible_arguments_are_explained(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        matcher(**options)


BERT = {
    "model_type": "bert",
    "vocab_size": 12,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 10,
    "max_position_embeddings": 20,
}


def test_a_bert_like_encoder_is_pooled_and_fine_tuned() -> None:
    pytest.importorskip("transformers")
    settings: dict[str, Any] = {"text": "hf:nowhere", "text_config": BERT, "text_pretrained": False}
    matcher = build_vse(vocabulary_size=12, image_dim=5, embed_dim=6, text_pooling="gpo", **settings)
    embedding = matcher.encode_texts(TextBatch.from_ids([[1, 5, 2], [1, 6, 7, 8, 2]])).embedding
    assert embedding is not None
    assert embedding.shape == (2, 6)
    embedding.sum().backward()
    recipe = load_recipe("vse-infinity-bert-f30k").stages[0].optimizer
    trained = [name for name, parameter in matcher.named_parameters() if parameter.grad is not None]
    own = [name for name in trained if fnmatchcase(f"matcher.{name}", recipe.groups[0].match)]
    assert len(own) > 10, "the recipe gives the encoder its learning rate"
    assert all(name.startswith("text_encoder.words.encoder.model.") for name in own)
    with pytest.raises(RecipeError, match="need text_pooling"):
        build_vse(vocabulary_size=12, image_dim=5, **settings)
    with pytest.raises(RecipeError, match="'gru' or 'hf:"):
        build_vse(vocabulary_size=12, image_dim=5, text="bert", text_pooling="gpo")
