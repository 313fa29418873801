"""`quintet.evaluate`: runs, names and paths in; results, comparisons and tables out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import quintet
from quintet.data.corpus import Corpus
from quintet.data.feature_store import FeatureStore
from quintet.data.vocabulary import WordVocabulary
from quintet.errors import QuintetError, RunError
from quintet.evaluation import load_ranks, retrieval_metrics
from quintet.files import read_json, write_json
from quintet.runs.checkpoint import write_run
from quintet.runs.run_folder import write_checksums


@pytest.fixture
def corpus(tiny_corpus: Path) -> Corpus:
    return Corpus.open(tiny_corpus)


@pytest.fixture
def runs(tmp_path: Path, corpus: Corpus) -> list[Path]:
    """Two untrained runs on the features of the tiny corpus."""
    words = WordVocabulary.build([text.text for text in corpus.texts], min_count=1)
    folders = []
    for seed in range(2):
        arguments: dict[str, Any] = {"image_dim": 8, "vocabulary_size": len(words), "embed_dim": 8, "word_dim": 6}
        torch.manual_seed(seed)
        folders.append(tmp_path / f"run{seed}")
        write_run(
            folders[-1],
            name=f"run{seed}",
            model={"name": "vse++", "arguments": arguments},
            state_dict=quintet.create_model("vse++", **arguments).state_dict(),
            tokenizer=words,
            image_input={"kind": "features", "name": "toy", "tower": {"name": "toy"}},
        )
    return folders


def scores_of(run: quintet.Run, corpus: Corpus) -> np.ndarray:
    return run.score(*run.encode_split(corpus, "test")).numpy()


def test_a_run_a_path_or_several(runs: list[Path], corpus: Corpus) -> None:
    split = corpus.split("test")
    opened = [quintet.load(folder, device="cpu") for folder in runs]
    found = quintet.evaluate(opened[0], corpus, bootstrap=50)
    expected = retrieval_metrics(scores_of(opened[0], corpus), split.image_groups, split.text_groups)
    assert found.metrics == pytest.approx(expected)
    assert found.rsum == found.metrics["rsum"]
    assert found.intervals["rsum"][0] <= found.rsum <= found.intervals["rsum"][1]
    assert quintet.evaluate(str(runs[0]), corpus.root, bootstrap=50).metrics == found.metrics
    assert quintet.evaluate(runs[0], split=split, corpus=corpus, bootstrap=0).metrics == found.metrics
    both = quintet.evaluate(runs, corpus, bootstrap=0)
    mean = (scores_of(opened[0], corpus) + scores_of(opened[1], corpus)) / 2
    assert both.metrics == pytest.approx(retrieval_metrics(mean, split.image_groups, split.text_groups))
    assert both.kind == "ensemble of 2"


def test_several_alone_and_one_against_another(runs: list[Path], corpus: Corpus) -> None:
    alone = quintet.evaluate(runs, corpus, ensemble=False, bootstrap=0)
    assert list(alone.results) == ["run0", "run1"]
    assert alone.rsum == alone.results["run0"].rsum
    compared = quintet.evaluate(runs[0], corpus, compare=runs[1], hard_samples=True, bootstrap=0)
    assert compared.metrics == alone.results["run0"].metrics
    difference = compared.comparisons["run0 - run1"]["rsum"].difference
    assert difference == pytest.approx(alone.results["run0"].rsum - alone.results["run1"].rsum)
    assert compared.hard_samples is not None
    assert compared.hard_samples["chosen_by"] == "run1"
    shown = compared.table()
    for words in ("run0", "R@1", "chance", "run0 - run1", "hard", "infrequent", f"{compared.rsum:.1f}"):
        assert words in shown


def test_relevance_and_slices_are_compared_as_well(runs: list[Path], corpus: Corpus, tmp_path: Path) -> None:
    split = corpus.split("test")
    rows = [{"image": split.images[0].id, "text": text.id, "grade": 1 + at % 2} for at, text in enumerate(split.texts)]
    file = tmp_path / "relevance.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    settings: dict[str, Any] = {"relevance": file, "slices": "length", "bootstrap": 0}
    compared = quintet.evaluate(runs[0], corpus, compare=runs[1], **settings)
    one, two = compared.results.values()
    (found,) = compared.comparisons.values()
    for name in one.judged["relevance"].metrics:
        difference = one.judged["relevance"].metrics[name] - two.judged["relevance"].metrics[name]
        assert found[f"relevance: {name}"].difference == pytest.approx(difference)
    for first, second in zip(one.slices, two.slices, strict=True):
        difference = first.metrics["t2i_r1"] - second.metrics["t2i_r1"]
        assert found[f"caption length, {first.label}: t2i_r1"].difference == pytest.approx(difference)
    shown = compared.table().partition("run0 - run1")[2]
    assert shown.index("rsum") < shown.index("relevance") < shown.index("nDCG") < shown.index("caption length")


def test_ensembles_are_compared_with_each_other(runs: list[Path], corpus: Corpus) -> None:
    both = quintet.evaluate(runs, corpus, bootstrap=0)
    found = quintet.evaluate([runs[0], runs[0]], corpus, compare=runs, hard_samples=True, bootstrap=0)
    assert list(found.results) == ["run0 + run0", "run0 + run1"]
    assert found.results["run0 + run1"].metrics == both.metrics
    assert found.metrics == quintet.evaluate(runs[0], corpus, bootstrap=0).metrics, "a run with itself is the run"
    (difference,) = found.comparisons.values()
    assert list(found.comparisons) == ["run0 + run0 - run0 + run1"]
    assert difference["rsum"].difference == pytest.approx(found.rsum - both.rsum)
    assert found.hard_samples is not None
    assert found.hard_samples["chosen_by"] == "run0 + run1"


def test_it_is_saved_with_what_repeats_it(runs: list[Path], corpus: Corpus, tmp_path: Path) -> None:
    found = quintet.evaluate(runs[0], corpus, split="dev", batch_size=5, seed=3, bootstrap=10)
    found.save(tmp_path / "result.json")
    stored = read_json(tmp_path / "result.json")
    assert stored["metrics"] == found.metrics
    assert stored["split"] == "dev"
    assert stored["settings"] == {"block": [1024, 1024], "bootstrap": 10, "seed": 3, "device": "cpu"}
    weights = quintet.load(runs[0]).weights_checksum
    assert stored["provenance"]["runs"] == [{"name": "run0", "weights_sha256": weights, "seed": None}]
    assert stored["provenance"]["corpus"]["name"] == "tiny"
    found.save_ranks(tmp_path / "ranks.npz")
    assert np.array_equal(load_ranks(tmp_path / "ranks.npz")[0].pair_i2t, found.ranks[0].pair_i2t)
    assert "run0" in found.results["run0"].table()
    found.results["run0"].save(tmp_path / "single.json")
    assert read_json(tmp_path / "single.json")["metrics"] == found.metrics


def test_progress_counts_images_and_texts_of_all_runs(runs: list[Path], corpus: Corpus) -> None:
    seen: list[tuple[int, int | None]] = []
    quintet.evaluate(runs, corpus, bootstrap=0, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(6, 36), (18, 36), (24, 36), (36, 36)]


def test_slips_are_told_before_anything_is_encoded(runs: list[Path], corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(QuintetError, match="5fold"):
        quintet.evaluate(runs, corpus, protocol="5folds")
    with pytest.raises(QuintetError, match="no run"):
        quintet.evaluate([], corpus)
    with pytest.raises(QuintetError, match="know a corpus"):
        quintet.evaluate(runs)
    with pytest.raises(RunError, match="not a run"):
        quintet.evaluate(tmp_path / "nothing", corpus)
    with pytest.raises(QuintetError, match="tests"):
        quintet.evaluate(runs, corpus, split="tests")


@pytest.mark.parametrize("change", ["weights", "source", "hub folder"])
def test_moved_files_change_nothing(change: str, runs: list[Path], tmp_path: Path, make_corpus: Any) -> None:
    """Towers are the same when their checksums are, wherever their files are now; imported ones when their kind is."""
    kept = {"name": "small-cnn", "weights": "/then/small.pth", "checksum": "a1", "grid": [2, 2]}
    moved = {
        "weights": kept | {"weights": "/now/small.pth"},
        "hub folder": kept | {"name": "hf:/now/vit", "weights": None},
        "source": {"name": "precomputed", "source": "/now/regions"},
    }[change]
    if change == "source":
        kept = {"name": "precomputed", "source": "/then/regions"}
    elsewhere = make_corpus(tmp_path / "elsewhere")
    manifest = elsewhere / "features" / "toy" / "manifest.json"
    write_json(runs[0] / "images.json", {"kind": "features", "name": "toy", "tower": kept})
    write_checksums(runs[0])
    write_json(manifest, read_json(manifest) | {"tower": moved})
    assert FeatureStore(manifest.parent).manifest["tower"] == moved
    assert quintet.evaluate(runs[0], elsewhere, bootstrap=0).rsum > 0
    other = moved | ({"name": "of another kind"} if change == "source" else {"checksum": "b2"})
    write_json(manifest, read_json(manifest) | {"tower": other})
    with pytest.raises(RunError, match="another tower"):
        quintet.evaluate(runs[0], elsewhere, bootstrap=0)
