from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from quintet.codes import Codes
from quintet.scores.cross_attention import Engine, bfan_scores, cosines_by, has_triton, scan_scores, working_copies


def test_auto_is_plain_torch_without_a_gpu(make_codes: Callable[..., Codes]) -> None:
    images, texts = make_codes([4, 2], seed=1), make_codes([3, 1, 5], seed=2)
    assert torch.equal(scan_scores(images, texts, engine="auto"), scan_scores(images, texts, engine="torch"))


def test_the_fused_kernel_counts_fewer_working_copies(make_codes: Callable[..., Codes]) -> None:
    codes = make_codes([2])
    assert working_copies("triton", codes) < working_copies("torch", codes)
    assert working_copies("torch", codes, focal=True) > working_copies("torch", codes)


def test_an_unknown_normalisation_is_refused_before_any_work() -> None:
    with pytest.raises(ValueError, match="norm must be one of"):
        cosines_by("torch", norm="l9", relu_slope=0.1, temperature=9.0)  # type: ignore[arg-type]


def test_triton_is_for_cuda() -> None:
    assert not has_triton() or torch.cuda.is_available()


@pytest.mark.slow
def test_compiled_scores_and_gradients_are_the_plain_ones(make_codes: Callable[..., Codes]) -> None:
    found = []
    for engine in ("torch", "compile"):
        grads, scores = [], []
        for lengths in ([3, 3, 3], [2, 5, 4, 5]):  # other shapes, the same program
            images, texts = make_codes([4, 2, 4], seed=1), make_codes(lengths, seed=2)
            images.fragments.requires_grad_()
            score = scan_scores(images, texts, engine=engine, budget=2000)
            scores.append(score.detach())
            grads += torch.autograd.grad(score.sum(), [images.fragments])
        found.append((*scores, *grads))
    for plain, compiled in zip(*found, strict=True):
        torch.testing.assert_close(compiled, plain)


@pytest.mark.gpu
@pytest.mark.parametrize("budget", [None, 200_000])
@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("engine", ["auto", "torch", "triton"])
@pytest.mark.parametrize("matcher", ["t2i", "i2t", "equal", "prob"])
def test_a_gpu_gives_the_scores_and_gradients_of_a_cpu(
    make_codes: Callable[..., Codes], matcher: str, engine: Engine, paired: bool, budget: int | None
) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    score = (
        partial(scan_scores, direction=matcher) if matcher in ("t2i", "i2t") else partial(bfan_scores, focal=matcher)
    )
    found = []
    for device, dtype, by in (("cpu", torch.float64, "torch"), ("cuda", torch.float32, engine)):
        images = make_codes([36, 20, 36, 5, 36], seed=1, dim=512).to(device, dtype)
        texts = make_codes([16, 3, 9, 16, 1], seed=2, dim=512).to(device, dtype)
        images.fragments.requires_grad_()
        texts.fragments.requires_grad_()
        scores = score(images, texts, relu_slope=0.1, engine=by, paired=paired, budget=budget)
        upstream = torch.linspace(-1, 2, scores.numel(), device=device).view_as(scores)
        grads = torch.autograd.grad((scores * upstream).sum(), [images.fragments, texts.fragments])
        found.append([scores, *grads])
    for exact, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours.cpu().double(), exact, rtol=1e-4, atol=1e-5)
