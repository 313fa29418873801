"""Features in a device's memory give the batches that the store gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from quintet.data.corpus import Image
from quintet.data.features import FeatureStore, Part, write_manifest
from quintet.data.resident import ResidentFeatures, fits_on

IDS = [f"image{number}" for number in range(300)]  # more than are read at a time


@pytest.fixture(params=["float16", "float32"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> FeatureStore:
    rng = np.random.default_rng(0)
    np.save(tmp_path / "features.npy", rng.normal(size=(300, 4, 6)).astype(request.param))
    np.save(tmp_path / "boxes.npy", rng.random(size=(300, 4, 4)).astype(np.float32))
    np.save(tmp_path / "lengths.npy", rng.integers(1, 5, size=300))
    rows = np.stack([np.zeros(300, dtype=np.int64), rng.permutation(300)], axis=1)
    part = Part("features.npy", "boxes.npy", "lengths.npy")
    write_manifest(tmp_path, IDS, rows, [part], fragments=4, dim=6, tower={})
    return FeatureStore(tmp_path)


def test_batches_equal_the_stores_bit_for_bit(store: FeatureStore) -> None:
    resident = ResidentFeatures(store, [*IDS, IDS[3]], torch.device("cpu"))
    wanted = [IDS[row] for row in (299, 3, 3, 0, 257)]
    found, expected = resident.batch([Image(id_, "g") for id_ in wanted]), store.batch(wanted)
    for name in ("fragments", "mask", "boxes"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert found.fragments is not None
    assert found.fragments.dtype == torch.float32


def test_whole_images_need_no_mask(tmp_path: Path) -> None:
    np.save(tmp_path / "features.npy", np.ones((2, 3, 5), dtype=np.float32))
    write_manifest(tmp_path, IDS[:2], np.array([[0, 0], [0, 1]]), [Part("features.npy")], fragments=3, dim=5, tower={})
    batch = ResidentFeatures(FeatureStore(tmp_path), IDS[:2], torch.device("cpu")).batch([Image(IDS[1], "g")])
    assert batch.mask is None
    assert batch.boxes is None


def test_only_an_accelerator_keeps_features_by_itself(store: FeatureStore) -> None:
    assert not fits_on(torch.device("cpu"), store, 1)
