"""`analyse`: files, provenance and reasons; subjects and their names."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from quintet.data.corpus import Corpus
from quintet.errors import QuintetError, RecipeError
from quintet.files import read_json
from quintet.report.analysis import ANALYSES, ONLY_ON_REQUEST, Options, Subject, analyse, distinct_names, open_subjects

pytest.importorskip("matplotlib")


def test_everything_that_applies_is_written_with_its_provenance(
    subjects: list[Subject], tmp_path: Path, few: Options
) -> None:
    found = analyse(subjects, tmp_path, options=few)
    assert set(found) == set(ANALYSES.entries) - set(ONLY_ON_REQUEST)
    assert "instance loss" in found.pop("errors")["reason"]
    assert not (tmp_path / "errors.json").exists()
    assert "attention to show" in found.pop("attention")["reason"]
    for kind, content in found.items():
        stored = read_json(tmp_path / f"{kind}.json")
        assert stored["provenance"]["runs"] == [
            {"name": one.label, "weights_sha256": one.run.weights_checksum} for one in subjects
        ]
        assert stored["split_checksum"] == subjects[0].split.checksum
        assert stored["kind"] == kind
        assert "command" in stored["provenance"]
        assert content["figures"] == stored["figures"]
        assert all((tmp_path / figure).stat().st_size for figure in stored["figures"])
        assert kind == "mined" or stored["figures"]


def test_a_kind_that_is_named_must_apply(subjects: list[Subject], tmp_path: Path) -> None:
    with pytest.raises(QuintetError, match="logged classification errors"):
        analyse(subjects, tmp_path, ["errors"])
    with pytest.raises(RecipeError, match="did you mean 'words'"):
        analyse(subjects, tmp_path, ["wrods"])
    assert not list(tmp_path.iterdir())


def test_runs_are_told_apart_by_name_folder_or_path(two_seeds: Path, tiny_corpus: Path) -> None:
    assert distinct_names({Path("x/a"): "one", Path("y/a"): "two"}) == {Path("x/a"): "one", Path("y/a"): "two"}
    assert set(distinct_names({Path("x/a"): "one", Path("y/a"): "one"}).values()) == {"x/a", "y/a"}
    with pytest.raises(QuintetError, match="named twice"):
        open_subjects([two_seeds / "a", two_seeds / "a"], Corpus.open(tiny_corpus), "test", device=torch.device("cpu"))
