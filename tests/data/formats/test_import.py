"""`import_corpus`: what is the same for every format."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from quintet.data.corpus import Corpus
from quintet.data.formats import FORMATS, get_format, import_corpus, parse_options
from quintet.data.formats.assembly import image_name
from quintet.errors import CorpusError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    for name in ("a.png", "deep/a.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (2, 2)).save(folder / name)
        (folder / name).with_suffix(".txt").write_text(f"Caption of {name}.")
    return folder


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_format_describes_its_options(name: str) -> None:
    format = get_format(name)
    assert format.help
    assert callable(format.read)
    for option in format.options.values():
        assert option.help
        assert option.parse(option.default) == option.default


def test_a_typo_in_the_format_or_an_option_is_answered(source: Path, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"'fodler'.*'folder'"):
        import_corpus("fodler", source, tmp_path / "out")
    with pytest.raises(CorpusError, match=r"'folder' .*'fraction'.*'fractions'"):
        import_corpus("folder", source, tmp_path / "out", fraction="1,0,0")
    with pytest.raises(CorpusError, match="option seed=one: expected int"):
        import_corpus("folder", source, tmp_path / "out", seed="one")
    with pytest.raises(CorpusError, match="strict=maybe"):
        import_corpus("folder", source, tmp_path / "out", strict="maybe")
    assert not (tmp_path / "out").exists()


def test_the_earlier_name_of_an_option_is_understood() -> None:
    assert parse_options(get_format("karpathy"), {"pictures": "photos"}) == {"images": Path("photos")}
    with pytest.raises(CorpusError, match="'images' is given twice"):
        parse_options(get_format("karpathy"), {"pictures": "photos", "images": "photos"})
    with pytest.raises(CorpusError, match="no option 'pictures'"):
        parse_options(get_format("precomp"), {"pictures": "photos"})


def test_a_source_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="SOURCE holds"):
        import_corpus("folder", tmp_path / "nowhere", tmp_path / "out")


def test_images_outside_are_pointed_at_absolutely(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    corpus = import_corpus("folder", "source", "out")
    assert [image.path for image in corpus.images] == [str(source / "a.png"), str(source / "deep" / "a.png")]
    assert not (tmp_path / "out" / "images").exists()


def test_images_inside_are_pointed_at_relatively(source: Path) -> None:
    corpus = import_corpus("folder", source, source)
    assert [image.path for image in corpus.images] == ["a.png", "deep/a.png"]


def test_a_copy_can_be_moved(source: Path, tmp_path: Path) -> None:
    import_corpus("folder", source, tmp_path / "out", copy=True, name="mine")
    (tmp_path / "out").rename(tmp_path / "moved")
    for path in sorted(source.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    corpus = Corpus.open(tmp_path / "moved")
    assert corpus.name == "mine"
    assert [image.path for image in corpus.images] == ["images/a.png", "images/deep/a.png"]
    assert all(corpus.image_path(image).is_file() for image in corpus.images)


def test_a_corpus_is_not_overwritten_unless_allowed(source: Path, tmp_path: Path) -> None:
    import_corpus("folder", source, tmp_path / "out")
    with pytest.raises(CorpusError, match="already holds a corpus"):
        import_corpus("folder", source, tmp_path / "out", name="new")
    assert import_corpus("folder", source, tmp_path / "out", name="new", overwrite=True).name == "new"


def test_a_failed_overwrite_leaves_the_old_corpus(source: Path, tmp_path: Path) -> None:
    import_corpus("folder", source, tmp_path / "out", name="old")
    (source / "a.txt").write_bytes(b"\xff")
    with pytest.raises(CorpusError, match="not UTF-8"):
        import_corpus("folder", source, tmp_path / "out", overwrite=True, strict=True)
    assert Corpus.open(tmp_path / "out").name == "old"


def test_a_file_in_the_way(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(CorpusError, match="is a file"):
        import_corpus("folder", source, tmp_path / "out")


def test_scenes_need_no_source(tmp_path: Path) -> None:
    corpus = import_corpus("scenes", "-", tmp_path / "out", train="3", dev="2", test="2", name="toy")
    assert corpus.name == Corpus.open(tmp_path / "out").name == "toy"
    assert {name: len(groups) for name, groups in corpus.splits.items()} == {"train": 3, "dev": 2, "test": 2}


@given(ids=st.lists(st.text(max_size=12), unique=True, max_size=8))
def test_image_names_differ_and_stay_inside(ids: list[str]) -> None:
    taken: set[str] = set()
    names = [image_name(id_, ".jpg", taken) for id_ in ids]
    assert len({name.lower() for name in names}) == len(ids)
    root = Path("/some/folder")
    for name in names:
        assert name.endswith(".jpg")
        assert ".." not in Path(name).parts
        assert (root / name).is_relative_to(root)
        assert (root / name) != root
