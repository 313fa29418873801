"""Candidate lists from elsewhere: what is read is what loops make of the same rows; what does not fit is refused."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.data.candidates import names_lists, read_lists
from quintet.data.corpus import Corpus, Image, Split, Text
from quintet.data.negatives import NegativeLists
from quintet.errors import CorpusError, QuintetError

Row = dict[str, Any]


def make_split(groups: int = 4, name: str = "train") -> Split:
    names = [f"{name}{group}" for group in range(groups)]
    texts = [Text(f"t-{group}-{k}", group, "words") for group in names for k in range(2)]
    return Corpus("small", [Image(f"i-{group}", group) for group in names], texts, {name: names}).split(name)


def no_note(message: str) -> None:
    raise AssertionError(f"nothing should be noted: {message}")


def read(path: Path, split: Split, top_texts: int = 3, top_images: int = 2, note: Any = no_note) -> NegativeLists:
    return read_lists(path, split, top_texts=top_texts, top_images=top_images, note=note)


def all_rows(split: Split) -> list[Row]:
    """Every wrong pair, with a score of its own."""
    return [
        {"image": image.id, "text": text.id, "score": float((7 * i + 3 * t) % 31)}
        for i, image in enumerate(split.images)
        for t, text in enumerate(split.texts)
        if image.group != text.group
    ]


def write_csv(path: Path, rows: list[Row], delimiter: str = ",") -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


def write_jsonl(path: Path, rows: list[Row]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_parquet(path: Path, rows: list[Row]) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    parquet.write_table(pyarrow.Table.from_pylist(rows), path)


WRITERS: dict[str, Callable[[Path, list[Row]], None]] = {
    "lists.csv": write_csv,
    "lists.tsv": lambda path, rows: write_csv(path, rows, "\t"),
    "lists.jsonl": write_jsonl,
    "lists.parquet": write_parquet,
}


def plain_lists(rows: list[Row], split: Split, way: str, top: int) -> list[list[int]]:
    """A twin in loops: the best `top` candidates of every anchor, equal scores in the order of the table."""
    images, texts = ({row.id: n for n, row in enumerate(side)} for side in (split.images, split.texts))
    lists: list[list[int]] = []
    for anchor in split.images if way == "i2t" else split.texts:
        own, other = ("image", "text") if way == "i2t" else ("text", "image")
        mine = [row for row in rows if row[own] == anchor.id and row.get("direction", way) == way]
        group = {row.id: row.group for row in (*split.images, *split.texts)}
        mine = [row for row in mine if group[row[other]] != anchor.group]
        found: dict[int, float] = {}
        for row in mine:
            found.setdefault((texts if way == "i2t" else images)[row[other]], row.get("score", 0.0))
        lists.append(sorted(found, key=lambda n: -found[n])[:top])
    return lists


def filled(table: np.ndarray) -> list[list[int]]:
    return [[row for row in rows if row >= 0] for rows in table.tolist()]


@pytest.mark.parametrize("name", WRITERS)
def test_tables_of_every_kind(name: str, tmp_path: Path) -> None:
    split = make_split()
    rows = all_rows(split)
    WRITERS[name](tmp_path / name, rows)
    assert names_lists(tmp_path / name)
    lists = read(tmp_path / name, split)
    assert filled(lists.texts) == plain_lists(rows, split, "i2t", 3)
    assert filled(lists.images) == plain_lists(rows, split, "t2i", 2)
    score = {(row["image"], row["text"]): row["score"] for row in rows}
    for image, texts in enumerate(lists.texts):
        found = [score[split.images[image].id, split.texts[text].id] for text in texts]
        assert lists.text_scores[image].tolist() == found
    lists.check(split)
    assert lists.manifest["imported"]["from"] == str(tmp_path / name)
    assert len(lists.manifest["imported"]["files"][name]) == 64


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 2), st.integers(0, 5), st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from(["i2t", "t2i"])
        ),
        max_size=30,
    ),
    scored=st.booleans(),
    directed=st.booleans(),
    top=st.integers(1, 4),
)
def test_any_table_is_what_loops_make_of_it(
    rows: list[tuple[int, int, float, str]], scored: bool, directed: bool, top: int, tmp_path_factory: Any
) -> None:
    split = make_split(3)
    complete = [(i, t, -1.0, way) for way in ("i2t", "t2i") for i in range(3) for t in range(6)]  # nobody is left empty
    table = []
    for image, text, score, way in rows + complete:
        row = {"image": split.images[image].id, "text": split.texts[text].id}
        table.append(row | ({"score": score} if scored else {}) | ({"direction": way} if directed else {}))
    path = tmp_path_factory.mktemp("tables") / "lists.jsonl"
    write_jsonl(path, table)
    lists = read(path, split, top, min(top, 2), lambda message: None)
    assert filled(lists.texts) == plain_lists(table, split, "i2t", top)
    assert filled(lists.images) == plain_lists(table, split, "t2i", min(top, 2))


def test_positives_and_repeated_rows_of_a_table_are_left_out_and_counted(tmp_path: Path) -> None:
    split = make_split()
    rows = all_rows(split)
    positives = [{"image": split.images[n].id, "text": split.texts[2 * n].id, "score": 99.0} for n in range(3)]
    write_jsonl(tmp_path / "lists.jsonl", [*positives, *rows, rows[0], rows[0]])
    notes: list[str] = []
    lists = read(tmp_path / "lists.jsonl", split, note=notes.append)
    assert [note.split(": ")[1].split()[0] for note in notes] == ["3", "4"], "2 rows of both directions repeat"
    assert np.array_equal(lists.texts, read_plain(rows, split, tmp_path).texts)


def read_plain(rows: list[Row], split: Split, folder: Path) -> NegativeLists:
    write_jsonl(folder / "plain.jsonl", rows)
    return read(folder / "plain.jsonl", split)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"text": "t-dev0-0"}, "t-dev0-0.*not in split"),
        ({"image": "nowhere"}, "nowhere.*not in split"),
        ({"score": "high"}, "score.*'high'"),
        ({"score": float("nan")}, "score.*nan"),
        ({"direction": "both"}, "direction.*both"),
    ],
)
def test_rows_that_make_no_sense_are_named(change: Row, match: str, tmp_path: Path) -> None:
    split = make_split()
    rows = [row | {"direction": "i2t"} for row in all_rows(split)]
    rows[4] |= change
    write_jsonl(tmp_path / "lists.jsonl", rows)
    with pytest.raises(CorpusError, match="row 5: ") as error:
        read(tmp_path / "lists.jsonl", split)
    assert error.match(match)


def test_tables_without_the_columns_or_without_rows_are_refused(tmp_path: Path) -> None:
    split = make_split()
    write_jsonl(tmp_path / "a.jsonl", [{"image": "i-train0", "words": "t"}])
    with pytest.raises(CorpusError, match="ids of texts"):
        read(tmp_path / "a.jsonl", split)
    (tmp_path / "b.csv").write_text("image,text\n", encoding="utf-8")
    with pytest.raises(CorpusError, match="no rows"):
        read(tmp_path / "b.csv", split)


def test_an_anchor_without_candidates_is_named_and_shorter_lists_are_told(tmp_path: Path) -> None:
    split = make_split()
    rows = all_rows(split)
    write_jsonl(tmp_path / "a.jsonl", [row for row in rows if row["image"] != "i-train2"])
    with pytest.raises(CorpusError, match="'i-train2' has no negative"):
        read(tmp_path / "a.jsonl", split)
    few = [row for row in rows if row["image"] != "i-train2" or row["text"] in ("t-train0-0", "t-train1-1")]
    write_jsonl(tmp_path / "b.jsonl", few)
    notes: list[str] = []
    lists = read(tmp_path / "b.jsonl", split, note=notes.append)
    assert lists.text_counts.tolist() == [3, 3, 2, 3]
    assert [note.split(": ")[1][:16] for note in notes] == ["1 of 4 images ha"]
    with pytest.raises(CorpusError, match=r"3 candidates.*4 of 8"):
        read(write_first(rows, tmp_path), split, top_texts=4)


def write_first(rows: list[Row], folder: Path, count: int = 3) -> Path:
    """A table with the first rows of every image for its own list."""
    kept = [row | {"direction": "t2i"} for row in rows]
    for image in {row["image"] for row in rows}:
        kept += [row | {"direction": "i2t"} for row in rows if row["image"] == image][:count]
    write_jsonl(folder / "first.jsonl", kept)
    return folder / "first.jsonl"


# The authors' arrays


def author_arrays(split: Split, texts: int, images: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """As their program makes them: own candidates get -9999, then the best are kept."""
    scores = np.random.default_rng(seed).normal(size=(len(split.images), len(split.texts)))
    scores[split.image_groups[:, None] == split.text_groups[None, :]] = -9999
    best = (np.argsort(-part, axis=1, kind="stable").astype(np.int32) for part in (scores, scores.T))
    return next(best)[:, :texts], next(best)[:, :images]


def save_arrays(folder: Path, split: Split, texts: int = 5, images: int = 3, name: str = "toy") -> Any:
    found = author_arrays(split, texts, images)
    for way, rows in zip(("i2t", "t2i"), found, strict=True):
        np.save(folder / f"{way}_{name}.npy", rows)
    return found


@pytest.mark.parametrize("named", [".", "i2t_toy.npy", "t2i_toy.npy"])
def test_the_authors_arrays(named: str, tmp_path: Path) -> None:
    split = make_split()
    texts, images = save_arrays(tmp_path, split)
    assert names_lists(tmp_path / named)
    lists = read(tmp_path / named, split)
    assert np.array_equal(lists.texts, texts[:, :3])
    assert np.array_equal(lists.images, images[:, :2])
    assert np.isnan(lists.text_scores).all()
    assert set(lists.manifest["imported"]["files"]) == {"i2t_toy.npy", "t2i_toy.npy"}
    lists.check(split)


def test_of_several_arrays_those_of_the_splits_sizes_are_taken(tmp_path: Path) -> None:
    split = make_split()
    texts, _ = save_arrays(tmp_path, split, name="f30k")
    save_arrays(tmp_path, make_split(6), name="coco")
    assert np.array_equal(read(tmp_path, split).texts, texts[:, :3])
    with pytest.raises(CorpusError, match=r"coco.npy, f30k.npy"):
        read(tmp_path, make_split(5))
    with pytest.raises(CorpusError, match="has 4 images"):
        read(tmp_path / "i2t_coco.npy", split)


def test_positives_at_the_end_of_an_array_end_its_list_and_others_are_refused(tmp_path: Path) -> None:
    split = make_split()
    texts, images = save_arrays(tmp_path, split, texts=8, images=4)  # all there are: the positives come last
    notes: list[str] = []
    lists = read(tmp_path, split, 8, 4, notes.append)
    assert filled(lists.texts) == texts[:, :6].tolist()
    assert filled(lists.images) == images[:, :3].tolist()
    assert [note.split(": ")[1].split()[0] for note in notes[:2]] == ["8", "8"]
    np.save(tmp_path / "i2t_toy.npy", np.roll(texts, 1, axis=0))  # rows of another order
    with pytest.raises(CorpusError, match="another order"):
        read(tmp_path, split)


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        (np.full((4, 3), 9), "row 9"),
        (np.full((4, 3), -1), "another split"),
        (np.zeros((4, 3)), "integers"),
        (np.zeros(4, int), "shape"),
        (np.array([[2, 2, 3], [0, 1, 4], [0, 1, 2], [0, 1, 2]]), "twice"),
    ],
)
def test_arrays_that_are_no_lists_are_refused(rows: np.ndarray, match: str, tmp_path: Path) -> None:
    split = make_split()
    save_arrays(tmp_path, split)
    np.save(tmp_path / "i2t_toy.npy", rows)
    with pytest.raises(CorpusError, match=match):
        read(tmp_path, split)


def test_both_arrays_are_needed_and_their_names_say_which_is_which(tmp_path: Path) -> None:
    split = make_split()
    save_arrays(tmp_path, split)
    (tmp_path / "t2i_toy.npy").rename(tmp_path / "images.npy")
    with pytest.raises(CorpusError, match=r"t2i_toy.npy is missing"):
        read(tmp_path, split)
    with pytest.raises(CorpusError, match=r"i2t_NAME.npy"):
        read(tmp_path / "images.npy", split)


# What `quintet mine` wrote


def mined(split: Split, folder: Path, texts: int = 5) -> NegativeLists:
    rows = author_arrays(split, texts, 3)
    scores = [-np.arange(table.size, dtype=np.float32).reshape(table.shape) for table in rows]
    facts = {"split": split.name, "split_checksum": split.checksum, "matcher": {"name": "m", "weights": "abc"}}
    NegativeLists(rows[0], scores[0], rows[1], scores[1], facts).save(folder)
    return NegativeLists.open(folder)


def test_mined_lists_are_cut_to_what_is_drawn_from(tmp_path: Path) -> None:
    split = make_split()
    lists = mined(split, tmp_path / "lists")
    assert names_lists(tmp_path / "lists")
    found = read(tmp_path / "lists", split)
    for name, top in (("texts", 3), ("text_scores", 3), ("images", 2), ("image_scores", 2)):
        assert np.array_equal(getattr(found, name), getattr(lists, name)[:, :top])
    assert found.manifest["matcher"] == {"name": "m", "weights": "abc"}


def test_mined_lists_of_another_split_changed_ones_short_ones_and_wrong_ones_are_refused(tmp_path: Path) -> None:
    split, folder = make_split(), tmp_path / "lists"
    mined(make_split(name="dev"), folder)
    with pytest.raises(CorpusError, match="from split 'dev'"):
        read(folder, split)
    mined(split, folder)
    with pytest.raises(CorpusError, match=r"5 candidates.*6 of 8"):
        read(folder, split, top_texts=6)
    content = bytearray((folder / "texts.npy").read_bytes())
    content[-1] ^= 1
    (folder / "texts.npy").write_bytes(bytes(content))
    with pytest.raises(QuintetError, match="damaged"):
        read(folder, split)
    mined(split, folder, texts=8)  # with the positives at the ends
    with pytest.raises(CorpusError, match="positives"):
        read(folder, split)
    (folder / "manifest.json").write_text('{"format": "quintet-negatives-unfinished"}', encoding="utf-8")
    assert names_lists(folder)
    with pytest.raises(CorpusError, match="no finished negatives"):
        read(folder, split)


def test_other_paths_name_no_lists(tmp_path: Path) -> None:
    (tmp_path / "weights.safetensors").write_bytes(b"")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}", encoding="utf-8")
    for name in ("weights.safetensors", "run", "nothing", "nothing.csv"):
        assert not names_lists(tmp_path / name), name
