"""Dual-Path: sizes as published, positions, flips, heads, and what training sees against what is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quintet.backbones.create import create_tower
from quintet.data.batches import ImageBatch, TextBatch
from quintet.errors import RecipeError
from quintet.models import dual_path
from quintet.models.dual_path import (
    LAYOUTS,
    DualPath,
    FeaturePath,
    PixelPath,
    ReleasedHead,
    ResidualTextCNN,
    TextBlock,
    build_dual_path,
    place_words,
    two_layer_head,
)

SENTENCES = [[4, 5, 6], [7], [9, 8, 4, 5, 6]]
TEXTS = TextBatch.from_ids(SENTENCES)
MASK = torch.tensor([[True, True, False], [True, True, True]])


def matcher(**options: Any) -> DualPath:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocabulary_size": 10, "image_dim": 4, "embed_dim": 6, "word_dim": 5, "length": 8}
    sizes |= {"text_layout": "small", "text_width": 1}
    made = build_dual_path(**sizes | options)
    for module in made.modules():  # as after some training: evaluation mode is not the identity
        if isinstance(module, nn.BatchNorm1d):
            nn.init.normal_(module.running_mean, std=0.1)  # type: ignore[arg-type]
            nn.init.uniform_(module.running_var, 0.5, 2)  # type: ignore[arg-type]
    return made.double()


def on_pixels(**options: Any) -> DualPath:
    return matcher(image_dim=None, tower="small-cnn", **options)


def features() -> ImageBatch:
    return ImageBatch(fragments=torch.randn(2, 3, 4, dtype=torch.float64), mask=MASK)


def pixels() -> Tensor:
    return torch.randn(2, 3, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def embedding(codes: Any) -> Tensor:
    assert codes.embedding is not None
    return codes.embedding


def size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_the_defaults_are_the_papers() -> None:
    made = build_dual_path(vocabulary_size=20_074, tower="resnet50", tower_pretrained=False)
    assert made.embed_dim == 2048
    assert size(made.image_encoder.tower) == 23_508_032
    assert size(made.image_encoder.head) == size(made.text_encoder.head) == 2 * 2048**2 + 3 * 2048
    assert (made.text_encoder.length, made.text_encoder.alignment, made.text_encoder.cnn.pooling) == (
        32,
        "shift",
        "average",
    )
    assert made.preprocess.size == (224, 224)
    assert made.preprocess.short_side == 256
    assert made.image_input == "pixels"


def test_released_heads_and_vgg_widths() -> None:
    released = build_dual_path(
        vocabulary_size=50, image_dim=2048, head="released", text_layout="released", text_pooling="max"
    )
    assert size(released.image_encoder.head) == 2 * 2048**2 + 4 * 2048
    assert size(released.text_encoder.head) == 2048**2 + 2 * 2048
    vgg = build_dual_path(vocabulary_size=50, image_dim=4096)
    assert size(vgg.image_encoder.head) == 4096**2 + 2 * 4096 + 4096 * 2048 + 2048


def test_features_are_raw_in_training_and_unit_when_measured() -> None:
    """The instance loss needs their length; search and mining multiply what is measured."""
    model = matcher(alignment="left")
    for encode, batch in ((model.encode_images, features()), (model.encode_texts, TEXTS)):
        model.train()
        assert (embedding(encode(batch)).norm(dim=1) - 1).abs().max() > 0.01
        model.eval()
        torch.testing.assert_close(embedding(encode(batch)).norm(dim=1), torch.ones(len(batch), dtype=torch.float64))
    model.train()
    images, texts = model.encode_images(features()), model.encode_texts(TEXTS)
    cosine = torch.nn.functional.cosine_similarity(embedding(images)[:, None], embedding(texts)[None], dim=2)
    torch.testing.assert_close(model.score(images, texts), cosine)
    torch.testing.assert_close(model.score_pairs(images, texts[:2]), cosine[:, :2].diagonal())


def test_cells_are_averaged_without_padding() -> None:
    model, batch = matcher().eval(), features()
    assert isinstance(model.image_encoder, FeaturePath)
    assert batch.fragments is not None
    mean = torch.stack([batch.fragments[0, :2].mean(0), batch.fragments[1].mean(0)])
    torch.testing.assert_close(model.image_features(batch), mean)
    expected = model.image_encoder.head(mean)
    torch.testing.assert_close(embedding(model.encode_images(batch)), expected / expected.norm(dim=1, keepdim=True))


def test_measured_features_are_the_mean_over_the_flip() -> None:
    model, batch = on_pixels().eval(), ImageBatch(pixels=pixels())
    path = model.image_encoder
    assert isinstance(path, PixelPath)
    plain, flipped = path.head(path.tower.pooled(pixels())), path.head(path.tower.pooled(pixels().flip(3)))
    assert not torch.allclose(plain, flipped)
    torch.testing.assert_close(path(batch), (plain + flipped) / 2)
    mirrored = ImageBatch(pixels=pixels().flip(3))
    torch.testing.assert_close(path(mirrored), path(batch))
    torch.testing.assert_close(on_pixels(flip_test=False).eval().image_encoder(batch), plain)
    path.train()  # sees one view
    torch.testing.assert_close(path(batch), path.head(path.tower.pooled(pixels())))


def by_start(model: DualPath, starts: list[int]) -> Tensor:
    placed = place_words(TEXTS.tokens, TEXTS.lengths, torch.tensor(starts), model.text_encoder.length)
    return model.text_encoder.head(model.text_encoder.cnn(placed))


def test_texts_are_placed_by_their_chance_in_training_and_left_when_measured() -> None:
    model = matcher()
    texts = TextBatch(TEXTS.tokens, TEXTS.lengths, position_noise=torch.tensor([0.99, 0.5, 0.0]))
    assert model.uses_position_noise
    model.train()
    torch.testing.assert_close(embedding(model.encode_texts(texts)), by_start(model, [5, 4, 0]))
    with pytest.raises(ValueError, match="set position_noise"):
        model.encode_texts(TEXTS)
    model.eval()
    torch.testing.assert_close(model.text_encoder(texts), by_start(model, [0, 0, 0]))


def test_left_alignment_ignores_position_noise() -> None:
    model = matcher(alignment="left").train()
    assert not model.uses_position_noise
    texts = TextBatch(TEXTS.tokens, TEXTS.lengths, position_noise=torch.tensor([0.99, 0.5, 0.9]))
    torch.testing.assert_close(embedding(model.encode_texts(texts)), by_start(model, [0, 0, 0]))


def test_all_positions_are_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    model = matcher(test_positions="all").eval()
    expected = torch.stack(
        [
            torch.stack(
                [by_start(model, [start if row == at else 0 for at in range(3)])[row] for start in range(count)]
            ).mean(dim=0)
            for row, count in enumerate((6, 8, 4))
        ]
    )
    torch.testing.assert_close(model.text_encoder(TEXTS), expected)
    monkeypatch.setattr(dual_path, "BLOCK", 5)
    torch.testing.assert_close(model.text_encoder(TEXTS), expected)


def test_long_texts_lose_their_end() -> None:
    model = matcher(length=4).eval()
    long, cut = TextBatch.from_ids([[4, 5, 6, 7, 8, 9]]), TextBatch.from_ids([[4, 5, 6, 7]])
    torch.testing.assert_close(embedding(model.encode_texts(long)), embedding(model.encode_texts(cut)))


@pytest.mark.parametrize("test_positions", ["left", "all"])
def test_padding_and_order_change_nothing(test_positions: str) -> None:
    model = matcher(test_positions=test_positions).eval()
    expected = embedding(model.encode_texts(TEXTS))
    padded = TextBatch(torch.nn.functional.pad(TEXTS.tokens, (0, 3), value=7), TEXTS.lengths)
    torch.testing.assert_close(embedding(model.encode_texts(padded)), expected)
    order = torch.tensor([2, 0, 1])
    torch.testing.assert_close(embedding(model.encode_texts(TEXTS.take(order))), expected[order])
    for row in range(3):
        torch.testing.assert_close(
            embedding(model.encode_texts(TEXTS.take(slice(row, row + 1)))), expected[row : row + 1]
        )


def test_a_text_without_known_words_is_an_empty_one() -> None:
    model = matcher().eval()
    empty = model.encode_texts(TextBatch.from_ids([[0]]))
    assert embedding(empty).isfinite().all()


def test_a_tower_comes_from_a_local_file(tmp_path: Path) -> None:
    torch.manual_seed(3)
    source = create_tower("resnet18", pretrained=False)
    torch.save(source.state_dict(), tmp_path / "resnet18.pth")
    made = build_dual_path(
        vocabulary_size=9,
        tower="resnet18",
        tower_weights=tmp_path / "resnet18.pth",
        embed_dim=8,
        text_layout="small",
        text_width=1,
        view="squeeze",
    )
    assert torch.equal(made.image_encoder.tower.conv1.weight, source.state_dict()["conv1.weight"])
    assert made.preprocess.crop == "squeeze"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text_layout": "resnet5"}, "did you mean 'resnet50'"),
        ({"text_pooling": "mean"}, "text_pooling cannot be 'mean'"),
        ({"alignment": "right"}, "alignment cannot be 'right'"),
        ({"head": "relased"}, "did you mean 'released'"),
        ({"alignment": "left", "test_positions": "all"}, "shifted in training"),
        ({"image_dim": None}, "needs a tower"),
        ({"tower": "small-cnn"}, "gives 128 channels"),
        ({"length": 0}, "1 or more"),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        matcher(**options)


def test_the_wrong_kind_of_images_is_told() -> None:
    with pytest.raises(ValueError, match="takes pixels, not features"):
        on_pixels().encode_images(features())
    with pytest.raises(ValueError, match="takes features, not pixels"):
        matcher().encode_images(ImageBatch(pixels=pixels()))
    assert not hasattr(matcher(), "preprocess")


def test_half_precision_features_become_single() -> None:
    model = matcher(alignment="left").float().train()
    with torch.autocast("cpu", torch.bfloat16):
        codes = model.encode_texts(TEXTS)
    assert embedding(codes).dtype == torch.float32


def test_gradients_reach_every_parameter() -> None:
    model = on_pixels().train()
    texts = TextBatch(TEXTS.tokens[:2], TEXTS.lengths[:2], position_noise=torch.rand(2))
    scores = model.score(model.encode_images(ImageBatch(pixels=pixels())), model.encode_texts(texts))
    (scores * torch.randn(2, 2)).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


F30K = 20_074  # words of the paper's dictionary for Flickr30k


def sizes(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def statistics(module: nn.Module) -> int:
    return sum(buffer.numel() for name, buffer in module.named_buffers() if "running" in name)


def lengths(cnn: ResidualTextCNN, places: int) -> list[int]:
    """The length after each block."""
    x, found = torch.zeros(1, places, cnn.embed.embedding_dim), []
    for block in cnn.eval().blocks:
        x = block(x)
        found.append(x.shape[1])
    return found


@pytest.mark.parametrize(
    ("layout", "blocks", "after"),
    [
        ("resnet50", (3, 4, 6, 3), (32, 16, 8, 4)),
        ("resnet152", (3, 8, 36, 3), (32, 16, 8, 4)),
        ("released", (3, 4, 6, 1), (32, 16, 8, 8)),
        ("small", (1, 1, 1, 1), (32, 16, 8, 4)),
    ],
)
def test_blocks_and_lengths(layout: Any, blocks: tuple[int, ...], after: tuple[int, ...]) -> None:
    cnn = ResidualTextCNN(50, layout=layout, width=2)
    assert tuple(stage.blocks for stage in LAYOUTS[layout]) == blocks
    assert lengths(cnn, 32) == [length for count, length in zip(blocks, after, strict=True) for _ in range(count)]
    assert lengths(cnn, 56)[-1] == (14 if layout == "released" else 7)


def test_the_released_trunk_has_the_published_size() -> None:
    """32.2 M with the moments of its BatchNorms, which MatConvNet counts; its look-up bias (300) is left out here."""
    cnn = ResidualTextCNN(F30K, layout="released", pooling="max")
    assert cnn.dim == 2048
    assert sizes(cnn.embed) == 6_022_200
    shapes = [tuple(block.conv2.weight.shape) for block in cnn.blocks]
    widths = [128, 64, 64, 512, 128, 128, 128, 1024, *[256] * 5, 2048]
    assert shapes == [(width, 2 * width) for width in widths], "1x2"
    assert sizes(cnn) + statistics(cnn) + 300 == 32_178_196


def test_the_papers_layout_has_resnet_50s_widths() -> None:
    cnn = ResidualTextCNN(F30K)
    assert cnn.dim == 2048
    outputs = [block.conv3.out_features for block in cnn.blocks]
    assert outputs == [256] * 3 + [512] * 4 + [1024] * 6 + [2048] * 3
    assert [block.conv2.weight.shape[0] * 4 for block in cnn.blocks] == outputs, "bottlenecks throughout"
    assert sizes(cnn) == 20_794_512
    assert sizes(ResidualTextCNN(F30K, layout="resnet152")) == 41_208_976


def convolved(x: Tensor, weight: Tensor, stride: int, before: int = 0) -> Tensor:
    """(out, kernel, in) over (in, length), place by place; the first weight sees the place so many `before`."""
    columns = []
    for place in range(0, x.shape[1], stride):
        seen = [(place - before + k, weight[:, k]) for k in range(weight.shape[1])]
        columns.append(sum(w @ x[:, at] for at, w in seen if 0 <= at < x.shape[1]))
    return torch.stack(columns, dim=1)  # type: ignore[arg-type]


def normalised(x: Tensor, norm: nn.BatchNorm1d) -> Tensor:
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()  # type: ignore[operator]
    return (x - norm.running_mean[:, None]) * scale[:, None] + norm.bias[:, None]  # type: ignore[index]


def by_hand(cnn: ResidualTextCNN, words: Tensor, released: bool) -> Tensor:
    rows = []
    for text in words:
        x = torch.stack([cnn.embed.weight[word] * (word != 0) for word in text], dim=1)  # (word_dim, length)
        x = normalised(x, cnn.norm)
        for block in cnn.blocks:
            assert isinstance(block, TextBlock)
            stride = block.stride
            out = normalised(convolved(x, block.conv1.weight[:, None], 1), block.bn1).relu()
            before = 1 if stride == 1 or released else 0
            kernel = block.conv2.weight.unflatten(1, (2, -1))
            out = normalised(convolved(out, kernel, stride, before), block.bn2).relu()
            out = normalised(convolved(out, block.conv3.weight[:, None], 1), block.bn3)
            if block.changes_shape:
                x = normalised(convolved(x, block.shortcut.weight[:, None], stride), block.shortcut_bn)
            x = (out + x).relu()
        rows.append(x.mean(dim=1) if cnn.pooling == "average" else x.amax(dim=1))
    return torch.stack(rows)


@pytest.mark.parametrize("pooling", ["average", "max"])
@pytest.mark.parametrize("layout", ["released", "small"])
def test_it_is_the_equations_place_by_place(layout: Any, pooling: Any) -> None:
    torch.manual_seed(0)
    cnn = ResidualTextCNN(9, word_dim=5, layout=layout, width=1, pooling=pooling).double()
    for module in cnn.modules():
        if isinstance(module, nn.BatchNorm1d):
            nn.init.normal_(module.running_mean, std=0.1)  # type: ignore[arg-type]
            nn.init.uniform_(module.running_var, 0.5, 2)  # type: ignore[arg-type]
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.normal_(module.bias, std=0.1)
    words = torch.randint(0, 9, (3, 11))  # an odd length, halved
    with torch.no_grad():
        torch.testing.assert_close(cnn.eval()(words), by_hand(cnn, words, released=layout == "released"))


@pytest.mark.parametrize(
    ("layout", "places", "unseen"), [("small", 32, []), ("small", 9, []), ("released", 32, [29, 30, 31])]
)
def test_which_words_are_seen(layout: Any, places: int, unseen: list[int]) -> None:
    torch.manual_seed(0)
    cnn = ResidualTextCNN(9, word_dim=5, layout=layout, width=4).double()
    cnn.eval()
    words = torch.full((1, places), 3)
    changed = words.repeat(places, 1)
    changed[torch.arange(places), torch.arange(places)] = 8
    same = (cnn(changed) - cnn(words)).abs().amax(dim=1) == 0
    assert same.nonzero().flatten().tolist() == unseen


def test_an_empty_place_has_no_word_vector() -> None:
    cnn = ResidualTextCNN(9, word_dim=5, layout="small", width=1).eval()
    words = torch.tensor([[0, 3, 4, 0, 0, 0, 0, 0]])
    before = cnn(words)
    with torch.no_grad():
        cnn.embed.weight[0] = 100.0
    assert torch.equal(cnn(words), before)


def test_first_weights() -> None:
    """Glorot for words, He for convolutions."""
    torch.manual_seed(0)
    cnn = ResidualTextCNN(400, word_dim=200, layout="small", width=32)
    bound = (6 / 600) ** 0.5
    assert cnn.embed.weight.abs().max() <= bound
    assert cnn.embed.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.02)
    second = cnn.blocks[-1].conv2
    assert second.weight.std().item() == pytest.approx((2 / second.in_features) ** 0.5, rel=0.02)
    assert second.bias is None


def test_unknown_names() -> None:
    with pytest.raises(ValueError, match="resnet50, resnet152, released, small"):
        ResidualTextCNN(9, layout="resnet34")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="average or max"):
        ResidualTextCNN(9, pooling="mean")  # type: ignore[arg-type]


def test_the_papers_head_is_fc_bn_relu_fc() -> None:
    head = two_layer_head(2048, 2048, 2048)
    assert [type(layer) for layer in head] == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]
    assert sum(parameter.numel() for parameter in head.parameters()) == 2 * 2048**2 + 3 * 2048
    assert head[0].bias is None
    assert two_layer_head(4096, 4096, 2048)[3].weight.shape == (2048, 4096)


def test_the_released_head_is_measured_before_its_last_relu() -> None:
    torch.manual_seed(0)
    head, x = ReleasedHead(5, 4, 3), torch.randn(50, 5)
    for norm in head.norm:
        norm.momentum = 1.0  # the statistics that are kept are those of the batch
    trained = head(x)
    assert (trained >= 0).all()
    measured = head.eval()(x)
    assert (measured < 0).any()
    torch.testing.assert_close(measured.relu(), trained, atol=0.05, rtol=0.05)
    hidden = head.norm[0](head.linear[0](x)).relu()
    torch.testing.assert_close(measured, head.norm[1](head.linear[1](hidden)))
    assert len(ReleasedHead(5, 3).linear) == 1, "the released text branch has one fc"
    assert [norm.eps for norm in head.norm] == [1e-3, 1e-3]
