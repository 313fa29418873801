from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from quintet.data.feature_store import FeatureStore
from quintet.data.formats import import_corpus
from quintet.errors import CorpusError

REGIONS, DIM = 3, 4


def write_split(
    folder: Path,
    split: str,
    images: int,
    *,
    per_image: int = 5,
    repeat: bool = False,
    ids: bool = False,
    first: int = 0,
    captions: list[str] | None = None,
) -> np.ndarray:
    """Captions, features and perhaps ids of a split; returns the features, one row an image."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng([first, images])
    features = rng.normal(size=(images, REGIONS, DIM)).astype(np.float32)
    lines = captions or [f"image {first + image} caption {n}" for image in range(images) for n in range(per_image)]
    (folder / f"{split}_caps.txt").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    np.save(folder / f"{split}_ims.npy", np.repeat(features, per_image, axis=0) if repeat else features)
    if ids:
        names = [str(900 + first + image) for image in range(images) for _ in range(per_image if repeat else 1)]
        (folder / f"{split}_ids.txt").write_text("\n".join(names) + "\n")
    return features


@pytest.mark.parametrize("ids", [False, True])
@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize("per_image", [2, 5])
def test_both_row_conventions(tmp_path: Path, repeat: bool, ids: bool, per_image: int) -> None:
    source = tmp_path / "f30k_precomp"
    train = write_split(source, "train", 7, per_image=per_image, repeat=repeat, ids=ids)
    test = write_split(source, "test", 3, per_image=per_image, ids=ids, first=7)
    corpus = import_corpus("precomp", source, tmp_path / "out", captions_per_image=per_image)
    assert list(corpus.splits) == ["train", "test"]
    assert corpus.name == "f30k_precomp"
    assert [image.id for image in corpus.images][:2] == (["900", "901"] if ids else ["train-0", "train-1"])
    store = FeatureStore(tmp_path / "out" / "features" / "regions")
    for name, features in (("train", train), ("test", test)):
        split = corpus.split(name)
        batch = store.batch([image.id for image in split.images])
        assert batch.fragments is not None
        assert np.array_equal(batch.fragments.numpy(), features)
        for text, code in zip(split.texts, split.text_groups, strict=True):
            assert text.text.startswith(f"image {code + (7 if name == 'test' else 0)} ")
        assert len(split.texts) == per_image * len(features)


def test_arrays_are_used_where_they_lie(tmp_path: Path) -> None:
    write_split(tmp_path / "s", "train", 4)
    import_corpus("precomp", tmp_path / "s", tmp_path / "out")
    store = FeatureStore(tmp_path / "out" / "features" / "regions")
    assert store.manifest["parts"] == [{"features": str(tmp_path / "s" / "train_ims.npy")}]
    assert not [path for path in (tmp_path / "out").rglob("*.npy") if path.name != "rows.npy"]


def test_one_caption_an_image_is_not_mistaken_for_repetition(tmp_path: Path) -> None:
    write_split(tmp_path / "s", "train", 10, per_image=1)
    corpus = import_corpus("precomp", tmp_path / "s", tmp_path / "out")
    assert len(corpus.images) == len(corpus.texts) == 10
    assert "one caption" in corpus.notes[0]


def test_a_mixture_of_repeated_and_single_rows_is_an_error(tmp_path: Path) -> None:
    write_split(tmp_path / "s", "train", 4, repeat=True)
    array = np.load(tmp_path / "s" / "train_ims.npy")
    array[7] += 1
    np.save(tmp_path / "s" / "train_ims.npy", array)
    with pytest.raises(CorpusError, match="runs of 5 rows"):
        import_corpus("precomp", tmp_path / "s", tmp_path / "out")


@pytest.mark.parametrize("count", [0, 3, 19, 21])
def test_a_caption_file_whose_count_does_not_fit(tmp_path: Path, count: int) -> None:
    write_split(tmp_path / "s", "train", 4)
    (tmp_path / "s" / "train_caps.txt").write_text("A caption.\n" * count)
    with pytest.raises(CorpusError, match=f"{count} captions .*4 rows"):
        import_corpus("precomp", tmp_path / "s", tmp_path / "out")


def test_an_id_file_whose_count_does_not_fit(tmp_path: Path) -> None:
    write_split(tmp_path / "s", "train", 4)
    (tmp_path / "s" / "train_ids.txt").write_text("1\n2\n3\n")
    with pytest.raises(CorpusError, match=r"train_ids\.txt .*3 .*4 images"):
        import_corpus("precomp", tmp_path / "s", tmp_path / "out")


def test_ids_that_occur_twice(tmp_path: Path) -> None:
    write_split(tmp_path / "s", "train", 4)
    (tmp_path / "s" / "train_ids.txt").write_text("1\n2\n3\n1\n")
    with pytest.raises(CorpusError, match=r"twice.*ids=positions"):
        import_corpus("precomp", tmp_path / "s", tmp_path / "out")
    assert len(import_corpus("precomp", tmp_path / "s", tmp_path / "out", ids="positions").images) == 4


def test_one_id_for_different_images_of_two_splits(tmp_path: Path) -> None:
    write_split(tmp_path / "s", "train", 2)
    write_split(tmp_path / "s", "test", 2, first=5)
    for split in ("train", "test"):
        (tmp_path / "s" / f"{split}_ids.txt").write_text("1\n2\n")
    with pytest.raises(CorpusError, match=r"'1' .*'train' .*'test' .*captions"):
        import_corpus("precomp", tmp_path / "s", tmp_path / "out")


@pytest.mark.parametrize("ids", [False, True])
def test_test_and_testall_share_their_images(tmp_path: Path, ids: bool) -> None:
    write_split(tmp_path / "s", "train", 2, ids=ids, first=50)
    write_split(tmp_path / "s", "test", 3, repeat=True, ids=ids)
    write_split(tmp_path / "s", "testall", 9, ids=ids)
    corpus = import_corpus("precomp", tmp_path / "s", tmp_path / "out")
    assert corpus.splits["test"] == corpus.splits["testall"][:3]
    assert len(corpus.images) == 11
    assert len(corpus.split("testall").texts) == 45


def test_the_dev_cut_counts_images(tmp_path: Path) -> None:
    write_split(tmp_path / "s", "train", 6)
    write_split(tmp_path / "s", "dev", 6, first=6)
    corpus = import_corpus("precomp", tmp_path / "s", tmp_path / "out", dev_images="4")
    assert {name: len(groups) for name, groups in corpus.splits.items()} == {"train": 6, "dev": 4}
    assert len(corpus.split("dev").texts) == 20
    assert corpus.notes == ["dev was cut to its first 4 of 6 images"]


def test_an_empty_caption_keeps_the_others_in_place(tmp_path: Path) -> None:
    write_split(tmp_path / "s", "train", 2, per_image=2, captions=["one", "", "two", "three"])
    corpus = import_corpus("precomp", tmp_path / "s", tmp_path / "out")
    assert [(text.id, text.text) for text in corpus.texts] == [
        ("train-0#0", "one"),
        ("train-1#0", "two"),
        ("train-1#1", "three"),
    ]
    assert corpus.notes == ["skipped 1 empty captions, first train-0#1"]


def test_only_newlines_end_a_caption(tmp_path: Path) -> None:
    write_split(tmp_path / "s", "train", 2, per_image=1, captions=["a dog\u2028runs\x0bfast", "naïve café"])
    corpus = import_corpus("precomp", tmp_path / "s", tmp_path / "out", captions_per_image=1)
    assert [text.text for text in corpus.texts] == ["a dog\u2028runs\x0bfast", "naïve café"]


def test_captions_that_are_not_utf8(tmp_path: Path) -> None:
    write_split(tmp_path / "s", "train", 1, per_image=3)
    (tmp_path / "s" / "train_caps.txt").write_bytes(b"a dog\na caf\xe9\na cat\n")
    with pytest.raises(CorpusError, match=r"train_caps\.txt, line 2"):
        import_corpus("precomp", tmp_path / "s", tmp_path / "out")


def test_a_caption_of_ten_thousand_words(tmp_path: Path) -> None:
    write_split(tmp_path / "s", "train", 1, per_image=2, captions=["a dog", "word " * 10_000])
    with pytest.raises(CorpusError, match="10000 words"):
        import_corpus("precomp", tmp_path / "s", tmp_path / "out")
    assert not (tmp_path / "out" / "corpus.json").exists()


def write_boxes(folder: Path, rows: int, sizes: np.ndarray | None) -> np.ndarray:
    share = np.sort(np.random.default_rng(1).random((rows, REGIONS, 2, 2)), axis=2).reshape(rows, REGIONS, 4)
    if sizes is None:
        np.save(folder / "train_boxes.npy", share.astype(np.float32))
        return share
    np.save(folder / "train_boxes.npy", (share * np.tile(sizes, 2)[:, None]).astype(np.float32))
    return share


@pytest.mark.parametrize("order", ["wh", "hw"])
def test_boxes_in_pixels_are_scaled_by_the_images_size(tmp_path: Path, order: str) -> None:
    write_split(tmp_path / "s", "train", 4)
    sizes = np.array([[640, 48], [500, 37], [100, 10], [600, 40]])
    share = write_boxes(tmp_path / "s", 4, sizes)
    np.save(tmp_path / "s" / "train_img_sizes.npy", sizes if order == "wh" else sizes[:, ::-1])
    corpus = import_corpus("precomp", tmp_path / "s", tmp_path / "out", size_order=order)
    batch = FeatureStore(tmp_path / "out" / "features" / "regions").batch([image.id for image in corpus.images])
    assert batch.boxes is not None
    np.testing.assert_allclose(batch.boxes.numpy(), share, atol=1e-6)


def test_sizes_in_the_wrong_order_are_noticed(tmp_path: Path) -> None:
    write_split(tmp_path / "s", "train", 4)
    sizes = np.array([[640, 48]] * 4)
    write_boxes(tmp_path / "s", 4, sizes)
    np.save(tmp_path / "s" / "train_img_sizes.npy", sizes[:, ::-1])
    with pytest.raises(CorpusError, match=r"beyond the image.*size_order=hw"):
        import_corpus("precomp", tmp_path / "s", tmp_path / "out")


def test_boxes_without_sizes(tmp_path: Path) -> None:
    write_split(tmp_path / "s", "train", 4)
    write_boxes(tmp_path / "s", 4, np.array([[640, 480]] * 4))
    corpus = import_corpus("precomp", tmp_path / "s", tmp_path / "out")
    assert "box files in pixels" in corpus.notes[0]
    write_boxes(tmp_path / "s", 4, None)  # in 0..1 already: used in place
    import_corpus("precomp", tmp_path / "s", tmp_path / "out2")
    part = FeatureStore(tmp_path / "out2" / "features" / "regions").manifest["parts"][0]
    assert part["boxes"] == str(tmp_path / "s" / "train_boxes.npy")


def test_boxes_of_another_shape(tmp_path: Path) -> None:
    write_split(tmp_path / "s", "train", 4)
    np.save(tmp_path / "s" / "train_boxes.npy", np.zeros((4, REGIONS + 1, 4)))
    with pytest.raises(CorpusError, match="expected"):
        import_corpus("precomp", tmp_path / "s", tmp_path / "out")


def test_features_of_another_shape_or_cut_short(tmp_path: Path) -> None:
    write_split(tmp_path / "s", "train", 4)
    path = tmp_path / "s" / "train_ims.npy"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(CorpusError, match=r"not a complete .npy"):
        import_corpus("precomp", tmp_path / "s", tmp_path / "out")
    np.save(path, np.zeros((4, DIM)))
    with pytest.raises(CorpusError, match=r"expected \(rows, regions, dim\)"):
        import_corpus("precomp", tmp_path / "s", tmp_path / "out")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_features_that_are_not_finite_are_refused(tmp_path: Path, bad: float) -> None:
    write_split(tmp_path / "s", "train", 4)
    array = np.load(tmp_path / "s" / "train_ims.npy")
    array[2, 1, 0] = bad
    np.save(tmp_path / "s" / "train_ims.npy", array)
    with pytest.raises(CorpusError, match=r"train_ims.npy: row 2 holds NaN"):
        import_corpus("precomp", tmp_path / "s", tmp_path / "out")


@pytest.mark.parametrize("kind", ["complex64", "object", "bool", "U3"])
def test_features_that_are_no_real_numbers_are_refused(tmp_path: Path, kind: str) -> None:
    write_split(tmp_path / "s", "train", 4)
    path = tmp_path / "s" / "train_ims.npy"
    np.save(path, np.load(path).astype(kind))
    with pytest.raises(CorpusError, match=r"type|object"):
        import_corpus("precomp", tmp_path / "s", tmp_path / "out")


def test_a_split_with_a_part_missing_is_noted(tmp_path: Path) -> None:
    write_split(tmp_path / "s", "train", 4)
    (tmp_path / "s" / "test_caps.txt").write_text("a\n")
    assert "test (no test_ims.npy)" in import_corpus("precomp", tmp_path / "s", tmp_path / "out").notes[0]


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    with pytest.raises(CorpusError, match=r"S_caps.txt .*S_ims.npy"):
        import_corpus("precomp", tmp_path / "s", tmp_path / "out")
