"""The parts of docs/benchmarks.md about searching, each from the content of one file under benchmarks/results."""

from __future__ import annotations

from typing import Any

from benchmarks.pages.plain_table import table


def encoding(name: str, found: dict[str, Any]) -> str:
    of = f"JPEGs of {'x'.join(map(str, found['image_size']))}, {found['mean_file_megabytes']:.1f} MB each"
    of = of if found["generated"] else "photographs"
    row = (
        f"{found['images']:,} {of}",
        f"{found['index_images_per_second']:.1f}",
        f"{found['bare_tower_images_per_second']:.1f}",
        f"{100 * found['share_of_bare_tower']:.0f} %",
    )
    how = f"{found['run']} ({found['tower']}), batch {found['batch_size']}, {found['workers']} threads that read, "
    how += f"{found['device']}; medians of {len(found['rounds'])} rounds. The index decodes, hashes and reads EXIF "
    how += f"data, the bare tower has prepared tensors; {100 * found['wanted_share']:.0f} % of it is wanted"
    return f"{how} (`{name}`)\n\n" + table(("photos", "indexed a second", "bare tower", "share"), [row])


def ray_workers(name: str, found: dict[str, Any]) -> str:
    rates, wanted = found["photos_per_second"], found["wanted"]
    start = {kind: min(each[kind]["seconds_before_the_first_batch"] for each in found["rounds"]) for kind in rates}
    names = {"no_ray": "without Ray, on one core", "one_worker": "one Ray worker", "two_workers": "two Ray workers"}
    rows = [(names[kind], f"{rate:.1f}", f"{start[kind]:.0f}") for kind, rate in rates.items()]
    how = f"{found['images']:,} generated photos, {found['run']}, batch {found['batch_size']}, one thread a worker; "
    how += (
        f"medians of {len(found['rounds'])} rounds. One worker has {100 * found['one_worker_of_no_ray']:.0f} % of the "
    )
    how += f"rate without Ray ({100 * wanted['one_worker_of_no_ray']:.0f} % is wanted), two have "
    how += f"{found['two_workers_of_one']:.2f} times that of one ({wanted['two_workers_of_one']} is wanted)"
    return f"{how} (`{name}`)\n\n" + table(("", "photos a second", "s before the first batch"), rows)


def weak_line(name: str, found: dict[str, Any]) -> str:
    columns = ("images", "right photos above the line", "results above it", "of absent things", "nothing above it")
    rows = [
        (
            f"{row['images']:,}",
            f"{100 * row['right_above']:.0f} %",
            f"{row['above']:.0f}",
            f"{row['absent_above']:.0f} (mean {row['absent_mean']:.0f})",
            f"{100 * row['absent_none']:.0f} %",
        )
        for row in found["sizes"]
    ]
    text = f"{found['run']} on {found['corpus']}, test split: captions of photos in the index (medians), and "
    text += f"{found['absent']} texts"
    text += f" for things that no photo shows (`{name}`). The line was set with these captions and texts in view"
    return f"{text}: none were kept aside for it.\n\n" + table(columns, rows)


def latency(name: str, found: dict[str, Any]) -> str:
    columns = (
        "vectors",
        "index",
        "bare FAISS, ms",
        "vector to items, ms",
        "times FAISS",
        "text to items, ms",
        "encoding and bare FAISS, ms",
        "times that",
        "recall",
        "peak GiB",
    )
    rows = [
        (
            f"{row['vectors']:,}",
            row["kind"],
            *(_milliseconds(row[part]) for part in ("bare_faiss", "index")),
            f"{row['ratio_p50']:.2f} / {row['ratio_p99']:.2f}",
            *(_milliseconds(row[part]) for part in ("end_to_end", "encode_and_faiss")),
            f"{row['end_to_end_ratio_p50']:.2f} / {row['end_to_end_ratio_p99']:.2f}",
            f"{row['recall']:.3f}",
            f"{row['peak_gib']:.2f}",
        )
        for row in found["sizes"]
    ]
    wanted = f"asked for are {found['targets']['ratio_p50']} times FAISS end to end and, for a million, "
    wanted += f"{found['targets']['peak_gib']:g} GiB"
    head = f"Median / 99th percentile of {found['queries']} single queries, {found['dim']} numbers a vector, the best "
    return head + f"{found['k']}, {_cores(found)}; {wanted} (`{name}`)\n\n" + table(columns, rows)


def load(name: str, found: dict[str, Any]) -> str:
    rows = [
        (
            f"{row['clients']}{', the index exchanged meanwhile' if row.get('index_exchanged') else ''}",
            row.get("texts", "-"),
            f"{row['seconds']:.0f}",
            f"{row['requests']:,}",
            row["errors"],
            f"{row['requests_per_s']:,.0f}",
            _milliseconds(row["search"]),
            _milliseconds(row["thumbnail"]),
            " / ".join(
                f"{row[f'{side}_cpu_ms_per_request']:g}" if "texts" in row else "-" for side in ("server", "client")
            ),
        )
        for row in found["rows"]
    ]
    columns = ("clients", "texts", "s", "requests", "errors", "requests a second", "search, ms", "small copy, ms")
    where = (
        f"`quintet serve` over {found['index']}, clients and server on the same machine, {_cores(found)}; asked for "
    )
    where += (
        "are 600 requests a second of 200 clients and no error. Half of the requests are searches, the others small "
    )
    where += "copies. Texts that were *seen* have codes that are kept; *new* ones were never asked before. "
    where += f"Median / 99th percentile; processor time of the server and of the clients (`{name}`)\n\n"
    return where + table((*columns, "CPU ms a request"), rows)


def rerank_latency(name: str, found: dict[str, Any]) -> str:
    sizes = found["sizes"]
    rows = [
        (matcher["matcher"], row["candidates"], _milliseconds(row))
        for matcher in found["matchers"]
        for row in matcher["depths"]
    ]
    what = f"The second stage of one query: {sizes['regions']} regions in {sizes['precision']}, memory-mapped, "
    what += f"d = {sizes['dim']}, {sizes['words']} words, {_cores(found)}; asked for are "
    what += f"{found['limit_ms_of_100']:g} ms for 100 candidates with SCAN (`{name}`)\n\n"
    return what + table(("matcher", "candidates", "ms, median / 99th percentile"), rows)


def rerank_quality(name: str, found: dict[str, Any]) -> str:
    rows = [
        (
            "first stage alone" if row["candidates"] is None else row["candidates"],
            *(f"{row[recall]:.1f}" for recall in ("r1", "r5", "r10")),
            _milliseconds(row),
        )
        for row in found["depths"]
    ]
    index = found["index"]
    what = f"{index['matcher']} chooses, {' + '.join(index['rerank'])} puts K candidates in order: texts to the "
    what += f"{index['counts']['image']:,} images of {found['corpus']}, {found['split']}, "
    what += f"{found['depths'][0]['queries']:,} queries, {_cores(found)} (`{name}`)\n\n"
    columns = ("K", "R@1", "R@5", "R@10", "ms a query, median / 99th percentile")
    return what + table(columns, rows) + "\n\n![Recall and time against K](images/rerank.svg)"


def _milliseconds(times: dict[str, float]) -> str:
    return " / ".join(f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}" for ms in (times["p50_ms"], times["p99_ms"]))


def _cores(found: dict[str, Any]) -> str:
    threads = found["provenance"]["machine"]["threads"]
    return f"{threads} core" + "s" * (threads > 1)
