from __future__ import annotations

import pytest
import torch

from quintet.codes import Codes
from quintet.scores import dot_score_pairs, dot_scores


def test_every_pair_and_row_by_row() -> None:
    images = Codes(embedding=torch.tensor([[1.0, 0.0], [0.6, 0.8]]))
    texts = Codes(embedding=torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    torch.testing.assert_close(dot_scores(images, texts), torch.tensor([[0.0, 1.0], [0.8, 0.6]]))
    torch.testing.assert_close(dot_score_pairs(images, texts), torch.tensor([0.0, 0.6]))


def test_fragments_have_no_dot_product() -> None:
    with pytest.raises(ValueError, match="no embedding"):
        dot_scores(Codes(fragments=torch.zeros(1, 2, 3)), Codes(embedding=torch.zeros(1, 3)))
