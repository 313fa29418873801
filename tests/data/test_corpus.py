from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.data.corpus import MAX_WORDS, Corpus, Image, Text, rows_by_group
from quintet.errors import CorpusError


def small(**changes: Any) -> Corpus:
    fields: dict[str, Any] = {
        "name": "small",
        "images": [Image("a", "a", "a.jpg"), Image("b", "b", "/elsewhere/b.jpg", {"width": 3})],
        "texts": [Text("a#0", "a", "A dog."), Text("a#1", "a", "Ein Hund, größer"), Text("b#0", "b", "Two cats.", "b")],
        "splits": {"train": ["a"], "test": ["b"]},
    }
    return Corpus(**(fields | changes))


identifiers = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
captions = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30).filter(
    lambda text: bool(text.split())
)


@st.composite
def corpora(draw: st.DrawFn) -> Corpus:
    groups = draw(st.lists(identifiers, min_size=1, max_size=6, unique=True))
    images, texts = [], []
    for group in groups:
        for n in range(draw(st.integers(1, 3))):
            path = draw(st.none() | identifiers)
            images.append(Image(f"{group}/{n}", group, path, draw(st.dictionaries(st.just("size"), st.integers()))))
        for n in range(draw(st.integers(1, 7))):
            facts = draw(st.dictionaries(st.just("caption_id"), st.integers()))
            texts.append(
                Text(f"{group}#{n}", group, draw(captions), draw(st.sampled_from([None, f"{group}/0"])), facts)
            )
    images, texts = draw(st.permutations(images)), draw(st.permutations(texts))
    cut = draw(st.integers(0, len(groups)))
    return Corpus("any", images, texts, {"train": groups[:cut], "test": groups[cut:], "all": groups}, notes=["n\n"])


@settings(max_examples=25, deadline=None)
@given(corpus=corpora())
def test_save_and_open_give_the_same_corpus(tmp_path_factory: pytest.TempPathFactory, corpus: Corpus) -> None:
    folder = tmp_path_factory.mktemp("corpus")
    corpus.save(folder)
    again = Corpus.open(folder)
    assert again.images == corpus.images
    assert again.texts == corpus.texts
    assert (again.name, again.splits, again.notes, again.root) == (corpus.name, corpus.splits, corpus.notes, folder)


@settings(max_examples=60, deadline=None)
@given(corpus=corpora(), name=st.sampled_from(["train", "test", "all"]))
def test_a_split_holds_exactly_the_rows_of_its_groups(corpus: Corpus, name: str) -> None:
    split = corpus.split(name)
    groups = corpus.splits[name]
    assert {image.id for image in split.images} == {image.id for image in corpus.images if image.group in groups}
    assert {text.id for text in split.texts} == {text.id for text in corpus.texts if text.group in groups}
    assert [split.groups[code] for code in split.image_groups] == [image.group for image in split.images]
    assert [split.groups[code] for code in split.text_groups] == [text.group for text in split.texts]
    assert (np.diff(split.image_groups) >= 0).all()
    assert len(split.texts_of_group) == len(split.images_of_group) == len(groups)
    for row, text in enumerate(split.texts):
        paired = [split.images[image].id for image in split.images_of_text[row]]
        expected = [image.id for image in split.images if image.group == text.group and text.image in (None, image.id)]
        assert paired == expected
        assert all(row in split.texts_of_image[image] for image in split.images_of_text[row])


@settings(max_examples=40, deadline=None)
@given(corpus=corpora(), data=st.data())
def test_taking_groups_is_the_split_of_those_groups(corpus: Corpus, data: st.DataObject) -> None:
    split = corpus.split("all")
    codes = data.draw(st.lists(st.integers(0, len(split.groups) - 1), unique=True))
    chosen = [split.groups[code] for code in codes]
    taken = split.take_groups(codes)
    direct = Corpus(corpus.name, corpus.images, corpus.texts, {"chosen": chosen}).split("chosen")
    assert taken.groups == chosen
    assert {image.id for image in taken.images} == {image.id for image in direct.images}
    assert [text.group for text in taken.texts] == [text.group for text in direct.texts]


@given(groups=st.lists(st.integers(0, 4)), extra=st.integers(0, 2))
def test_rows_by_group_against_a_loop(groups: list[int], extra: int) -> None:
    count = max(groups, default=-1) + 1 + extra
    rows = rows_by_group(np.array(groups, dtype=np.int64), count)
    assert [part.tolist() for part in rows] == [[r for r, g in enumerate(groups) if g == code] for code in range(count)]


def test_files_are_plain_utf8(tmp_path: Path) -> None:
    small().save(tmp_path)
    assert "größer" in (tmp_path / "texts.jsonl").read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "corpus.json",
        "images.jsonl",
        "splits.json",
        "texts.jsonl",
    ]


def test_images_are_found_from_the_corpus_folder_or_absolutely(tmp_path: Path) -> None:
    small().save(tmp_path)
    corpus = Corpus.open(tmp_path)
    assert [corpus.image_path(image) for image in corpus.images] == [tmp_path / "a.jpg", Path("/elsewhere/b.jpg")]
    with pytest.raises(CorpusError, match="features only"):
        corpus.image_path(Image("c", "c"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"images": [Image("a", "a"), Image("a", "b"), Image("c", "b")]},
            "1 image ids occur more than once, first 'a'",
        ),
        ({"texts": [Text("x", "a", "A."), Text("x", "b", "B.")]}, "1 text ids occur more than once, first 'x'"),
        ({"texts": [Text("a#0", "a", " \n\t")]}, "'a#0' is empty"),
        ({"texts": [Text("a#0", "a", "word " * 10_000)]}, f"10000 words .limit {MAX_WORDS}"),
        ({"texts": [Text("a#0", "a", "A.", image="b")]}, "names image 'b', which is not in its group 'a'"),
        ({"texts": [Text("a#0", "a", "A.")]}, "1 groups of split 'test' have no texts, first 'b'"),
        (
            {"images": [Image("a", "a")], "texts": [Text("a", "a", "A"), Text("b", "b", "B")]},
            "have no images, first 'b'",
        ),
        ({"splits": {"train": ["a", "a"]}}, "'train' lists a group twice"),
        ({"splits": {"train": ["nobody"]}}, "first 'nobody'"),
        ({"splits": ["a"]}, "object of lists"),
        ({"splits": {"train": [1]}}, "object of lists"),
        ({"images": [Image(1, "a")]}, "must be strings"),
        ({"texts": [Text("a#0", "a", None)]}, "must be strings"),
        ({"images": [Image("a", None)]}, "must be strings"),
        ({"texts": [Text("a#0", "a", "half a pair \ud800")]}, "UTF-8"),
        ({"images": [Image("caf\udce9.jpg", "a")]}, "UTF-8"),
    ],
)
def test_what_a_corpus_may_not_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        small(**changes)


def test_a_long_text_without_spaces_is_refused() -> None:
    with pytest.raises(CorpusError, match="1100 words"):
        small(texts=[Text("a#0", "a", "狗" * 1100), Text("b#0", "b", "two")])


def test_a_long_text_within_the_limit_is_kept() -> None:
    small(texts=[Text("a", "a", "word " * MAX_WORDS), Text("b", "b", "B")])


def test_an_unknown_split_is_answered_with_the_nearest() -> None:
    with pytest.raises(CorpusError, match="did you mean 'train'"):
        small().split("trian")


def test_a_folder_that_is_no_corpus(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="quintet data import"):
        Corpus.open(tmp_path)


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    small().save(tmp_path)
    (tmp_path / "corpus.json").write_text('{"format": "quintet-corpus", "version": 99, "name": "x"}')
    with pytest.raises(CorpusError, match="version 99"):
        Corpus.open(tmp_path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (b'{"id": "x", "group": "a", "text": "caf\xe9"}', r"texts\.jsonl, line 4"),
        (b'{"id": "x", "group": "a"', r"texts\.jsonl, line 4"),
        (b'{"id": "x", "group": "a"}', "lacks the field 'text'"),
        (b'{"id": 7, "group": "a", "text": "A."}', "must be strings"),
    ],
)
def test_damaged_rows_are_named(tmp_path: Path, row: bytes, message: str) -> None:
    small().save(tmp_path)
    with (tmp_path / "texts.jsonl").open("ab") as file:
        file.write(row + b"\n")
    with pytest.raises(CorpusError, match=message):
        Corpus.open(tmp_path)


def test_an_interrupted_save_leaves_no_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small().save(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("quintet.data.corpus.write_json", full)
    with pytest.raises(OSError, match="No space"):
        small(name="other").save(tmp_path)
    with pytest.raises(CorpusError, match="is not a corpus"):
        Corpus.open(tmp_path)


def test_extra_fields_never_replace_an_id(tmp_path: Path) -> None:
    small(images=[Image("a", "a", None, {"id": "z"}), Image("b", "b")]).save(tmp_path)
    first = json.loads((tmp_path / "images.jsonl").read_text().splitlines()[0])
    assert first["id"] == "a"


def test_a_split_without_some_images_has_no_text_and_no_group_of_them() -> None:
    images = [Image("a1", "a"), Image("a2", "a"), Image("b1", "b"), Image("c1", "c")]
    texts = [
        Text("t1", "a", "one", "a1"),
        Text("t2", "a", "two"),
        Text("t3", "b", "three"),
        Text("t4", "c", "four", "c1"),
    ]
    split = Corpus("x", images, texts, {"train": ["a", "b", "c"]}).split("train")
    left = split.without_images({"a1", "b1"})
    assert [image.id for image in left.images] == ["a2", "c1"]
    assert [text.id for text in left.texts] == ["t2", "t4"]
    assert left.groups == ["a", "c"]
    assert left.text_groups.tolist() == [0, 1]
