from __future__ import annotations

from collections import Counter
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from quintet.data.corpus import Corpus
from quintet.data.scenes import generate as module
from quintet.data.scenes.generate import SPLITS, make_scenes, scenes
from quintet.data.scenes.scene import Scene
from quintet.errors import CorpusError


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return make_scenes(tmp_path_factory.mktemp("x") / "scenes", train=60, dev=20, test=20, size=48)


def test_it_is_a_corpus_with_five_texts_a_image(corpus: Corpus) -> None:
    assert {name: len(groups) for name, groups in corpus.splits.items()} == {"train": 60, "dev": 20, "test": 20}
    again = Corpus.open(corpus.root)
    assert [image.id for image in again.images] == [image.id for image in corpus.images]
    for image in corpus.images:
        assert image.group == image.id
        with Image.open(corpus.image_path(image)) as opened:
            assert (opened.size, opened.mode) == ((48, 48), "RGB")
    assert set(Counter(text.image for text in corpus.texts).values()) == {5}


def test_objects_are_kept_with_boxes(corpus: Corpus) -> None:
    for image in corpus.images:
        assert image.extra["objects"]
        for thing in image.extra["objects"]:
            assert set(thing) == {"label", "box", "colour", "size", "texture"}
            left, top, right, bottom = thing["box"]
            assert 0 <= left < right <= 1
            assert 0 <= top < bottom <= 1


def test_every_split_has_families_of_near_duplicates(corpus: Corpus) -> None:
    for name in corpus.splits:
        kin: dict[str, list[set[str]]] = {}
        for image in corpus.split(name).images:
            kin.setdefault(image.extra["family"], []).append({thing["label"] for thing in image.extra["objects"]})
        assert max(map(len, kin.values())) >= 4
        assert all(shapes == members[0] for members in kin.values() for shapes in members)


def test_same_seed_same_bytes_and_other_seed_other_scenes(tmp_path: Path) -> None:
    for name, seed, workers in (("a", 5, 1), ("b", 5, 2), ("c", 6, 1)):
        make_scenes(tmp_path / name, train=8, dev=4, test=4, seed=seed, size=32, workers=workers)
    a, b, c = (contents(tmp_path / name) for name in "abc")
    assert a == b
    assert a["texts.jsonl"] != c["texts.jsonl"]
    assert len({a[name] for name in a if name.endswith(".png")}) == 16


def test_tables_and_pixels_are_the_same_on_every_machine(tmp_path: Path) -> None:
    corpus = make_scenes(tmp_path / "s", train=20, dev=5, test=10, size=64)
    digest = sha256()
    for name in ("images.jsonl", "texts.jsonl", "splits.json"):
        digest.update((tmp_path / "s" / name).read_bytes())
    for image in corpus.images:  # pixels, not files: another zlib packs the same pixels otherwise
        digest.update(np.asarray(Image.open(corpus.image_path(image))).tobytes())
    assert digest.hexdigest()[:16] == "7b95211c69725d11"


def test_held_out_scenes_do_not_depend_on_how_many_are_trained_on(tmp_path: Path) -> None:
    few = make_scenes(tmp_path / "few", train=2, dev=5, test=6, size=32)
    many = make_scenes(tmp_path / "many", train=30, dev=5, test=6, size=32)
    for name in ("dev", "test"):
        assert [text.text for text in few.split(name).texts] == [text.text for text in many.split(name).texts]
    assert few.split("train").images == many.split("train").images[:2]


def test_no_scene_occurs_twice() -> None:
    seen: set[Scene] = set()
    drawn = [scene for key in range(len(SPLITS)) for scene, _ in scenes(0, key, 300, seen)]
    assert len(drawn) == len(set(drawn)) == 300 * len(SPLITS)


def test_progress_is_reported(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    make_scenes(tmp_path / "s", train=3, dev=1, test=0, size=32, progress=lambda done, of: calls.append((done, of)))
    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"train": -1}, "train=-1"),
        ({"train": 0, "dev": 0, "test": 0}, "empty"),
        ({"seed": -3}, "seed"),
        ({"size": 8}, "at least 32"),
        ({"workers": 0}, "one process"),
    ],
)
def test_senseless_arguments_are_refused(tmp_path: Path, options: dict[str, int], words: str) -> None:
    with pytest.raises(CorpusError, match=words):
        make_scenes(tmp_path / "s", **options)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "captions", full)
    with pytest.raises(CorpusError, match="No space left"):
        make_scenes(tmp_path / "s", train=2, dev=0, test=0, size=32)
    assert not list(tmp_path.iterdir())


def test_a_corpus_is_replaced_only_when_allowed_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "s"
    make_scenes(out, train=2, dev=0, test=0, size=32)
    before = contents(out)
    with pytest.raises(CorpusError, match="already holds a corpus"):
        make_scenes(out, train=3, dev=0, test=0, size=32)
    with monkeypatch.context() as patch:
        patch.setattr(module, "draw", lambda *_: (_ for _ in ()).throw(OSError(5, "broken")))
        with pytest.raises(CorpusError, match="broken"):
            make_scenes(out, train=3, dev=0, test=0, size=32, overwrite=True)
    assert contents(out) == before
    assert len(make_scenes(out, train=3, dev=0, test=0, size=32, overwrite=True).images) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_a_folder_of_something_else_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(CorpusError, match="not an empty folder"):
        make_scenes(tmp_path, train=1, dev=0, test=0, size=32, overwrite=True)
    assert (tmp_path / "mine.txt").read_text() == "keep"


def test_what_a_killed_drawing_left_is_removed_and_the_old_corpus_put_back(tmp_path: Path) -> None:
    sizes = {"train": 2, "dev": 1, "test": 1, "size": 32}
    make_scenes(tmp_path / "scenes", **sizes)
    old = contents(tmp_path / "scenes")
    beside = tmp_path / ".scenes.abcdefgh.partial"
    beside.mkdir()
    (tmp_path / "scenes").rename(beside / "old")  # killed between two renames
    mine = tmp_path / ".scenes.mine1234.partial"
    mine.mkdir()
    (mine / "diary.txt").write_text("mine")
    with pytest.raises(CorpusError, match="already holds"):
        make_scenes(tmp_path / "scenes", **sizes)
    assert contents(tmp_path / "scenes") == old
    make_scenes(tmp_path / "scenes", **sizes, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".scenes.mine1234.partial", "scenes"]
    assert (mine / "diary.txt").read_text() == "mine"
