from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.layers.text_cnn import TextCNN


def by_convolution(cnn: TextCNN, words: Tensor) -> Tensor:
    """(L, in_dim) -> (dim,): torch's own convolution, one text without padding."""
    pooled = []
    for window, bank in zip(cnn.windows, cnn.filter_banks, strict=True):
        kernel = bank.weight.view(cnn.filters, window, cnn.in_dim).transpose(1, 2)  # (filters, in_dim, window)
        row = words.T[None]  # (1, in_dim, L)
        row = row if cnn.inside else F.pad(row, (0, window - 1))
        if row.shape[2] < window:
            pooled.append(words.new_zeros(cnn.filters))
            continue
        pooled.append(torch.relu(F.conv1d(row, kernel, bank.bias))[0].amax(dim=1))
    return cnn.norm(cnn.fc(torch.cat(pooled)))


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("norm", ["l2", "layernorm"])
def test_texts_equal_torchs_convolution(inside: bool, norm: str) -> None:
    torch.manual_seed(0)
    cnn = TextCNN(6, 4, filters=5, norm=norm, inside=inside).double()  # type: ignore[arg-type]
    words = torch.randn(4, 5, 6, dtype=torch.float64)
    lengths = [5, 3, 2, 1]
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    found = cnn(words.masked_fill(~mask[..., None], torch.nan), mask)  # whatever stands at padding
    for row, length in enumerate(lengths):
        assert (found[row] - by_convolution(cnn, words[row, :length])).abs().max() < 1e-12
    whole = cnn(words)
    assert (whole[1] - by_convolution(cnn, words[1])).abs().max() < 1e-12


def test_a_mask_is_shared_by_what_stands_in_front() -> None:
    cnn = TextCNN(6, 4, filters=5)
    words = torch.randn(3, 2, 4, 6)
    mask = torch.tensor([[True, True, False, False], [True, True, True, True]])
    found = cnn(words, mask)
    assert found.shape == (3, 2, 4)
    for row in range(3):
        torch.testing.assert_close(found[row], cnn(words[row], mask))


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="windows"):
        TextCNN(6, 4, windows=())
    with pytest.raises(ValueError, match="norm"):
        TextCNN(6, 4, norm="batch")  # type: ignore[arg-type]
