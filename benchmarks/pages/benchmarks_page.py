"""Write docs/benchmarks.md from the files under benchmarks/results. No number in it is typed by hand.

python -m benchmarks.pages.benchmarks_page
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks.pages import search_tables
from benchmarks.pages.plain_table import table
from quintet.files import read_json, write_text

RESULTS = Path(__file__).parents[1] / "results"
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
HEAD = """# Benchmarks

Written by `benchmarks/pages/benchmarks_page.py` from the files under `benchmarks/results/`, each with its command,
seed, device and versions. Everything that is compared was measured in one run.
"""


def cross_attention(name: str, found: dict[str, Any]) -> str:
    sizes = found["sizes"]
    rows = []
    for row in found["results"]:
        what = (
            "training step"
            if row["what"] == "training step"
            else "all pairs" + (", ragged" if row.get("ragged") else "")
        )
        for way, ours in row["ours"].items():
            less = ours.get("times_less_peak_bytes_above_start", ours.get("times_less_saved_bytes"))
            rows.append(
                (
                    what,
                    row["direction"],
                    way,
                    f"{row['loop']['seconds']:.4f}",
                    f"{ours['seconds']:.4f}",
                    f"{ours['times_faster']:.1f}",
                    f"{less:.1f}" if less is not None and row["what"] == "training step" else "",
                )
            )
    columns = ("what", "attention", "ours", "loop, s", "ours, s", "times faster", "times less memory")
    size = f"{sizes['images']} x {sizes['texts']} pairs, batch {sizes['batch']}, "
    size += f"{sizes['regions']} regions, {sizes['words']} words"
    return f"{found['device']}, {size}, d = {sizes['dim']} (`{name}`)\n\n" + table(columns, rows)


def mining(name: str, found: dict[str, Any]) -> str:
    rows = []
    for row in found["rows"]:
        sides = [row["check"][side] for side in ("texts", "images") if side in row.get("check", {})]
        wrong = sum(side["not_among_the_best"] for side in sides) if sides else ""
        again = "{images} + {texts}".format(**row["check"]["scored_again"]) if "check" in row else ""
        times = f"{row['times_plain']:.2f}", f"{row['times_plain_processor']:.2f}"
        rows.append((row["way"], f"{min(row['seconds']):.1f}", *times, again, wrong))
    columns = ("way", "s", "times top-k", "in processor time", "images + texts scored again", "wrong entries")
    size = f"{found['images']:,} images x {found['texts']:,} texts, d = {found['dim']}"
    lists = f"{found['top_texts']} texts and {found['top_images']} images a list"
    threads = f" with {found['threads']} threads" if found["device"] == "CPU" else ""
    return (
        f"{found['device']}{threads}, {size}, {lists}, the quickest of {len(found['rows'][0]['seconds'])} turns "
        f"(`{name}`). `top-k` is torch.topk of every block in both directions; it excludes nothing.\n\n"
        + table(columns, rows)
    )


def mmca(name: str, found: dict[str, Any]) -> str:
    sizes, rows = found["settings"], []
    for row in found["rows"]:
        if row["what"] == "tuning" or "skipped" in row:
            continue
        how = " ".join(str(row[key]) for key in ("way", "blocks") if key in row)
        how += f", {row['mean_words']:.0f} words on average" if "mean_words" in row else ""
        peak = f"{row['peak_bytes'] / 2**30:.1f}" if "peak_bytes" in row else ""
        floor = f"{row['floor_seconds']:.2f}" if "floor_seconds" in row else ""
        whole = row.get("seconds_for_all", row["seconds"])
        sample = f", from {row['pairs']:,} pairs" if "pairs" in row else ""
        rows.append((row["what"] + sample, how, f"{whole:.3g}", floor, peak))
    device = found["provenance"]["machine"]["accelerator"] or "CPU"
    size = f"{sizes['images']:,} x {sizes['texts']:,} pairs, batch {sizes['batch']}, {sizes['regions']} regions, "
    size += f"at most {sizes['words']} words, d = {sizes['dim']}, {sizes['heads']} heads"
    columns = ("what", "how", "s", "floor, s", "peak GiB")
    return f"{device}, {size} (`{name}`)\n\n" + table(columns, rows)


def dual_path(name: str, found: dict[str, Any]) -> str:
    sizes, rows = found["settings"], []
    for row in found["rows"]:
        floor = f"{row['floor_ms']:.2f}" if row.get("floor_ms") else ""
        peak = f"{row['peak_gib']:.1f}" if row.get("peak_gib") else ""
        rate = f"{row['items_per_second']:,.0f}"
        what = {"image": "images", "text": "texts", "both": "pairs"}[row["part"]]
        rows.append((what, row["mode"], row["precision"], row["batch"], rate, f"{row['batch_ms']:.1f}", floor, peak))
    device = found["provenance"]["machine"]["accelerator"] or "CPU"
    size = (
        f"{sizes['tower']} on 224 x 224, text CNN in {sizes['text_layout']}'s arrangement on {sizes['length']} words, "
    )
    size += f"step with {sizes['classes']:,} classes; the floor is counted operations over the device's stated peak"
    columns = ("what", "how", "precision", "batch", "a second", "ms a batch", "floor, ms", "peak GiB")
    return f"{device}, {size} (`{name}`)\n\n" + table(columns, rows)


DRAWN = {  # result file -> its drawing by docs/make_drawings.py, and what it shows
    f"accuracy_speed_flickr8k_{machine}.json": (f"accuracy-speed-{machine}", f"rsum over pairs per second on {words}")
    for machine, words in (("h200", "one GPU"), ("cpu", "two processor cores"))
}


def accuracy_speed(name: str, found: dict[str, Any]) -> str:
    sizes, rows = found["settings"], []
    for row in found["rows"]:
        if "skipped" not in row:
            accuracy = row["accuracy"]
            parts = (f"{row[f'{part}_seconds']:.3f}" for part in ("encode_images", "encode_texts", "score"))
            rsum = "" if accuracy is None else f"{accuracy['rsum']:.1f} (mean of {len(accuracy['rsums'])})"
            rows.append((row["recipe"], *parts, f"{row['pairs_per_second']:,.0f}", rsum))
    device = found["provenance"]["machine"]["accelerator"] or "CPU"
    size = f"{sizes['images']:,} images of {sizes['regions']} regions, {sizes['texts']:,} texts"
    columns = ("recipe", "encode images, s", "encode texts, s", "score all, s", "pairs a second", "rsum")
    drawn = DRAWN.get(name)
    figure = "" if drawn is None else f"\n![{drawn[1]}](images/drawings/{drawn[0]}.svg)\n"
    return f"{device}, {size} (`{name}`)\n\n" + table(columns, rows) + figure


def hrem_speed(name: str, found: dict[str, Any]) -> str:
    """HREM against score-based matchers, and the paper's claim as a row with its verdict."""
    sizes, said = found["settings"], found["claim"]
    ours = found["rows"][0]
    rows = [
        (
            row["recipe"],
            f"{row['seconds']:.2f}",
            f"{row['score_seconds']:.4f}",
            f"{row['seconds'] / ours['seconds']:.1f}",
            f"{row['score_seconds'] / ours['score_seconds']:,.0f}",
        )
        for row in found["rows"]
    ]
    verdicts = ("holds" if said[f"{part}_holds"] else "does not hold here" for part in ("scoring", "whole"))
    claim = (
        "Claimed (HREM, section 4.3 and Figure 5): more than {claimed} times faster than score-based matchers. Against "
        "the fastest of them: scoring alone {scoring:,.0f} times, which {0}; with the encoding of both sides "
        "{whole:.1f} times, which {1}."
    ).format(*verdicts, **said)
    device = found["provenance"]["machine"]["accelerator"] or "CPU"
    size = f"{sizes['images']:,} images of {sizes['regions']} regions, {sizes['texts']:,} texts"
    columns = ("recipe", "all, s", "scoring, s", "times HREM, all", "times HREM, scoring")
    return f"{device}, {size} (`{name}`). {claim}\n\n" + table(columns, rows)


def importing(name: str, found: dict[str, Any]) -> str:
    rows = [
        (
            row["source"],
            f"{row['megabytes']:,.0f}",
            f"{row['import_seconds']:.1f}",
            f"{row['copy_seconds']:.1f} ({100 * row['share_of_copy']:.0f} %)",
            f"{row['copy_of_shards_seconds']:.1f} ({100 * row['share_of_copy_of_shards']:.0f} %)",
        )
        for row in found["speed"]
    ]
    heads = ("source", "MB", "import, s", "copy of the images as files, s", "copy of the source's own files, s")
    memory = "; ".join(
        f"{row['rows']:,} rows of {row['source']}: {row['mebibytes']:,.0f} MiB" for row in found["memory"]
    )
    text = f"{found['images']:,} images; all end with a sync of the disk; medians. In brackets the speed of the import "
    text += f"as a share of the copy's; {100 * found['wanted_share']:.0f} % of the copy as files, which writes what an "
    text += f"import writes, is wanted (`{name}`)\n\n"
    wanted = f"Peak memory of an import, of which {found['wanted_mebibytes']:,} MiB are allowed. {memory}."
    return text + table(heads, rows) + f"\n\n{wanted}"


def rounds(found: dict[str, Any]) -> list[tuple[object, ...]]:
    first = next(iter(found["seeds"].values()))
    rows: list[tuple[object, ...]] = []
    for stage in first:
        values = [seed[stage]["metrics"] for seed in found["seeds"].values()]
        mean = {key: statistics.mean(value[key] for value in values) for key in values[0]}
        sums = [value["rsum"] for value in values]
        cells = [f"{mean[f'{way}_r{k}']:.1f}" for way in ("i2t", "t2i") for k in (1, 5, 10)]
        epochs = ", ".join(str(seed[stage]["selected_epoch"]) for seed in found["seeds"].values())
        epochs += f" (warm-up {found['warmup_epochs'][stage]:.0f})"
        rows.append((found["recipe"], stage, epochs, *cells, f"{mean['rsum']:.1f} ± {statistics.stdev(sums):.1f}", ""))
    gain = found["gain_rsum"]
    rows[-1] = (*rows[-1][:-1], f"{gain['mean']:+.1f} ± {gain['spread']:.1f}")
    return rows


def read(name: str) -> dict[str, Any] | None:
    path = RESULTS / name
    return read_json(path) if path.is_file() else None


def epoch_times(name: str, found: dict[str, Any]) -> str:
    rows = [
        (
            row["recipe"],
            row["batch"],
            row["steps"],
            "recorded" if row["graphs"] else "one by one",
            f"{row['seconds']:.1f}",
            f"{row['ms_a_step']:.1f}",
            f"{row['peak_bytes'] / 2**30:.1f}" if row["peak_bytes"] else "",
        )
        for row in found["rows"]
    ]
    columns = ("recipe", "batch", "steps", "how", "s an epoch", "ms a step", "peak GiB")
    return f"{found['device']}, alone, the first stage after its warm-up (`{name}`)\n\n" + table(columns, rows)


def gradient_caching(name: str, found: dict[str, Any]) -> str:
    settings, on_gpu = found["settings"], found["device"] != "CPU"
    key, what = ("seconds", "s") if on_gpu else ("cpu_seconds", "processor s")
    rows = [
        (
            row["size"],
            *(f"{row[way][key]:.2f}" for way in ("plain", "chunks")),
            f"{row['times_slower']:.2f}",
            *(f"{row[way]['peak_bytes'] / 2**30:.2f}" for way in ("plain", "chunks")),
            f"{row['times_less_memory']:.1f}",
        )
        for row in found["rows"]
    ]
    columns = ("batch", f"plain, {what}", f"chunks, {what}", "times longer", "plain, GiB", "chunks, GiB", "times less")
    threads = "" if on_gpu else f" with {settings['threads']} threads"
    about = (
        f"{found['device']}{threads}, a CLIP with {found['parameters'] / 1e6:.0f} million parameters in "
        f"{settings['precision']}, chunks of {settings['chunk']} pairs. The peak is that of a step, above weights and "
        f"gradients; ratios are medians of {settings['rounds']} rounds (`{name}`)."
    )
    return f"{about}\n\n{table(columns, rows)}"


def clip_encoding(name: str, found: dict[str, Any]) -> str:
    rows = [
        (
            what.replace("_", " "),
            *(f"{row['seconds'][way]:.3f}" for way in ("ours", "bare")),
            *(f"{100 * row[share]:.0f} %" for share in ("share_of_bare", "share_of_bare_by_cpu_time")),
        )
        for what, row in found["results"].items()
    ]
    columns = ("what", "ours, s", "transformers, s", "of its speed", "by processor time")
    threads = "" if found["device"] != "cpu" else f" with {found['threads']} threads"
    about = (
        f"{found['model']}, {found['device'].upper()}{threads}, batches of {found['batch_size']}, in turn (`{name}`)."
    )
    return f"{about}\n\n{table(columns, rows)}"


def main() -> None:
    parts = [HEAD]
    attention = [(name, read(name)) for name in ("cross_attention_h200.json", "cross_attention_cpu.json")]
    parts.append("## SCAN's scores against the loop over captions\n")
    parts += [cross_attention(name, found) + "\n" for name, found in attention if found]
    if found := read("mining_cpu.json"):
        parts.append("## Mining hard negatives\n\n" + mining("mining_cpu.json", found) + "\n")
    studies = [found for path in sorted(RESULTS.glob("aoq_*.json")) if (found := read(path.name))]
    if studies:
        columns = (
            "recipe",
            "round",
            "epochs selected",
            *(f"{way} R@{k}" for way in ("i2t", "t2i") for k in (1, 5, 10)),
            "rsum",
            "gain",
        )
        seeds = ", ".join(sorted({str(len(found["seeds"])) for found in studies}))
        parts.append(
            f"## AOQ: the second round against the first\n\nSingle models on the test split, mean of {seeds} seeds; "
            "± is the sample standard deviation, the gain is taken seed by seed. A round whose selected epoch is in "
            "its warm-up has not used offline negatives yet: its difference to the first round is chance.\n\n"
            + table(columns, (row for found in studies for row in rounds(found)))
            + "\n"
        )
    if found := read("training_cpu.json"):
        rows = [
            (row["matcher"], *row["pairs_per_second"].values(), *row.get("speedup", {}).values())
            for row in found["rows"]
        ]
        settings = found["settings"]
        parts.append(
            f"## Training throughput\n\nPairs a second, {settings['fragments']} fragments of {settings['dim']}, "
            f"d = {settings['embed_dim']}, batch {settings['batch']}, CPU, {settings['threads']} thread a process.\n\n"
            + table(("matcher", "1 process", "2 processes", "speed-up"), rows)
            + "\n"
        )
    if found := read("hrem_h200.json"):
        rows = [(row["mechanism"], row["precision"], row["step_ms"], row["peak_gib"]) for row in found["rows"]]
        device = found["provenance"]["machine"]["accelerator"]
        settings = found["settings"]
        text = f"## HREM's training step\n\n{device}, batch {settings['batch']}, "
        text += f"{settings['layers']}-layer text encoder.\n\n"
        parts.append(text + table(("mechanism", "precision", "ms", "peak GiB"), rows) + "\n")
    for title, part, names in (
        ("An epoch of each Flickr8k recipe", epoch_times, ("epoch_times_h200.json",)),
        ("Dual-Path's two CNNs", dual_path, ("dual_path.json",)),
        ("MMCA's joint scores", mmca, ("mmca_h200.json", "mmca_cpu.json")),
        (
            "Inference of every matcher",
            accuracy_speed,
            ("accuracy_speed_h200.json", "accuracy_speed_flickr8k_h200.json", "accuracy_speed_flickr8k_cpu.json"),
        ),
        ("Gradient caching", gradient_caching, ("gradient_caching_cpu.json", "gradient_caching_cuda.json")),
        ("CLIP against bare transformers", clip_encoding, ("clip_encoding_cpu.json", "clip_encoding_cuda.json")),
        ("HREM against score-based matchers", hrem_speed, ("hrem_speed_h200.json", "hrem_speed_cpu.json")),
        ("Importing Parquet files and tar shards", importing, ("importing.json",)),
        ("Indexing images", search_tables.encoding, ("encoding_cuda.json", "encoding_cpu.json")),
        ("Indexing on Ray", search_tables.ray_workers, ("ray_workers.json",)),
        ("The line before weak results", search_tables.weak_line, ("weak_line.json",)),
        ("Searching", search_tables.latency, ("search.json",)),
        ("Many clients at once", search_tables.load, ("serve.json",)),
        ("Re-ranking: what it costs", search_tables.rerank_latency, ("rerank_latency.json",)),
        ("Re-ranking: what it gains", search_tables.rerank_quality, ("rerank_quality.json",)),
    ):
        pages = [part(name, found) + "\n" for name in names if (found := read(name))]
        parts += [f"## {title}\n", *pages] if pages else []
    if found := read("evaluation.json"):
        rows = [
            (
                f"{row['images']:,} x {row['texts']:,}",
                row["device"],
                f"{row['rank_seconds_median']:.3f}",
                f"{row['rank_seconds_median'] / row['product_seconds_median']:.2f}" if "eccv_seconds" in row else "-",
                f"{row['eccv_seconds_median'] / row['rank_seconds_median'] - 1:+.1%}" if "eccv_seconds" in row else "-",
            )
            for row in found["measurements"]
        ]
        heads = ("images x texts", "device", "s", "of the product and one comparison", "with ECCV Caption")
        parts.append("## Exact ranks, both directions\n\n" + table(heads, rows) + "\n")
    if found := read("feature_loading.json"):
        parts.append(
            f"## Features larger than memory\n\n"
            f"{found['rows_read']:,} random rows of a {found['file_gigabytes']:.0f} GB file: "
            f"{found['rows_per_second']:,.0f} rows a second; at most {found['resident_peak_mb']:.0f} MB resident "
            f"({found['resident_before_mb']:.0f} MB of it before reading).\n"
        )
    write_text(PAGE, "\n".join(parts))


if __name__ == "__main__":
    main()
