"""What Quintet is made of: names, licences, and what is downloaded."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
TEXTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py"), ROOT / "pyproject.toml"]
# What may download, each through `data/hub.py`, which pins and verifies, or from a name that a person chose.
DOWNLOADS = (
    r"urlopen|urlretrieve|import (requests|httpx)|hf_hub_download|snapshot_download|torch\.hub|load_state_dict_from_url"
)


@pytest.fixture
def supply_chain(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("tools.supply_chain")


def test_every_installation_names_our_distribution_and_an_extra_of_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == "quintet-retrieval"
    wrong, named = [], set()
    for path in TEXTS:
        text = path.read_text(encoding="utf-8")
        wrong += [f"{path.name}: {found}" for found in re.findall(r"(?<![\w-])quintet\[[a-z{][^]\s]*\]", text)]
        wrong += [f"{path.name}: {found}" for found in re.findall(r"pip install '?quintet\b(?!-retrieval).*", text)]
        named |= {name for names in re.findall(r"quintet-retrieval\[([a-z,]+)\]", text) for name in names.split(",")}
    assert not wrong
    assert named <= set(project["optional-dependencies"])


def test_every_installed_dependency_has_an_allowed_licence(supply_chain: Any) -> None:
    packages = supply_chain.installed(supply_chain.requirements())
    assert {"torch", "numpy", "certifi"} <= packages.keys()  # the last: of what dependencies need
    assert not supply_chain.refused(packages)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"License-Expression": ["MIT AND (GPL-2.0-only OR BSD-3-Clause)"]}, {"MIT", "BSD-3-Clause"}),
        ({"License-Expression": ["GPL-3.0-or-later"]}, {"GPL-3.0-or-later"}),
        ({"License": ["Apache License, Version 2.0"]}, {"Apache-2.0"}),
        ({"Classifier": ["License :: OSI Approved :: MIT License"], "License": ["see the file"]}, {"MIT"}),
        ({}, {"no licence named"}),
    ],
)
def test_licences_are_read_as_metadata_writes_them(supply_chain: Any, facts: Any, expected: set[str]) -> None:
    metadata = SimpleNamespace(get=lambda key: facts.get(key, [None])[0], get_all=facts.get)
    package = SimpleNamespace(metadata=metadata)
    assert supply_chain.licences_of(package) == expected
    assert bool(supply_chain.refused({"some-package": package})) == (not expected <= supply_chain.ALLOWED)


def test_exceptions_are_named_in_the_docs_with_their_extra(supply_chain: Any) -> None:
    page = (ROOT / "docs/supply-chain.md").read_text(encoding="utf-8")
    for name in supply_chain.EXCEPTIONS:
        assert f"`{name}`" in page


def test_extras_of_dependencies_are_followed(supply_chain: Any) -> None:
    pytest.importorskip("psycopg")
    assert "psycopg-binary" in supply_chain.installed([Requirement("psycopg[binary]")])
    assert "psycopg-binary" not in supply_chain.installed([Requirement("psycopg")])


def test_one_module_downloads() -> None:
    source = ROOT / "src/quintet"
    found = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if re.search(DOWNLOADS, path.read_text(encoding="utf-8"))
    }
    assert found == {"data/hub.py"}
