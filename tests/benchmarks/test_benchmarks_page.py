from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

MACHINE = {"provenance": {"machine": {"threads": 2, "accelerator": None}}}


def times(p50: float, p99: float) -> dict[str, float]:
    return {"p50_ms": p50, "p99_ms": p99}


FOUND: dict[str, dict[str, Any]] = {
    "encoding_cpu.json": {
        "tower": "efficientnet-lite0", "images": 400, "generated": True, "image_size": [1024, 768], "device": "cpu",
        "batch_size": 32, "workers": 4, "index_images_per_second": 30.123, "bare_tower_images_per_second": 40.0,
        "share_of_bare_tower": 0.7531, "run": "quintet-small", "mean_file_megabytes": 2.25, "wanted_share": 0.6,
        "rounds": [{}, {}, {}],
    },
    "weak_line.json": {
        "run": "quintet-small", "corpus": "flickr8k", "absent": 20,
        "sizes": [
            {
                "images": 1000, "right_above": 0.887, "above": 67.0, "absent_above": 0.0, "absent_mean": 10.2,
                "absent_none": 0.65,
            },
        ],
    },
    "search.json": {
        "dim": 512, "k": 20, "queries": 500, "targets": {"ratio_p50": 1.2, "peak_gib": 3.0},
        "sizes": [
            {
                "vectors": 1_000_000, "kind": "ivf", "ratio_p50": 1.111, "ratio_p99": 1.222, "recall": 0.987654,
                "peak_gib": 2.5, "index": times(2.0, 3.0), "bare_faiss": times(1.8, 2.7),
                "end_to_end": times(9.0, 12.0), "encode_and_faiss": times(8.0, 11.0),
                "end_to_end_ratio_p50": 1.12, "end_to_end_ratio_p99": 1.09,
            },
        ],
    },
    "serve.json": {
        "index": "2000 scenes",
        "rows": [
            {
                "clients": 200, "texts": "new", "seconds": 60.2, "requests": 12345, "requests_per_s": 205.0,
                "errors": 0, "search": times(800.0, 1500.0), "thumbnail": times(3.0, 9.0),
                "server_cpu_ms_per_request": 1.23, "client_cpu_ms_per_request": 0.1,
            },
        ],
    },
    "rerank_latency.json": {
        "sizes": {"items": 2000, "regions": 36, "dim": 1024, "words": 14, "precision": "bfloat16"},
        "limit_ms_of_100": 150.0,
        "matchers": [{"matcher": "scan", "depths": [{"candidates": 100, **times(17.04, 21.0)}]}],
    },
    "rerank_quality.json": {
        "corpus": "flickr8k", "split": "test",
        "index": {"matcher": "vse++", "rerank": ["scan"], "counts": {"image": 1000, "text": 0}},
        "depths": [
            {"candidates": depth, "queries": 5000, "r1": 20.04, "r5": 50.0, "r10": 60.0, **times(8.0, 9.0)}
            for depth in (None, 1000)
        ],
    },
}  # fmt: skip
SHOWN = {
    "encoding_cpu.json": ["| 400 JPEGs of 1024x768, 2.2 MB each | 30.1 | 40.0 | 75 % |", "60 %", "3 rounds"],
    "weak_line.json": ["| 1,000 | 89 % | 67 | 0 (mean 10) | 65 % |", "20 texts"],
    "search.json": [
        "| 1,000,000 | ivf | 1.8 / 2.7 | 2 / 3 | 1.11 / 1.22 | 9 / 12 | 8 / 11 | 1.12 / 1.09 | 0.988 | 2.50 |",
        "3 GiB",
    ],
    "serve.json": ["| 200 | new | 60 | 12,345 | 0 | 205 | 800 / 1,500 | 3 / 9 | 1.23 / 0.1 |", "2000 scenes"],
    "rerank_latency.json": ["| scan | 100 | 17 / 21 |", "150 ms"],
    "rerank_quality.json": [
        "| first stage alone | 20.0 | 50.0 | 60.0 | 8 / 9 |",
        "| 1000 | 20.0 | 50.0 | 60.0 | 8 / 9 |",
        "images/rerank.svg",
        "5,000 queries",
    ],
}


@pytest.fixture
def page(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes the page from these files and reads it."""
    tables = script("benchmarks_page")
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    monkeypatch.setattr(tables, "PAGE", tmp_path / "benchmarks.md")

    def write(*names: str) -> str:
        for name in names:
            (tmp_path / name).write_text(json.dumps(FOUND[name] | MACHINE))
        tables.main()
        return (tmp_path / "benchmarks.md").read_text()

    return write


def test_epoch_times_become_a_table(page: Any, tmp_path: Path) -> None:
    row = {"recipe": "aoq-scan-flickr8k", "batch": 128, "steps": 235, "ms_a_step": 8.68, "peak_bytes": 2**31}
    rows = [row | {"graphs": True, "seconds": 2.04}, row | {"graphs": False, "seconds": 4.0, "peak_bytes": None}]
    (tmp_path / "epoch_times_h200.json").write_text(json.dumps({"device": "NVIDIA H200", "rows": rows}))
    text = page()
    assert "| aoq-scan-flickr8k | 128 | 235 | recorded | 2.0 | 8.7 | 2.0 |" in text
    assert "| aoq-scan-flickr8k | 128 | 235 | one by one | 4.0 | 8.7 |  |" in text


def test_gradient_caching_becomes_a_table(page: Any, tmp_path: Path) -> None:
    plain = {"seconds": 9.0, "cpu_seconds": 8.0, "peak_bytes": 3 * 2**30}
    chunks = {"seconds": 12.0, "cpu_seconds": 10.0, "peak_bytes": 2**29}
    row = {"size": 512, "plain": plain, "chunks": chunks, "times_slower": 1.25, "times_less_memory": 6.0}
    settings = {"chunk": 32, "rounds": 3, "threads": 2, "precision": "float32"}
    found = {"device": "CPU", "settings": settings, "parameters": 11_000_000, "rows": [row]}
    (tmp_path / "gradient_caching_cpu.json").write_text(json.dumps(found))
    assert "| 512 | 8.00 | 10.00 | 1.25 | 3.00 | 0.50 | 6.0 |" in page()


def test_mining_becomes_a_table(page: Any, tmp_path: Path) -> None:
    side = {"not_among_the_best": 1}
    check = {"scored_again": {"images": 3, "texts": 4}, "texts": side, "images": side}
    top = {"way": "top-k", "seconds": [9.0, 8.04], "times_plain": 1.0, "times_plain_processor": 1.0}
    ours = {"way": "mine", "seconds": [9.5], "times_plain": 1.125, "times_plain_processor": 1.204, "check": check}
    sizes = {"images": 10_000, "texts": 50_000, "dim": 512, "top_texts": 300, "top_images": 60, "threads": 2}
    (tmp_path / "mining_cpu.json").write_text(json.dumps(sizes | {"device": "CPU", "rows": [top, ours]}))
    text = page()
    assert "| top-k | 8.0 | 1.00 | 1.00 |  |  |" in text
    assert "| mine | 9.5 | 1.12 | 1.20 | 3 + 4 | 2 |" in text
    assert "10,000 images x 50,000 texts" in text
    assert "2 threads" in text


@pytest.mark.parametrize("name", FOUND)
def test_a_result_of_searching_becomes_a_table(page: Any, name: str) -> None:
    assert all(line not in page() for line in SHOWN[name])
    text = page(name)
    for line in SHOWN[name]:
        assert line in text
    assert f"(`{name}`)" in text
    assert "2 cores" in text or name.startswith(("encoding", "weak_line"))


def test_the_page_in_docs_is_that_of_the_result_files(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = script("benchmarks_page")
    kept = tables.PAGE.read_text()
    monkeypatch.setattr(tables, "PAGE", tmp_path / "benchmarks.md")
    tables.main()
    assert tables.PAGE.read_text() == kept, "run python -m benchmarks.pages.benchmarks_page"
