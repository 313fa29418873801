"""The caption loss."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quintet.data.batches import ImageBatch, PairBatch, TextBatch
from quintet.errors import RecipeError
from quintet.losses.caption import Captioner, CaptionObjective, caption_cost, caption_targets
from quintet.losses.step import Progress, Step
from quintet.models.vsrn import build_vsrn
from quintet.runs.convert.original import OriginalCheckpoint
from quintet.runs.convert.translate import translate

# the released generator's names -> ours
NAMES = {
    "encoder.vid2hid": "reader.project",
    "encoder.rnn": "reader.rnn",
    "decoder.embedding": "embed",
    "decoder.attention.linear1": "attention.joint",
    "decoder.attention.linear2": "attention.score",
    "decoder.rnn": "cell",
    "decoder.out": "out",
}


def ours(name: str) -> str:
    module, parameter = name.rsplit(".", 1)
    renamed = f"{NAMES[module]}.{parameter}"
    return renamed.removesuffix("_l0") if renamed.startswith("cell") else renamed


def step_of(matcher: object, fragments: torch.Tensor, texts: TextBatch) -> Step:
    rows = torch.arange(len(texts))
    batch = PairBatch(ImageBatch(fragments=fragments), texts, rows, rows, rows, rows)
    return Step(matcher, batch, Progress())  # type: ignore[arg-type]


def test_loss_of_the_released_code(references: Path) -> None:
    reference = {
        k: torch.from_numpy(np.array(v))
        for k, v in np.load(references / "vsrn_coco.npz").items()
        if v.dtype.kind in "fi"
    }
    image, text, caption = (
        {k.split("/", 1)[1]: v for k, v in reference.items() if k.startswith(prefix)}
        for prefix in ("img_enc/", "txt_enc/", "caption_model/")
    )
    matcher = build_vsrn(
        image_dim=64, vocabulary_size=50, embed_dim=32, word_dim=16, variant="coco", normalise_over="regions"
    )
    matcher.load_state_dict(translate("vsrn", OriginalCheckpoint(Path("reference"), [image, text])).state)
    for module in matcher.modules():  # the reference was computed with kept statistics
        module.train(not isinstance(module, torch.nn.BatchNorm1d))
    objective = CaptionObjective(50, region_dim=32, hidden=24, word_dim=16, max_length=20, learn_pad=True).eval()
    objective.captioner.load_state_dict({ours(name): value for name, value in caption.items()})
    texts = TextBatch(reference["captions"], reference["lengths"])
    term = objective(step_of(matcher, reference["images"], texts))["caption"]
    assert term.values.shape == (5,)
    assert term.weight == 1 / 5, "a mean over the batch; the log has the mean of the values, which is the same"
    assert term.weight * term.values.sum().item() == pytest.approx(float(reference["caption_loss"]), abs=1e-5)
    _, wanted, counts = caption_targets(texts.tokens, texts.lengths, max_length=20, learn_pad=True)
    assert torch.equal(counts, reference["masks"][:, 1 : 1 + counts.shape[1]].bool())
    assert torch.equal(wanted, reference["labels"][:, 1 : 1 + wanted.shape[1]])


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    longest=st.one_of(st.none(), st.integers(2, 10)),
    learn_pad=st.booleans(),
)
def test_targets_word_by_word(lengths: list[int], longest: int | None, learn_pad: bool) -> None:
    sentences = [[1, *range(10, 10 + n - 2), 2][:n] if n > 1 else [2] for n in lengths]
    batch = TextBatch.from_ids(sentences, pad=99)  # whatever stands behind the end is not looked at
    seen, wanted, counts = caption_targets(batch.tokens, batch.lengths, max_length=longest, learn_pad=learn_pad)
    for row, ids in enumerate(sentences):
        if longest is not None and len(ids) > longest:
            ids = [*ids[: longest - 1], 2]
        pairs = list(itertools.pairwise(ids))
        if learn_pad and (longest is None or len(ids) < longest):
            pairs.append((ids[-1], 0))
        found = [(seen[row, t].item(), wanted[row, t].item()) for t in range(seen.shape[1]) if counts[row, t]]
        assert found == pairs


def test_cost_is_minus_the_log_probability_of_the_text() -> None:
    scores = torch.randn(2, 3, 5, dtype=torch.float64)
    wanted = torch.tensor([[1, 2, 3], [4, 0, 0]])
    counts = torch.tensor([[True, True, True], [True, False, False]])
    probabilities = scores.softmax(dim=2)
    expected = [
        -sum(torch.log(probabilities[0, t, word]) for t, word in enumerate([1, 2, 3])),
        -torch.log(probabilities[1, 0, 4]),
    ]
    torch.testing.assert_close(caption_cost(scores, wanted, counts), torch.stack(expected))


def test_gradients_reach_the_image_side_and_nothing_is_counted_twice() -> None:
    matcher = build_vsrn(image_dim=6, vocabulary_size=12, embed_dim=8, word_dim=5).train()
    objective = CaptionObjective(12, region_dim=8, hidden=5, word_dim=4)
    step = step_of(matcher, torch.randn(3, 4, 6), TextBatch.from_ids([[1, 5, 2], [1, 2], [1, 6, 7, 2]]))
    objective(step)["caption"].values.sum().backward()
    assert matcher.image_encoder.projection.fc.weight.grad.abs().sum() > 0
    parameters = [*matcher.parameters(), *objective.parameters()]
    assert len({id(parameter) for parameter in parameters}) == len(parameters)


def test_it_learns_to_tell_two_images_apart() -> None:
    torch.manual_seed(0)
    matcher = build_vsrn(image_dim=6, vocabulary_size=8, embed_dim=8, word_dim=5, variant="coco").train()
    objective = CaptionObjective(8, region_dim=8, hidden=12, word_dim=4, dropout=0.0)
    step = step_of(matcher, torch.randn(2, 4, 6), TextBatch.from_ids([[1, 4, 5, 2], [1, 6, 7, 2]]))
    regions = step.image_codes.detach()
    seen, wanted, counts = caption_targets(step.batch.texts.tokens, step.batch.texts.lengths)
    for _ in range(150):
        cost = caption_cost(objective.captioner(regions.fragments, seen), wanted, counts).sum()
        gradients = torch.autograd.grad(cost, list(objective.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(objective.parameters(), gradients, strict=True):
                parameter -= 0.2 * gradient
    assert cost.item() < 0.5


def test_one_token_texts_cost_nothing() -> None:
    matcher = build_vsrn(image_dim=6, vocabulary_size=12, embed_dim=8, word_dim=5).train()
    objective = CaptionObjective(12, region_dim=8, hidden=5, word_dim=4)
    term = objective(step_of(matcher, torch.randn(2, 4, 6), TextBatch.from_ids([[2], [2]])))["caption"]
    assert term.values.tolist() == [0, 0]


def test_a_matcher_without_regions_is_refused() -> None:
    matcher = build_vsrn(image_dim=6, vocabulary_size=12, embed_dim=8, word_dim=5).eval()
    objective = CaptionObjective(12, region_dim=8, hidden=5, word_dim=4)
    with pytest.raises(RecipeError, match="keeps none in training"):
        objective(step_of(matcher, torch.randn(2, 4, 6), TextBatch.from_ids([[1, 2], [1, 2]])))


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
