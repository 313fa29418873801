from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from quintet.data.images import open_image
from quintet.evaluation.scoring import Member, member_scores
from quintet.search import (
    EmptyQuery,
    MissingImage,
    QueryTooLong,
    SearchError,
    StaleIndex,
    UnknownItem,
    UnknownWords,
)
from quintet.search.indexing import build_index
from quintet.search.items import Hit
from quintet.search.searcher import Searcher, open_index
from quintet.search.stores import parse_where
from quintet.serve.service import IndexWatcher

QUERY = "a red dog runs"


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return tmp_path / "index"


@pytest.fixture
def searcher(
    vse: Path, scan: Path, bfan: Path, pictures: Path, sentences: list[str], index: Path
) -> Iterator[Searcher]:
    """VSE++ chooses, SCAN and BFAN together re-rank; images and texts."""
    texts = pictures.parent / "texts.txt"
    texts.write_text("\n".join(sentences))
    build_index(vse, [pictures], index, texts=texts, rerank_with=[scan, bfan], device="cpu")
    with Searcher.open(index, device="cpu") as opened:
        yield opened


def names(hits: list[Hit]) -> list[str]:
    return [str(hit.item.path or hit.item.text) for hit in hits]


def every(searcher: Searcher, kind: Any = "image") -> list[Any]:
    return list(searcher._opened.items.all(kind))


def test_the_first_stage_is_the_matchers_own_score(searcher: Searcher, pictures: Path) -> None:
    (hits,) = searcher.search_text([QUERY], k=6)
    run = searcher.encoder.runs[0]
    prepared = [searcher.encoder.prepare(open_image(pictures / f"{number}.png")) for number in range(6)]
    scores = run.matcher.score(searcher.encoder.encode_images(prepared)[0], searcher.encoder.encode_texts([QUERY])[0])
    order = scores[:, 0].argsort(descending=True).tolist()
    assert names(hits) == [f"{number}.png" for number in order]
    np.testing.assert_allclose([hit.score for hit in hits], scores[order, 0].tolist(), rtol=1e-5, atol=1e-6)


def test_several_queries_are_several_answers(searcher: Searcher) -> None:
    both = searcher.search_text([QUERY, "a blue house"], k=3)
    alone = [searcher.search_text([query], k=3)[0] for query in (QUERY, "a blue house")]
    assert [names(hits) for hits in both] == [names(hits) for hits in alone]
    assert searcher.search_text([]) == []
    assert searcher.search_image([]) == []


def test_a_image_finds_itself_and_its_like(searcher: Searcher, pictures: Path) -> None:
    (hits,) = searcher.search_image([open_image(pictures / "4.png")], k=3)
    assert hits[0].item.path == "4.png"
    similar = searcher.similar(hits[0].item.id, k=5)
    assert "4.png" not in names(similar)
    assert names(similar)[:2] == names(hits)[1:3]


def test_a_image_finds_texts(searcher: Searcher, pictures: Path, sentences: list[str]) -> None:
    picture = open_image(pictures / "2.png")
    (hits,) = searcher.search_image([picture], kind="text", k=9)
    assert sorted(names(hits)) == sorted(sentences)
    matcher = searcher.encoder.runs[0].matcher
    codes = searcher.encoder.encode_images([searcher.encoder.prepare(picture)])[0]
    scores = matcher.score(codes, searcher.encoder.encode_texts(sentences)[0])[0]
    assert names(hits)[0] == sentences[int(scores.argmax())]
    (again,) = searcher.search_image([picture], kind="text", k=9, rerank=9)
    assert sorted(names(again)) == sorted(sentences)
    assert [hit.score for hit in again] != [hit.score for hit in hits]


def test_a_text_finds_texts(searcher: Searcher, sentences: list[str]) -> None:
    (hits,) = searcher.search_text([sentences[3]], kind="text", k=2, rerank=4)  # nothing to re-rank between texts
    assert hits[0].item.text == sentences[3]
    assert hits[0].score == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("kind", ["image", "text"])
def test_reranking_everything_is_scoring_everything(
    searcher: Searcher, pictures: Path, sentences: list[str], kind: Any
) -> None:
    """The cascade with K = all items against the evaluation's own scores of the ensemble, on the stored codes."""
    entries = every(searcher, kind)
    stored = {member: searcher._opened.codes[kind].codes(member, [entry.row for entry in entries]) for member in (1, 2)}
    if kind == "image":
        asked = searcher.encoder.encode_texts([QUERY])
        (hits,) = searcher.search_text([QUERY], k=6, rerank=6)
        sides = {member: (stored[member], asked[member]) for member in stored}
    else:
        picture = open_image(pictures / "0.png")
        asked = searcher.encoder.encode_images([searcher.encoder.prepare(picture)])
        (hits,) = searcher.search_image([picture], kind="text", k=6, rerank=6)
        sides = {member: (asked[member], stored[member]) for member in stored}
    members = [Member(searcher.encoder.runs[member].matcher, *sides[member]) for member in stored]
    scores = member_scores(members)(slice(None), slice(None)).flatten()
    order = scores.argsort(descending=True).tolist()
    assert [hit.item.id for hit in hits] == [entries[row].item.id for row in order]
    np.testing.assert_allclose([hit.score for hit in hits], scores[order].tolist(), rtol=0, atol=2e-6)


def test_more_candidates_than_items_change_no_bit(searcher: Searcher) -> None:
    all_of_them = searcher.search_text([QUERY], k=6, rerank=6)
    assert searcher.search_text([QUERY], k=6, rerank=1000) == all_of_them
    scores = {hit.item.id: hit.score for hit in all_of_them[0]}
    (few,) = searcher.search_text([QUERY], k=2, rerank=3)
    assert len(few) == 2
    assert all(hit.score == pytest.approx(scores[hit.item.id], abs=2e-6) for hit in few)


def test_only_the_best_of_the_first_stage_are_reranked(searcher: Searcher) -> None:
    (first,) = searcher.search_text([QUERY], k=3)
    (second,) = searcher.search_text([QUERY], k=2, rerank=3)
    assert set(names(second)) <= set(names(first))
    assert len(searcher.search_text([QUERY], k=5, rerank=2)[0]) == 5  # never fewer than were asked for


def test_one_of_several_rerankers_can_be_chosen(searcher: Searcher, scan: Path, vse: Path, make_run: Any) -> None:
    with Searcher.open(searcher.index, device="cpu", rerank_with=scan) as other:
        assert other.describe()["rerank"] == ["scan"]
        assert other.search_text([QUERY], rerank=6) != searcher.search_text([QUERY], rerank=6)
    with pytest.raises(StaleIndex, match="--rerank-with"):
        Searcher.open(searcher.index, rerank_with=make_run("scan", seed=77, word_dim=6))


def test_an_index_without_fragments_says_that_it_cannot_rerank(vse: Path, pictures: Path, index: Path) -> None:
    build_index(vse, [pictures], index, device="cpu")
    with Searcher.open(index, device="cpu") as searcher:
        assert not searcher.describe()["can_rerank"]
        with pytest.raises(SearchError, match="--rerank-with"):
            searcher.search_text([QUERY], rerank=3)


def test_an_ensemble_scores_with_the_mean_of_its_members(
    vse: Path, make_run: Any, pictures: Path, tmp_path: Path
) -> None:
    other = make_run("vse++", seed=5, word_dim=6)
    found = []
    for number, runs in enumerate(([vse], [other], [vse, other])):
        build_index(runs, [pictures], tmp_path / f"{number}", device="cpu")
        with Searcher.open(tmp_path / f"{number}", device="cpu") as searcher:
            (hits,) = searcher.search_text([QUERY], k=6)
            found.append({hit.item.id: hit.score for hit in hits})
    for id_, score in found[2].items():
        assert score == pytest.approx((found[0][id_] + found[1][id_]) / 2, abs=1e-6)


def test_mmca_chooses_and_reranks_alone(mmca: Path, pictures: Path, index: Path) -> None:
    build_index(mmca, [pictures], index, precision="float32", device="cpu")
    with Searcher.open(index, device="cpu") as searcher:
        matcher = searcher.encoder.runs[0].matcher
        prepared = [searcher.encoder.prepare(open_image(pictures / f"{number}.png")) for number in range(6)]
        codes, text = searcher.encoder.encode_images(prepared)[0], searcher.encoder.encode_texts([QUERY])[0]
        (first,) = searcher.search_text([QUERY], k=6)
        (whole,) = searcher.search_text([QUERY], k=6, rerank=6)
        for hits, scores in ((first, matcher.score_embeddings(codes, text)), (whole, matcher.score(codes, text))):
            by_name = {hit.item.path: hit.score for hit in hits}
            assert [by_name[f"{number}.png"] for number in range(6)] == pytest.approx(scores[:, 0].tolist(), abs=1e-5)


def test_cross_attention_alone_scores_every_image(scan: Path, pictures: Path, index: Path) -> None:
    build_index(scan, [pictures], index, device="cpu")
    with Searcher.open(index, device="cpu") as searcher:
        (hits,) = searcher.search_text([QUERY], k=9)
        assert len(hits) == 6
        assert hits == searcher.search_text([QUERY], k=9, rerank=1)[0]
        assert searcher.search_text([QUERY], where=parse_where("path=9.png")) == [[]]
        (some,) = searcher.search_text([QUERY], where=parse_where("path=2.png"))
        assert names(some) == ["2.png"]
        with pytest.raises(SearchError, match="embedding matcher"):
            searcher.search_image([open_image(pictures / "0.png")])
        with pytest.raises(SearchError, match="embedding matcher"):
            searcher.similar(hits[0].item.id)


def test_an_embedding_matcher_must_come_first(scan: Path, bfan: Path, pictures: Path, index: Path) -> None:
    with pytest.raises(SearchError, match="cannot choose candidates"):
        build_index(scan, [pictures], index, rerank_with=[bfan], device="cpu")


def test_filters_keep_to_what_they_name(searcher: Searcher) -> None:
    (hits,) = searcher.search_text([QUERY], where=parse_where('path~"3*"'))
    assert names(hits) == ["3.png"]
    (hits,) = searcher.search_text([QUERY], where=parse_where("width=50 and path=3.png"), rerank=2)
    assert names(hits) == ["3.png"]
    (hits,) = searcher.search_text([QUERY], kind="text", where=parse_where('text~"*house*"'))
    assert len(hits) == 1


# One way to ask


def test_search_takes_a_text_an_image_a_path_or_a_list(searcher: Searcher, pictures: Path) -> None:
    by_text = searcher.search(QUERY, k=3)
    assert by_text == searcher.search_text([QUERY], k=3)[0]
    assert [hit.path for hit in by_text] == [pictures / str(hit.item.path) for hit in by_text]
    photo = pictures / "4.png"
    by_image = searcher.search(photo, k=1)
    assert (by_image[0].path, by_image[0].text) == (photo, None)
    assert searcher.search(open_image(photo), k=1) == by_image
    assert searcher.search([photo, QUERY], k=3) == [searcher.search(photo, k=3), by_text]
    (text,) = searcher.search(photo, k=1, kind="text", rerank=5)
    assert (text.path, text.text) == (None, text.item.text)
    assert [hit.path for hit in searcher.search(QUERY, where='path~"3*"')] == [pictures / "3.png"]
    assert searcher.search([]) == []
    with pytest.raises(SearchError, match="not a int"):
        searcher.search([3])  # type: ignore[list-item]
    with pytest.raises(EmptyQuery):
        searcher.search("")


def test_an_index_of_texts_finds_texts(vse: Path, sentences: list[str], index: Path) -> None:
    texts = index.parent / "texts.txt"
    texts.write_text("\n".join(sentences))
    build_index(vse, [], index, texts=texts, device="cpu")
    with open_index(index, device="cpu") as opened:
        assert opened.search(sentences[1], k=1)[0].text == sentences[1]


# Bad queries


@pytest.mark.parametrize("query", ["", "   ", "\n\t"])
def test_an_empty_query_is_told(searcher: Searcher, query: str) -> None:
    with pytest.raises(EmptyQuery, match="empty"):
        searcher.search_text([query])
    with pytest.raises(EmptyQuery):
        searcher.explain(query, every(searcher)[0].item.id)


@pytest.mark.parametrize("query", ["dog " * 25_000, "x" * 100_000])
def test_a_query_of_100_kilobytes_is_refused_at_once(searcher: Searcher, query: str) -> None:
    with pytest.raises(QueryTooLong, match=r"100,000 characters"):
        searcher.search_text([query])


def test_unknown_words_alone_are_told_and_beside_known_ones_are_not(searcher: Searcher) -> None:
    with pytest.raises(UnknownWords, match="zzyx quux"):
        searcher.search_text(["zzyx quux"])
    assert searcher.search_text(["zzyx dog"])[0]


def test_wrong_wishes_are_told(searcher: Searcher) -> None:
    for wish in ({"k": 0}, {"rerank": 0}, {"kind": "sound"}):
        with pytest.raises(SearchError):
            searcher.search_text([QUERY], **wish)


# Items and their files


def test_unknown_items_are_told(searcher: Searcher) -> None:
    for ask in (searcher.item, searcher.image_path, searcher.similar):
        with pytest.raises(UnknownItem):
            ask("../../etc/passwd")
    assert searcher.items(["nothing", every(searcher)[0].item.id]).keys() == {every(searcher)[0].item.id}


def test_a_deleted_image_is_told_when_it_is_asked_for(searcher: Searcher, pictures: Path) -> None:
    (hit,) = searcher.search_text([QUERY], where=parse_where("path=1.png"))[0]
    assert searcher.image_path(hit.item.id) == pictures / "1.png"
    (pictures / "1.png").unlink()
    assert searcher.item(hit.item.id).path == "1.png"
    with pytest.raises(MissingImage, match="gone"):
        searcher.image_path(hit.item.id)
    text = every(searcher, "text")[0].item.id
    with pytest.raises(MissingImage, match="no image file"):
        searcher.image_path(text)


@pytest.mark.parametrize("path", ["../secret.png", "/etc/hostname", "link/secret.png"])
def test_no_path_leads_out_of_the_indexed_folders(vse: Path, pictures: Path, index: Path, path: str) -> None:
    build_index(vse, [pictures], index, device="cpu")
    shutil.copy(pictures / "0.png", pictures.parent / "secret.png")
    (pictures / "link").symlink_to(pictures.parent)
    with sqlite3.connect(index / "items.sqlite") as connection:
        connection.execute("UPDATE items SET path = ?", (path,))
    connection.close()
    with Searcher.open(index, device="cpu") as searcher:
        (hits,) = searcher.search_text([QUERY], k=1)
        with pytest.raises(MissingImage, match="outside"):
            searcher.image_path(hits[0].item.id)


# A newer generation


def test_a_newer_generation_of_the_same_runs_takes_over_the_codes_of_texts(
    vse: Path, scan: Path, pictures: Path, index: Path, tmp_path: Path
) -> None:
    more = tmp_path / "more"
    more.mkdir()
    Image.new("RGB", (64, 64), "red").save(more / "red.png")
    build_index(vse, [pictures], index, device="cpu")
    with Searcher.open(index, device="cpu") as old:
        old.search_text([QUERY])
        build_index(vse, [pictures, more], index, device="cpu")
        with Searcher.open(index, device="cpu", earlier=old) as newer, Searcher.open(index, device="cpu") as alone:
            assert newer.generation == old.generation + 1
            assert newer.is_prepared(QUERY)
            assert newer.search_text([QUERY], k=99) == alone.search_text([QUERY], k=99)
            assert len(newer.search_text([QUERY], k=99)[0]) == 1 + len(old.search_text([QUERY], k=99)[0])
        build_index(vse, [pictures], index, rerank_with=[scan], device="cpu", overwrite=True)
        with Searcher.open(index, device="cpu", earlier=old) as other:
            assert not other.is_prepared(QUERY)
            assert len(other.encoder.runs) == 2


# The index as a thing


def test_an_index_is_whole_in_itself_and_can_be_moved(
    make_run: Any, tower: dict[str, Any], pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the run, nor the tower's weights, nor the place of the index are needed any more."""
    run, scan = make_run("vse++", seed=21, word_dim=6), make_run("scan", seed=22, word_dim=6)
    build_index(run, [pictures], tmp_path / "index", rerank_with=[scan], device="cpu")
    with Searcher.open(tmp_path / "index", device="cpu") as searcher:
        before = searcher.search_text([QUERY], rerank=4)
        by_image = searcher.search_image([open_image(pictures / "0.png")])
    shutil.rmtree(run)
    shutil.rmtree(scan)
    (tmp_path / "index").rename(tmp_path / "what now? #1")
    weights = Path(tower["weights"])
    weights.rename(weights.with_suffix(".away"))
    try:
        with Searcher.open(tmp_path / "what now? #1", device="cpu") as searcher:
            assert searcher.search_text([QUERY], rerank=4) == before
            assert searcher.search_image([open_image(pictures / "0.png")]) == by_image
    finally:
        weights.with_suffix(".away").rename(weights)
    texts = [path.read_text() for path in (tmp_path / "what now? #1" / "runs").glob("*/*.json")]
    assert not any(str(tmp_path) in text or str(weights) in text for text in texts)


def test_a_searcher_knows_when_the_index_was_rebuilt_and_goes_on(
    vse: Path, pictures: Path, index: Path, make_images: Any
) -> None:
    build_index(vse, [pictures], index, device="cpu")
    old = Searcher.open(index, device="cpu")
    before = old.search_text([QUERY], k=9)
    assert old.current()
    make_images(pictures / "more", count=2, seed=3)
    build_index(vse, [pictures], index, device="cpu")
    assert not old.current()
    assert old.search_text([QUERY], k=9) == before
    with Searcher.open(index, device="cpu") as new:
        assert new.generation > old.generation
        assert len(new.search_text([QUERY], k=9)[0]) == 8
    old.close()


def test_a_build_killed_right_after_its_commit_is_noticed(
    vse: Path, pictures: Path, index: Path, make_images: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a searcher and by a server, without another build."""
    build_index(vse, [pictures], index, device="cpu")
    watcher = IndexWatcher(index, lambda: Searcher.open(index, device="cpu"))

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with watcher.searchers.lend() as old:
        assert old.current()
        assert not any(watcher.look() for _ in range(3))
        make_images(pictures / "more", count=2, seed=3)
        with monkeypatch.context() as patch:
            patch.setattr("quintet.search.indexing._finish", stop)
            with pytest.raises(KeyboardInterrupt):
                build_index(vse, [pictures], index, device="cpu")
        assert not old.current()
        assert [watcher.look() for _ in range(4)].count(True) == 1
    with watcher.searchers.lend() as new:
        assert new.current()
        assert len(new.search_text([QUERY], k=9)[0]) == 8
    watcher.searchers.close()


def test_a_build_that_has_committed_no_generation_is_not_opened(
    vse: Path, pictures: Path, index: Path, make_images: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index(vse, [pictures], index, device="cpu")
    watcher = IndexWatcher(index, lambda: Searcher.open(index, device="cpu"))

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    make_images(pictures / "more", count=2, seed=3)
    monkeypatch.setattr("quintet.search.indexing._commit", stop)
    with pytest.raises(KeyboardInterrupt):
        build_index(vse, [pictures], index, device="cpu")
    assert not any(watcher.look() for _ in range(4))
    with watcher.searchers.lend() as searcher:
        assert searcher.current()
    watcher.searchers.close()


def test_an_index_exchanged_while_it_is_opened_is_opened_anew(
    vse: Path, pictures: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quintet.search import searcher as module

    build_index(vse, [pictures], index, device="cpu")
    original, rebuilt = module.Generation, False

    def slow(*arguments: Any) -> Any:
        nonlocal rebuilt
        if not rebuilt:
            rebuilt = True
            for number in range(5):  # most are gone: the others are copied to new files, and the old ones are removed
                (pictures / f"{number}.png").unlink()
            build_index(vse, [pictures], index, device="cpu")
        return original(*arguments)

    monkeypatch.setattr(module, "Generation", slow)
    with Searcher.open(index, device="cpu") as searcher:
        assert searcher.current()
        assert names(searcher.search_text([QUERY], k=9)[0]) == ["5.png"]


READ = """
import os, sys
from quintet.search.searcher import Searcher
for turn in range(2):  # the first loads what Python needs, as a user who may write
    with Searcher.open(sys.argv[1], device="cpu") as searcher:
        found = [hit.item.path for hit in searcher.search_text([sys.argv[2]], k=9)[0]]
    if os.getuid() == 0:
        os.setuid(65534)
assert not os.access(sys.argv[1], os.W_OK)
print(found)
"""


def test_an_index_on_a_read_only_disk_is_searched(vse: Path, pictures: Path, shared_folder: Path) -> None:
    index = shared_folder / "index"
    build_index(vse, [pictures], index, device="cpu")
    with Searcher.open(index, device="cpu") as searcher:
        expected = names(searcher.search_text([QUERY], k=9)[0])
    for path in (index, *index.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = sorted(index.rglob("*"))
    ended = subprocess.run([sys.executable, "-c", READ, str(index), QUERY], capture_output=True, text=True, check=False)
    assert ended.stdout.strip() == str(expected), ended.stderr
    assert sorted(index.rglob("*")) == before
    for path in (index, *index.rglob("*")):
        path.chmod(0o755)


def test_damaged_weights_are_not_searched_with(vse: Path, pictures: Path, index: Path) -> None:
    build_index(vse, [pictures], index, device="cpu")
    (path,) = index.glob("runs/*/weights.safetensors")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(StaleIndex, match="is damaged"):
        Searcher.open(index, device="cpu")


def test_no_index_at_all_is_told(tmp_path: Path) -> None:
    with pytest.raises(SearchError, match="is not an index"):
        Searcher.open(tmp_path)


def test_many_threads_get_the_same_answers(searcher: Searcher) -> None:
    queries = ["a red dog", "a blue house", "the striped cat", "water"]
    expected = [searcher.search_text([query], k=4, rerank=5)[0] for query in queries]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: searcher.search_text([queries[number % 4]], k=4, rerank=5)[0], range(40)))
    assert found == [expected[number % 4] for number in range(40)]


def test_it_says_what_it_is(searcher: Searcher) -> None:
    facts = searcher.describe()
    assert facts["matcher"] == "vse++"
    assert facts["rerank"] == ["scan", "bfan"]
    assert facts["counts"] == {"image": 6, "text": 5}
    assert facts["can_explain_regions"]
    assert facts["can_rerank"]
    assert facts["store"] == "exact"


# Explanations


def test_words_are_weighed_by_leaving_them_out(searcher: Searcher) -> None:
    entry = every(searcher)[0]
    shown = searcher.explain("a red dog", entry.item.id)
    assert [word.word for word in shown.words] == ["a", "red", "dog"]

    def score(sentence: str) -> float:
        texts = searcher.encoder.encode_texts([sentence])
        table = searcher._opened.codes["image"]
        values = [
            searcher.encoder.runs[member].matcher.score_pairs(table.codes(member, [entry.row]), texts[member])
            for member in (1, 2)
        ]
        return float(torch.stack(values).mean())

    assert shown.score == pytest.approx(score("a red dog"), abs=1e-5)
    assert shown.words[1].weight == pytest.approx(score("a red dog") - score("a dog"), abs=1e-5)
    assert searcher.explain("dog", entry.item.id).words[0].weight == pytest.approx(score("dog"), abs=1e-5)


@pytest.mark.parametrize("name", ["scan", "bfan"])
def test_words_look_at_boxes_of_the_image(searcher: Searcher, request: pytest.FixtureRequest, name: str) -> None:
    entry = every(searcher)[0]
    with Searcher.open(searcher.index, device="cpu", rerank_with=request.getfixturevalue(name)) as one:
        shown = one.explain("a red dog", entry.item.id)
        (member,) = one._rerank
        codes = one._opened.codes["image"].codes(member, [entry.row])
        attention = one.encoder.runs[member].matcher.attention(codes, one.encoder.encode_texts(["a red dog"])[member])
    assert shown.regions is not None
    assert [region.word for region in shown.regions] == ["a", "red", "dog"]
    for region, weights in zip(shown.regions, attention.weights[1:-1], strict=True):  # between the marks of the ends
        assert region.boxes.shape == (6, 4)
        assert region.boxes.min() >= 0
        assert region.boxes.max() <= 1
        np.testing.assert_allclose(region.weights, weights.numpy(), atol=1e-4)


def test_embedding_matchers_explain_by_words_alone(vse: Path, pictures: Path, index: Path) -> None:
    build_index(vse, [pictures], index, device="cpu")
    with Searcher.open(index, device="cpu") as searcher:
        shown = searcher.explain("a red dog", every(searcher)[0].item.id)
        assert shown.regions is None
        assert len(shown.words) == 3
        assert not searcher.describe()["can_explain_regions"]


def test_a_text_that_was_found_is_explained_too(searcher: Searcher) -> None:
    item = every(searcher, "text")[0].item
    shown = searcher.explain(str(item.text), item.id)
    assert shown.score == pytest.approx(1, abs=1e-5)
    assert shown.regions is None
