from __future__ import annotations

from typing import Any

import pytest

from benchmarks.pages import scale_page

AT = {
    "photo": 2e6, "core": 10.0, "row": 3000.0, "cpu": 1e11, "gpu": 1e13,
    "peak": 1e15, "memory": 1e11, "disk": 5e9, "network": 2e9,
}  # fmt: skip


def test_the_page_is_what_the_script_writes() -> None:
    text = scale_page.PAGE.read_text(encoding="utf-8")
    assert scale_page.written(text) == text


def test_a_collection_costs_bytes_and_hours_in_proportion() -> None:
    one = scale_page.collection(36_000_000, AT)
    assert one["files"] == 72e12  # 36 million times 2 MB
    assert one["index"] == 108e9
    assert one["core"] == pytest.approx(1000)  # 3.6 million seconds of one core that makes 10 a second
    assert one["network"] == pytest.approx(10)  # 72 TB at 2 GB/s
    assert one["disk"] == pytest.approx(4)
    assert one["gpu"] == pytest.approx(36e6 * 8.8e9 / 1e15 / 3600)
    twice = scale_page.collection(72_000_000, AT)
    assert all(twice[name] == pytest.approx(2 * value) for name, value in one.items())


def test_cores_saturate_what_their_photos_are_read_from() -> None:
    limits = scale_page.saturates(AT)
    assert limits["network"] == pytest.approx(100)  # cores of 20 MB/s each
    assert limits["disk"] == pytest.approx(250)
    assert limits["vectors"] == pytest.approx(1e11 / 2048)


def test_mining_multiplies_every_image_with_every_text_and_sends_texts_for_every_block() -> None:
    one = scale_page.mining(1000, 5000, 8, AT)
    assert one["flop"] == sum(2 * 8 for _ in range(1000 * 5000))
    assert one["vectors"] == 6000 * 8 * 2
    assert one["lists"] == 8 * (1000 * 300 + 5000 * 60)
    assert one["gpu"] == pytest.approx(one["cpu"] / 100)
    small = AT | {"memory": 2 * 300 * 16.0}  # half of it holds 300 images of 16 bytes
    blocks = scale_page.mining(1000, 5000, 8, small)
    assert blocks["passes"] == 4
    assert blocks["sent"] == 16 * (1000 + 4 * 5000)


def test_the_rate_of_mining_is_that_of_whole_jobs() -> None:
    rows: list[dict[str, Any]] = [{"way": "mine, auto", "seconds": [4.0, 2.0]}, {"way": "product", "seconds": [1.0]}]
    assert scale_page.flop_per_second({"images": 10, "texts": 20, "dim": 4, "rows": rows}) == 2 * 10 * 20 * 4 / 2.0


def test_every_constant_names_a_result_file_or_a_datasheet() -> None:
    for constant in scale_page.constants().values():
        assert constant.value > 0
        named = constant.source.strip("`")
        assert (scale_page.RESULTS / named).is_file() or "datasheet" in constant.source or "IEEE" in constant.source


def test_workers_of_ray_are_shown_once_they_were_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    assert ("--ray" in scale_page.measured_part()) == (scale_page.RESULTS / "ray_workers.json").is_file()
    (tmp_path / "training_cpu.json").write_text('{"rows": []}')
    (tmp_path / "ray_workers.json").write_text(
        '{"photos_per_second": {"one_worker": 10.04, "two_workers": 18.0}, "two_workers_of_one": 1.793}'
    )
    monkeypatch.setattr(scale_page, "RESULTS", tmp_path)
    assert "| photos | 10.0 | 18.0 | 1.79 |" in scale_page.measured_part()
