"""What may be wrong with a corpus, before hours of training: `check_corpus`, its page and its numbers."""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from html import escape
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from quintet.data.corpus import Corpus, Image, Text, as_corpus
from quintet.data.images import image_header, open_image, twice
from quintet.data.near_duplicates import SIDE, describe_image, similar_pairs
from quintet.data.overview import check_files
from quintet.data.vocabulary import split_words
from quintet.errors import QuintetError
from quintet.files import json_text, output_text, read_bytes
from quintet.mining.exclude import normalise
from quintet.report.html_page import STYLE, document, metrics_table_html, thumbnail
from quintet.runs.encoding import Progress, reported

FORMAT = "quintet-corpus-check"
EXAMPLES = 20  # of a finding, in the result and on the page
PICTURED = 12  # of them with images
LARGEST_FILE = 2**30
SMALLEST_SIDE, LONGEST_SHAPE = 32, 5.0  # pixels of an image, and its longer side over its shorter one
FAR = 3.0  # quartile distances beyond the upper quartile of the words of a caption
RARE = 0.05  # share of the texts below which a script or a language is an outlier
AHEAD = 64  # images in work
Severity = Literal["problem", "note"]


@dataclass(frozen=True)
class Finding:
    """Something that was looked for and found."""

    kind: str
    severity: Severity  # problems make `--strict` end with status 1
    count: int
    said: str
    examples: list[dict[str, Any]] = field(default_factory=list)

    @staticmethod
    def line(example: dict[str, Any]) -> str:
        """
        >>> Finding.line({"images": ["a.jpg", "b.jpg"], "similarity": 0.98765})
        'a.jpg, b.jpg | 0.988'
        """
        shown = []
        for value in example.values():
            text = f"{value:.3f}" if isinstance(value, float) else str(value)
            shown.append(", ".join(map(str, value)) if isinstance(value, list) else text)
        return " | ".join(shown)


@dataclass(frozen=True)
class CorpusCheck:
    """What `check_corpus` found. `save` writes JSON, `page` one HTML file."""

    name: str
    folder: str
    images: int
    texts: int
    checked_images: int  # decoded
    files: dict[str, str | None]  # folders of features: what is wrong with each, or None
    findings: list[Finding]
    paths: dict[str, str] = field(default_factory=dict, repr=False)  # of the images in examples

    @property
    def problems(self) -> list[Finding]:
        return [found for found in self.findings if found.severity == "problem"]

    def to_json(self) -> dict[str, Any]:
        facts = {name: value for name, value in asdict(self).items() if name != "paths"}
        return {"format": FORMAT, "version": 1, **facts}

    def save(self, path: Path | str) -> None:
        output_text(path, json_text(self.to_json()))

    def page(self, path: Path | str) -> None:
        """One HTML file, with the images of the first examples inside."""
        rows = [{"check": each.kind, "kind": each.severity, "found": f"{each.count:,}"} for each in self.findings]
        said = f"{self.images:,} images ({self.checked_images:,} decoded), {self.texts:,} texts, "
        said += f"{len(self.problems)} problems, {len(self.findings) - len(self.problems)} notes"
        parts = [
            f'<p class="intro">{escape(said)}</p>',
            metrics_table_html(rows, "Summary") if rows else "<p>Nothing.</p>",
        ]
        parts += [self._section(each) for each in self.findings]
        output_text(path, document(f"Check of the corpus {self.name}", "\n".join(parts), STYLE))

    def _section(self, found: Finding) -> str:
        cards = [self._card(found, example) for example in found.examples[:PICTURED]] if found.examples else []
        rest = [found.line(example) for example in found.examples[PICTURED:]]
        more = f"<p>{'<br>'.join(map(escape, rest))}</p>" if rest else ""
        listed = f"<ol>{''.join(cards)}</ol>" if cards else ""
        return f"<section><h2>{escape(found.kind)}</h2><p>{escape(found.said)}</p>{listed}{more}</section>"

    def _card(self, found: Finding, example: dict[str, Any]) -> str:
        pictures = ""
        for id_ in example.get("images", ()):
            try:
                pictures += f'<img src="{thumbnail(self.paths[id_])}" alt="{escape(id_)}">'
            except (KeyError, QuintetError):
                continue
        return f"<li><figure>{pictures}<figcaption>{escape(found.line(example))}</figcaption></figure></li>"


def check_corpus(
    corpus: Corpus | Path | str, *, images: bool = True, workers: int | None = None, progress: bool | Progress = False
) -> CorpusCheck:
    """What may be wrong with a corpus: leakage between splits, false negatives, unreadable files, outliers.

    >>> import quintet, tempfile
    >>> corpus = quintet.import_corpus("scenes", "-", tempfile.mkdtemp(), train=4, dev=2, test=2)  # generated images
    >>> found = check_corpus(corpus)
    >>> found.checked_images, [finding.kind for finding in found.problems]
    (8, [])

    - `images=False` decodes no image, so near-duplicates, unreadable files and sizes are not looked for.
    - `workers`: threads that decode; by default one a core.
    """
    opened = as_corpus(corpus)
    with_file = [image for image in opened.images if image.path is not None] if images else []
    findings = [*_splits(opened), *_captions(opened), *_texts(opened)]
    with reported(progress, f"checking {opened.name}", len(with_file)) as report:
        findings += _images(opened, with_file, workers, lambda done: report(done, len(with_file)))
    files = check_files(opened)
    damaged = [{"folder": name, "reason": error} for name, error in files.items() if error]
    if damaged:
        findings.append(
            Finding("damaged features", "problem", len(damaged), "Folders of features are damaged.", damaged)
        )
    order = {"problem": 0, "note": 1}
    findings.sort(key=lambda found: order[found.severity])
    named = {id_ for found in findings for example in found.examples for id_ in example.get("images", ())}
    paths = {image.id: str(opened.image_path(image)) for image in opened.images if image.id in named and image.path}
    return CorpusCheck(
        opened.name, str(opened.root), len(opened.images), len(opened.texts), len(with_file), files, findings, paths
    )


def _splits(corpus: Corpus) -> Iterator[Finding]:
    names = list(corpus.splits)
    for at, one in enumerate(names):
        for other in names[at + 1 :]:
            first, second = set(corpus.splits[one]), set(corpus.splits[other])
            shared = first & second
            if not shared:
                continue
            inside = shared in (first, second)
            trained = "train" in (one, other)
            examples: list[dict[str, Any]] = [{"group": group} for group in islice(sorted(shared), EXAMPLES)]
            said = f"{len(shared):,} groups are in both {one!r} and {other!r}"
            said += " (one of them holds the other whole)." if inside else "."
            yield Finding(
                "overlapping splits", "problem" if trained or not inside else "note", len(shared), said, examples
            )
    used = {group for groups in corpus.splits.values() for group in groups}
    left = [image.id for image in corpus.images if image.group not in used]
    if left:
        examples = [{"images": [id_]} for id_ in left[:EXAMPLES]]
        yield Finding("images in no split", "note", len(left), f"{len(left):,} images are in no split.", examples)


def _captions(corpus: Corpus) -> Iterator[Finding]:
    """Images without a caption of their own."""
    described = {text.group for text in corpus.texts if text.image is None} | {
        text.image for text in corpus.texts if text.image
    }
    without = [image.id for image in corpus.images if image.id not in described and image.group not in described]
    if without:
        examples = [{"images": [id_]} for id_ in without[:EXAMPLES]]
        yield Finding(
            "images without a caption", "note", len(without), f"{len(without):,} images have no caption.", examples
        )


def _texts(corpus: Corpus) -> Iterator[Finding]:
    splits = _splits_of(corpus)
    by_words: dict[str, list[Text]] = defaultdict(list)
    for text in corpus.texts:
        by_words[normalise(text.text)].append(text)
    repeated = [texts for texts in by_words.values() if len({text.group for text in texts}) > 1]
    if repeated:
        repeated.sort(key=len, reverse=True)
        count = sum(map(len, repeated))
        examples = [
            {
                "text": texts[0].text,
                "groups": len({text.group for text in texts}),
                "first": [text.id for text in texts[:3]],
            }
            for texts in repeated[:EXAMPLES]
        ]
        said = f"{count:,} captions share their words with one of another group, so right pairs count as wrong. "
        said += "`quintet mine --exclude-duplicates` leaves such pairs out of the negatives."
        yield Finding("repeated captions", "note", count, said, examples)
        across = [texts for texts in repeated if _leaks([splits[text.group] for text in texts])]
        if across:
            said = f"{len(across):,} captions stand word for word in different splits."
            shown = [{"text": texts[0].text, "first": [text.id for text in texts[:3]]} for texts in across[:EXAMPLES]]
            yield Finding("captions across splits", "note", len(across), said, shown)
    yield from _lengths(corpus.texts)
    yield from _outside(
        "script",
        "scripts",
        corpus.texts,
        [_script(text.text) for text in corpus.texts],
        "are not in the script of the others",
    )
    languages = [text.extra.get("language") for text in corpus.texts]
    if all(isinstance(language, str) for language in languages):
        yield from _outside("language", "languages", corpus.texts, languages, "are not in the language of the others")


def _lengths(texts: Sequence[Text]) -> Iterator[Finding]:
    if not texts:
        return
    words = np.array([len(split_words(text.text)) for text in texts])
    low, high = np.quantile(words, [0.25, 0.75])
    limit = high + FAR * max(high - low, 1.0)
    for kind, chosen, said in (
        ("short captions", np.flatnonzero(words < 2), "captions have fewer than two words."),
        (
            "long captions",
            np.flatnonzero(words > limit),
            f"captions have more than {limit:.0f} words; most have up to {high:.0f}.",
        ),
    ):
        if len(chosen):
            chosen = chosen[np.argsort(-words[chosen], kind="stable")]
            examples = [
                {"id": texts[at].id, "words": int(words[at]), "text": texts[at].text[:200]} for at in chosen[:EXAMPLES]
            ]
            yield Finding(kind, "note", len(chosen), f"{len(chosen):,} {said}", examples)


def _outside(what: str, plural: str, texts: Sequence[Text], labels: Sequence[Any], said: str) -> Iterator[Finding]:
    """Texts whose label is rare."""
    counts = Counter(labels)
    rare = {label for label, count in counts.items() if count < RARE * len(texts)}
    chosen = [at for at, label in enumerate(labels) if label in rare]
    if chosen:
        shares = ", ".join(f"{label} {count:,}" for label, count in counts.most_common(6))
        examples = [{"id": texts[at].id, what: labels[at], "text": texts[at].text[:200]} for at in chosen[:EXAMPLES]]
        yield Finding(f"other {plural}", "note", len(chosen), f"{len(chosen):,} captions {said} ({shares}).", examples)


def _script(text: str) -> str:
    """The script of most letters, by the first word of their Unicode names.

    >>> [_script(text) for text in ("Ein Hund läuft.", "一只狗在跑", "собака", "123")]
    ['latin', 'cjk', 'cyrillic', 'no letters']
    """
    letters = [letter for letter in text if letter.isalpha()]
    if text.isascii():
        return "latin" if letters else "no letters"
    names = Counter(unicodedata.name(letter, "unknown").split()[0].lower() for letter in letters)
    return names.most_common(1)[0][0] if names else "no letters"


def _splits_of(corpus: Corpus) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for name, groups in corpus.splits.items():
        for group in groups:
            found[group].add(name)
    return defaultdict(frozenset, {group: frozenset(names) for group, names in found.items()})


def _leaks(splits: Sequence[frozenset[str]]) -> bool:
    """Whether two of these are in splits, and in no split together: `test` inside `testall` is none."""
    kinds = {names for names in splits if names}
    return any(not one & other for one in kinds for other in kinds)


# Images


@dataclass(frozen=True)
class _Seen:
    digest: bytes = b""
    description: np.ndarray | None = None
    size: tuple[int, int] = (0, 0)
    error: str | None = None


def _look(corpus: Corpus, image: Image) -> _Seen:
    path = corpus.image_path(image)
    try:
        content = read_bytes(path, LARGEST_FILE)
        size = image_header(content, name=str(path)).size
        small = open_image(content, name=str(path), least=twice(2 * SIDE))
    except QuintetError as error:
        return _Seen(error=str(error))
    return _Seen(hashlib.sha256(content).digest(), describe_image(small), size)


def _ahead(pool: ThreadPoolExecutor, look: Callable[[Image], _Seen], images: Sequence[Image]) -> Iterator[_Seen]:
    """In order, some images ahead: `map` would hold the results of all."""
    rest = iter(images)
    waiting = [pool.submit(look, image) for image in islice(rest, AHEAD)]
    waiting.reverse()
    while waiting:
        yield waiting.pop().result()
        for image in islice(rest, 1):
            waiting.insert(0, pool.submit(look, image))


def _images(
    corpus: Corpus, images: Sequence[Image], workers: int | None, report: Callable[[int], None]
) -> Iterator[Finding]:
    if not images:
        return
    seen: list[_Seen] = []
    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        for number, found in enumerate(_ahead(pool, lambda image: _look(corpus, image), images), 1):
            seen.append(found)
            report(number)
    bad = [
        {"images": [image.id], "reason": found.error} for image, found in zip(images, seen, strict=True) if found.error
    ]
    if bad:
        yield Finding("unreadable images", "problem", len(bad), f"{len(bad):,} images cannot be read.", bad[:EXAMPLES])
    good = [(image, found) for image, found in zip(images, seen, strict=True) if found.error is None]
    yield from _sizes(good)
    yield from _copies(corpus, good)


def _sizes(seen: Sequence[tuple[Image, _Seen]]) -> Iterator[Finding]:
    for kind, said, odd in (
        ("small images", f"images have a side below {SMALLEST_SIDE} pixels.", lambda size: min(size) < SMALLEST_SIDE),
        (
            "narrow images",
            f"images are more than {LONGEST_SHAPE:g} times as long as wide.",
            lambda size: max(size) > LONGEST_SHAPE * min(size),
        ),
    ):
        chosen = [(image, found) for image, found in seen if odd(found.size)]
        if chosen:
            examples = [
                {"images": [image.id], "pixels": "x".join(map(str, found.size))} for image, found in chosen[:EXAMPLES]
            ]
            yield Finding(kind, "note", len(chosen), f"{len(chosen):,} {said}", examples)


def _copies(corpus: Corpus, seen: Sequence[tuple[Image, _Seen]]) -> Iterator[Finding]:
    """Exact copies, which images of one colour may be as well, and near-duplicates."""
    images = [image for image, _ in seen]
    pairs: dict[tuple[int, int], float] = {}
    same: dict[bytes, int] = {}
    for at, (_, found) in enumerate(seen):
        earlier = same.setdefault(found.digest, at)
        if earlier != at:
            pairs[earlier, at] = 1.0
    if seen:
        near, similarity = similar_pairs(np.stack([found.description for _, found in seen]))  # type: ignore[misc]
        for (one, other), value in zip(near.tolist(), similarity.tolist(), strict=True):
            pairs.setdefault((one, other), min(value, 1.0))
    splits = _splits_of(corpus)
    across: list[dict[str, Any]] = []
    within: list[dict[str, Any]] = []
    for (one, other), value in sorted(pairs.items(), key=lambda pair: (-pair[1], pair[0])):
        first, second = images[one], images[other]
        if first.group == second.group:
            continue
        names = splits[first.group], splits[second.group]
        if all(names):
            example = {"images": [first.id, second.id], "splits": [min(each) for each in names], "similarity": value}
            (across if _leaks(names) else within).append(example)
    if across:
        said = f"{len(across):,} pairs of images in different splits are the same, or nearly so."
        yield Finding("images across splits", "problem", len(across), said, across[:EXAMPLES])
    if within:
        said = f"{len(within):,} pairs of images of different groups are the same, or nearly so."
        yield Finding("images in several groups", "note", len(within), said, within[:EXAMPLES])
