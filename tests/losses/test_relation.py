"""HREM's objective: terms against the pieces they are made of, gradients, warm-up, determinism, two distributed."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.functional import normalize

from quintet import distributed
from quintet.data.batches import ImageBatch, PairBatch, TextBatch
from quintet.errors import RecipeError
from quintet.losses.distance_weighted import sampled_triplet
from quintet.losses.relation import RelationObjective, create_interaction, match_fragments
from quintet.losses.step import Progress, Step
from quintet.models.hrem import HREM, build_hrem
from quintet.models.vse import VSE, build_vse

TEXTS = [[1, 5, 6, 2], [1, 7, 2], [1, 2], [1, 8, 9, 4, 2], [1, 3, 5, 2], [1, 9, 2]]
GROUPS = torch.tensor([0, 1, 2, 2, 3, 4])  # two captions of image 2
TOTAL = len(TEXTS)


def matcher() -> HREM:
    torch.manual_seed(0)
    return build_hrem(image_dim=7, vocabulary_size=12, embed_dim=8, word_dim=5, dropout=0.0).train()


def batch(rows: slice = slice(None)) -> PairBatch:
    generator = torch.Generator().manual_seed(3)
    regions = torch.randn(TOTAL, 4, 7, generator=generator)
    regions[3] = regions[2]  # pairs 2 and 3 are the same image
    mask = torch.ones(TOTAL, 4, dtype=torch.bool)
    mask[0, 2:] = False
    numbers = torch.arange(TOTAL)
    texts = TextBatch.from_ids(TEXTS[rows])
    images = ImageBatch(fragments=regions[rows], mask=mask[rows])
    return PairBatch(images, texts, GROUPS[rows], GROUPS[rows], numbers[rows], numbers[rows])


def objective(**options: Any) -> RelationObjective:
    torch.manual_seed(1)
    return RelationObjective(8, **{"dropout": 0.0, "top": 4, "matching": "cosine", "farthest": None} | options)


def terms_of(
    module: RelationObjective, progress: Progress | None = None, model: HREM | VSE | None = None
) -> dict[str, Any]:
    torch.manual_seed(2)
    return module(Step(model or matcher(), batch(), progress or Progress()))


def vse(**options: Any) -> VSE:
    torch.manual_seed(0)
    sizes = {"image_dim": 7, "vocabulary_size": 12, "embed_dim": 8, "word_dim": 5}
    return build_vse(**sizes, keep_fragments=True, **options).train()


@pytest.mark.parametrize(
    ("mechanism", "matcher"),
    [
        ("fusion", matcher),
        ("standalone", matcher),
        ("fusion", vse),
        ("fusion", partial(vse, pooling="gpo", text_pooling="gpo", bidirectional=True, projection="mlp")),
    ],
    ids=["hrem fusion", "hrem standalone", "vse++", "gpo"],
)
def test_terms_are_made_of_their_pieces(mechanism: str, matcher: Callable[[], HREM | VSE]) -> None:
    """Eq. 14 and Eq. 11 put together by hand, with the draws that the objective makes."""
    model, module = matcher(), objective(mechanism=mechanism, relevance_weight=1.3, regularisation=2.0, sampling_dim=16)
    found = terms_of(module, model=model)
    codes, texts = model.encode_images(batch().images), model.encode_texts(batch().texts)
    assert codes.fragments is not None
    assert texts.fragments is not None
    v, u = codes.embedding, texts.embedding
    assert v is not None
    assert u is not None
    matches = match_fragments(texts.fragments, texts.real(), codes.fragments, codes.real(), top=4, matching="cosine")
    assert module.graph is not None
    graph = module.graph(v, u, matches)
    v_, u_ = (normalize(nodes, dim=1) for nodes in module.interaction(v, u, graph.bias(1.3)))
    torch.manual_seed(2)
    random = torch.Generator().manual_seed(int(torch.randint(2**62, (1,))))
    positive = GROUPS[:, None] == GROUPS

    def cost(images: Tensor, sentences: Tensor) -> Tensor:
        scores = images @ sentences.T
        uniform = torch.rand(2, TOTAL, TOTAL, generator=random)
        text, _ = sampled_triplet(scores, positive, uniform[0], dim=16, farthest=None)
        image, _ = sampled_triplet(scores.T, positive.T, uniform[1], dim=16, farthest=None)
        return text + image

    pairs = {"initial": (v, u), "enhanced": (v_, u_), "enhanced_images": (v_, u), "enhanced_texts": (v, u_)}
    for name, pair in pairs.items():
        torch.testing.assert_close(found[name].values, cost(*pair), msg=name)
        assert found[name].weight == 1
    # The loss has the mean over the batch, and the log the mean of these values: the same number.
    torch.testing.assert_close(found["regularisation"].values, module.graph.regularisation(graph, v, u))
    assert found["regularisation"].weight == 2 / TOTAL
    assert found["without_candidates"].weight == 0


def test_two_captions_of_one_image_are_positives_of_it() -> None:
    """Pairs 2 and 3: each anchor has two positives, so two triplets a direction, and never a negative of the other."""
    model, module = matcher(), objective(relations="none", margin=10.0)
    values = terms_of(module, model=model)["initial"].values
    v, u = model.encode_images(batch().images).embedding, model.encode_texts(batch().texts).embedding
    assert v is not None
    assert u is not None
    assert values[2] > 30, "two triplets in each direction, each near the margin"
    assert values[0] < 25
    alone = torch.zeros(TOTAL, TOTAL, dtype=torch.bool)
    alone[2:4, 2:4] = True
    costs, without = sampled_triplet(v @ u.T, alone | (GROUPS[:, None] == GROUPS), torch.rand(TOTAL, TOTAL), dim=8)
    assert costs.isfinite().all()
    assert not without.any()


def test_a_batch_of_one_image_alone_costs_nothing_and_is_counted() -> None:
    whole = batch()
    same = torch.zeros(TOTAL, dtype=torch.int64)
    step = Step(matcher(), PairBatch(whole.images, whole.texts, same, same, same, same), Progress())
    terms = objective()(step)
    for name in ("initial", "enhanced", "enhanced_images", "enhanced_texts"):
        assert not terms[name].values.any()
    assert terms["without_candidates"].values.tolist() == [8.0] * TOTAL, "four losses, two directions each"
    terms = objective(warmup_steps=1)(step)
    assert terms["without_candidates"].values.tolist() == [2.0] * TOTAL


def test_relations_wait_for_both_warm_ups() -> None:
    module = objective(warmup_epochs=2, warmup_steps=30)
    for progress, warm in (
        (Progress(0, 0), False),
        (Progress(1.9, 40), False),
        (Progress(2.5, 29), False),
        (Progress(2.0, 30), True),
    ):
        terms = terms_of(module, progress)
        assert ("enhanced" in terms) == ("regularisation" in terms) == warm
        assert "initial" in terms
    model = matcher()
    sum(term.weight * term.values.sum() for term in terms_of(module, Progress(), model).values()).backward()
    assert all(parameter.grad is None for parameter in module.parameters()), "nothing of the graph is touched before"


@pytest.mark.parametrize("mechanism", ["fusion", "standalone"])
@pytest.mark.parametrize("detach", [False, True])
def test_gradients_reach_what_they_should(mechanism: str, detach: bool) -> None:
    model, module = matcher(), objective(mechanism=mechanism, detach_fragments=detach)
    step = Step(model, batch(), Progress())
    assert step.image_codes.fragments is not None
    assert step.text_codes.fragments is not None
    step.image_codes.fragments.retain_grad()
    step.text_codes.fragments.retain_grad()
    # Only what goes through the graph: relevance and its regularisation.
    terms = module(step)
    terms["regularisation"].values.sum().backward(retain_graph=True)
    for name, parameter in module.named_parameters():
        assert (parameter.grad is not None) == name.startswith("graph."), name
    for codes in (step.image_codes, step.text_codes):
        assert codes.fragments is not None
        reached = codes.fragments.grad is not None and bool(codes.fragments.grad.any())
        assert reached == (not detach)
        if reached and codes.mask is not None:
            assert codes.fragments.grad is not None
            assert not codes.fragments.grad[~codes.mask].any()
    sum(term.weight * term.values.sum() for term in terms.values()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("mechanism", ["fusion", "standalone"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_relevance_learns_through_the_attention_it_biases(mechanism: str, device: str) -> None:
    """Without the regularisation this is its only way; fused attention may have no gradient for a bias."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    model, module = matcher().to(device), objective(mechanism=mechanism, regularisation=0, margin=2.0).to(device)
    terms = module(Step(model, batch().to(device), Progress()))
    terms["enhanced"].values.sum().backward()
    assert module.graph is not None
    for name, parameter in module.graph.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    for mlp in (module.graph.image_to_text, module.graph.text_to_image):
        assert mlp[0].weight.grad.any()


def test_the_same_seed_gives_the_same_loss_and_another_does_not() -> None:
    model, module = matcher(), objective(nearest=0.1)
    torch.manual_seed(5)
    first = module(Step(model, batch(), Progress()))["enhanced"].values
    other = module(Step(model, batch(), Progress()))["enhanced"].values
    torch.manual_seed(5)
    again = module(Step(model, batch(), Progress()))["enhanced"].values
    assert torch.equal(first, again)
    assert not torch.equal(first, other), "the next step draws anew"


def test_ablations() -> None:
    assert set(terms_of(objective(relations="none"))) == {"initial", "without_candidates"}
    assert not list(objective(relations="none").parameters())
    assert set(terms_of(objective(consistency=False, regularisation=0))) == {
        "initial",
        "enhanced",
        "without_candidates",
    }
    bare = objective(consistency=False, warmup_steps=1)
    assert terms_of(bare)["initial"].weight == 1, "all there is before relations start"
    assert {name: term.weight for name, term in terms_of(bare, Progress(0, 1)).items()} == {
        "initial": 0.0,
        "enhanced": 1.0,
        "regularisation": 1 / TOTAL,
        "without_candidates": 0.0,
    }, "what Eq. 14 has in brackets is left out"
    kept = objective(consistency="initial", regularisation=0.0, warmup_steps=1)
    assert {name: term.weight for name, term in terms_of(kept, Progress(0, 1)).items()} == {
        "initial": 1.0,
        "enhanced": 1.0,
        "without_candidates": 0.0,
    }, "as the released code with cross_loss 0"
    with pytest.raises(ValueError, match="consistency"):
        objective(consistency="enhanced")
    for relations in ("inter", "intra"):
        assert terms_of(objective(relations=relations))["enhanced"].values.isfinite().all()


def test_unusable_matchers_and_settings_are_named() -> None:
    plain = build_vse(vocabulary_size=12, image_dim=7, embed_dim=8, word_dim=5)
    with pytest.raises(RecipeError, match="keeps none in training"):
        objective()(Step(plain, batch(), Progress()))
    assert "initial" in objective(relations="none")(Step(plain, batch(), Progress()))
    with pytest.raises(RecipeError, match="keep_fragments=true"):
        objective()(Step(plain, batch(), Progress()))
    with pytest.raises(ValueError, match="'dot', 'cosine' or 'scan'"):
        objective(matching="bilinear")


def test_released_settings_count_padding() -> None:
    released = {"matching": "scan", "distance": "plain", "detach_fragments": True, "count_padding": True}
    torch.manual_seed(0)
    model = build_hrem(
        image_dim=7,
        vocabulary_size=12,
        embed_dim=8,
        word_dim=5,
        projection="mlp",
        top=2,
        padding="counted",
        dropout=0.0,
    ).train()
    terms = terms_of(objective(**released, top=10, regularisation=10.0), model=model)
    assert all(term.values.isfinite().all() for term in terms.values())


def work(rank: int, port: int, folder: str, mechanism: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    try:
        model, module = matcher(), objective(mechanism=mechanism)
        torch.manual_seed(2 + rank)  # each process has a random stream of its own
        terms = module(Step(model, batch(distributed.share(TOTAL)), Progress(), TOTAL))
        sum(term.weight * term.values.sum() for term in terms.values()).backward()
        parameters = [*model.parameters(), *module.parameters()]
        distributed.sum_gradients(parameters)
        results = {
            "values": {name: distributed.gather_rows(term.values.detach(), TOTAL) for name, term in terms.items()},
            "gradients": [parameter.grad for parameter in parameters],
        }
        torch.save(results, Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["fusion", "standalone"])
def test_two_processes_equal_one(tmp_path: Path, mechanism: str) -> None:
    """Texts of unlike lengths in the two shares; the same draws; parameters of the graph counted once."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.start_processes(work, args=(port, str(tmp_path), mechanism), nprocs=2, start_method="spawn")
    model, module = matcher(), objective(mechanism=mechanism)
    terms = terms_of(module, model=model)
    sum(term.weight * term.values.sum() for term in terms.values()).backward()
    parameters = [*model.parameters(), *module.parameters()]
    for rank in (0, 1):
        got = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert got["values"].keys() == terms.keys()
        for name, values in got["values"].items():
            torch.testing.assert_close(values, terms[name].values.detach(), atol=1e-5, rtol=1e-4, msg=name)
        for gradient, parameter in zip(got["gradients"], parameters, strict=True):
            torch.testing.assert_close(gradient, parameter.grad, atol=1e-5, rtol=1e-3)


N, DIM, HEADS = 4, 8, 2


def attend(attention: nn.MultiheadAttention, queries: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """Eq. 12 head by head and row by row, over connected columns only."""
    weight, offset = attention.in_proj_weight, attention.in_proj_bias
    q = queries @ weight[:DIM].T + offset[:DIM]
    k = values @ weight[DIM : 2 * DIM].T + offset[DIM : 2 * DIM]
    v = values @ weight[2 * DIM :].T + offset[2 * DIM :]
    width, heads = DIM // HEADS, []
    for head in range(HEADS):
        part = slice(head * width, (head + 1) * width)
        rows = []
        for row in range(len(queries)):
            linked = [column for column in range(len(values)) if bias[row, column] > -math.inf]
            logits = torch.stack([q[row, part] @ k[c, part] / math.sqrt(width) + bias[row, c] for c in linked])
            rows.append(logits.softmax(0) @ v[linked][:, part])
        heads.append(torch.stack(rows))
    return torch.cat(heads, dim=1) @ attention.out_proj.weight.T + attention.out_proj.bias


def setting() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    images, texts = torch.randn(N, DIM, dtype=torch.float64), torch.randn(N, DIM, dtype=torch.float64)
    bias = torch.randn(2 * N, 2 * N, dtype=torch.float64)
    cut = torch.rand(2 * N, 2 * N) < 0.4
    cut[torch.arange(2 * N), torch.arange(2 * N)] = False
    cut[torch.arange(2 * N), torch.arange(2 * N).roll(N)] = False
    return images, texts, bias.masked_fill(cut, -math.inf)


def made(mechanism: str, **options: Any) -> Any:
    torch.manual_seed(1)
    return create_interaction(mechanism, DIM, heads=HEADS, dropout=0.0, **options).double()


def test_fusion_is_attention_over_both_modalities_at_once() -> None:
    images, texts, bias = setting()
    module = made("fusion", layers=2)
    nodes = torch.cat([images, texts])
    for layer in module.layers:
        nodes = layer.norm1(nodes + attend(layer.self_attn, nodes, nodes, bias))
        nodes = layer.norm2(nodes + layer.linear2(torch.relu(layer.linear1(nodes))))
    found = module(images, texts, bias)
    torch.testing.assert_close(torch.cat(found), nodes)


def test_standalone_goes_across_then_within_in_two_branches() -> None:
    images, texts, bias = setting()
    module = made("standalone", layers=2)
    v, u = images, texts
    for own, other in zip(module.images, module.texts, strict=True):
        results = []
        for branch, nodes, others, across, within in (
            (own, v, u, bias[:N, N:], bias[:N, :N]),
            (other, u, v, bias[N:, :N], bias[N:, N:]),
        ):
            x = branch.inter.norm(nodes + attend(branch.inter.attention, nodes, others, across))
            x = branch.intra.norm(x + attend(branch.intra.attention, x, x, within))
            results.append(branch.norm(x + branch.feed_forward(x)))
        v, u = results
    found = module(images, texts, bias)
    torch.testing.assert_close(found[0], v)
    torch.testing.assert_close(found[1], u)


@pytest.mark.parametrize("mechanism", ["fusion", "standalone"])
def test_gradients_reach_relevance_where_connected_and_nowhere_else(mechanism: str) -> None:
    images, texts, bias = setting()
    connected = bias > -math.inf
    relevance = torch.randn_like(bias).requires_grad_()
    images.requires_grad_()
    texts.requires_grad_()
    found = made(mechanism)(images, texts, relevance.masked_fill(~connected, -math.inf))
    (found[0].square().sum() + found[1].pow(3).sum()).backward()
    assert relevance.grad is not None
    assert not relevance.grad[~connected].any()
    assert (relevance.grad[connected] != 0).float().mean() > 0.9
    for nodes in (images, texts):
        assert nodes.grad is not None
        assert nodes.grad.isfinite().all()
        assert nodes.grad.any(dim=1).all()


@pytest.mark.parametrize("mechanism", ["fusion", "standalone"])
@pytest.mark.parametrize("relations", ["inter", "intra"])
def test_one_kind_of_relation_alone(mechanism: str, relations: str) -> None:
    """Without relations across modalities images do not see texts, and the other way round."""
    images, texts, bias = setting()
    module = made(mechanism, relations=relations)
    images.requires_grad_()
    enhanced_images, enhanced_texts = module(images, texts, bias)
    assert enhanced_images.isfinite().all()
    seen_by_texts = torch.autograd.grad(enhanced_texts.pow(2).sum(), images, retain_graph=True, allow_unused=True)[0]
    assert (seen_by_texts is not None and bool(seen_by_texts.any())) == (relations == "inter")


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="fusion, standalone"):
        create_interaction("merge", DIM)
    with pytest.raises(ValueError, match="'both', 'inter' or 'intra'"):
        create_interaction("fusion", DIM, relations="some")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one layer"):
        create_interaction("fusion", DIM, layers=0)
