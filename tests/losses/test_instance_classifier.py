"""The shared classifier against a plain softmax, alone, sampled, and shared out among two distributed."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.nn.functional import cross_entropy

from quintet import distributed
from quintet.losses import instance as sharded_classifier
from quintet.losses.instance import ShardedClassifier

ITEMS, DIM, CLASSES = 6, 5, 11
TARGETS = torch.tensor([0, 10, 4, 5, 4, 7])
OTHERS = torch.tensor([9, 1, 8])  # all in one half of the classes but one


def classifier(bias: bool = True) -> ShardedClassifier:
    torch.manual_seed(0)
    made = ShardedClassifier(DIM, CLASSES, bias).double()
    if made.bias is not None:
        with torch.no_grad():
            made.bias.copy_(torch.linspace(-1, 1, CLASSES).double()[made.mine])
    return made


def features() -> Tensor:
    return torch.randn(ITEMS, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("bias", [False, True])
def test_it_is_the_softmax_of_eq_5_and_6(bias: bool) -> None:
    whole, x = classifier(bias), features().requires_grad_()
    costs, wrong = whole(x, TARGETS)
    logits = x @ whole.weight.T + (0 if whole.bias is None else whole.bias)
    expected = [-torch.log(logits[i].exp()[c] / logits[i].exp().sum()) for i, c in enumerate(TARGETS.tolist())]
    torch.testing.assert_close(costs, torch.stack(expected))
    assert wrong.tolist() == (logits.argmax(dim=1) != TARGETS).tolist()
    gradients = torch.autograd.grad(costs.sum(), [x, whole.weight])
    plain = torch.autograd.grad(cross_entropy(logits, TARGETS, reduction="sum"), [x, whole.weight])
    for got, wanted in zip(gradients, plain, strict=True):
        torch.testing.assert_close(got, wanted)


def test_gradients_numerically() -> None:
    whole = classifier()
    assert torch.autograd.gradcheck(lambda x: whole(x, TARGETS)[0], features().requires_grad_())
    x = features()
    assert torch.autograd.gradcheck(
        lambda weight: torch.func.functional_call(whole, {"weight": weight}, (x, TARGETS))[0],
        whole.weight.detach().clone().requires_grad_(),
    )


def test_large_logits_do_not_overflow() -> None:
    whole = classifier()
    costs, _ = whole(1e4 * features(), TARGETS)
    assert costs.isfinite().all()
    torch.testing.assert_close(
        costs, cross_entropy(1e4 * features() @ whole.weight.T + whole.bias, TARGETS, reduction="none")
    )


def test_sampled_softmax_with_all_classes_is_the_softmax() -> None:
    whole, x = classifier(), features()
    others = torch.tensor([c for c in range(CLASSES) if c not in TARGETS]).flip(0)
    for got, wanted in zip(whole(x, TARGETS, others), whole(x, TARGETS), strict=True):
        torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(whole(x, TARGETS, others[:0])[0].isfinite().all(), torch.tensor(True))


def test_sampled_softmax_sums_exponentials_rightly_on_average() -> None:
    """Over all samples of three of the six classes that no item belongs to."""
    whole, x = classifier(), features()
    left_out = [c for c in range(CLASSES) if c not in TARGETS]
    samples = list(torch.combinations(torch.tensor(left_out), 3))
    assert len(samples) == 20
    right = (x @ whole.weight.T + whole.bias).gather(1, TARGETS[:, None])[:, 0]
    sums = torch.stack([(whole(x, TARGETS, sample)[0] + right).exp() for sample in samples]).mean(dim=0)
    torch.testing.assert_close(sums, (x @ whole.weight.T + whole.bias).exp().sum(dim=1))


def test_errors_of_a_sample_do_not_count_what_it_stands_for() -> None:
    whole, x = classifier(), features()
    _, wrong = whole(x, TARGETS, OTHERS)
    logits = x @ whole.weight.T + whole.bias
    compared = torch.cat([TARGETS.unique(), OTHERS])
    assert wrong.tolist() == (logits[:, compared].amax(dim=1) > logits.gather(1, TARGETS[:, None])[:, 0]).tolist()


def test_a_tie_is_an_error() -> None:
    """A matcher that makes everything zero must not look perfect."""
    assert classifier(bias=False)(torch.zeros_like(features()), TARGETS)[1].all()


def test_first_weights_do_not_depend_on_who_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharded_classifier, "ROWS", 4)
    whole = classifier(bias=False).weight
    monkeypatch.setattr(distributed, "world_size", lambda: 3)
    parts = []
    for rank in range(3):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        parts.append(classifier(bias=False).weight)
    assert torch.equal(torch.cat(parts), whole)
    assert max(len(part) for part in parts) == 4
    with pytest.raises(ValueError, match=r"2 classes .*3 processes"):
        ShardedClassifier(DIM, 2)


def run(sampled: bool, total: int = ITEMS) -> dict[str, Tensor | list[Tensor]]:
    """As an objective does it: everybody gathers the features, each returns the costs of its own items."""
    mine = distributed.share(total)
    part, x = classifier(), features()[mine].requires_grad_()
    costs, wrong = part(distributed.gather_rows(x, total), TARGETS, OTHERS if sampled else None)
    costs[mine].sum().backward()
    distributed.sum_gradients(part.parameters())
    assert x.grad is not None
    gradients = [distributed.gather_rows(p.grad, CLASSES) for p in part.parameters() if p.grad is not None]
    return {
        "costs": costs.detach(),
        "wrong": wrong,
        "x": distributed.gather_rows(x.grad, total),
        "gradients": gradients,
    }


def work(rank: int, port: int, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    try:
        assert len(classifier().weight) == (6 if rank else 5)
        torch.save([run(sampled=False), run(sampled=True)], Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


def test_shared_out_equals_whole(tmp_path: Path) -> None:
    """Costs, errors, and the gradients of features, weights and biases, in float64."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.start_processes(work, args=(port, str(tmp_path)), nprocs=2, start_method="spawn")
    for number, sampled in enumerate((False, True)):
        expected = run(sampled)
        for rank in (0, 1):
            got = torch.load(tmp_path / f"{rank}.pt", weights_only=True)[number]
            for name, value in expected.items():
                torch.testing.assert_close(got[name], value, msg=f"{name}, sampled {sampled}")
