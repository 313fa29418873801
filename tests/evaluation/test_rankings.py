"""Results of other programs: embeddings with ids, and TREC run files; slices of queries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import quintet
from quintet.data.corpus import Corpus, Image, Text
from quintet.errors import QuintetError
from quintet.evaluation import retrieval_metrics
from quintet.evaluation.rankings import given_results, read_run_file, write_run_file
from quintet.evaluation.slices import FIELD, slicings
from quintet.files import write_jsonl


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    """Six groups of one to three images and texts; two of them are for training. Ids with spaces and per cent signs."""
    rng = np.random.default_rng(3)
    images, texts = [], []
    for group in map(str, range(6)):
        images += [
            Image(f"a photo {group}%{k}.jpg", group, extra={"width": 10 * (k + 1), "height": 5, "kind": f"k{k}"})
            for k in range(rng.integers(1, 3))
        ]
        texts += [Text(f"{group}#{k}", group, "a dog " * (k + 1)) for k in range(rng.integers(1, 4))]
    splits = {"train": ["0", "1"], "test": ["2", "3", "4", "5"]}
    made = Corpus("small", images, texts, splits, root=tmp_path / "corpus")
    made.save(tmp_path / "corpus")
    return made


def write_embeddings(folder: Path, corpus: Corpus, seed: int = 0, levels: int = 3) -> Path:
    """Of all images and texts, in another order than that of the corpus; few values, so that scores tie."""
    rng = np.random.default_rng(seed)
    folder.mkdir()
    for kind, rows in (("images", corpus.images), ("texts", corpus.texts)):
        order = rng.permutation(len(rows))
        np.save(folder / f"{kind}.npy", rng.integers(0, levels, (len(rows), 4)).astype(np.float32))
        (folder / f"{kind}.txt").write_text("".join(f"{rows[at].id}\n" for at in order))
    return folder


def score_matrix(folder: Path, corpus: Corpus) -> np.ndarray:
    split, found = corpus.split("test"), []
    for kind, rows in (("images", split.images), ("texts", split.texts)):
        ids = (folder / f"{kind}.txt").read_text().splitlines()
        found.append(np.load(folder / f"{kind}.npy")[[ids.index(row.id) for row in rows]])
    return found[0] @ found[1].T


def test_embeddings_are_matched_by_their_ids(corpus: Corpus, tmp_path: Path) -> None:
    folder = write_embeddings(tmp_path / "other", corpus)
    split = corpus.split("test")
    found = quintet.evaluate(f"npy:{folder}", corpus, bootstrap=20)
    scores = score_matrix(folder, corpus)
    assert found.metrics == pytest.approx(retrieval_metrics(scores, split.image_groups, split.text_groups))
    assert found.members == ("other",)


def test_a_run_file_of_all_candidates_gives_the_same_numbers(corpus: Corpus, tmp_path: Path) -> None:
    folder = write_embeddings(tmp_path / "other", corpus)
    write_jsonl(
        tmp_path / "judged.jsonl",
        [
            {"image": corpus.images[-1].id, "text": text.id, "grade": 1 + at % 3}
            for at, text in enumerate(corpus.texts[-4:])
        ],
    )
    options: dict[str, Any] = {"relevance": tmp_path / "judged.jsonl", "slices": "length", "bootstrap": 0}
    before = quintet.evaluate(f"npy:{folder}", corpus, save_run=tmp_path / "run.trec", **options)
    after = quintet.evaluate(f"trec:{tmp_path / 'run.trec'}", corpus, **options)
    assert after.metrics == before.metrics
    assert after.judged["relevance"].metrics == before.judged["relevance"].metrics
    assert [found.metrics for found in after.slices] == [found.metrics for found in before.slices]
    lines = (tmp_path / "run.trec").read_text().splitlines()
    assert len(lines) == 2 * len(corpus.split("test").images) * len(corpus.split("test").texts)
    assert all(len(line.split()) == 6 for line in lines)
    compared = quintet.evaluate(f"npy:{folder}", corpus, compare=f"trec:{tmp_path / 'run.trec'}", bootstrap=0)
    assert {found.difference for found in next(iter(compared.comparisons.values())).values()} == {0.0}


def test_what_a_list_leaves_out_comes_after_everything_and_tied(corpus: Corpus, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    split = corpus.split("test")
    sides = (split.images, split.texts, split.image_groups, split.text_groups)
    lines, matrices = [], []
    for queries, documents in ((split.images, split.texts), (split.texts, split.images)):
        matrix = np.full((len(queries), len(documents)), -1e9)
        for row, query in enumerate(queries[1:], 1):  # the first one has no list
            for column in rng.permutation(len(documents))[: rng.integers(1, len(documents))]:
                matrix[row, column] = rng.integers(0, 3) / 2
                name = [part.id.replace("%", "%25").replace(" ", "%20") for part in (query, documents[column])]
                lines.append(f"{name[0]} Q0 {name[1]} 1 {matrix[row, column]} x")
        matrices.append(matrix)
    (tmp_path / "run").write_text("\n".join(lines))
    found = quintet.evaluate(f"trec:{tmp_path / 'run'}", corpus, bootstrap=0)
    i2t = retrieval_metrics(matrices[0], sides[2], sides[3])
    t2i = retrieval_metrics(matrices[1].T, sides[2], sides[3])
    expected = {name: (i2t if name.startswith("i2t") else t2i)[name] for name in i2t if name != "rsum"}
    assert {name: found.metrics[name] for name in expected} == pytest.approx(expected)
    assert "no list" in found.table()


def test_depth_keeps_the_best_and_of_ties_the_wrong_ones(corpus: Corpus, tmp_path: Path) -> None:
    split = corpus.split("test")
    write_run_file(
        tmp_path / "run", split, lambda i, t: torch.zeros(i.stop - i.start, t.stop - t.start), depth=1, block=(2, 3)
    )
    lists = read_run_file(f"trec:{tmp_path / 'run'}", corpus, split)
    assert lists.lengths(0).tolist() == [1] * len(split.images)
    assert (split.text_groups[lists.candidates[0]] != split.image_groups).all()


def test_lists_too_short_for_map_at_r_are_refused(corpus: Corpus, tmp_path: Path) -> None:
    folder = write_embeddings(tmp_path / "other", corpus)
    rows = [{"image": corpus.images[-1].id, "text": text.id} for text in corpus.texts[-3:]]
    write_jsonl(tmp_path / "judged.jsonl", rows)
    quintet.evaluate(f"npy:{folder}", corpus, bootstrap=0, save_run=tmp_path / "run", depth=2)
    with pytest.raises(QuintetError, match="too short for mAP@R"):
        quintet.evaluate(f"trec:{tmp_path / 'run'}", corpus, bootstrap=0, relevance=tmp_path / "judged.jsonl")


def test_what_lists_cannot_do_is_said(corpus: Corpus, tmp_path: Path) -> None:
    folder = write_embeddings(tmp_path / "other", corpus)
    quintet.evaluate(f"npy:{folder}", corpus, bootstrap=0, save_run=tmp_path / "run")
    for options in ({"hard_samples": True}, {"save_run": tmp_path / "again"}, {"expert_annotations": "x"}):
        with pytest.raises(QuintetError, match="has lists"):
            quintet.evaluate(f"trec:{tmp_path / 'run'}", corpus, bootstrap=0, **options)  # type: ignore[arg-type]
    with pytest.raises(QuintetError, match="has lists"):
        quintet.evaluate([f"npy:{folder}", f"trec:{tmp_path / 'run'}"], corpus, bootstrap=0)
    with pytest.raises(QuintetError, match="know a corpus"):
        quintet.evaluate(f"npy:{folder}")
    with pytest.raises(QuintetError, match="no effect"):
        quintet.evaluate(f"npy:{folder}", corpus, depth=3)


def damage(folder: Path, how: str) -> None:
    images, names = folder / "images.npy", folder / "images.txt"
    values, ids = np.load(images), names.read_text().splitlines()
    if how == "cut":
        images.write_bytes(images.read_bytes()[:-8])
    elif how == "NaN":
        values[:] = np.nan
    elif how == "integers":
        values = values.astype(np.int64)
    elif how == "one row less":
        values = values[1:]
    elif how == "other dimension":
        values = values[:, :3]
    elif how == "no dimension":
        values = values[:, 0]
    elif how == "twice":
        ids[0] = ids[1]
    elif how == "unknown":
        ids[0] = "somewhere else"
    elif how == "missing":
        values, ids = values[:1], ids[:1]
    elif how == "no folder":
        names.unlink()
    if how != "cut":
        np.save(images, values)
    if names.exists():
        names.write_text("\n".join(ids))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("cut", "damaged"),
        ("NaN", "NaN"),
        ("integers", "real numbers"),
        ("one row less", "one row an id"),
        ("other dimension", "dimensions"),
        ("no dimension", "shape"),
        ("twice", "more than once"),
        ("unknown", "1 ids are not of"),
        ("missing", "lacks"),
        ("no folder", "does not exist"),
    ],
)
def test_damaged_embeddings_are_refused(corpus: Corpus, tmp_path: Path, how: str, message: str) -> None:
    folder = write_embeddings(tmp_path / "other", corpus)
    damage(folder, how)
    with pytest.raises(QuintetError, match=message):
        quintet.evaluate(f"npy:{folder}", corpus, bootstrap=0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no list"),
        ("2#0 Q0 x\n", "expected"),
        ("2#0 Q0 a%20photo%202%250.jpg 1 nan x\n", "expected"),
        ("2#0 Q0 a%20photo%202%250.jpg 1 1e300 x\n", "expected"),
        ("2#0 Q0 nowhere 1 0.5 x\n", "1 ids are not of"),
        ("2#0 Q0 3#0 1 0.5 x\n", "one kind"),
        ("2#0 Q0 a%20photo%202%250.jpg 1 0.5 x\n" * 2, "listed twice"),
        ("0#0 Q0 a%20photo%200%250.jpg 1 0.5 x\n", "no list of split"),
    ],
)
def test_damaged_run_files_are_refused(corpus: Corpus, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "run").write_text(text)
    with pytest.raises(QuintetError, match=message):
        quintet.evaluate(f"trec:{tmp_path / 'run'}", corpus, bootstrap=0)


def test_names_of_results_are_those_of_the_command_line() -> None:
    from quintet.cli.evaluate import RESULTS

    assert all(given_results(f"{prefix}x") for prefix in RESULTS)
    assert not given_results("runs/npy")


# Slices


def test_a_slice_is_the_queries_that_are_in_it(corpus: Corpus, tmp_path: Path) -> None:
    folder = write_embeddings(tmp_path / "other", corpus)
    split = corpus.split("test")
    found = quintet.evaluate(f"npy:{folder}", corpus, slices=["length", "size", f"{FIELD}kind"], bootstrap=20)
    ranks = found.ranks[0]
    rows = {(each.slicing, each.label): each for each in found.slices}
    words = np.array([len(text.text.split()) for text in split.texts])
    for slicing, label, side, inside in (
        ("caption length", "2 words", "t2i", words == 2),
        ("kind", "k1", "i2t", np.array([image.extra["kind"] == "k1" for image in split.images])),
        ("kind", "k0", "t2i", np.array([split.images[at[0]].extra["kind"] == "k0" for at in split.images_of_text])),
    ):
        queries = getattr(ranks, side)
        chosen = [at for at, row in enumerate(queries.rows) if inside[row]]
        each = rows[slicing, label]
        assert each.counts[f"{side}_queries"] == len(chosen)
        assert each.metrics[f"{side}_r1"] == pytest.approx(100 * np.mean([queries.best[at] == 0 for at in chosen]))
        low, high = each.intervals[f"{side}_r1"]
        assert low <= each.metrics[f"{side}_r1"] <= high
    for slicing in ("caption length", "image size", "kind"):
        total = sum(each.counts["t2i_queries"] for each in found.slices if each.slicing == slicing)
        assert total == len(ranks.t2i)
    assert "by caption length" in found.table()
    assert "megapixels" in found.table()


def test_numbers_are_cut_into_quarters_and_rare_values_joined() -> None:
    images = [Image(str(n), str(n), extra={"year": n, "name": f"n{n}"}) for n in range(100)]
    texts = [Text(f"{n}#0", str(n), "x") for n in range(100)]
    split = Corpus("years", images, texts, {"test": [str(n) for n in range(100)]}).split("test")
    corpus = Corpus("years", images, texts, {"test": [str(n) for n in range(100)]})
    years, names = slicings("field:year,field:name", corpus, split)
    assert years.order == ["0 to 24", "25 to 49", "50 to 74", "75 to 99"]
    assert len(names.order) == 21
    assert names.images.count("(others)") == 80


@pytest.mark.parametrize("names", ["width", "field:nothing", ","])
def test_slices_that_do_not_exist_are_refused(corpus: Corpus, names: str) -> None:
    with pytest.raises(QuintetError):
        slicings(names, corpus, corpus.split("test"))


def test_images_without_a_size_are_refused(tiny_corpus: Path) -> None:
    corpus = Corpus.open(tiny_corpus)
    with pytest.raises(QuintetError, match="width and height"):
        slicings("size", corpus, corpus.split("test"))
