"""Many people at once: how long a search takes through the server, and whether any request fails.

    python -m benchmarks.measure.serve                    # 2,000 generated scenes: 1 client, then 200 for 60 s each
    python -m benchmarks.measure.serve --index INDEX --queries queries.txt

`quintet serve` runs as its own process, as a person starts it. Every client keeps one connection and asks without a
pause: a text, then the small copy of the first image found. An error is any answer but 200, or none; that the
server asks to come back later (503) counts as one. The clients run on the same cores, so the times are those of a
loaded machine, and what they take of the processors is a column of its own.

In the rows "seen", every text was asked before and its codes are kept. In the rows "new", no text was ever asked
before: each is a caption and two words of another one, and is encoded in a batch with others that wait. In the last row
the index is built anew meanwhile, on the same cores, and exchanged. The target is 600 requests a second of 200 clients
on two cores, with no error.

With no --index an untrained VSE++ (d = 1024) makes one: its searches take as long as a trained one's.

Writes benchmarks/results/serve.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import numpy as np
import torch
from PIL import Image

from quintet.data.scenes.generate import make_scenes
from quintet.data.vocabulary import WordVocabulary
from quintet.evaluation.result import provenance
from quintet.files import write_json
from quintet.models import create_model
from quintet.runs.checkpoint import write_run
from quintet.search.indexing import build_index

RESULTS = Path(__file__).parents[1] / "results" / "serve.json"
WARM_UP_S = 3.0
SEEN = 2000  # texts


@dataclass
class Seen:
    """Seconds of each answer by kind, and how often each status came; `none` where no answer came."""

    searches: list[float] = field(default_factory=list)
    thumbnails: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)


def make_index(folder: Path, scenes: int) -> tuple[Path, list[str]]:
    """`folder/index`, of `folder/corpus` by `folder/run`."""
    corpus = make_scenes(folder / "corpus", train=1, dev=1, test=scenes)
    words = WordVocabulary.build([text.text for text in corpus.texts], min_count=1)
    sizes: dict[str, Any] = {"vocabulary_size": len(words), "embed_dim": 1024, "tower": "small-cnn"}
    torch.manual_seed(0)
    write_run(
        folder / "run",
        name="untrained",
        model={"name": "vse++", "arguments": sizes},
        state_dict=create_model("vse++", **sizes).state_dict(),
        tokenizer=words,
        image_input={"kind": "pixels"},
    )
    build_index(folder / "run", [folder / "corpus"], folder / "index", device="cpu")
    return folder / "index", [text.text for text in corpus.texts]


@contextmanager
def serving(index: Path, cache: Path, arguments: list[str]) -> Iterator[tuple[int, int]]:
    """The port and the process id."""
    command = [
        sys.executable,
        "-m",
        "quintet",
        "serve",
        str(index),
        "--port",
        "0",
        "--thumbnails",
        str(cache),
        *arguments,
    ]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"COLUMNS": "500"})
    try:
        assert server.stderr
        line = server.stderr.readline()
        found = re.search(r"localhost:(\d+)", line)
        if found is None:
            raise SystemExit(line + server.stderr.read())
        yield int(found[1]), server.pid
    finally:
        server.terminate()
        server.wait()


async def client(port: int, texts: Iterator[str], until: float, seen: Seen) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.perf_counter() < until and (text := next(texts, None)) is not None:
        body = json.dumps({"query": text, "limit": 20}).encode()
        try:
            status, answer, seconds = await ask(reader, writer, "POST", "/api/search", body)
            seen.statuses[status] += 1
            seen.searches.append(seconds)
            if status == "200":
                found = quote(json.loads(answer)["hits"][0]["item"]["id"])
                status, _, seconds = await ask(reader, writer, "GET", f"/api/thumbnail?id={found}")
                seen.statuses[status] += 1
                seen.thumbnails.append(seconds)
        except (OSError, asyncio.IncompleteReadError):
            seen.statuses["none"] += 1
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()


async def ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, method: str, path: str, body: bytes = b""
) -> tuple[str, bytes, float]:
    """A client of a few lines: an HTTP library would take more of the cores than the server does."""
    began = time.perf_counter()
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    )
    writer.write(head.encode() + b"\r\n\r\n" + body)
    answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    length = re.search(r"content-length: (\d+)", answer, re.IGNORECASE)
    data = await reader.readexactly(int(length[1]) if length else 0)
    return answer.split(" ", 2)[1], data, time.perf_counter() - began


async def load(port: int, texts: Iterator[str], clients: int, seconds: float = math.inf) -> Seen:
    """Until the texts or the seconds are over; all clients take their texts from one list."""
    seen = Seen()
    until = time.perf_counter() + seconds
    await asyncio.gather(*(client(port, texts, until, seen) for _ in range(clients)))
    return seen


def new_texts(sentences: list[str]) -> Iterator[str]:
    """Texts all of which differ, from any two sentences."""
    known = set(sentences)
    for step in range(1, len(sentences)):
        for place, sentence in enumerate(sentences):
            text = " ".join([sentence, *sentences[(place + step) % len(sentences)].split()[1:3]])
            if text not in known:
                known.add(text)
                yield text


def quantiles(seconds: list[float]) -> dict[str, float]:
    values = np.quantile(seconds, [0.5, 0.95, 0.99, 1.0])
    return dict(zip(("p50_ms", "p95_ms", "p99_ms", "max_ms"), (1000 * values).round(2).tolist(), strict=True))


def cpu_seconds(pid: int) -> float:
    """Of all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def value(port: int, name: str) -> float:
    with urlopen(f"http://localhost:{port}/metrics") as answer:
        return float(re.search(rf"^{name} (\S+)$", answer.read().decode(), re.MULTILINE)[1])  # type: ignore[index]


@contextmanager
def rebuilding(folder: Path, port: int, after: float) -> Iterator[None]:
    """After so many seconds a folder with an image is indexed, too; the server has exchanged the index at the end."""
    before = value(port, "quintet_index_swaps_total")

    def build() -> None:
        time.sleep(after)
        (folder / "more").mkdir()
        Image.new("RGB", (96, 96), "red").save(folder / "more" / "red.png")
        command = [sys.executable, "-m", "quintet", "index", folder / "run", folder / "corpus", folder / "more"]
        subprocess.run([*command, "-o", folder / "index", "--device", "cpu"], check=True, capture_output=True)

    with ThreadPoolExecutor(1) as thread:
        built = thread.submit(build)
        yield
        built.result()
    if value(port, "quintet_index_swaps_total") == before:
        raise SystemExit("the index was not exchanged while clients asked; measure for longer (--seconds)")


def measure(port: int, pid: int, texts: Iterator[str], what: str, clients: int, seconds: float) -> dict[str, Any]:
    asyncio.run(load(port, texts, clients, WARM_UP_S))
    encoded = value(port, "quintet_texts_encoded")
    began, cpu, own = time.perf_counter(), cpu_seconds(pid), time.process_time()
    seen = asyncio.run(load(port, texts, clients, seconds))
    took = time.perf_counter() - began
    cpu, own = cpu_seconds(pid) - cpu, time.process_time() - own
    errors = sum(count for status, count in seen.statuses.items() if status != "200")
    requests = seen.statuses.total()
    return {
        "clients": clients,
        "texts": what,
        "seconds": round(took, 1),
        "requests": requests,
        "requests_per_s": round(requests / took, 1),
        "errors": errors,
        "statuses": dict(seen.statuses),
        "search": quantiles(seen.searches),
        "thumbnail": quantiles(seen.thumbnails),
        "server_cpu_ms_per_request": round(1000 * cpu / requests, 2),
        "client_cpu_ms_per_request": round(1000 * own / requests, 2),
        "texts_encoded": round(value(port, "quintet_texts_encoded") - encoded),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", type=Path, help="an index with images; default: one of generated scenes")
    parser.add_argument("--queries", type=Path, help="texts, one a line; needed with --index")
    parser.add_argument("--scenes", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--serve", nargs="*", default=[], metavar="OPTION", help="options for `quintet serve`")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if (options.index is None) != (options.queries is None):
        parser.error("--index and --queries go together")
    clients, seconds = options.clients, options.seconds
    with tempfile.TemporaryDirectory() as name:
        if options.index is None:
            index, sentences = make_index(Path(name), options.scenes)
        else:
            index, sentences = options.index, options.queries.read_text(encoding="utf-8").splitlines()
        asked = list(dict.fromkeys(sentences))[:SEEN]
        seen, new = cycle(asked), new_texts(sentences)
        with serving(index, Path(name) / "thumbnails", options.serve) as (port, pid):
            asyncio.run(load(port, iter(asked), clients))
            rows = [
                measure(port, pid, seen, "seen", 1, seconds / 3),
                measure(port, pid, new, "new", 1, seconds / 3),
                measure(port, pid, seen, "seen", clients, seconds),
                measure(port, pid, new, "new", clients, seconds),
            ]
            if options.index is None:
                asyncio.run(load(port, iter(asked), clients))  # the new ones may have taken their room
                with rebuilding(Path(name), port, after=WARM_UP_S + seconds / 4):
                    rows.append(measure(port, pid, seen, "seen", clients, seconds) | {"index_exchanged": True})
    for row in rows:
        print(json.dumps(row))
    write_json(
        options.out,
        {
            "benchmark": "serve",
            "index": f"{options.scenes} scenes" if options.index is None else options.index.name,
            "rows": rows,
            "provenance": provenance(),
        },
    )


if __name__ == "__main__":
    main()
