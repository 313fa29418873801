"""Measure runs on a split: encode it once, score it block by block, count ranks. `evaluate` is the front door."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import torch
from rich.console import RenderableType
from rich.text import Text

from quintet.codes import Codes
from quintet.data.corpus import Corpus, Split, as_corpus, split_checksum
from quintet.errors import QuintetError
from quintet.evaluation.eccv import coco_relevance
from quintet.evaluation.human_agreement import (
    Agreement,
    CrowdAgreement,
    crowd_agreement,
    crowd_pairs,
    human_agreement,
    judged_pairs,
    pair_scores,
    read_crowd_annotations,
    read_expert_annotations,
)
from quintet.evaluation.metrics import Metrics  # noqa: F401  # as Interval, in the annotations of the constructor
from quintet.evaluation.rankings import (
    EMBEDDINGS,
    RunFile,
    given_results,
    read_embeddings,
    read_run_file,
    write_run_file,
)
from quintet.evaluation.ranks import BLOCK, JudgedRanks, Ranks, count_ranks_and_more
from quintet.evaluation.relevance import FILE as RELEVANCE
from quintet.evaluation.relevance import (
    JudgedResult,  # noqa: F401  # in the annotations of the constructor
    Relevance,
    judged_result,
    read_relevance,
    require_one_fold,
)
from quintet.evaluation.result import (
    Result,
    comparison_table,
    judged_tables,
    printed,
    provenance,
    results_table,
    slice_tables,
    special_samples_table,
)
from quintet.evaluation.scoring import Member, blocks_of, member_scores, whole_tiles
from quintet.evaluation.significance import Difference, Interval, bootstrap_intervals, paired_test, paired_values  # noqa: F401
from quintet.evaluation.slices import SliceResult, slice_results, slicings  # noqa: F401
from quintet.evaluation.special_samples import negative_means, special_samples
from quintet.evaluation.split_protocols import Protocol, chance_of_parts, find_protocol, metrics_of_parts, rank_split
from quintet.files import json_text, output_text
from quintet.protocols import evaluation_mode
from quintet.runs.encoding import Progress, reported
from quintet.runs.run import Run, as_run
from quintet.runs.run_folder import default_corpus, default_split, training_seed

PAIRED_RESAMPLES = 10_000
SEVERAL = "quintet-results"  # the format of several in one file


@dataclass(frozen=True)
class Evaluation(Result):
    """What `evaluate` found: the `Result` of the runs, with everything else that was asked for.

    `print(evaluation.table())` shows it all, `evaluation.save("result.json")` keeps it with its provenance.
    """

    results: dict[str, Result]  # every result by name: of the runs (or each of them), then of `compare`
    # "first - second" -> metric -> how much they differ; also "eccv: i2t_map_at_r", "NAME OF A SLICE: t2i_r1"
    comparisons: dict[str, dict[str, Difference]]
    human_agreement: dict[str, Agreement]  # by the names of `results`; empty unless asked for
    crowd_agreement: dict[str, CrowdAgreement]  # likewise
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
        if self.crowd_agreement:
            report["crowd_agreement"] = {name: found.to_json() for name, found in self.crowd_agreement.items()}
        if self.hard_samples is not None:
            report["special_samples"] = self.hard_samples
        return report

    def save(self, path: Path | str) -> None:
        """One JSON file: `to_json`."""
        output_text(path, json_text(self.to_json()))

    def tables(self) -> list[RenderableType]:
        """Rich tables: the results, then each comparison, hard samples and agreement with people."""
        tables: list[RenderableType] = [results_table(self.results, self.title), *judged_tables(self.results)]
        tables += slice_tables(self.results)
        tables += [comparison_table(label, found) for label, found in self.comparisons.items()]
        if self.hard_samples is not None:
            tables.append(special_samples_table(self.hard_samples))
        notes = dict.fromkeys(f"{run['name']}: {note}" for run in self.facts["runs"] for note in run.get("notes", ()))
        people = [Text(found.line(name)) for name, found in self.human_agreement.items()]
        people += [Text(found.line(name)) for name, found in self.crowd_agreement.items()]
        return [*tables, *people, *map(Text, notes)]

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
    slices: str | Sequence[str] | None = None,
    expert_annotations: Path | str | None = None,
    crowd_annotations: Path | str | None = None,
    save_run: Path | str | None = None,
    depth: int | None = None,
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

    - `runs`: what `quintet.load` gives, or what it takes. `ensemble=False` measures each alone: see `results`. Also
      `npy:FOLDER`, embeddings with ids, and `trec:FILE`, a TREC run file, of other programs; name the corpus then.
    - `corpus`: a corpus or its folder; by default the one the runs were trained on.
    - `split`: by default the one that the runs' recipes test on (`data.test`), and "test" for runs without a recipe.
    - `protocol`: "full", "5fold" (COCO 1K), "5k" (COCO 5K) or "identity" (CUHK-PEDES). Those of COCO refuse a split
      of any other size than 5,000 images.
    - `compare`: another run, or several as an ensemble. The paired test of both is in `comparisons`, also for `eccv`,
      `cxc`, `relevance` and `slices`.
    - `hard_samples`: also R@1 on hard and on infrequent queries, chosen by the last run, which is that of `compare`.
    - `eccv`, `cxc`: also mAP@R, R-Precision and R@1 of ECCV Caption, and the recalls of CxC, on COCO's test split.
      Their files come with the package eccv_caption, or are in the folder `eccv_data`. See `judged`.
    - `relevance`: a JSONL file of relevant pairs, or qrels, with nDCG and mAP@R; by default `relevance.jsonl` of the
      corpus, where there is one.
    - `expert_annotations`: Flickr8k's ExpertAnnotations.txt; also measures the agreement with people.
    - `crowd_annotations`: Flickr8k's CrowdFlowerAnnotations.txt; likewise.
    - `slices`: "length", "size" and "field:NAME", with commas or in a list: also the recalls by caption length, by
      image size and by a field of the corpus's tables.
    - `save_run`: file for the rankings, as a TREC run, of the best `depth` candidates of every query (None: all).
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
    if depth is not None and save_run is None:
        raise QuintetError("a depth has no effect without a file for the rankings")
    entries = [str(run) if given_results(run) else as_run(run, device=device) for run in [*given, *others]]
    opened = [run for run in entries if isinstance(run, Run)]
    target = opened[0].device if opened else torch.device("cpu")
    for run in opened:
        run.to(target)
    folders = [run.folder for run in opened]
    if corpus is None and not opened:
        raise QuintetError("results of other programs do not know a corpus; name the one that they are of")
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
    cut = [] if slices is None else slicings(slices, whole, chosen)
    if cut and chosen_protocol.folds > 1:
        raise QuintetError("slices are of all queries of a split; use the protocol full or 5k")
    size = len(chosen.images) + len(chosen.texts)
    members: list[Member | RunFile] = []
    with reported(progress, f"encoding {chosen.name}", size * len(opened)) as report:
        done_before = 0
        for entry in entries:
            if isinstance(entry, str):
                read = read_embeddings if entry.startswith(EMBEDDINGS) else read_run_file
                members.append(read(entry, whole, chosen))
                continue

            def tell(done: int, _: int | None, before: int = done_before) -> None:
                report(before + done, size * len(opened))

            done_before += size
            members.append(Member.encode(entry, whole, chosen, batch_size=batch_size, progress=tell))
    mine = members[: len(given)]
    teams = [mine] if ensemble else [[member] for member in mine]
    teams += [members[len(given) :]] if others else []
    only_lists = [each.name for team in teams for each in team if isinstance(each, RunFile)]
    if only_lists and (any(len(team) > 1 and not _scored(team) for team in teams) or hard_samples or save_run):
        raise QuintetError(f"{only_lists[0]} has lists, not the scores of all pairs: measure it alone, or compare it")
    if only_lists and (expert_annotations or crowd_annotations):
        raise QuintetError(f"{only_lists[0]} has lists, not the scores of the judged pairs")
    if save_run is not None and len(teams) > 1:
        raise QuintetError("one file holds the rankings of one run or ensemble: evaluate one to save them")
    measured = [
        evaluate_members(team, chosen, chosen_protocol.name, block, bootstrap, seed, target, sets)
        if _scored(team)
        else evaluate_run_file(team[0], chosen, chosen_protocol.name, block, bootstrap, seed, sets)  # type: ignore[arg-type]
        for team in teams
    ]
    if cut:
        measured = [
            replace(each, slices=tuple(slice_results(each.ranks[0], cut, bootstrap, seed))) for each in measured
        ]
    results = named_results(measured)
    named: dict[str, Any] = dict(zip(results, teams, strict=True))
    first, *_ = results.values()
    if save_run is not None:
        team = named[next(iter(named))]
        with ExitStack() as modes:
            for member in team:
                modes.enter_context(evaluation_mode(member.matcher))
            scores = member_scores(team, target)
            write_run_file(save_run, chosen, scores, depth, blocks_of(team, block, target))
    found_people, found_crowd = {}, {}
    if crowd_annotations is not None:
        asked = read_crowd_annotations(crowd_annotations)
        pairs = crowd_pairs(asked, chosen)
        found_crowd = {
            name: crowd_agreement(pair_scores(team, pairs, target), asked, pairs, bootstrap, seed)
            for name, team in named.items()
        }
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
        crowd_agreement=found_crowd,
        hard_samples=_hard_samples(results, named, chosen, target) if hard_samples else None,
        facts={
            "corpus": {"name": whole.name, "folder": str(whole.root)},
            "runs": [_run_facts(run, member) for run, member in zip(entries, members, strict=True)],
            "batch_size": batch_size,
        },
        title=_title(whole, chosen, results),
    )


def _scored(team: Sequence[Member | RunFile]) -> TypeGuard[Sequence[Member]]:
    return all(isinstance(member, Member) for member in team)


def run_facts(run: Run) -> dict[str, Any]:
    """What a result file says of a run."""
    return {"name": run.name, "weights_sha256": run.weights_checksum, "seed": training_seed(run.folder)}


def _run_facts(run: Run | str, member: Member | RunFile) -> dict[str, Any]:
    if isinstance(run, str):
        facts: dict[str, Any] = {"name": member.name, "results": run}
        notes: Sequence[str] = member.notes() if isinstance(member, RunFile) else ()
    else:
        facts, notes = run_facts(run), run.notes
    return facts | ({"notes": notes} if notes else {})


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
    return {f"{label} - {name}": _comparison(results[label], results[last], seed) for label in others}


def _comparison(one: Result, two: Result, seed: int) -> dict[str, Difference]:
    """Of the metrics, then of what else both have: "eccv: i2t_map_at_r", "caption length, 3 to 5 words: t2i_r1"."""
    found = paired_test(one.ranks, two.ranks, PAIRED_RESAMPLES, seed)
    pairs = {name: (each.queries, two.judged[name].queries) for name, each in one.judged.items()}
    for each, other in zip(one.slices, two.slices, strict=True):
        pairs[f"{each.slicing}, {each.label}"] = each.queries, other.queries
    for name, (first, second) in pairs.items():
        tested = paired_values(first, second, PAIRED_RESAMPLES, seed)
        found |= {f"{name}: {metric}": difference for metric, difference in tested.items()}
    return found


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
    used = device if device is not None else members[0].image_codes.device
    names = [member.name or type(member.matcher).__name__ for member in members]
    settings = {"block": list(sizes), "bootstrap": bootstrap, "seed": seed, "device": str(used)}
    return _result(chosen, split, names, ranks, relevance, counted, settings)


def evaluate_run_file(
    lists: RunFile,
    split: Split,
    protocol: str = "full",
    block: int | tuple[int, int] = BLOCK,
    bootstrap: int = 1_000,
    seed: int = 0,
    relevance: Sequence[Relevance] = (),
) -> Result:
    """Measure the lists of a TREC run file. Each direction is counted on its own lists."""
    chosen = find_protocol(protocol)
    sizes = whole_tiles(block)
    _check_depth(lists, split, relevance)
    sides = [side for each in relevance for side in each.sides]
    counted: list[list[JudgedRanks]] = []
    parts: list[list[Ranks]] = []
    for direction in (0, 1):
        scores = lists.score_block(direction)
        if sides:
            groups = split.image_groups, split.text_groups
            found, more = count_ranks_and_more(scores, *groups, sides, sizes)
            parts.append([found])
            counted.append(more)
        else:
            parts.append(rank_split(chosen, split, scores, sizes))
    ranks = [replace(one, pair_t2i=other.pair_t2i) for one, other in zip(*parts, strict=True)]
    both = [counted[number % 2][number] for number in range(len(sides))]
    settings = {"block": list(sizes), "bootstrap": bootstrap, "seed": seed, "device": "cpu"}
    return _result(chosen, split, [lists.name], ranks, relevance, both, settings)


def _check_depth(lists: RunFile, split: Split, relevance: Sequence[Relevance]) -> None:
    """mAP@R and R-Precision look at the first R candidates, which a list must have."""
    own = [image.id for image in split.images], [text.id for text in split.texts]
    for each in relevance:
        if "map_at_r" not in each.measures:
            continue
        for side, (judged, ids) in enumerate(zip(each.sides, own, strict=True)):
            positives = np.bincount(judged.query, minlength=len(ids))
            short = np.flatnonzero((lists.lengths(side) < positives) & (lists.lengths(side) > 0))
            if len(short):
                at = short[0]
                raise QuintetError(
                    f"{lists.name}: {len(short):,} lists are too short for mAP@R of {each.title}, first that of "
                    f"{ids[at]!r:.80}: {lists.lengths(side)[at]} candidates, and {positives[at]} are relevant; "
                    "write longer lists"
                )


def _result(
    chosen: Protocol,
    split: Split,
    names: Sequence[str],
    ranks: list[Ranks],
    relevance: Sequence[Relevance],
    counted: Sequence[JudgedRanks],
    settings: dict[str, Any],
) -> Result:
    bootstrap, seed = settings["bootstrap"], settings["seed"]
    judged = {
        each.name: judged_result(each, counted[2 * number : 2 * number + 2], bootstrap, seed)
        for number, each in enumerate(relevance)
    }
    return Result(
        protocol=chosen.name,
        split=split.name,
        split_checksum=split_checksum(split),
        members=tuple(names),
        metrics=metrics_of_parts(ranks),
        intervals=bootstrap_intervals(ranks, bootstrap, seed) if bootstrap else {},
        chance=chance_of_parts(ranks),
        counts=_counts(split, ranks),
        settings=settings,
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
