"""`make docs`: builds the documentation site. Open build/site/index.html; no server or network is needed.

    python -m tools.docs_site

The pages of docs/ are plain Markdown that can also be read in the repository. This script copies them, and the pages in
the root that they link to, into build/pages, turns notebooks into pages, and lets Zensical build them with warnings as
errors: a link to a page or heading that does not exist stops the build.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Of the root: page in the repository -> page of the site.
ROOT_PAGES = {
    "CONTRIBUTING.md": "contributing.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
COPIED = {".md", ".ipynb", ".png", ".svg", ".jpg", ".html", ".json", ".js", ".css"}
LOADED = re.compile(
    r'<(?:script|img|iframe|source)[^>]*\ssrc(?:set)?="(?:https?:)?//[^"]*"|<link[^>]*rel="(?:stylesheet|preconnect|preload)"'
    r'[^>]*href="(?:https?:)?//[^"]*"'
)
LINK = re.compile(r'(?<=\]\()[^)\s]+|(?<=src=")[^"]+|(?<=srcset=")[^"]+')


def sources() -> dict[Path, Path]:
    """File in the repository -> file of the site, both relative."""
    found = {Path(page): Path(name) for page, name in ROOT_PAGES.items()}
    for path in sorted((ROOT / "docs").rglob("*")):
        if path.is_file() and path.suffix in COPIED:
            page = path.relative_to(ROOT / "docs")
            found[path.relative_to(ROOT)] = page.with_suffix(".md") if page.suffix == ".ipynb" else page
    return found


def relink(text: str, page: Path, site: dict[Path, Path]) -> str:
    """The same text with links that are right where the page lies in the site.

    >>> relink("[a](../CONTRIBUTING.md#rules)", Path("docs/a.md"), {Path("CONTRIBUTING.md"): Path("contributing.md"),
    ...     Path("docs/a.md"): Path("a.md")})
    '[a](contributing.md#rules)'
    """
    here = site[page].parent

    def change(match: re.Match[str]) -> str:
        target, hash_, heading = match.group().partition("#")
        if not target or "://" in target or target.startswith(("mailto:", "data:")):
            return match.group()
        named = Path(os.path.normpath(page.parent / target))
        if named not in site:
            raise SystemExit(f"{page}: the link to {target} leads out of the site")
        return os.path.relpath(site[named], here) + hash_ + heading

    prose = re.split(r"(^```.*?^```|`[^`\n]+`)", text, flags=re.MULTILINE | re.DOTALL)  # code stays as it is
    return "".join(part if part.startswith("`") else LINK.sub(change, part) for part in prose)


def notebook_page(path: Path, folder: Path) -> str:
    """An executed notebook as Markdown; its figures become files in the folder."""
    parts = []
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for at, output in enumerate(cell.get("outputs", [])):
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{path.stem}-{number}-{at}.png"
                (folder / name).write_bytes(base64.b64decode("".join(data["image/png"])))
                parts.append(f"![Output of the code above]({name})")
            else:
                shown = "".join(output.get("text", data.get("text/plain", "")))
                parts.append(f"```text\n{shown.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def collect(pages: Path) -> None:
    """Fill the folder of pages."""
    shutil.rmtree(pages, ignore_errors=True)
    site = sources()
    linked = site | {Path("README.md"): Path("README.md")}  # the site has docs/README.md in its place
    for source, name in site.items():
        to = pages / name
        to.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".ipynb":
            text = notebook_page(ROOT / source, to.parent)
            figures = {source.parent / each.name: name.parent / each.name for each in to.parent.glob("*.png")}
            to.write_text(relink(text, source, linked | figures), encoding="utf-8")
        elif source.suffix == ".md":
            to.write_text(relink((ROOT / source).read_text(encoding="utf-8"), source, linked), encoding="utf-8")
        else:
            shutil.copyfile(ROOT / source, to)


def build(home: Path) -> None:
    """Build home/build/site by home/zensical.toml."""
    collect(home / "build/pages")
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    if subprocess.run(command, cwd=home, check=False).returncode:
        raise SystemExit("the site has warnings; they are above")
    for page in (home / "build/site").rglob("*.html"):
        if loaded := LOADED.findall(page.read_text(encoding="utf-8")):
            raise SystemExit(f"{page.relative_to(home)} loads {loaded[0]} from the network")


if __name__ == "__main__":
    build(ROOT)
    print(f"open {ROOT / 'build/site/index.html'}")
