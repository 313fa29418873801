"""A searcher that keeps the agreed signatures and knows thirty generated scenes by the words of their texts."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fastapi import FastAPI
from hypothesis import HealthCheck, given
from hypothesis import settings as how
from hypothesis import strategies as st
from PIL import Image
from starlette.testclient import TestClient

from quintet.backbones.create import create_tower
from quintet.backbones.extractor import FeatureExtractor
from quintet.data.scenes.captions import captions
from quintet.data.scenes.generate import make_scenes
from quintet.data.scenes.render import draw
from quintet.data.scenes.scene import family, generator
from quintet.data.vocabulary import WordVocabulary
from quintet.models import create_model
from quintet.runs.checkpoint import save_tensors, write_run
from quintet.search import EmptyQuery, MissingImage, QueryTooLong, UnknownItem, UnknownWords
from quintet.search.facets import Choice, Facet
from quintet.search.indexing import build_index
from quintet.search.items import Hit, Item
from quintet.serve.app import create_app
from quintet.serve.server import listen, make_server
from quintet.serve.settings import Settings
from quintet.serve.watcher import Searchers

SCENES = 30


class FakeSearcher:
    """Scores an image by the share of the query's words that its texts have."""

    def __init__(self, root: Path, generation: int = 1) -> None:
        self.root, self.generation, self.closed = root, generation, False
        self.gate = threading.Event()  # a test that clears it holds every search up
        self.gate.set()
        self.encoding = threading.Event()  # likewise, every text that is encoded
        self.encoding.set()
        self.error: Exception | None = None
        self.judges = False  # whether results without any of the words are weak
        self.collapses = False  # whether the first of each four images stands for the others
        self.strange: str | None = None  # what is said of every query
        self.queries = SimpleNamespace(encoded=0, batches=0)
        self.prepared: list[tuple[str, list[str]]] = []  # texts, and those that waited meanwhile
        self.items: dict[str, Item] = {}
        self.words: dict[str, set[str]] = {}
        self.boxes: dict[str, np.ndarray] = {}
        for number in range(SCENES):
            rng = generator(number // 4)
            scene = family(rng)[number % 4]
            said = captions(scene, rng)
            drawing = draw(scene, rng, 96)
            path = root / "shapes" / f"scene-{number:02}.png"
            path.parent.mkdir(exist_ok=True, parents=True)
            Image.fromarray(drawing.pixels).save(path)
            self._add(Item(f"p{number}", "image", f"shapes/{path.name}", 0, None, {"width": 96, "height": 96}), said)
            self.boxes[f"p{number}"] = np.array(drawing.boxes, np.float32)
            self._add(Item(f"s{number}", "text", None, None, max(said, key=len)), said)

    def check(self) -> None:
        if self.error:
            raise self.error

    def query_note(self, text: str) -> str | None:
        return self.strange

    def _add(self, item: Item, said: Sequence[str]) -> None:
        self.items[item.id] = item
        self.words[item.id] = set(" ".join(said).lower().split())

    def is_prepared(self, text: str) -> bool:
        return any(text == each for each, _ in self.prepared)

    def prepare(self, text: str, waiting: Sequence[str]) -> None:
        self.prepared.append((text, list(waiting)))
        self.encoding.wait(30)

    def search_text(self, texts: Sequence[str], **wish: Any) -> list[list[Hit]]:
        return [self._ranked(self._known(text), **wish) for text in texts]

    def search_image(self, images: Sequence[Image.Image], **wish: Any) -> list[list[Hit]]:
        for image in images:
            assert image.mode == "RGB"
        return [self._ranked(self.words["p0"], **wish) for _ in images]

    def search(
        self, query: str | None = None, *, image: Any = None, exclude: Sequence[str] = (), **wish: Any
    ) -> list[Hit]:
        words = set() if query is None else self._known(query)
        words |= set() if image is None else self.words["p0"]
        return self._ranked(words, **wish, without={word for text in exclude for word in text.split()})

    def similar(self, item_id: str, *, query: str | None = None, exclude: Sequence[str] = (), **wish: Any) -> list[Hit]:
        self.item(item_id)
        words = self.words[item_id] | (self._known(query) if query else set())
        return self._ranked(words, **wish, without={word for text in exclude for word in text.split()})

    def newest(self, *, k: int, start: int, kind: str, where: Any) -> tuple[list[Item], int]:
        items = [item for item in self.items.values() if item.kind == kind]
        items = [item for item in reversed(items) if where is None or where.matches(item.facts())]
        return items[start : start + k], len(items)

    def facets(self, where: Any = None) -> list[Facet]:
        """By the tens of the number in the name."""
        choices = []
        for ten in range(3):
            own = f'path~"shapes/scene-{ten}*"'
            chosen = where is not None and own == str(where)
            choices.append(Choice(f"{ten}0 to {ten}9", 10, "" if chosen else own, chosen))
        return [Facet("folder", tuple(choices))]

    def examples(self) -> list[tuple[str, Item]]:
        return [("red circle", self.items["p1"]), ("blue square", self.items["p2"])]

    def explain(self, query: str, item_id: str) -> SimpleNamespace:
        self.item(item_id)
        words = query.split()
        boxes = self.boxes.get(item_id)
        weights = [SimpleNamespace(word=word, weight=float(word in self.words[item_id])) for word in words]
        regions = (
            None
            if boxes is None
            else tuple(
                SimpleNamespace(word=word, boxes=boxes, weights=np.linspace(1, 0.2, len(boxes))) for word in words
            )
        )
        return SimpleNamespace(words=tuple(weights), score=0.5, regions=regions)

    def item(self, item_id: str) -> Item:
        if item_id not in self.items:
            raise UnknownItem(f"no item {item_id!r}")
        return self.items[item_id]

    def image_path(self, item_id: str) -> Path:
        path = self.root / (self.item(item_id).path or "")
        if not path.is_file():
            raise MissingImage(f"{path.name} is gone")
        return path

    def files(self) -> list[Path]:
        return []

    def describe(self) -> dict[str, Any]:
        counts = {"image": SCENES, "text": SCENES}
        return {"matcher": "fake", "counts": counts, "generation": self.generation, "can_explain_regions": True}

    def close(self) -> None:
        self.closed = True

    def _known(self, text: str) -> set[str]:
        if not text.strip():
            raise EmptyQuery("the query is empty; write a text")
        if len(text) > 10_000:
            raise QueryTooLong(f"the query has {len(text):,} characters")
        known = set(text.lower().split()) & set().union(*self.words.values())
        if not known:
            raise UnknownWords("no word of the query is known")
        return known

    def _ranked(
        self,
        query: set[str],
        *,
        k: int,
        kind: str,
        where: Any,
        rerank: Any = None,
        duplicates: bool = True,
        without: Set[str] = frozenset(),
    ) -> list[Hit]:
        self.gate.wait(30)
        assert not self.closed, "asked after it was closed"
        if self.error:
            raise self.error
        rows = [item for item in self.items.values() if item.kind == kind]
        if where is not None:
            rows = [item for item in rows if where.matches(item.facts())]
        score = {item.id: len(query & self.words[item.id]) - len(without & self.words[item.id]) for item in rows}
        hits = [Hit(item, score[item.id] / len(query), weak=self.judges and score[item.id] <= 0) for item in rows]
        hits.sort(key=lambda hit: (-hit.score, hit.item.id))
        if self.collapses and not duplicates and kind == "image":
            first: dict[int, Hit] = {}
            for hit in hits:
                number = int(re.sub(r"\D", "", hit.item.id) or 99) // 4
                earlier = first.get(number)
                first[number] = replace(earlier, duplicates=(*earlier.duplicates, hit)) if earlier else hit
            hits = list(first.values())
        return hits[:k]


@pytest.fixture
def searcher(tmp_path: Path) -> FakeSearcher:
    return FakeSearcher(tmp_path / "pictures")


@pytest.fixture
def make_searcher(tmp_path: Path) -> Callable[[int], FakeSearcher]:
    return lambda generation: FakeSearcher(tmp_path / "pictures", generation)


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., Settings]:
    return lambda **changes: Settings(**{"cache": tmp_path / "cache", "port": 0, **changes})


@pytest.fixture
def make_app(searcher: FakeSearcher, settings: Callable[..., Settings]) -> Callable[..., FastAPI]:
    """An application around the fake; keyword arguments change its settings."""
    return lambda **changes: create_app(Searchers(searcher), settings(**changes))  # type: ignore[arg-type]


@pytest.fixture
def client(make_app: Callable[..., FastAPI]) -> Iterator[TestClient]:
    with TestClient(make_app(), base_url="http://localhost") as client:
        yield client


@pytest.fixture
def live(settings: Callable[..., Settings]) -> Iterator[Callable[..., str]]:
    """Listens with an application until the test ends; gives its address. Keyword arguments change its settings."""
    stops: list[Callable[[], None]] = []

    def start(app: FastAPI, **changes: Any) -> str:
        listener, listening = listen(settings()), threading.Event()
        server = make_server(app, settings(**changes), listening.set)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()

        def stop() -> None:
            server.should_exit = True
            thread.join()
            listener.close()

        stops.append(stop)
        assert listening.wait(10)
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for stop in stops:
        stop()


@pytest.fixture
def ask_anything() -> Callable[..., None]:
    """Asks an application what its own document allows, and nonsense: no 5xx, and every answer as described.

    `known`: values, by their names, that mean something to it; half of the sensible requests have them.
    """
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")

    def ask(app: FastAPI, operation: str, mode: str, known: dict[str, str]) -> None:
        host = {"Host": "localhost"}
        method, _, path = operation.partition(" ")
        document = schemathesis.openapi.from_asgi("/openapi.json", app, headers=host)
        cases = document[path][method].as_strategy(generation_mode=schemathesis.GenerationMode(mode))

        @how(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
        @given(case=cases, mean_it=st.booleans())
        def ask_one(case: Any, mean_it: bool) -> None:
            for part in (case.body, case.query):
                if mode == "positive" and mean_it and isinstance(part, dict):
                    part.update({name: value for name, value in known.items() if name in part})
                    part.pop("where", None)
            # What a filter or a known word is the document cannot say, so some that it allows are refused.
            excluded = [schemathesis.checks.positive_data_acceptance]
            answer = case.call(headers=host)
            if answer.status_code == 414:  # schemathesis does not take it for a refusal
                excluded.append(schemathesis.checks.negative_data_rejection)
            case.validate_response(answer, excluded_checks=excluded)

        ask_one()

    return ask


# ---- a real index, and a real process


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images, and the runs `vse` and `scan`."""
    folder = tmp_path_factory.mktemp("real")
    corpus = make_scenes(folder / "corpus", train=4, dev=4, test=16, size=64)
    torch.manual_seed(0)
    save_tensors(folder / "small.safetensors", create_tower("small-cnn").state_dict(), {})
    tower = FeatureExtractor.create("small-cnn", folder / "small.safetensors", grid=(2, 3)).state()
    words = WordVocabulary.build([text.text for text in corpus.texts], min_count=1)
    for file, name in (("vse", "vse++"), ("scan", "scan")):
        sizes = {"vocabulary_size": len(words), "embed_dim": 8, "word_dim": 6, "image_dim": 128}
        write_run(
            folder / file,
            name=file,
            model={"name": name, "arguments": sizes},
            state_dict=create_model(name, **sizes).state_dict(),
            tokenizer=words,
            image_input={"kind": "features", "name": "small", "tower": tower},
        )
    return folder


@pytest.fixture
def images(made: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "pictures" / "shapes"
    folder.mkdir(parents=True)
    for path in sorted((made / "corpus").rglob("*.png")):
        (folder / path.name).write_bytes(path.read_bytes())
    return folder.parent


@pytest.fixture
def index(made: Path, images: Path, tmp_path: Path) -> Path:
    build_index(made / "vse", [images], tmp_path / "index", rerank_with=[made / "scan"], device="cpu", workers=1)
    return tmp_path / "index"


@dataclass
class Process:
    """A server as a person starts it."""

    pid: int
    address: str
    log: Path

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def family(self) -> int:
        """Bytes of memory of the server and its decoders."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        children = [child for task in tasks for child in (task / "children").read_text().split()]
        pages = 0
        for pid in (self.pid, *children):
            with suppress(OSError):  # it just ended
                pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Runs `quintet serve`; `descriptors` limits its open files. Its log has no traceback at the end."""
    begun: list[tuple[subprocess.Popen[bytes], Path]] = []

    def start(index: Path, *options: str, descriptors: int | None = None, **variables: str) -> Process:
        log = tmp_path / f"server-{len(begun)}.log"
        command = [sys.executable, "-m", "quintet", "serve", index, "--port", "0", "--device", "cpu", *options]
        if descriptors:
            command = ["prlimit", f"--nofile={descriptors}:{descriptors}", *command]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(tmp_path / "cache")} | variables
        with log.open("wb") as file:
            process = subprocess.Popen(command, stderr=file, env=environment | {"COLUMNS": "200"})
        begun.append((process, log))
        for _ in range(1200):
            if found := re.search(r"https?://localhost:\d+", log.read_text()):
                return Process(process.pid, found[0], log)
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        raise AssertionError("it does not start")

    yield start
    for process, log in begun:
        process.kill()
        process.wait()
        assert "Traceback" not in log.read_text()
