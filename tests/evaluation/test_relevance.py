"""ECCV Caption, CxC and graded relevance, against plain loops and the package's own functions."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.data.corpus import Corpus, Image, Split, Text
from quintet.errors import CorpusError, QuintetError
from quintet.evaluation.eccv import coco_relevance
from quintet.evaluation.ranks import BLOCK, count_ranks, count_ranks_and_more
from quintet.evaluation.relevance import (
    FILE,
    Relevance,
    judged_result,
    judged_values,
    make_judged,
    read_relevance,
    require_one_fold,
)
from quintet.files import write_jsonl


def plain_values(row: list[float], grades: dict[int, float]) -> dict[str, float]:
    """One query: sort all candidates, of a tie the less relevant first."""
    order = sorted(range(len(row)), key=lambda c: (-row[c], grades.get(c, 0.0)))
    hits = [c in grades for c in order]
    r = len(grades)
    found = {f"r{k}": float(any(hits[:k])) for k in (1, 5, 10)}
    found["map_at_r"] = sum(sum(hits[: p + 1]) / (p + 1) for p in range(r) if hits[p]) / r
    found["rprecision"] = sum(hits[:r]) / r
    for name, cut in (("ndcg", len(order)), ("ndcg10", 10)):
        gained = sum(grades.get(c, 0.0) / math.log2(p + 2) for p, c in enumerate(order[:cut]))
        ideal = sorted(grades.values(), reverse=True)[:cut]
        found[name] = gained / sum(grade / math.log2(p + 2) for p, grade in enumerate(ideal))
    return {name: 100 * value for name, value in found.items()}


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.tuples(st.integers(1, 9), st.integers(1, 9)), st.integers(1, 6))
def test_any_relevant_pairs_give_what_a_sorted_list_gives_and_the_ranks_are_those_without_them(
    seed: int, block: tuple[int, int], levels: int
) -> None:
    rng = np.random.default_rng(seed)
    images, texts = int(rng.integers(1, 9)), int(rng.integers(1, 15))
    scores = (rng.integers(0, levels, (images, texts)) / 4).astype(np.float32)
    groups = rng.integers(0, 3, images), np.append(rng.integers(0, 3, texts - 1), 0)
    groups[0][0] = 0
    chosen = [rng.random((images, texts)) < 0.4, rng.random((texts, images)) < 0.4]
    grades = [np.where(mask, rng.integers(1, 4, mask.shape), 0) for mask in chosen]
    judged = [make_judged(not side, *np.nonzero(grade), grade[np.nonzero(grade)]) for side, grade in enumerate(grades)]
    ranks, more = count_ranks_and_more(lambda i, t: _tensor(scores[i, t]), *groups, judged, block)
    alone = count_ranks(lambda i, t: _tensor(scores[i, t]), *groups, block)
    assert np.array_equal(ranks.pair_i2t, alone.pair_i2t)
    assert np.array_equal(ranks.pair_t2i, alone.pair_t2i)
    for matrix, grade, found in zip((scores, scores.T), grades, more, strict=True):
        values = judged_values(found)
        for at, row in enumerate(found.queries.rows):
            expected = plain_values(
                matrix[row].tolist(), {int(c): float(grade[row, c]) for c in np.flatnonzero(grade[row])}
            )
            assert {name: value[at] for name, value in values.items()} == pytest.approx(expected)
        assert found.queries.rows.tolist() == np.flatnonzero(grade.any(axis=1)).tolist()


def _tensor(values: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(np.ascontiguousarray(values))


# COCO


def coco(folder: Path, images: int, seed: int) -> tuple[Split, dict[str, dict[str, list[int]]]]:
    """A small COCO of five captions an image, and files as the package has them."""
    rng = np.random.default_rng(seed)
    captions = rng.choice(10_000, images * 5, replace=False).tolist()
    ids = rng.choice(10_000, images, replace=False).tolist()
    files: dict[str, dict[str, list[int]]] = {
        "original_caption_to_image": {str(caption): [ids[at // 5]] for at, caption in enumerate(captions)}
    }
    for kind, share in (("eccv", 0.4), ("cxc", 0.9)):
        queries = [id_ for id_ in ids if rng.random() < share] or ids[:1]
        files[f"{kind}_image_to_caption"] = {
            str(id_): rng.choice(captions, rng.integers(1, 9), replace=False).tolist() for id_ in queries
        }
        if images > 8:
            files[f"{kind}_image_to_caption"][str(queries[0])].append(20_000)  # a caption that the split lacks
        queries = [id_ for id_ in captions if rng.random() < share]
        files[f"{kind}_caption_to_image"] = {
            str(id_): rng.choice(ids, rng.integers(1, 5), replace=False).tolist() for id_ in queries
        }
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    rows = [(Image(f"{id_}.jpg", str(id_)), captions[5 * at : 5 * at + 5]) for at, id_ in enumerate(ids)]
    texts = [
        Text(f"{image.id}#{k}", image.group, "a dog", extra={"caption_id": caption})
        for image, own in rows
        for k, caption in enumerate(own)
    ]
    rng.shuffle(texts)
    corpus = Corpus("coco", [image for image, _ in rows], texts, {"test": [image.group for image, _ in rows]})
    return corpus.split("test"), files


def measured(relevance: list[Relevance], split: Split, scores: np.ndarray) -> dict[str, dict[str, float]]:
    sides = [side for each in relevance for side in each.sides]
    groups = split.image_groups, split.text_groups
    _, found = count_ranks_and_more(lambda i, t: _tensor(scores[i, t]), *groups, sides, BLOCK)
    return {
        each.name: judged_result(each, found[2 * at : 2 * at + 2], resamples=0).metrics
        for at, each in enumerate(relevance)
    }


def rankings(split: Split, scores: np.ndarray, wanted: dict[str, Any], image_of: dict[int, int]) -> dict[str, Any]:
    """The lists that the package takes: ids, best first; of a tie, those first that `wanted` does not name."""
    captions = [text.extra["caption_id"] for text in split.texts]
    images = [image_of[captions[int(texts[0])]] for texts in split.texts_of_image]
    lists: dict[str, Any] = {}
    for way, matrix, own, others in (("i2t", scores, images, captions), ("t2i", scores.T, captions, images)):
        lists[way] = {}
        for row, query in enumerate(own):
            if query in wanted[way]:
                relevant = np.isin(others, wanted[way][query])
                lists[way][query] = np.array(others)[np.lexsort((relevant, -matrix[row]))].tolist()
    return lists


@pytest.mark.parametrize("levels", [5, 10**6])
@pytest.mark.parametrize("seed", range(3))
def test_eccv_and_cxc_are_those_of_the_package_on_the_same_rankings(tmp_path: Path, seed: int, levels: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        package = pytest.importorskip("eccv_caption._metrics")
    split, files = coco(tmp_path, 20, seed)
    scores = np.random.default_rng(seed).integers(0, levels, (20, 100)).astype(np.float32)
    relevance = [coco_relevance(kind, split, tmp_path) for kind in ("eccv", "cxc")]
    found = measured(relevance, split, scores)
    image_of = {int(caption): images[0] for caption, images in files["original_caption_to_image"].items()}
    for kind in ("eccv", "cxc"):
        parsed = {
            way: {int(query): ids for query, ids in files[f"{kind}_{name}"].items()}
            for way, name in (("i2t", "image_to_caption"), ("t2i", "caption_to_image"))
        }
        lists = rankings(split, scores, parsed, image_of)
        for way in ("i2t", "t2i"):
            if kind == "eccv":
                own = package.compute_eccv_metrics(lists[way], parsed[way])
                expected = {f"{way}_{name.removeprefix('eccv_')}": 100 * value for name, value in own.items()}
            else:
                expected = {f"{way}_r{k}": 100 * package.compute_r_at_k(lists[way], parsed[way], k) for k in (1, 5, 10)}
            assert {name: found[kind][name] for name in expected} == pytest.approx(expected)


@pytest.mark.slow
def test_on_all_of_coco_the_numbers_are_those_of_the_packages_metrics() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        package = pytest.importorskip("eccv_caption").Metrics()
    rng = np.random.default_rng(0)
    ids = list(package.coco_gts["i2t"])
    images = [Image(str(id_), str(id_)) for id_ in ids]
    texts = [
        Text(f"{id_}#{caption}", str(id_), "a dog", extra={"caption_id": caption})
        for id_ in ids
        for caption in package.coco_gts["i2t"][id_]
    ]
    split = Corpus("coco", images, texts, {"test": [image.group for image in images]}).split("test")
    scores = rng.normal(size=(5_000, 25_000)).astype(np.float32)
    row_of = {id_: row for row, id_ in enumerate(ids)}
    captions = np.array([text.extra["caption_id"] for text in split.texts])
    column_of = {int(id_): column for column, id_ in enumerate(captions)}
    for id_, known in package.eccv_gts["i2t"].items():  # some of the positives come first
        columns = [column_of[caption] for caption in known if caption in column_of]
        scores[row_of[id_], columns] += rng.normal(size=len(columns)) + 2
    relevance = [coco_relevance(kind, split) for kind in ("eccv", "cxc")]
    assert len(relevance[0].absent[0]) == 2  # captions beside the five of their images
    found = measured(relevance, split, scores)
    i2t = {id_: captions[np.argsort(-scores[row])[:100]].tolist() for row, id_ in enumerate(ids)}
    first = np.argsort(-scores.T, axis=1)[:, :100]
    t2i = {int(id_): np.array(ids)[first[column]].tolist() for column, id_ in enumerate(captions)}
    eccv = package.eccv_metrics({"i2t": i2t, "t2i": t2i}, "all")
    expected = {
        f"{way}_{name.removeprefix('eccv_')}": 100 * each for name, ways in eccv.items() for way, each in ways.items()
    }
    assert found["eccv"] == pytest.approx(expected)
    for k in (1, 5, 10):
        recalls = package.cxc_recalls({"i2t": i2t, "t2i": t2i}, "all", k)
        assert {way: found["cxc"][f"{way}_r{k}"] / 100 for way in recalls} == pytest.approx(recalls)


def without_ids(split: Split) -> list[Text]:
    return [Text(text.id, text.group, text.text) for text in split.texts]


def test_a_split_that_is_not_cocos_test_split_is_refused(tmp_path: Path) -> None:
    split, _ = coco(tmp_path, 8, 0)
    groups = list(split.groups)

    def other(images: list[Image], texts: list[Text], names: list[str]) -> Split:
        return Corpus("other", images, texts, {"test": names}).split("test")

    with pytest.raises(QuintetError, match="no COCO caption ids"):
        coco_relevance("eccv", other(split.images, without_ids(split), groups), tmp_path)
    with pytest.raises(QuintetError, match="captions are missing"):
        coco_relevance("eccv", other(split.images, split.texts, groups[1:]), tmp_path)
    more = [*split.images, Image("more.jpg", "more")], [*split.texts, Text("more#0", "more", "x")]
    with pytest.raises(QuintetError, match="has 9 images"):
        coco_relevance("eccv", other(*more, [*groups, "more"]), tmp_path)
    twice = [*split.texts, Text("again", groups[0], "x", extra=split.texts[0].extra)]
    with pytest.raises(QuintetError, match="caption id"):
        coco_relevance("eccv", other(split.images, twice, groups), tmp_path)
    sixth = [*split.texts, Text("sixth", groups[0], "x", extra={"caption_id": 10**6})]
    assert "1 captions" in coco_relevance("cxc", other(split.images, sixth, groups), tmp_path).notes[0]


@pytest.mark.parametrize("content", ["[]", '{"x": [1]}', '{"1": []}', '{"1": ["2"]}', '{"1": [true]}', "{"])
def test_files_of_another_kind_are_refused(tmp_path: Path, content: str) -> None:
    split, _ = coco(tmp_path, 4, 0)
    (tmp_path / "eccv_image_to_caption.json").write_text(content)
    with pytest.raises(QuintetError, match="eccv_image_to_caption"):
        coco_relevance("eccv", split, tmp_path)


def test_ids_that_are_not_cocos_are_refused(tmp_path: Path) -> None:
    split, _ = coco(tmp_path, 4, 0)
    (tmp_path / "eccv_caption_to_image.json").write_text('{"99999": [1]}')
    with pytest.raises(QuintetError, match="ids that are not"):
        coco_relevance("eccv", split, tmp_path)


def test_folds_are_refused(tmp_path: Path) -> None:
    split, _ = coco(tmp_path, 4, 0)
    with pytest.raises(QuintetError, match="protocol full or 5k"):
        require_one_fold([coco_relevance("eccv", split, tmp_path)], 5)


# A corpus's own file


@pytest.fixture
def corpus() -> Corpus:
    images = [Image(f"{name} 1.jpg", name) for name in "abc"]
    texts = [Text(f"{name}#{k}", name, f"{name} {k}") for name in "abc" for k in range(2)]
    return Corpus("small", images, texts, {"test": ["a", "b"], "train": ["c"]})


def pairs_of(relevance: Relevance) -> list[list[tuple[int, int, float]]]:
    return [
        list(zip(*(part.tolist() for part in (side.query, side.candidate, side.grade)), strict=True))
        for side in relevance.sides
    ]


def test_rows_are_for_both_directions_or_for_one_and_those_of_other_splits_are_passed_over(
    corpus: Corpus, tmp_path: Path
) -> None:
    rows: list[dict[str, Any]] = [
        {"image": "a 1.jpg", "text": "b#1", "grade": 2},
        {"image": "a 1.jpg", "text": "a#0", "direction": "i2t"},
        {"image": "b 1.jpg", "text": "a#0", "grade": 0},
        {"image": "c 1.jpg", "text": "a#0"},
    ]
    write_jsonl(tmp_path / FILE, rows)
    found = pairs_of(read_relevance(tmp_path / FILE, corpus, corpus.split("test")))
    assert found == [[(0, 0, 1.0), (0, 3, 2.0)], [(3, 0, 2.0)]]


def test_qrels_say_by_their_ids_what_is_the_query(corpus: Corpus, tmp_path: Path) -> None:
    path = tmp_path / "qrels.txt"
    path.write_text("a%201.jpg 0 b#1 2\nb#1 0 b%201.jpg 1\n\nb#0 0 a%201.jpg 0\n")
    assert pairs_of(read_relevance(path, corpus, corpus.split("test"))) == [[(0, 3, 2.0)], [(3, 1, 1.0)]]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"image": "a 1.jpg"}, "expected"),
        ({"image": "a 1.jpg", "text": "a#0", "grade": -1}, "grade"),
        ({"image": "a 1.jpg", "text": "a#0", "grade": "2"}, "grade"),
        ({"image": "a 1.jpg", "text": "a#0", "direction": "both"}, "direction"),
        ({"image": "z", "text": "a#0"}, "1 ids are not of"),
        ({"image": "c 1.jpg", "text": "c#0"}, "no relevant pair"),
    ],
)
def test_rows_that_make_no_sense_are_refused(corpus: Corpus, tmp_path: Path, row: dict[str, Any], message: str) -> None:
    write_jsonl(tmp_path / FILE, [row])
    with pytest.raises(CorpusError, match=message):
        read_relevance(tmp_path / FILE, corpus, corpus.split("test"))


@pytest.mark.parametrize("text", ["a b c\n", "a#0 0 a%201.jpg x\n", "a#0 0 a%201.jpg nan\n", "q 0 d 1\n", ""])
def test_qrels_that_make_no_sense_are_refused(corpus: Corpus, tmp_path: Path, text: str) -> None:
    (tmp_path / "qrels").write_text(text)
    with pytest.raises(CorpusError):
        read_relevance(tmp_path / "qrels", corpus, corpus.split("test"))


def test_a_pair_has_one_grade(corpus: Corpus, tmp_path: Path) -> None:
    write_jsonl(tmp_path / FILE, [{"image": "a 1.jpg", "text": "a#0", "grade": grade} for grade in (1, 2)])
    with pytest.raises(CorpusError, match="more than once"):
        read_relevance(tmp_path / FILE, corpus, corpus.split("test"))
