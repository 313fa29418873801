from __future__ import annotations

import re

from quintet.serve.prometheus import BOUNDS_S, Metrics


def samples(text: str) -> dict[str, float]:
    """A strict reading of the text form: every line is a comment or a sample."""
    found = {}
    for line in text.splitlines():
        if not line.startswith(("# HELP ", "# TYPE ")):
            match = re.fullmatch(r'([a-z_]+(?:\{(?:[a-z]+="(?:[^"\\\n]|\\.)*",?)*\})?) (\S+)', line)
            assert match, line
            found[match[1]] = float(match[2])
    return found


def test_the_histogram_is_cumulative_and_ends_with_all() -> None:
    metrics = Metrics()
    for seconds in (0.001, 0.005, 0.02, 100.0):
        metrics.request("GET", "/x", 200, seconds)
    found = samples(metrics.text())
    counts = [found[f'quintet_request_seconds_bucket{{route="/x",le="{bound}"}}'] for bound in (*BOUNDS_S, "+Inf")]
    assert counts[0] == 2  # a bound belongs to its bucket
    assert counts[-1] == found['quintet_request_seconds_count{route="/x"}'] == 4
    assert counts == sorted(counts)
    assert found['quintet_request_seconds_sum{route="/x"}'] == 100.026


def test_labels_are_escaped_and_invented_methods_are_one() -> None:
    metrics = Metrics()
    metrics.request('G"\n\\', 'a"b\n\\', 200, 0)
    metrics.request("BREW", 'a"b\n\\', 200, 0)
    found = samples(metrics.text())
    assert found[r'quintet_requests_total{method="other",route="a\"b\n\\",status="200"}'] == 2


def test_values_are_read_when_asked_for() -> None:
    metrics, number = Metrics(), [1.0]
    metrics.value("quintet_some", "gauge", "Some.", lambda: number[0])
    number[0] = 2.5
    text = metrics.text()
    assert "# HELP quintet_some Some.\n# TYPE quintet_some gauge\nquintet_some 2.5\n" in text
    metrics.began()
    assert samples(metrics.text())["quintet_requests_in_flight"] == 1
    metrics.ended()
    assert samples(metrics.text())["quintet_requests_in_flight"] == 0
