"""What contributors are given: versions, citations, hooks and workflows agree with the code and the Makefile."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import yaml

import quintet

ROOT = Path(__file__).resolve().parents[1]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z][\w-]*(?: [a-z][\w-]*)*):", MAKEFILE, re.MULTILINE))
TARGETS = {name for names in TARGETS for name in names.split()}


def load(path: str) -> dict:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == quintet.__version__ == load("CITATION.cff")["version"]
    assert project["license"] == load("CITATION.cff")["license"]


def test_the_readme_and_the_citation_file_name_the_same_papers() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    papers = re.findall(r"title\s*= \{(.*)\},\n\s*author\s*= \{(.*)\},(?:.|\n)*?year\s*= \{(\d+)\}", readme)
    references = load("CITATION.cff")["references"]
    assert len(papers) == len(references) == 4
    for (title, authors, year), reference in zip(papers, references, strict=True):
        names = [f"{author['family-names']}, {author['given-names']}" for author in reference["authors"]]
        assert (title, authors, int(year)) == (reference["title"], " and ".join(names), reference["year"])


def test_workflows_run_targets_of_the_makefile_only() -> None:
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        for job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values():
            commands = [step["run"] for step in job["steps"] if "run" in step]
            assert commands
            for command in commands:
                make, target = command.split(maxsplit=1)
                named = job["strategy"]["matrix"]["target"] if "matrix.target" in target else [target]
                assert make == "make", command
                assert set(named) <= TARGETS, command
            for step in job["steps"]:
                assert "run" in step or step["uses"].startswith("actions/")


def test_the_checks_of_a_change_are_those_of_ci() -> None:
    steps = load(".github/workflows/checks.yml")["jobs"]["checks"]["steps"]
    workflow = {step["run"] for step in steps if "run" in step}
    ci = {line for line in (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines() if line.startswith("make ")}
    assert workflow == ci


def test_hooks_are_the_linters_of_make_lint() -> None:
    recipe = re.search(r"^lint: .*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert recipe is not None
    linters = [shlex.split(line.strip().replace("$(BIN)/", "")) for line in recipe[1].splitlines()]
    (local,) = load(".pre-commit-config.yaml")["repos"]
    hooks = [shlex.split(hook["entry"].removeprefix(".venv/bin/")) for hook in local["hooks"]]
    # Of files that are committed, where `make lint` checks all: without the path, and without what is excluded.
    assert [[word for word in linter if word != "."] for linter in linters] == [
        [word for word in hook if word != "--force-exclude"] for hook in hooks
    ]
    assert local["repo"] == "local"
    assert all(hook["language"] == "system" for hook in local["hooks"])


def test_targets_of_the_makefile_that_pages_name_exist() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    named = {name for page in pages for name in re.findall(r"`make ([a-z][\w-]*)", page.read_text(encoding="utf-8"))}
    assert {"demo", "test", "docs", "reference"} <= named
    assert named <= TARGETS
