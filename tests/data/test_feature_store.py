from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.data.corpus import Text
from quintet.data.feature_store import FeatureStore, Part, WordFeatures, write_manifest, write_word_features
from quintet.data.loading import TokenizedTexts, text_batches
from quintet.data.vocabulary import WordVocabulary
from quintet.errors import CorpusError, QuintetError
from quintet.files import read_json, write_json


def make_store(
    folder: Path, *, parts: int = 2, boxes: bool = True, lengths: bool = False, dtype: str = "float32"
) -> None:
    """Ids x0, x1, ... scattered over `parts` arrays of 5 rows, 4 fragments of 3; every entry tells where it is."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for number in range(parts):
        values = (np.arange(60).reshape(5, 4, 3) + 100 * number).astype(dtype)
        np.save(folder / f"f{number}.npy", values)
        np.save(folder / f"b{number}.npy", np.full((5, 4, 4), (number + 1) / 10, dtype=np.float32))
        np.save(folder / f"l{number}.npy", np.array([4, 1, 2, 3, 4]))
        written.append(
            Part(f"f{number}.npy", f"b{number}.npy" if boxes else None, f"l{number}.npy" if lengths else None)
        )
    rows = np.array([(n % parts, n // parts) for n in range(5 * parts)])
    write_manifest(folder, [f"x{n}" for n in range(len(rows))], rows, written, fragments=4, dim=3, tower={"name": "t"})


def drop_checksums(folder: Path) -> None:
    """As in a folder that was written before there were checksums."""
    manifest = read_json(folder / "manifest.json")
    write_json(folder / "manifest.json", {key: manifest[key] for key in manifest if key != "checksums"})


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@settings(max_examples=20, deadline=None)
@given(wanted=st.lists(st.integers(0, 9), min_size=1, max_size=12))
def test_rows_come_by_id_in_the_order_asked(
    tmp_path_factory: pytest.TempPathFactory, dtype: str, wanted: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("store")
    make_store(folder, dtype=dtype)
    batch = FeatureStore(folder).batch([f"x{n}" for n in wanted])
    assert batch.fragments is not None
    assert batch.boxes is not None
    assert batch.fragments.dtype == torch.float32
    assert batch.mask is None
    for row, n in enumerate(wanted):
        expected = np.load(folder / f"f{n % 2}.npy")[n // 2]
        assert np.array_equal(batch.fragments[row].numpy(), expected)
        assert torch.all(batch.boxes[row] == torch.tensor((n % 2 + 1) / 10))


def test_lengths_pad_with_zeros_and_mask(tmp_path: Path) -> None:
    make_store(tmp_path, parts=1, lengths=True)
    batch = FeatureStore(tmp_path).batch(["x1", "x4", "x2"])
    assert batch.mask is not None
    assert batch.fragments is not None
    assert batch.mask.sum(1).tolist() == [1, 4, 2]
    assert batch.mask[2].tolist() == [True, True, False, False]
    assert torch.all(batch.fragments[~batch.mask] == 0)
    assert batch.fragments[0, 0].tolist() == [12, 13, 14]


def test_parts_of_different_lengths_are_padded(tmp_path: Path) -> None:
    np.save(tmp_path / "long.npy", np.ones((1, 4, 2), np.float32))
    np.save(tmp_path / "short.npy", np.ones((1, 2, 2), np.float16))
    parts = [Part("long.npy"), Part("short.npy")]
    write_manifest(tmp_path, ["a", "b"], np.array([[0, 0], [1, 0]]), parts, fragments=4, dim=2, tower={})
    batch = FeatureStore(tmp_path).batch(["b", "a"])
    assert batch.mask is not None
    assert batch.mask.sum(1).tolist() == [2, 4]
    assert batch.boxes is None


def test_several_ids_may_share_a_row_and_paths_may_be_absolute(tmp_path: Path) -> None:
    np.save(tmp_path / "far.npy", np.arange(6, dtype=np.float32).reshape(2, 1, 3))
    folder = tmp_path / "store"
    part = Part(str(tmp_path / "far.npy"))
    write_manifest(folder, ["a", "b"], np.array([[0, 1], [0, 1]]), [part], fragments=1, dim=3, tower={})
    batch = FeatureStore(folder).batch(["a", "b"])
    assert batch.fragments is not None
    assert batch.fragments[:, 0].tolist() == [[3, 4, 5], [3, 4, 5]]


def test_missing_ids_are_counted_and_named(tmp_path: Path) -> None:
    make_store(tmp_path)
    store = FeatureStore(tmp_path)
    assert "x3" in store
    assert "y" not in store
    assert len(store) == 10
    with pytest.raises(CorpusError, match=r"2 of 3 .*'y'"):
        store.require(["x1", "y", "z"])
    with pytest.raises(CorpusError, match="1 of 2"):
        store.batch(["x1", "y"])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_features_that_are_not_finite_are_refused(tmp_path: Path, bad: float) -> None:
    make_store(tmp_path)
    values = np.load(tmp_path / "f1.npy")
    values[2, 3, 1] = bad
    np.save(tmp_path / "f1.npy", values)
    store = FeatureStore(tmp_path)
    store.batch(["x0", "x2"])
    with pytest.raises(CorpusError, match=r"'x5' .*NaN"):
        store.batch(["x0", "x5"])


def test_both_infinities_do_not_cancel(tmp_path: Path) -> None:
    make_store(tmp_path)
    values = np.load(tmp_path / "f0.npy")
    values[0, 0, :2] = np.inf, -np.inf
    np.save(tmp_path / "f0.npy", values)
    with pytest.raises(CorpusError, match="x0"):
        FeatureStore(tmp_path).batch(["x0"])


def test_padding_that_is_never_used_may_hold_anything(tmp_path: Path) -> None:
    make_store(tmp_path, parts=1, lengths=True)
    values = np.load(tmp_path / "f0.npy")
    values[1, 1:] = np.nan  # x1 has one fragment
    np.save(tmp_path / "f0.npy", values)
    FeatureStore(tmp_path).batch(["x1"])


def test_no_manifest_means_unfinished(tmp_path: Path) -> None:
    make_store(tmp_path)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(CorpusError, match="no finished features"):
        FeatureStore(tmp_path)


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    make_store(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | {"version": 2}))
    with pytest.raises(CorpusError, match="up to version 1"):
        FeatureStore(tmp_path)


def _truncate(folder: Path) -> None:
    data = (folder / "f0.npy").read_bytes()
    (folder / "f0.npy").write_bytes(data[:-8])


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (_truncate, "not a complete .npy"),
        (lambda folder: (folder / "f0.npy").unlink(), "does not exist; was it moved"),
        (lambda folder: (folder / "f0.npy").write_bytes(b"hello"), "not a complete .npy"),
        (lambda folder: np.save(folder / "f0.npy", np.array([{}])), "not a complete .npy"),
        (lambda folder: np.save(folder / "f0.npy", np.zeros((5, 4, 3), complex)), "type complex"),
        (lambda folder: np.save(folder / "f0.npy", np.zeros((5, 4, 3), bool)), "type bool"),
        (lambda folder: np.save(folder / "l0.npy", np.array([4.0, 1, 2, 3, 4])), "type float"),
        (lambda folder: np.save(folder / "f0.npy", np.zeros((5, 3))), "expected .rows, fragments, dim."),
        (lambda folder: np.save(folder / "f0.npy", np.zeros((4, 4, 3))), "rows that the arrays do not have"),
        (lambda folder: np.save(folder / "rows.npy", np.full((10, 2), -1)), "rows that the arrays do not have"),
        (lambda folder: np.save(folder / "rows.npy", np.full((10, 2), 2)), "rows that the arrays do not have"),
        (lambda folder: np.save(folder / "f0.npy", np.zeros((5, 6, 3))), "the manifest says 4 of 3"),
        (lambda folder: np.save(folder / "f0.npy", np.zeros((5, 4, 8))), "expected boxes|the manifest says 4 of 3"),
        (lambda folder: np.save(folder / "b0.npy", np.zeros((5, 3, 4))), "expected boxes of shape"),
        (lambda folder: np.save(folder / "l0.npy", np.array([1, 2, 3, 4, 5])), "lengths from 1 to 4"),
        (lambda folder: np.save(folder / "l0.npy", np.array([1, 2, 3])), "expected 5 lengths"),
        (lambda folder: (folder / "ids.json").write_text('["x0"]'), "1 ids for rows"),
        (lambda folder: (folder / "ids.json").write_text(json.dumps(["x0"] * 10)), "names an image twice"),
    ],
)
def test_damage_is_found_on_opening(tmp_path: Path, harm: object, message: str) -> None:
    make_store(tmp_path, lengths=message.endswith(("4", "float")) or "lengths" in message, boxes="boxes" in message)
    assert callable(harm)
    harm(tmp_path)
    with pytest.raises(CorpusError, match=message):
        FeatureStore(tmp_path)


def test_pickling_sends_the_folder_not_the_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "f.npy", np.ones((1000, 10, 10), np.float32))
    write_manifest(tmp_path, ["a"], np.array([[0, 7]]), [Part("f.npy")], fragments=10, dim=10, tower={})
    data = pickle.dumps(FeatureStore(tmp_path))
    assert len(data) < 1000
    assert pickle.loads(data).batch(["a"]).fragments.shape == (1, 10, 10)


READ_AT_RANDOM = """
import sys
from pathlib import Path
import numpy as np
from quintet.data.feature_store import FeatureStore

def resident():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024

store = FeatureStore(sys.argv[1])
rng = np.random.default_rng(0)
before = peak = resident()
for _ in range(int(sys.argv[2])):
    store.batch([store.ids[row] for row in rng.integers(0, len(store), 64)])
    peak = max(peak, resident())
print(peak - before)
"""


def grown_by(folder: Path, *, gib: float, shape: tuple[int, int], batches: int) -> float:
    """MiB that a process grows by while it reads random batches of a sparse file of `gib` GiB."""
    rows = int(gib * 2**30 / (shape[0] * shape[1] * 4))
    with (folder / "sparse.npy").open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (rows, *shape)}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + rows * shape[0] * shape[1] * 4)
    positions = np.stack([np.zeros(rows, dtype=np.int64), np.arange(rows)], axis=1)
    ids = [str(row) for row in range(rows)]
    write_manifest(
        folder, ids, positions, [Part(str(folder / "sparse.npy"))], fragments=shape[0], dim=shape[1], tower={}
    )
    command = [sys.executable, "-c", READ_AT_RANDOM, str(folder), str(batches)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(output)


linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")


@linux
def test_a_large_file_stays_on_disk(tmp_path: Path) -> None:
    # 32 batches read 0.56 GiB of rows in all; without giving pages back they would all stay.
    assert grown_by(tmp_path, gib=2, shape=(36, 2048), batches=32) < 450


@linux
@pytest.mark.slow
def test_thirty_gib_stay_on_disk(tmp_path: Path) -> None:
    assert grown_by(tmp_path, gib=30, shape=(36, 2048), batches=80) < 450


@linux
@pytest.mark.slow
def test_small_rows_of_a_large_file_stay_on_disk(tmp_path: Path) -> None:
    # Each row is 4 KiB, but touching it maps its neighbourhood.
    assert grown_by(tmp_path, gib=2, shape=(1, 1024), batches=250) < 450


LENGTHS = [3, 1, 4, 2]
WORDS = np.random.default_rng(0).normal(size=(10, 5)).astype(np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_word_features(
        tmp_path / "kept", LENGTHS, [WORDS[:4], WORDS[4:]], dim=5, dtype="float32", facts={"encoder": "x"}
    )
    return tmp_path / "kept"


def test_rows_come_back_padded_with_zeros(folder: Path) -> None:
    kept = WordFeatures(folder)
    assert (len(kept), kept.dim) == (4, 5)
    batch = kept.batch([2, 1], length=6)
    assert batch.shape == (2, 6, 5)
    assert torch.equal(batch[0, :4], torch.from_numpy(WORDS[4:8]))
    assert torch.equal(batch[1, :1], torch.from_numpy(WORDS[3:4]))
    assert batch[0, 4:].abs().sum() == batch[1, 1:].abs().sum() == 0
    again = pickle.loads(pickle.dumps(kept))
    assert torch.equal(again.batch([2, 1], length=6), batch)


def test_half_precision_on_disk_is_float32_in_memory(tmp_path: Path) -> None:
    write_word_features(tmp_path, LENGTHS, [WORDS], dim=5, dtype="float16", facts={})
    found = WordFeatures(tmp_path).batch([0], length=3)
    assert found.dtype == torch.float32
    assert np.load(tmp_path / "features.npy").dtype == np.float16
    torch.testing.assert_close(found[0], torch.from_numpy(WORDS[:3]), atol=2e-3, rtol=2e-3)


def test_too_few_words_leave_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"4 words .*10"):
        write_word_features(tmp_path / "kept", LENGTHS, [WORDS[:4]], dim=5, dtype="float32", facts={})
    assert list((tmp_path / "kept").iterdir()) == []


def test_damage_is_named(folder: Path) -> None:
    with pytest.raises(CorpusError, match="tokenized in another way"):
        WordFeatures(folder).batch([2], length=3)
    manifest = read_json(folder / "manifest.json")
    write_json(folder / "manifest.json", manifest | {"dim": 6})
    with pytest.raises(CorpusError, match="do not fit together"):
        WordFeatures(folder)
    write_json(folder / "manifest.json", manifest | {"version": 99})
    with pytest.raises(CorpusError, match="reads quintet-word-features"):
        WordFeatures(folder)
    write_json(folder / "manifest.json", manifest)
    (folder / "features.npy").write_bytes(b"no")
    with pytest.raises(CorpusError, match="damaged"):
        WordFeatures(folder)


def test_texts_carry_their_features(folder: Path) -> None:
    texts = [Text(str(n), "g", words) for n, words in enumerate(["a", "b", "a b", "c"])]
    tokenizer = WordVocabulary.build([text.text for text in texts], min_count=1, special_tokens=False)
    lengths = [len(tokenizer.ids(text.text)) for text in texts]
    write_word_features(folder, lengths, [WORDS[: sum(lengths)]], dim=5, dtype="float32", facts={})
    tokenized = TokenizedTexts(tokenizer, texts, WordFeatures(folder))
    assert tokenized.lengths() == lengths
    parts = list(text_batches(tokenized, 2, slice(1, 4)))
    assert [len(part) for part in parts] == [2, 1]
    assert parts[0].features is not None
    assert parts[0].features.shape == (*parts[0].tokens.shape, 5)
    assert torch.equal(parts[0].features[parts[0].real()], torch.from_numpy(WORDS[1:4]))
    assert next(text_batches(TokenizedTexts(tokenizer, texts), 2)).features is None


def test_files_of_others_are_never_replaced_by_word_features(tmp_path: Path) -> None:
    (tmp_path / "features.npy").write_bytes(b"mine")
    with pytest.raises(CorpusError, match="in the way"):
        write_word_features(tmp_path, LENGTHS, [WORDS], dim=5, dtype="float32", facts={})
    assert (tmp_path / "features.npy").read_bytes() == b"mine"
    assert [path.name for path in tmp_path.iterdir()] == ["features.npy"]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(("name", "at"), [("ids.json", 5), ("rows.npy", 128)])
def test_a_flipped_bit_in_ids_or_rows_is_found_on_opening(tmp_path: Path, name: str, at: int) -> None:
    make_store(tmp_path)
    flip(tmp_path / name, at)  # another id, another row
    with pytest.raises(QuintetError, match=rf"{name} is damaged"):
        FeatureStore(tmp_path)


@pytest.mark.parametrize("name", ["f1.npy", "b0.npy"])
def test_a_flipped_bit_in_an_array_is_found_by_check(tmp_path: Path, name: str) -> None:
    make_store(tmp_path)
    seen: list[tuple[int, int]] = []
    FeatureStore(tmp_path).check(lambda *done: seen.append(done))
    assert seen[-1] == (10, 10)
    flip(tmp_path / name, -3)
    with pytest.raises(QuintetError, match=rf"{name} is damaged"):
        FeatureStore(tmp_path).check()


def test_a_flipped_bit_in_word_features_is_found(folder: Path) -> None:
    WordFeatures(folder).check()
    flip(folder / "features.npy", -1)
    with pytest.raises(QuintetError, match=r"features.npy is damaged"):
        WordFeatures(folder).check()
    flip(folder / "starts.npy", 128 + 8)
    with pytest.raises(QuintetError, match=r"starts.npy is damaged"):
        WordFeatures(folder)


def test_an_array_elsewhere_is_compared_by_size(tmp_path: Path) -> None:
    np.save(tmp_path / "far.npy", np.zeros((2, 1, 3), np.float32))
    folder = tmp_path / "store"
    write_manifest(
        folder, ["a"], np.array([[0, 1]]), [Part(str(tmp_path / "far.npy"))], fragments=1, dim=3, tower={"name": "t"}
    )
    FeatureStore(folder).check()
    np.save(tmp_path / "far.npy", np.zeros((3, 1, 3), np.float32))
    with pytest.raises(CorpusError, match="bytes"):
        FeatureStore(folder)


@pytest.mark.parametrize("what", ["f0.npy", "b1.npy"])
def test_check_finds_what_is_not_finite(tmp_path: Path, what: str) -> None:
    make_store(tmp_path)
    values = np.load(tmp_path / what)
    values[4, 3, 2] = np.nan
    np.save(tmp_path / what, values)
    drop_checksums(tmp_path)
    with pytest.raises(CorpusError, match="NaN"):
        FeatureStore(tmp_path).check()


HOSTILE = ["null", "[]", "1", '"x"', "{}", "[" * 5000, "1" * 5000, '{"a": 1e999}', "\xff", '["\\ud800"]']


@pytest.mark.parametrize("content", HOSTILE)
@pytest.mark.parametrize(
    "field", [None, "parts", "fragments", "dim", "tower", "checksums", "sizes", "version", "ids.json"]
)
def test_a_hostile_manifest_is_an_error_that_names_the_file(tmp_path: Path, content: str, field: str | None) -> None:
    make_store(tmp_path)
    drop_checksums(tmp_path)
    manifest = read_json(tmp_path / "manifest.json")
    if field == "ids.json":
        (tmp_path / "ids.json").write_text(content, encoding="latin-1")
    elif field is None:
        (tmp_path / "manifest.json").write_text(content, encoding="latin-1")
    else:
        text = json.dumps(manifest | {field: "HERE"}).replace('"HERE"', content)
        (tmp_path / "manifest.json").write_text(text, encoding="latin-1")
    if (field, content) in ALLOWED:
        FeatureStore(tmp_path)
        return
    with pytest.raises(QuintetError, match=tmp_path.name):
        FeatureStore(tmp_path)


ALLOWED = {("tower", "null"), ("tower", "{}"), ("checksums", "{}"), ("sizes", "{}"), ("version", "1")}
ALLOWED |= {("tower", '{"a": 1e999}')}


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_mutated_stores_are_refused_or_read(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("store")
    make_store(folder, lengths=True, parts=1)
    if data.draw(st.booleans()):
        drop_checksums(folder)
    path = folder / data.draw(st.sampled_from(["manifest.json", "ids.json", "rows.npy", "f0.npy", "b0.npy", "l0.npy"]))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, min(len(content) - 1, 400)))
        content[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.sampled_from([None, None, 3, len(content) // 2, -1]))
    path.write_bytes(content[:cut])
    try:
        store = FeatureStore(folder)
        store.batch(store.ids)
    except QuintetError:
        pass
