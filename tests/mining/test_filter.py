from __future__ import annotations

import torch

from quintet.mining.filter import Collector


def block() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(6, 9, generator=generator), torch.linspace(0, 2, 6), torch.linspace(2, 0.5, 9)


def test_what_reaches_its_row_or_its_column_is_kept() -> None:
    scores, rows, columns = block()
    collector = Collector(100, torch.device("cpu"), kernels=False)
    collector.start()
    collector.add(scores[:, :5], rows, columns[:5], 0)
    collector.add(scores[:, 5:], rows, columns[5:], 5)
    taken = collector.take()
    assert taken is not None
    found = sorted(zip(*(part.tolist() for part in taken), strict=True))
    expected = [
        (r, c, scores[r, c].item())
        for r in range(6)
        for c in range(9)
        if scores[r, c] >= rows[r] or scores[r, c] >= columns[c]
    ]
    assert found == expected
    assert 0 < len(expected) < 54
    collector.start()
    nothing = collector.take()
    assert nothing is not None
    assert len(nothing[0]) == 0


def test_too_much_is_refused_as_a_whole() -> None:
    scores, rows, columns = block()
    collector = Collector(3, torch.device("cpu"), kernels=False)
    collector.start()
    collector.add(scores, rows, columns, 0)
    assert collector.take() is None
    collector.start()
    assert collector.take() is not None
