"""VSRN: parity with the released code, padding, variants."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import quintet
from quintet.codes import Codes
from quintet.data.batches import ImageBatch, TextBatch
from quintet.errors import RecipeError
from quintet.models.vsrn import VSRN, RegionRelation, build_vsrn, set_memory
from quintet.runs.convert.original import OriginalCheckpoint
from quintet.runs.convert.translate import translate


def make(seed: int = 0, **changes: object) -> VSRN:
    """A small matcher whose normalisations have left their start."""
    torch.manual_seed(seed)
    arguments: dict = {"image_dim": 6, "vocabulary_size": 12, "embed_dim": 8, "word_dim": 5} | changes
    matcher = build_vsrn(**arguments)
    for module in matcher.modules():
        if isinstance(module, nn.BatchNorm1d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    return matcher.eval()


@pytest.fixture
def reference(references: Path) -> dict[str, np.ndarray]:
    return dict(np.load(references / "vsrn_coco.npz"))


def test_scores_and_loss_of_the_released_code(reference: dict[str, np.ndarray]) -> None:
    parts = [
        {k.split("/", 1)[1]: torch.from_numpy(np.array(v)) for k, v in reference.items() if k.startswith(prefix)}
        for prefix in ("img_enc/", "txt_enc/")
    ]
    matcher = build_vsrn(
        image_dim=64, vocabulary_size=50, embed_dim=32, word_dim=16, variant="coco", normalise_over="regions"
    )
    matcher.load_state_dict(translate("vsrn", OriginalCheckpoint(Path("reference"), parts)).state)
    matcher.eval()
    images = matcher.encode_images(ImageBatch(fragments=torch.from_numpy(reference["images"])))
    texts = matcher.encode_texts(
        TextBatch(torch.from_numpy(reference["captions"]), torch.from_numpy(reference["lengths"]))
    )
    scores = matcher.score(images, texts)
    torch.testing.assert_close(scores, torch.from_numpy(reference["sim"]), atol=1e-5, rtol=0)
    hinge = torch.relu(0.2 + scores - scores.diagonal()[:, None]).fill_diagonal_(0).amax(1).sum()
    hinge = hinge + torch.relu(0.2 + scores - scores.diagonal()).fill_diagonal_(0).amax(0).sum()
    assert hinge.item() == pytest.approx(float(reference["loss"]), abs=1e-5)


@pytest.mark.parametrize("normalise_over", ["channels", "regions"])
@pytest.mark.parametrize("variant", ["f30k", "coco"])
@settings(max_examples=15, deadline=None)
@given(lengths=st.lists(st.integers(1, 7), min_size=1, max_size=4), seed=st.integers(0, 999))
def test_a_image_does_not_depend_on_padding_or_neighbours(
    variant: str, normalise_over: str, lengths: list[int], seed: int
) -> None:
    matcher = make(variant=variant, normalise_over=normalise_over)
    generator = torch.Generator().manual_seed(seed)
    # the padding may stand anywhere and hold anything
    mask = torch.stack([torch.randperm(9, generator=generator) < length for length in lengths])
    fragments = torch.randn(len(lengths), 9, 6, generator=generator)
    together = matcher.encode_images(ImageBatch(fragments=fragments, mask=mask)).embedding
    assert together is not None
    for row in range(len(lengths)):
        alone = matcher.encode_images(ImageBatch(fragments=fragments[row : row + 1, mask[row]])).embedding
        torch.testing.assert_close(together[row : row + 1], alone, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(together.norm(dim=1), torch.ones(len(lengths)))


def test_training_with_padding_equals_training_without() -> None:
    plain, padded = make(variant="coco").train(), make(variant="coco").train()
    fragments = torch.randn(4, 5, 6)
    wide = torch.cat([fragments, torch.randn(4, 3, 6)], dim=1)
    mask = (torch.arange(8) < 5).expand(4, 8)
    expected = plain.encode_images(ImageBatch(fragments=fragments))
    found = padded.encode_images(ImageBatch(fragments=wide, mask=mask))
    torch.testing.assert_close(found.embedding, expected.embedding)
    torch.testing.assert_close(found.fragments[:, :5], expected.fragments)
    for ours, theirs in zip(padded.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_regions_are_kept_in_training_only() -> None:
    matcher = make()
    batch = ImageBatch(fragments=torch.randn(3, 5, 6))
    assert set(matcher.encode_images(batch).tensors()) == {"embedding"}
    assert set(matcher.train().encode_images(batch).tensors()) == {"embedding", "fragments"}


@pytest.mark.parametrize("normalise_over", ["channels", "regions"])
def test_zeros_give_finite_scores_and_gradients(normalise_over: str) -> None:
    """The released code divides by the length of a zero channel and gives NaN."""
    matcher = make(variant="coco", normalise_over=normalise_over)
    fragments = torch.zeros(2, 4, 6, requires_grad=True)
    embedding = matcher.encode_images(ImageBatch(fragments=fragments)).embedding
    embedding.sum().backward()
    assert embedding.isfinite().all()
    assert fragments.grad.isfinite().all()
    nothing_real = ImageBatch(fragments=torch.randn(2, 4, 6), mask=torch.zeros(2, 4, dtype=torch.bool))
    assert matcher.encode_images(nothing_real).embedding.isfinite().all()


def test_the_axes_of_normalisation() -> None:
    fragments = torch.randn(2, 5, 6)
    for normalise_over, axis in (("channels", 2), ("regions", 1)):
        matcher = make(normalise_over=normalise_over)
        _, regions, _ = matcher.image_encoder(fragments, None)
        torch.testing.assert_close(regions.norm(dim=axis), torch.ones_like(regions.norm(dim=axis)))


def test_the_order_of_regions_matters_to_the_reader() -> None:
    matcher = make(variant="coco")
    fragments = torch.randn(1, 5, 6)
    one = matcher.encode_images(ImageBatch(fragments=fragments)).embedding
    other = matcher.encode_images(ImageBatch(fragments=fragments.flip(1))).embedding
    assert not torch.allclose(one, other)


def test_memories_are_of_the_two_readers_and_change_nothing_else() -> None:
    plain, long = make(), make(region_memory=36, word_memory=12)
    changed = [
        name for name, value in long.state_dict().items() if not torch.equal(value, dict(plain.state_dict())[name])
    ]
    readers = ("image_encoder.rnn", "text_encoder.rnn")
    assert changed == [f"{reader}.bias_{kind}_l0" for reader in readers for kind in ("ih", "hh")]
    spans = [1 + long.get_parameter(f"{reader}.bias_ih_l0")[8:16].exp() for reader in readers]  # of the update gate
    assert [round(span.max().item()) for span in spans] == [36, 12]


def test_variants_and_flags() -> None:
    assert make(variant="f30k").image_encoder.norm is not None
    assert make(variant="coco").image_encoder.norm is None
    mixed = make(variant="coco", final_batchnorm=True, normalise_input=False).image_encoder
    assert mixed.norm is not None
    assert not mixed.normalise_input
    with pytest.raises(RecipeError, match="did you mean 'coco'"):
        build_vsrn(vocabulary_size=5, variant="coko")  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="channels"):
        build_vsrn(vocabulary_size=5, image_dim=4, embed_dim=4, normalise_over="rows")  # type: ignore[arg-type]


def test_verbs_and_texts() -> None:
    matcher = quintet.create_model("vsrn", image_dim=6, vocabulary_size=12, embed_dim=8, word_dim=5).eval()
    texts = TextBatch.from_ids([[1, 5, 6, 2], [1, 2], [7]])
    codes = matcher.encode_texts(texts)
    alone = Codes.cat([matcher.encode_texts(TextBatch.from_ids([ids])) for ids in ([1, 5, 6, 2], [1, 2], [7])])
    torch.testing.assert_close(codes.embedding, alone.embedding)
    images = matcher.encode_images(ImageBatch(fragments=torch.randn(3, 5, 6)))
    scores = matcher.score(images, codes)
    assert scores.shape == (3, 3)
    torch.testing.assert_close(matcher.score_pairs(images, codes), scores.diagonal())
    assert len(matcher.encode_images(ImageBatch(fragments=torch.randn(0, 5, 6)))) == 0


def test_pixels_are_refused() -> None:
    with pytest.raises(RecipeError, match="regions"):
        make().encode_images(ImageBatch(pixels=torch.zeros(1, 3, 8, 8)))


def awake(dim: int) -> RegionRelation:
    """A block whose normalisation has left its zero start, in float64."""
    torch.manual_seed(0)
    block = RegionRelation(dim).double()
    with torch.no_grad():
        block.norm.weight.uniform_(0.5, 1.5)
        block.norm.bias.uniform_(-0.5, 0.5)
        block.norm.running_mean.uniform_(-0.1, 0.1)
        block.norm.running_var.uniform_(0.5, 1.5)
    return block


def plain(block: RegionRelation, regions: Tensor) -> Tensor:
    """One image, region by region."""
    out = []
    for i in range(len(regions)):
        message = torch.zeros(regions.shape[1], dtype=regions.dtype)
        for j in range(len(regions)):
            affinity = block.theta(regions[i]) @ block.phi(regions[j]) / len(regions)
            message = message + affinity * block.g(regions[j])
        change = block.project(message)
        change = (change - block.norm.running_mean) / torch.sqrt(block.norm.running_var + block.norm.eps)
        out.append(regions[i] + change * block.norm.weight + block.norm.bias)
    return torch.stack(out)


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4), seed=st.integers(0, 1000))
def test_padded_batch_equals_each_image_by_itself(lengths: list[int], seed: int) -> None:
    block = awake(5).eval()
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    regions = torch.randn(*mask.shape, 5, generator=generator, dtype=torch.float64)  # rubbish in the padding
    related = block(regions, mask)
    for row, length in enumerate(lengths):
        torch.testing.assert_close(related[row, :length], plain(block, regions[row, :length]))
    assert not related[~mask].any()


def test_training_statistics_are_those_of_real_regions() -> None:
    regions = torch.randn(3, 4, 5, dtype=torch.float64)
    short, long = awake(5), awake(5)
    expected = short(regions)
    padded = torch.cat([regions, torch.full((3, 2, 5), 7.0, dtype=torch.float64)], dim=1)
    mask = torch.tensor([True] * 4 + [False] * 2).expand(3, 6)
    torch.testing.assert_close(long(padded, mask)[:, :4], expected)
    torch.testing.assert_close(long.norm.running_mean, short.norm.running_mean)
    torch.testing.assert_close(long.norm.running_var, short.norm.running_var)


def test_new_block_is_the_identity_but_learns() -> None:
    block = RegionRelation(5)
    regions = torch.randn(2, 4, 5)
    related = block(regions)
    assert torch.equal(related, regions)
    (related * torch.randn(2, 4, 5)).sum().backward()
    assert block.norm.weight.grad is not None
    assert block.norm.weight.grad.abs().sum() > 0


def shares(gru: nn.GRU, length: int) -> Tensor:
    """(length,): how much of the last state hangs on each place, as lengths of gradients, summing to 1."""
    places = torch.randn(64, length, gru.input_size, generator=torch.Generator().manual_seed(0)) / 10
    places.requires_grad_()
    states, _ = gru(places)
    states[:, -1].square().sum().backward()
    assert places.grad is not None
    lengths = places.grad.norm(dim=2).mean(dim=0)  # (length,)
    return lengths / lengths.sum()


def test_a_plain_gru_ends_with_the_last_places_and_one_with_a_memory_with_all() -> None:
    torch.manual_seed(0)
    gru = nn.GRU(16, 32, batch_first=True)
    assert shares(gru, 36)[:-6].sum() < 0.1
    set_memory(gru, 36)
    assert shares(gru, 36)[:-6].sum() > 0.4
    assert shares(gru, 36)[:6].sum() > 0.05


@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_spans_are_spread_evenly_in_every_direction(bidirectional: bool) -> None:
    gru = nn.GRU(3, 9, bidirectional=bidirectional)
    set_memory(gru, positions=10)
    for end in ("", "_reverse") if bidirectional else ("",):
        bias = getattr(gru, f"bias_ih_l0{end}") + getattr(gru, f"bias_hh_l0{end}")
        kept = bias[9:18].sigmoid()  # the update gate
        torch.testing.assert_close(1 / (1 - kept), torch.arange(2.0, 11.0))


def test_nothing_but_the_update_gates_biases_changes() -> None:
    gru = nn.GRU(3, 4)
    before = {name: value.clone() for name, value in gru.state_dict().items()}
    set_memory(gru, positions=5)
    for name, value in gru.state_dict().items():
        rest = torch.ones(len(value), dtype=torch.bool)
        if name.startswith("bias"):
            rest[4:8] = False
        assert torch.equal(value[rest], before[name][rest])


def test_a_memory_of_less_than_two_places_is_refused() -> None:
    with pytest.raises(ValueError, match="2 positions, got 1"):
        set_memory(nn.GRU(3, 4), positions=1)
