"""`make dist`: builds wheel and sdist into dist/, looks at what they hold, runs the wheel in an environment of its own.

    python -m tools.dist

Nothing is downloaded: the environment has the wheel, and sees the dependencies of the one that runs this.
"""

from __future__ import annotations

import shutil
import site
import subprocess
import sys
import tarfile
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
SHIPPED = ("recipes/*.yaml", "studies/*.yaml", "pretrained/*/*", "serve/static/*", "py.typed")  # beside the modules
IN_SDIST = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Makefile", "docs/README.md", "tests/conftest.py")
LARGEST = 100 * 2**20  # bytes that PyPI takes of a file


def build() -> tuple[Path, Path]:
    shutil.rmtree(DIST, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--outdir", DIST], cwd=ROOT, check=True)
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    return wheel, sdist


def check(wheel: Path, sdist: Path) -> None:
    """Every file of the package is in both, and the metadata is what PyPI reads."""
    package = ROOT / "src/quintet"
    needed = {path for pattern in (*SHIPPED, "**/*.py") for path in package.glob(pattern) if path.is_file()}
    for pattern in SHIPPED:
        if not any(package.glob(pattern)):
            raise SystemExit(f"src/quintet has no {pattern}")
    with zipfile.ZipFile(wheel) as archive:
        _compare(wheel, {f"quintet/{path.relative_to(package)}" for path in needed}, set(archive.namelist()))
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        facts = Parser().parsestr(archive.read(name).decode())
    for field in ("Name", "Version", "Summary", "License-Expression", "Requires-Python", "Description-Content-Type"):
        if not facts[field]:
            raise SystemExit(f"{wheel.name}: the metadata has no {field}")
    if not facts.get_payload():
        raise SystemExit(f"{wheel.name}: the metadata has no description")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    _compare(sdist, {*IN_SDIST, *(f"src/quintet/{path.relative_to(package)}" for path in needed)}, names)
    for path in (wheel, sdist):
        if path.stat().st_size > LARGEST:
            raise SystemExit(f"{path.name} has {path.stat().st_size:,} bytes; PyPI takes {LARGEST:,}")


def _compare(archive: Path, needed: set[str], names: set[str]) -> None:
    if missing := sorted(needed - names):
        raise SystemExit(f"{archive.name} lacks {len(missing)} files: {', '.join(missing[:5])}")
    if strange := sorted(name for name in names if "__pycache__" in name or name.endswith((".pyc", ".partial"))):
        raise SystemExit(f"{archive.name} holds {', '.join(strange[:5])}")


TRIED = """
import quintet, quintet.search, pathlib, sys
assert pathlib.Path(quintet.__file__).is_relative_to(sys.prefix), quintet.__file__
from quintet.runs.run_folder import shipped_runs
from quintet.studies.study_file import list_studies
from quintet.training.recipe import list_recipes
assert shipped_runs() and list_studies() and list_recipes()
run = quintet.load("quintet-small", device="cpu")
assert run.encode_texts(["a dog"]).embedding is not None
"""


def run(wheel: Path) -> None:
    folder = DIST / "environment"
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin/python"
    # No `pip install`: a venv without pip begins in a second, and this one's pip installs into it.
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--no-compile", wheel], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    # Added behind its own packages; `.pth` files of that folder, as of an editable Quintet, are not read.
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    for command in ([folder / "bin/quintet", "--help"], [folder / "bin/quintet", "recipes"], [python, "-c", TRIED]):
        subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL, env={"OMP_NUM_THREADS": "1"})
    shutil.rmtree(folder)


if __name__ == "__main__":
    built = build()
    check(*built)
    run(built[0])
    print("\n".join(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes" for path in built))
