"""The caption generator."""

from __future__ import annotations

import torch
from torch import Tensor

from quintet.losses.caption import Captioner


def make() -> Captioner:
    torch.manual_seed(0)
    return Captioner(vocabulary_size=11, region_dim=6, hidden=5, word_dim=4).double().eval()


def plain(captioner: Captioner, regions: Tensor, words: list[int]) -> Tensor:
    """One image and one text: the attention of every step from the joined vectors."""
    outputs, last = captioner.reader.rnn(captioner.reader.project(regions)[None])
    outputs, state = outputs[0], last[0]
    scores = []
    for word in words:
        joined = [torch.cat([output, state[0]]) for output in outputs]
        logits = torch.stack([captioner.attention.score(torch.tanh(captioner.attention.joint(x)))[0] for x in joined])
        context = (torch.softmax(logits, 0)[:, None] * outputs).sum(0)
        state = captioner.cell(torch.cat([captioner.embed.weight[word], context])[None], state)
        scores.append(captioner.out(state)[0])
    return torch.stack(scores)


def test_batch_equals_each_text_by_itself() -> None:
    captioner = make()
    lengths = [3, 5, 1]
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    regions = torch.randn(3, 5, 6, dtype=torch.float64)
    words = torch.randint(0, 11, (3, 4))
    scores = captioner(regions, words, mask)
    for row, length in enumerate(lengths):
        torch.testing.assert_close(scores[row], plain(captioner, regions[row, :length], words[row].tolist()))


def test_without_a_mask_all_regions_count() -> None:
    captioner = make()
    regions, words = torch.randn(2, 5, 6, dtype=torch.float64), torch.randint(0, 11, (2, 3))
    everything = captioner(regions, words, torch.ones(2, 5, dtype=torch.bool))
    torch.testing.assert_close(captioner(regions, words), everything)


def test_dropout_only_in_training() -> None:
    captioner = make().train()
    regions, words = torch.randn(1, 4, 6, dtype=torch.float64), torch.tensor([[1, 2]])
    assert not torch.equal(captioner(regions, words), captioner(regions, words))
    captioner.eval()
    assert torch.equal(captioner(regions, words), captioner(regions, words))


def test_gradients_reach_every_parameter() -> None:
    captioner = make()
    captioner(torch.randn(2, 4, 6, dtype=torch.float64), torch.tensor([[1, 2], [1, 3]])).square().sum().backward()
    assert [name for name, parameter in captioner.named_parameters() if parameter.grad is None] == []
