"""Measure runs on a split: encode it once, score it block by block, count ranks. `evaluate` is the front door."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from rich.console import RenderableType
from rich.text import Text

from quintet.codes import Codes
from quintet.data.corpus import Corpus, Split, as_corpus, split_checksum
from quintet.errors import QuintetError
from quintet.evaluation.eccv import coco_relevance
from quintet.evaluation.human_agreement import (
    Agreement,
    human_agreement,
    judged_pairs,
    pair_scores,
    read_expert_annotations,
)
from quintet.evaluation.metrics import Metrics  # noqa: F401  # as Interval, in the annotations of the constructor
from quintet.evaluation.ranks import BLOCK, Ranks, count_ranks_and_more
from quintet.evaluation.relevance import FILE as RELEVANCE
from quintet.evaluation.relevance import Relevance, judged_result, read_relevance, require_one_fold
from quintet.evaluation.result import (
    Result,
    comparison_table,
    judged_tables,
    printed,
    provenance,
    results_table,
    special_samples_table,
)
from quintet.evaluation.scoring import Member, blocks_of, member_scores
from quintet.evaluation.significance import Difference, Interval, bootstrap_intervals, paired_test  # noqa: F401
from quintet.evaluation.special_samples import negative_means, special_samples
from quintet.evaluation.split_protocols import chance_of_parts, find_protocol, metrics_of_parts, rank_split
from quintet.files import json_text, output_text
from quintet.protocols import evaluation_mode
from quintet.runs.encoding import Progress, reported
from quintet.runs.run import Run, as_run
from quintet.runs.run_folder import default_corpus, default_split

PAIRED_RESAMPLES = 10_000
SEVERAL = "quintet-results"  # the format of several in one file


@dataclass(frozen=True)
class Evaluation(Result):
    """What `evaluate` found: the `Result` of the runs, with everything else that was asked for.

    `print(evaluation.table())` shows it all, `evaluation.save("result.json")` keeps it with its provenance.
    """

    results: dict[str, Result]  # every result by name: of the runs (or each of them), then of `compare`
    comparisons: dict[str, dict[str, Difference]]  # "first - second" -> metric -> how much they differ
    human_agreement: dict[str, Agreement]  # by the names of `results`; empty unless asked for
    hard_samples: dict[str, Any] | None  # {"chosen_by": name, "rows": [...]}
    facts: dict[str, Any]  # corpus, runs with the checksums of their weights, batch size
    title: str

    def to_json(self) -> dict[str, Any]:
        """One result as itself; several, or a comparison, under `results` and `comparisons`. With provenance."""
        made = {**provenance(), **self.facts}
        results = {name: result.to_json() for name, result in self.results.items()}
        if len(results) == 1:
            report = {**next(iter(results.values())), "provenance": made}
        else:
            comparisons = {
                label: {"resamples": PAIRED_RESAMPLES, **{name: value.to_json() for name, value in found.items()}}
                for label, found in self.comparisons.items()
            }
            report = {
                "format": SEVERAL,
                "version": 1,
                "results": results,
                "comparisons": comparisons,
                "provenance": made,
            }
        if self.human_agreement:
            report["human_agreement"] = {name: found.to_json() for name, found in self.human_agreement.items()}
        if self.hard_samples is not None:
            report["special_samples"] = self.hard_samples
        return report

    def save(self, path: Path | str) -> None:
        """One JSON file: `to_json`."""
        output_text(path, json_text(self.to_json()))

    def tables(self) -> list[RenderableType]:
        """Rich tables: the results, then each comparison, hard samples and agreement with people."""
        tables: list[RenderableType] = [results_table(self.results, self.title), *judged_tables(self.results)]
        tables += [comparison_table(label, found) for label, found in self.comparisons.items()]
        if self.hard_samples is not None:
            tables.append(special_samples_table(self.hard_samples))
        notes = dict.fromkeys(f"{run['name']}: {note}" for run in self.facts["runs"] for note in run.get("notes", ()))
        return [*tables, *(Text(found.line(name)) for name, found in self.human_agreement.items()), *map(Text, notes)]

    def table(self, width: int = 100) -> str:
        """The tables as text."""
        return printed(self.tables(), width)


def evaluate(
    runs: Run | Path | str | Sequence[Run | Path | str],
    corpus: Corpus | Path | str | None = None,
    *,
    split: str | Split | None = None,
    protocol: str = "full",
    ensemble: bool = True,
    compare: Run | Path | str | Sequence[Run | Path | str] | None = None,
    hard_samples: bool = False,
    eccv: bool = False,
    cxc: bool = False,
    eccv_data: Path | str | None = None,
    relevance: Path | str | None = None,
    expert_annotations: Path | str | None = None,
    bootstrap: int = 1_000,
    seed: int = 0,
    batch_size: int = 128,
    block: int | tuple[int, int] = BLOCK,
    device: torch.device | str | None = None,
    progress: bool | Progress = False,
) -> Evaluation:
    """Measure a run, or several as an ensemble (the mean of their scores), on a split of a corpus.

    >>> import quintet, tempfile
    >>> corpus = quintet.import_corpus("scenes", "-", tempfile.mkdtemp(), train=1, dev=1, test=6)  # generated images
    >>> _ = quintet.extract_features(corpus, "efficientnet-lite2+efficientnet-lite0", grid=1, device="cpu")
    >>> result = evaluate("quintet-small", corpus, bootstrap=100, device="cpu")
    >>> result.counts["texts"], 0 < result.rsum < 600
    (30, True)

    - `runs`: what `quintet.load` gives, or what it takes. `ensemble=False` measures each alone: see `results`.
    - `corpus`: a corpus or its folder; by default the one the runs were trained on.
    - `split`: by default the one that the runs' recipes test on (`data.test`), and "test" for runs without a recipe.
    - `protocol`: "full", "5fold" (COCO 1K), "5k" (COCO 5K) or "identity" (CUHK-PEDES). Those of COCO refuse a split
      of any other size than 5,000 images.
    - `compare`: another run, or several as an ensemble. The paired test of both is in `comparisons`.
    - `hard_samples`: also R@1 on hard and on infrequent queries, chosen by the last run, which is that of `compare`.
    - `eccv`, `cxc`: also mAP@R, R-Precision and R@1 of ECCV Caption, and the recalls of CxC, on COCO's test split.
      Their files come with the package eccv_caption, or are in the folder `eccv_data`. See `judged`.
    - `relevance`: a JSONL file of relevant pairs, or qrels, with nDCG and mAP@R; by default `relevance.jsonl` of the
      corpus, where there is one.
    - `expert_annotations`: Flickr8k's ExpertAnnotations.txt; also measures the agreement with people.
    - `bootstrap`: resamples behind the 95 % intervals (0: none), drawn with `seed`.
    - `batch_size` (images or texts encoded at once) and `block` (scored at once) bound the memory.
    - `device`: by default where the first run is; runs given by name go to a GPU where there is one.
    - `progress`: as for `Run.encode_images`, over the images and texts of all runs.
    """
    chosen_protocol = find_protocol(protocol)
    given = [runs] if isinstance(runs, Run | str | Path) else list(runs)
    others = [] if compare is None else [compare] if isinstance(compare, Run | str | Path) else list(compare)
    if not given:
        raise QuintetError("there is no run to evaluate")
    opened = [as_run(run, device=device) for run in [*given, *others]]
    target = opened[0].device
    for run in opened:
        run.to(target)
    folders = [run.folder for run in opened]
    whole = as_corpus(corpus if corpus is not None else default_corpus(folders))
    name = default_split(folders, whole.splits) if split is None else split
    chosen = whole.split(name) if isinstance(name, str) else name
    chosen_protocol.check(chosen, whole)  # before anything is encoded
    kinds = [name for name, wanted in (("eccv", eccv), ("cxc", cxc)) if wanted]
    if eccv_data is not None and not kinds:
        raise QuintetError("a folder of ECCV Caption has no effect without `eccv` or `cxc`")
    sets = [coco_relevance(kind, chosen, eccv_data) for kind in kinds]
    if relevance is not None:
        sets.append(read_relevance(relevance, whole, chosen))
    require_one_fold(sets, chosen_protocol.folds)
    if relevance is None and chosen_protocol.folds == 1 and (whole.root / RELEVANCE).is_file():
        sets.append(read_relevance(whole.root / RELEVANCE, whole, chosen))
    size = len(chosen.images) + len(chosen.texts)
    members: list[Member] = []
    with reported(progress, f"encoding {chosen.name}", size * len(opened)) as report:
        for number, run in enumerate(opened):

            def tell(done: int, _: int | None, before: int = size * number) -> None:
                report(before + done, size * len(opened))

            members.append(Member.encode(run, whole, chosen, batch_size=batch_size, progress=tell))
    mine = members[: len(given)]
    teams = [mine] if ensemble else [[member] for member in mine]
    teams += [members[len(given) :]] if others else []
    measured = [
        evaluate_members(team, chosen, chosen_protocol.name, block, bootstrap, seed, target, sets) for team in teams
    ]
    results = named_results(measured)
    named = dict(zip(results, teams, strict=True))
    first, *_ = results.values()
    found_people = {}
    if expert_annotations is not None:
        pairs = judged_pairs(read_expert_annotations(expert_annotations), chosen)
        found_people = {
            name: human_agreement(pair_scores(team, pairs, target), pairs, bootstrap, seed)
            for name, team in named.items()
        }
    return Evaluation(
        **{field.name: getattr(first, field.name) for field in fields(Result)},
        results=results,
        comparisons=_comparisons(results, seed) if others else {},
        human_agreement=found_people,
        hard_samples=_hard_samples(results, named, chosen, target) if hard_samples else None,
        facts={
            "corpus": {"name": whole.name, "folder": str(whole.root)},
            "runs": [
                {"name": run.name, "weights_sha256": run.weights_checksum} | ({"notes": run.notes} if run.notes else {})
                for run in opened
            ],
            "batch_size": batch_size,
        },
        title=_title(whole, chosen, results),
    )


def named_results(results: Sequence[Result]) -> dict[str, Result]:
    """Results under the names of their runs; runs of one name are numbered."""
    named: dict[str, Result] = {}
    for result in results:
        name = " + ".join(result.members)
        number = 1 + sum(known == name or known.startswith(f"{name} (") for known in named)
        named[name if number == 1 else f"{name} ({number})"] = result
    return named


def _comparisons(results: Mapping[str, Result], seed: int) -> dict[str, dict[str, Difference]]:
    """Every result against the last one."""
    *others, last = results
    name = " + ".join(results[last].members)
    return {
        f"{label} - {name}": paired_test(results[label].ranks, results[last].ranks, PAIRED_RESAMPLES, seed)
        for label in others
    }


def _hard_samples(
    results: Mapping[str, Result], teams: Mapping[str, Sequence[Member]], split: Split, device: torch.device
) -> dict[str, Any]:
    """R@1 of all results on hard and infrequent queries, which the last result's scores choose."""
    *_, last = results
    if len(results[last].ranks) > 1:
        raise QuintetError("hard samples need a protocol without folds: use the protocol full")
    scores = member_scores(teams[last], device)
    means = negative_means(scores, split.image_groups, split.text_groups, tuple(results[last].settings["block"]))
    ranks = {name: result.ranks[0] for name, result in results.items()}
    return {"chosen_by": last, "rows": special_samples(ranks, *means)}


def _title(corpus: Corpus, split: Split, results: Mapping[str, Result]) -> str:
    kinds = dict.fromkeys(result.kind for result in results.values())
    return (
        f"{corpus.name}, split {split.name}: {len(split.images):,} images, {len(split.texts):,} texts\n"
        f"protocol {next(iter(results.values())).protocol}, {' and '.join(kinds)}"
    )


def evaluate_members(
    members: Sequence[Member],
    split: Split,
    protocol: str = "full",
    block: int | tuple[int, int] = BLOCK,
    bootstrap: int = 1_000,
    seed: int = 0,
    device: torch.device | str | None = None,
    relevance: Sequence[Relevance] = (),
) -> Result:
    """Measure one matcher, or several as an ensemble (the mean of their scores), on a split.

    `block` bounds the memory (images and texts a block, rounded up to whole tiles) and changes nothing else.
    `bootstrap` is the number of resamples behind the 95 % intervals; 0 leaves them out. `relevance` has further sets
    of relevant pairs, which are measured in the same pass.
    """
    chosen = find_protocol(protocol)
    for member in members:
        _check_size(member.image_codes, member.text_codes, split)
    score_block = member_scores(members, device)
    with ExitStack() as modes:
        for member in members:
            modes.enter_context(evaluation_mode(member.matcher))
        sizes = blocks_of(members, block, device)
        if relevance:
            require_one_fold(relevance, chosen.folds)
            sides = [side for each in relevance for side in each.sides]
            groups = split.image_groups, split.text_groups
            whole, counted = count_ranks_and_more(score_block, *groups, sides, sizes)
            ranks = [whole]
        else:
            ranks, counted = rank_split(chosen, split, score_block, sizes), []
    judged = {
        each.name: judged_result(each, counted[2 * number : 2 * number + 2], bootstrap, seed)
        for number, each in enumerate(relevance)
    }
    used = device if device is not None else members[0].image_codes.device
    return Result(
        protocol=chosen.name,
        split=split.name,
        split_checksum=split_checksum(split),
        members=tuple(member.name or type(member.matcher).__name__ for member in members),
        metrics=metrics_of_parts(ranks),
        intervals=bootstrap_intervals(ranks, bootstrap, seed) if bootstrap else {},
        chance=chance_of_parts(ranks),
        counts=_counts(split, ranks),
        settings={"block": list(sizes), "bootstrap": bootstrap, "seed": seed, "device": str(used)},
        ranks=tuple(ranks),
        judged=judged,
    )


def _counts(split: Split, parts: Sequence[Ranks]) -> dict[str, Any]:
    return {
        "images": len(split.images),
        "texts": len(split.texts),
        "groups": len(split.groups),
        "folds": len(parts),
        "images_a_fold": [len(ranks.image_groups) for ranks in parts],
        "texts_a_fold": [len(ranks.text_groups) for ranks in parts],
        "i2t_queries": sum(len(ranks.i2t) for ranks in parts),
        "t2i_queries": sum(len(ranks.t2i) for ranks in parts),
        "i2t_excluded": sum(ranks.i2t.excluded for ranks in parts),
        "t2i_excluded": sum(ranks.t2i.excluded for ranks in parts),
    }


def _check_size(images: Codes, texts: Codes, split: Split) -> None:
    if (len(images), len(texts)) != (len(split.images), len(split.texts)):
        raise QuintetError(
            f"split {split.name!r} has {len(split.images)} images and {len(split.texts)} texts, but "
            f"{len(images)} and {len(texts)} were encoded; give the batches of the whole split, in its order"
        )
