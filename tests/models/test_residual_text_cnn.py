"""Dual-Path's text CNN: shapes and sizes as published, and each layer written out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quintet.models.dual_path import LAYOUTS, ResidualTextCNN, TextBlock

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
