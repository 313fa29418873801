"""Self-contained web pages: one HTML file that fetches nothing, for desktop and mobile, dark mode and print.

`document` makes a page of HTML and CSS, `thumbnail` puts an image into it, and `write_search_page` writes a page of
example searches.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from PIL import Image

from quintet.data.images import open_image, twice
from quintet.files import output_text

THUMBNAIL = 224  # pixels of the longer side


def document(title: str, body: str, style: str) -> str:
    """The HTML of a whole page; `title` is plain text, `body` and `style` are HTML and CSS."""
    return _PAGE.format(title=escape(title), body=body, style=style)


def thumbnail(path: Path | str) -> str:
    """An image file as a data URL: small images as PNG, which keeps drawings crisp, larger ones as JPEG."""
    image = open_image(path, least=twice(THUMBNAIL))
    small = max(image.size) <= THUMBNAIL
    if not small:
        image.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.LANCZOS)
    return image_address(image, "PNG" if small else "JPEG")


def image_address(image: Image.Image, form: str = "JPEG") -> str:
    """An image as a data URL.

    >>> image_address(Image.new("RGB", (1, 1)), "PNG")[:22]
    'data:image/png;base64,'
    """
    buffer = io.BytesIO()
    image.save(buffer, format=form, **({"quality": 85} if form == "JPEG" else {"optimize": True}))
    return data_address(f"image/{form.lower()}", buffer.getvalue())


def data_address(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


@dataclass(frozen=True, slots=True)
class Hit:
    image_path: Path
    score: float
    caption: str
    right: bool  # whether this is a correct result


@dataclass(frozen=True, slots=True)
class QueryResult:
    query: str
    hits: list[Hit] = field(default_factory=list)  # best first


def write_search_page(
    path: Path | str, title: str, queries: Sequence[QueryResult], *, intro: str = "", above: str = ""
) -> None:
    """Write a self-contained page of searches with their best images.

    `title`, `intro`, queries and captions are plain text and are escaped; `above` is HTML that precedes the searches,
    such as the output of `metrics_table_html`.
    """
    lead = f'<p class="intro">{escape(intro)}</p>' if intro else ""
    sections = "\n".join(_section(query) for query in queries)
    output_text(path, document(title, f"{lead}\n{above}\n{sections}", STYLE))


def metrics_table_html(rows: Sequence[Mapping[str, object]], caption: str = "Results") -> str:
    """A table with a row per result. The keys of the first result name the columns; the first column names the row.

    >>> table = metrics_table_html([{"run": "chance", "R@1": 0.5}, {"run": "trained", "R@1": 31.25}])
    >>> '<th scope="row">trained</th><td>31.2</td>' in table
    True
    """
    if not rows:
        return ""
    columns = list(rows[0])
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "\n".join(f"<tr>{_cells(row, columns)}</tr>" for row in rows)
    return (
        '<div class="wide" role="region" tabindex="0" aria-label="' + escape(caption) + '"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>"
    )


def _cells(row: Mapping[str, object], columns: Sequence[str]) -> str:
    first, *others = (escape(_shown(row.get(column, ""))) for column in columns)
    return f'<th scope="row">{first}</th>' + "".join(f"<td>{value}</td>" for value in others)


def _shown(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def _section(result: QueryResult) -> str:
    ranks = [rank for rank, hit in enumerate(result.hits, 1) if hit.right]
    if not result.hits:
        note = "No results."
    elif ranks:
        note = f"The correct image is at rank {ranks[0]}."
    else:
        note = f"The correct image is not among the first {len(result.hits)}."
    cards = "\n".join(_card(rank, hit) for rank, hit in enumerate(result.hits, 1))
    return f"<section>\n<h2>{escape(result.query)}</h2>\n<p>{note}</p>\n<ol>\n{cards}\n</ol>\n</section>"


def _card(rank: int, hit: Hit) -> str:
    mark = '<span class="mark">✓ correct</span>' if hit.right else ""
    return (
        f"<li{' class=right' if hit.right else ''}><figure>"
        f'<img src="{thumbnail(hit.image_path)}" alt="{escape(hit.caption)}">'
        f'<figcaption><span class="facts"><b>{rank}</b> <span class="score">{hit.score:.3f}</span>{mark}</span>'
        f"<span>{escape(hit.caption)}</span></figcaption></figure></li>"
    )


STYLE = """
:root { color-scheme: light dark; --page: #fbfbf9; --card: #fff; --ink: #23272b; --soft: #5d666e; --line: #e2e3de;
  --right: #1b6e44; --on-right: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --page: #15181b; --card: #1e2226; --ink: #e6e8ea; --soft: #a3acb4; --line: #32383e;
    --right: #7fd1a3; --on-right: #10241a; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; }
main { max-width: 66rem; margin: 0 auto; padding: 2rem 1rem 4rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .5rem; font-weight: 600; }
h2 { font-size: 1.15rem; line-height: 1.35; margin: 0; font-weight: 600; overflow-wrap: anywhere; }
h2::before { content: "“"; } h2::after { content: "”"; }
.intro, section > p { color: var(--soft); margin: .15rem 0 1rem; max-width: 42rem; }
section { margin-top: 2.5rem; }
ol { list-style: none; margin: 0; padding: 0; display: grid; gap: .9rem;
  grid-template-columns: repeat(auto-fill, minmax(min(11rem, 44%), 1fr)); }
li { min-width: 0; }
figure { margin: 0; height: 100%; background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  overflow: hidden; }
li.right figure { border-color: var(--right); box-shadow: 0 0 0 2px var(--right); }
img { display: block; width: 100%; aspect-ratio: 1; object-fit: contain; background: var(--line); }
figcaption { padding: .55rem .7rem .7rem; font-size: .84rem; line-height: 1.4; overflow-wrap: anywhere; }
figcaption > span { display: block; }
.facts { color: var(--soft); font-variant-numeric: tabular-nums; margin-bottom: .2rem; }
.facts b { color: var(--ink); margin-right: .35rem; }
.mark { float: right; background: var(--right); color: var(--on-right); border-radius: 99px; padding: 0 .55rem;
  font-size: .74rem; line-height: 1.25rem; font-weight: 600; }
.wide { overflow-x: auto; margin: 1.5rem 0; border: 1px solid var(--line); border-radius: 10px;
  background: var(--card); }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: .7rem .9rem .2rem; font-weight: 600; }
th, td { padding: .4rem .9rem; text-align: right; white-space: nowrap; font-weight: 400; }
thead th { color: var(--soft); }
tbody tr { border-top: 1px solid var(--line); }
tr > :first-child { text-align: left; }
tbody th { font-weight: 600; }
.wide tbody th { position: sticky; left: 0; background: var(--card); white-space: normal; max-width: 45vw;
  overflow-wrap: break-word; }
"""

# The content security policy makes the browser refuse whatever is not in this file.
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="generator" content="quintet-output">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{body}
</main>
</body>
</html>
"""
