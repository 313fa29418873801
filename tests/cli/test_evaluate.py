from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import typer
from torch import Tensor, nn
from typer.testing import CliRunner, Result

from quintet.cli.evaluate import evaluate_command
from quintet.codes import Codes
from quintet.data.batches import ImageBatch, TextBatch
from quintet.data.corpus import Corpus, Image, Text
from quintet.errors import QuintetError
from quintet.evaluation import load_ranks, metrics_of_ranks
from quintet.runs import run as run_module
from quintet.runs.run import Run
from quintet.scores import dot_scores

GROUPS, DIM = 25, 12


class Noisy(nn.Module):
    """Codes are the group's own vector with noise: how much is what tells runs apart."""

    image_input = "fragments"

    def encode_images(self, images: ImageBatch) -> Codes:
        assert images.fragments is not None
        return Codes(embedding=images.fragments.mean(1))

    def encode_texts(self, texts: TextBatch) -> Codes:
        vectors = torch.randn(GROUPS, DIM, generator=torch.Generator().manual_seed(0))
        return Codes(embedding=vectors[texts.tokens[:, 0]])

    def score(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        return dot_scores(image_codes, text_codes)

    def score_pairs(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        return dot_scores(image_codes, text_codes).diagonal()


class FakeRun(Run):
    """A run whose images are their group's vector with noise: much for `bad`, little for `good` and `other`."""

    def __init__(self, folder: Path, **options: object) -> None:
        super().__init__(
            folder=folder,
            name=folder.name,
            matcher=Noisy(),
            model={"name": "noisy", "arguments": {}},
            tokenizer=None,
            image_input={"kind": "features", "name": "none"},
            default_corpus=None,
            weights_checksum=f"sum of {folder.name}",
            device=torch.device("cpu"),
        )
        self.noise = {"good": 0.3, "bad": 3.0, "other": 0.3}[folder.name]

    def image_batches(self, corpus: Corpus, images: Sequence[Image], batch_size: int = 128) -> Iterator[ImageBatch]:
        vectors = torch.randn(GROUPS, DIM, generator=torch.Generator().manual_seed(0))
        noise = torch.randn(len(images), DIM, generator=torch.Generator().manual_seed(1))
        rows = vectors[[int(image.group) for image in images]] + self.noise * noise
        for part in rows.split(batch_size):
            yield ImageBatch(fragments=part[:, None])

    def text_batches(self, texts: Sequence[Text], batch_size: int = 128) -> Iterator[TextBatch]:
        for start in range(0, len(texts), batch_size):
            yield TextBatch.from_ids([[int(text.group)] for text in texts[start : start + batch_size]])


def write_head(folder: Path, corpus: Path | None) -> None:
    folder.mkdir(exist_ok=True)
    head = {"format": "quintet-run", "version": 1, "name": folder.name, "status": "complete"}
    (folder / "run.json").write_text(json.dumps(head | {"corpus": None if corpus is None else str(corpus)}))
    (folder / "weights.safetensors").touch()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A corpus, the heads of three runs, and a stand-in for opening a run."""
    for name in ("good", "bad", "other"):
        write_head(tmp_path / name, tmp_path / ("elsewhere" if name == "other" else "corpus"))
    images = [Image(f"i{g}", str(g)) for g in range(GROUPS)]
    texts = [Text(f"t{g}-{k}", str(g), "words") for g in range(GROUPS) for k in range(3)]
    everything = [str(g) for g in range(GROUPS)]
    Corpus("small", images, texts, {"test": everything, "dev": everything[:10]}).save(tmp_path / "corpus")
    monkeypatch.setattr(run_module, "load", FakeRun)
    return tmp_path


def evaluate(*arguments: object) -> Result:
    app = typer.Typer()
    app.command("evaluate")(evaluate_command)
    result = CliRunner().invoke(app, [*map(str, arguments), "--device", "cpu"], env={"COLUMNS": "100", "TERM": "dumb"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def evaluate_json(*arguments: object) -> SimpleNamespace:
    return SimpleNamespace(**json.loads(evaluate(*arguments, "--json").stdout))


def test_one_run_prints_one_table(home: Path) -> None:
    shown = evaluate(home / "good", "--bootstrap", 50).stdout
    assert "small, split test: 25 images, 75 texts" in shown
    assert "protocol full, single model" in shown
    for heading in ("R@1", "R@5", "R@10", "medr", "meanr", "mAP@R", "rsum", "image to text", "text to image", "chance"):
        assert heading in shown
    assert len([line for line in shown.splitlines() if line.strip()]) <= 14
    found = evaluate_json(home / "good", "--bootstrap", 50)
    assert f"{found.metrics['rsum']:.1f}" in shown
    low, high = found.intervals["rsum"]
    assert f"{low:.1f}".removesuffix(".0") + "-" + f"{high:.1f}".removesuffix(".0") in shown
    assert f"{found.chance['rsum']:.1f}" in shown


def test_the_table_fits_eighty_columns(home: Path) -> None:
    app = typer.Typer()
    app.command("evaluate")(evaluate_command)
    shown = (
        CliRunner().invoke(app, [str(home / "good"), "--device", "cpu"], env={"COLUMNS": "80", "TERM": "dumb"}).stdout
    )
    assert "…" not in shown
    assert any(all(heading in line for heading in ("R@1", "mAP@R", "rsum")) for line in shown.splitlines())


def test_json_and_file_hold_what_is_needed_to_repeat_it(home: Path) -> None:
    found = evaluate_json(home / "good", "--split", "dev", "--seed", 3, "--block", 7, "--out", home / "result.json")
    stored = json.loads((home / "result.json").read_text())
    assert stored["metrics"] == found.metrics
    assert stored["split"] == "dev"
    assert stored["counts"]["images"] == 10
    assert stored["settings"]["seed"] == 3
    assert stored["settings"]["device"] == "cpu"
    assert stored["provenance"]["corpus"]["name"] == "small"
    assert stored["provenance"]["runs"] == [{"name": "good", "weights_sha256": "sum of good", "seed": None}]


@pytest.mark.parametrize("block", [1, 10, 5000])
def test_block_and_batch_sizes_change_nothing(home: Path, block: int) -> None:
    usual = evaluate_json(home / "bad")
    other = evaluate_json(home / "bad", "--block", block, "--batch-size", 7)
    assert other.metrics == usual.metrics
    assert other.intervals == usual.intervals


def test_several_runs_are_an_ensemble_or_separate(home: Path) -> None:
    together = evaluate_json(home / "good", home / "bad")
    assert together.kind == "ensemble of 2"
    assert together.members == ["good", "bad"]
    apart = evaluate_json(home / "good", home / "bad", "--separate")
    assert list(apart.results) == ["good", "bad"]
    assert apart.results["good"]["metrics"] == evaluate_json(home / "good").metrics
    assert apart.results["good"]["metrics"]["rsum"] > apart.results["bad"]["metrics"]["rsum"]
    shown = evaluate(home / "good", home / "bad").stdout
    assert "protocol full, ensemble of 2" in shown
    assert "ensemble of 2: good + bad" in shown
    assert list(evaluate_json(home / "good", home / "good", "--separate").results) == ["good", "good (2)"]


def test_compare_says_whether_the_difference_is_luck(home: Path) -> None:
    found = evaluate_json(home / "good", "--compare", home / "bad")
    difference = found.comparisons["good - bad"]["rsum"]
    gap = found.results["good"]["metrics"]["rsum"] - found.results["bad"]["metrics"]["rsum"]
    assert difference["difference"] == pytest.approx(gap)
    assert difference["p_value"] < 0.01
    same = evaluate_json(home / "good", "--compare", home / "good")
    assert same.comparisons["good - good"]["rsum"]["p_value"] == 1.0
    shown = evaluate(home / "good", "--compare", home / "bad").stdout
    assert "good - bad" in shown
    assert "sign flips" in shown


def test_agreement_with_people_is_measured_for_each_result(home: Path) -> None:
    lines = [f"i{g}\tt{(g + k) % GROUPS}-0\t{1 + (k == 0)}\t{1 + (k < 2)}\t1" for g in range(GROUPS) for k in range(3)]
    annotations = home / "experts.txt"
    annotations.write_text("\n".join(lines), encoding="utf-8")
    options = ("--expert-annotations", annotations, "--bootstrap", 20)
    found = evaluate_json(home / "good", "--compare", home / "bad", *options)
    assert list(found.human_agreement) == ["good", "bad"]
    assert found.human_agreement["good"]["pairs"] == 2 * GROUPS
    assert found.human_agreement["good"]["own_excluded"] == GROUPS
    shown = evaluate(home / "good", *options).stdout
    assert f"good: Kendall tau-c {found.human_agreement['good']['tau_c']:.3f}" in shown
    together = evaluate_json(home / "good", home / "bad", *options)
    assert list(together.human_agreement) == ["good + bad"]


def test_ensembles_are_named_with_commas(home: Path) -> None:
    good, bad = home / "good", home / "bad"
    found = evaluate_json(good, bad, "--compare", f"{bad},{good}")
    first, second = found.results.values()
    assert first["metrics"] == second["metrics"], "the order of the members does not matter"
    (difference,) = found.comparisons.values()
    assert difference["rsum"]["difference"] == 0
    with pytest.raises(QuintetError, match="--compare"):
        evaluate(good, "--compare", ",")


@pytest.mark.usefixtures("folds_of_any_size")
def test_hard_samples_are_chosen_by_the_run_that_one_compares_with(home: Path) -> None:
    options = ["--hard-samples", "--bootstrap", 0]
    found = evaluate_json(home / "good", "--compare", home / "bad", *options).special_samples
    assert found["chosen_by"] == "bad"
    assert len(found["rows"]) == 2 * 3 * 2
    hard = {row["run"]: row["i2t_r1"] for row in found["rows"] if (row["samples"], row["percent"]) == ("hard", 20)}
    assert hard["good"] > hard["bad"]
    alone = evaluate_json(home / "good", *options).special_samples
    assert alone["chosen_by"] == "good"
    assert "hard and infrequent" in evaluate(home / "good", *options).stdout
    with pytest.raises(QuintetError, match="without folds"):
        evaluate(home / "good", "--protocol", "5fold", *options)


@pytest.mark.usefixtures("folds_of_any_size")
def test_folds(home: Path) -> None:
    found = evaluate_json(home / "good", "--protocol", "5fold")
    assert found.counts["images_a_fold"] == [5] * 5
    assert found.chance["t2i_r1"] == pytest.approx(20.0)


def test_ranks_are_written(home: Path) -> None:
    found = evaluate_json(home / "good", "--ranks", home / "ranks.npz")
    (ranks,) = load_ranks(home / "ranks.npz")
    assert metrics_of_ranks(ranks) == found.metrics
    assert np.array_equal(ranks.i2t.rows, np.arange(GROUPS))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["good", "--protocol", "5k"], "5,000 images"),
        (["good", "--protocol", "5fold"], "5,000 images"),
        (["good", "--split", "tset"], "did you mean 'test'"),
        (["good", "other"], "different corpora"),
        (["good", "bad", "--separate", "--ranks", "r.npz"], "one file"),
    ],
)
def test_mistakes_are_explained(home: Path, arguments: list[str], message: str) -> None:
    named = [home / word if word in ("good", "bad", "other") else word for word in arguments]
    with pytest.raises(QuintetError, match=message):
        evaluate(*named)


def test_a_protocol_that_does_not_exist(home: Path) -> None:
    wrong = evaluate(home / "good", "--protocol", "5flod")
    assert wrong.exit_code == 2
    assert "'5fold'" in wrong.output


def test_a_run_without_a_corpus_needs_one_named(home: Path) -> None:
    write_head(home / "good", None)
    with pytest.raises(QuintetError, match="--corpus"):
        evaluate(home / "good")
    assert evaluate(home / "good", "--corpus", home / "corpus").exit_code == 0
