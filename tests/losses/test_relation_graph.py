from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from quintet.losses.relation import AssociationGraphBuilder, match_fragments, nearest, row_divergence

N, DIM, K = 5, 6, 4


def batch() -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings of images and texts, and the matches of their fragments."""
    torch.manual_seed(0)
    images, texts = (normalize(torch.randn(N, DIM, dtype=torch.float64), dim=1) for _ in range(2))
    words, regions = torch.randn(N, 7, DIM, dtype=torch.float64), torch.randn(N, 3, DIM, dtype=torch.float64)
    word_mask = torch.arange(7) < torch.tensor([7, 2, 3, 5, 1])[:, None]
    matches = match_fragments(words, word_mask, regions, torch.ones(N, 3, dtype=torch.bool), top=K, matching="cosine")
    return images, texts, matches


def loops(builder: AssociationGraphBuilder, images: Tensor, texts: Tensor, matches: Tensor) -> tuple[Tensor, Tensor]:
    """A and S by double loops over all 2 N x 2 N nodes."""
    nodes = [*images, *texts]
    similarity = torch.zeros(2 * N, 2 * N, dtype=torch.float64)
    relevance = torch.zeros(2 * N, 2 * N, dtype=torch.float64)
    for a in range(2 * N):
        for b in range(2 * N):
            if (a < N) == (b < N):
                similarity[a, b] = nodes[a] @ nodes[b]
                gap = float((nodes[a] - nodes[b]).square().sum())
                gap = gap if builder.distance == "squared" else math.sqrt(gap)
                relevance[a, b] = math.exp(-gap / builder.sigma)
            elif a < N:
                p, *q = matches[b - N, a, 0]
                similarity[a, b] = p
                relevance[a, b] = builder.image_to_text(torch.stack(q))[0] + p
            else:
                p, *q = matches[a - N, b, 1]
                similarity[a, b] = p
                relevance[a, b] = builder.text_to_image(torch.stack(q))[0] + p
    count = int(builder.neighbours * N)
    connected = torch.zeros(2 * N, 2 * N, dtype=torch.bool)
    for a in range(2 * N):
        for block in (range(N), range(N, 2 * N)):
            for b in sorted(block, key=lambda b: -float(similarity[a, b]))[: max(1, count)]:
                connected[a, b] = True
    return connected, relevance


@pytest.mark.parametrize("distance", ["squared", "plain"])
@pytest.mark.parametrize("neighbours", [0.5, 0.01, 1.0])
def test_connections_and_relevance_equal_double_loops(distance: str, neighbours: float) -> None:
    images, texts, matches = batch()
    torch.manual_seed(1)
    builder = AssociationGraphBuilder(top=K, neighbours=neighbours, sigma=0.7, distance=distance).double()  # type: ignore[arg-type]
    torch.nn.init.normal_(builder.text_to_image[0].weight)  # the two start alike; here they must differ
    graph = builder(images, texts, matches)
    connected, relevance = loops(builder, images, texts, matches)
    assert torch.equal(graph.connected, connected)
    torch.testing.assert_close(graph.relevance, relevance)
    assert graph.connected.diagonal().all(), "everything is its own neighbour"
    bias = graph.bias(1.5)
    torch.testing.assert_close(bias[connected], 1.5 * relevance[connected])
    assert (bias[~connected] == -math.inf).all()


def test_two_captions_of_one_image_are_twins_in_the_graph() -> None:
    """The same image twice: relevance 1, and finite gradients also under the plain distance."""
    images, texts, matches = batch()
    images = images[[0, 0, 1, 2, 3]].clone().requires_grad_()
    for distance in ("squared", "plain"):
        builder = AssociationGraphBuilder(top=K, distance=distance).double()  # type: ignore[arg-type]
        graph = builder(images, texts, matches)
        assert graph.connected[0, 1]
        assert graph.connected[1, 0]
        torch.testing.assert_close(graph.relevance[0, 1], torch.tensor(1.0, dtype=torch.float64), atol=1e-7, rtol=0)
        [gradient] = torch.autograd.grad(graph.relevance.sum(), images)
        assert gradient.isfinite().all()


def test_regularisation_is_the_divergence_from_the_embeddings() -> None:
    images, texts, matches = batch()
    images.requires_grad_()
    builder = AssociationGraphBuilder(top=K).double()
    graph = builder(images, texts, matches)
    found = builder.regularisation(graph, images, texts)
    for row in range(N):
        expected = 0.0
        for learned, own, others in (
            (graph.relevance[row, N:], images[row], texts),
            (graph.relevance[N + row, :N], texts[row], images),
        ):
            guide = torch.stack([(-(own - other).square().sum()).exp() for other in others]).detach()
            p, q = learned.detach().softmax(0), guide.softmax(0)
            expected += float(sum(p[k] * (p[k].log() - q[k].log()) for k in range(N)))
        assert float(found[row].detach()) == pytest.approx(expected)
    found.sum().backward()
    assert images.grad is None or not images.grad.any(), "the embeddings guide and are not guided"
    assert builder.image_to_text[0].weight.grad.any()
    assert row_divergence(matches[:, :, 0, 0], matches[:, :, 0, 0]).abs().max() < 1e-12


def test_ties_are_all_neighbours_and_gradients_stop() -> None:
    similarity = torch.tensor([[1.0, 1.0, 1.0, 0.0]], requires_grad=True)
    assert nearest(similarity, 0.25).tolist() == [[True, True, True, False]]
    assert not nearest(similarity, 0.25).requires_grad


def test_both_mlps_start_alike_and_are_two() -> None:
    builder = AssociationGraphBuilder()
    assert torch.equal(builder.image_to_text[0].weight, builder.text_to_image[0].weight)
    assert builder.image_to_text[0].weight is not builder.text_to_image[0].weight
    for wrong in ({"neighbours": 0.0}, {"neighbours": 1.2}, {"sigma": 0.0}, {"top": 0}, {"distance": "cubic"}):
        with pytest.raises(ValueError, match=r"fraction|at least 1"):
            AssociationGraphBuilder(**wrong)  # type: ignore[arg-type]
