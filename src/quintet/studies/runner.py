"""Run a study: every variant under every seed, one run folder each, measured alike and summarised.

OUT/runs/VARIANT-seedN/     the run, and study.json: its recipe, the device, the notes of the training
OUT/results/                one result file and the ranks behind it per run (or ensemble) and protocol
OUT/figures/                the figures of the paper that belong to the study
OUT/summary.json            all numbers, from which OUT/tables.md is made

A finished run is never trained again and an unfinished one is resumed: to continue a stopped study, run it again.
A variant that fails is reported and does not stop the others.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from quintet.data.corpus import Split
from quintet.errors import QuintetError, RunError
from quintet.evaluation.result import provenance
from quintet.evaluation.split_protocols import find_protocol
from quintet.files import MARK, atomic_write, check_output, file_checksum, json_text, output_text, read_json, write_json
from quintet.report.figures import save_figure
from quintet.runs.checkpoint import writing
from quintet.runs.devices import pick_device
from quintet.runs.run_folder import is_begun, read_head
from quintet.studies.markdown import render_tables
from quintet.studies.measurements import Measurement, measure_run
from quintet.studies.over_seeds import Outcome, Paired, summarise
from quintet.studies.published import VALIDATION
from quintet.studies.variants import Extra, Study, Trained, Variant, differences
from quintet.training import stages
from quintet.training.inputs import open_data
from quintet.training.logs import Display, Silent
from quintet.training.recipe import parse_recipe
from quintet.training.recipe_models import NegativesRecipe, Recipe, StageRecipe

EXTRA = "quintet-extra"  # the format of what is measured beside the tables


@dataclass(frozen=True)
class Settings:
    """Seeds, and how a study measures."""

    seeds: tuple[int, ...] = (0,)
    protocols: tuple[str, ...] = ("full",)
    device: str = "auto"
    block: int | tuple[int, int] = 1024
    bootstrap: int = 1_000  # resamples behind the intervals of each result
    resamples: int = 10_000  # of the paired tests


def run_study(
    study: Study,
    out: Path | str,
    settings: Settings | None = None,
    *,
    display: Display | None = None,
    announce: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Train and measure what is missing, write summary.json and tables.md, and return the summary."""
    runner = _Runner(study, Path(out), settings or Settings(), display or Silent(), announce or (lambda _: None))
    return runner.run()


class _Runner:
    def __init__(
        self, study: Study, out: Path, settings: Settings, display: Display, announce: Callable[[str], None]
    ) -> None:
        self.study, self.out, self.settings, self.display, self.announce = study, out, settings, display, announce
        self.outcomes: dict[tuple[str, int], Outcome] = {}
        self.paired = Paired(study.reference, settings.resamples)
        self.device = str(pick_device(settings.device))

    def run(self) -> dict[str, Any]:
        self._prepare()
        own = [variant for variant in self.study.variants if not variant.members]
        total = len(self.settings.seeds) * len(own)
        summary: dict[str, Any] = {}
        for seed in self.settings.seeds:
            for variant in own:
                self.announce(f"{len(self.outcomes) + 1} of {total}: {variant.label}, seed {seed}")
                self.outcomes[variant.key, seed] = self._one(variant, seed)
            summary = self._write()
        together = [variant for variant in self.study.variants if variant.members]
        for variant in together:
            self.announce(f"ensembles: {variant.label}")
            self._ensembles(variant)
        if together:
            summary = self._write()
        if self.study.extras:
            summary = self._write({extra.key: self._extra(extra) for extra in self.study.extras})
        return summary

    def _prepare(self) -> None:
        """Check everything that can be checked before the first training."""
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise QuintetError(
                "a study runs in one process; to use several devices, start it once per device with other seeds and "
                "the same folder, and once more with all seeds when they have finished"
            )
        for name in ("summary.json", "tables.md"):
            check_output(self.out / name)
        if not self.settings.seeds or len(set(self.settings.seeds)) != len(self.settings.seeds):
            raise QuintetError(f"a study needs different seeds, got {list(self.settings.seeds)}")
        for variant in self.study.variants:
            for seed in [] if variant.members else self.settings.seeds:
                self._check_folder(variant, seed)
        recipe = parse_recipe(self.study.variants[0].content(self.settings.seeds[0]))
        self.data = open_data(recipe, self.display.note)
        self.split = self.data.corpus.split(recipe.data.test)
        for protocol in self.settings.protocols:
            find_protocol(protocol).check(self.split, self.data.corpus, choose="data.test={}")
        if self.data.store is not None:
            self.data.store.require([image.id for image in self.split.images])
        self.validated = any(table.validation for table in self.study.tables)

    def _check_folder(self, variant: Variant, seed: int) -> None:
        """Refuse a run folder that was made with another recipe."""
        content, folder = variant.content(seed), self.folder(variant.key, seed)
        if not os.path.lexists(folder / "study.json"):
            if (folder / "run.json").exists():
                raise RunError(f"{folder} holds a run that no study made; choose another folder, or move it away")
            return
        made = parse_recipe(_record(folder)["recipe"], where=str(folder / "study.json"))
        old = made.model_dump(mode="json", by_alias=True)
        for stage in (*old["stages"], *content["stages"]):
            del stage["graphs"]  # changes the speed, not the run
        changed = list(differences(old, content))
        if changed:
            raise RunError(
                f"{folder} was made with other settings than are asked for now: {'; '.join(changed[:3])}; "
                "choose another folder, or remove that run to train it again"
            )

    def folder(self, key: str, seed: int) -> Path:
        return self.out / "runs" / f"{key}-seed{seed}"

    def _one(self, variant: Variant, seed: int) -> Outcome:
        missing = [key for key in variant.needs if self.outcomes[key, seed].status != "trained"]
        if missing:
            reason = f"needs {self.study.variant(missing[0]).label}, which did not finish"
            return Outcome(variant.key, seed, "skipped", reason)
        try:
            self._train(variant, seed)
            measured = self._measure(variant, seed)
        except QuintetError as error:
            return self._failed(variant, seed, str(error))
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            return self._failed(variant, seed, f"out of memory: {str(error).partition('. ')[0]}")
        notes = tuple(_record(self.folder(variant.key, seed)).get("notes", ()))
        return Outcome(variant.key, seed, "trained", notes=notes, measured=measured)

    def _ensembles(self, variant: Variant) -> None:
        """Measure the ensembles of a seed's members; of a single member those of each seed and the next one."""
        seeds = self.settings.seeds
        alone = len(variant.members) == 1
        for number, seed in enumerate(seeds[: 1 if alone and len(seeds) == 2 else None]):
            following = seeds[(number + 1) % len(seeds)]
            runs = [(key, seed) for key in variant.members] + [(variant.members[0], following)] * alone
            missing = [f"{key}, seed {of}" for key, of in runs if self.outcomes[key, of].status != "trained"]
            if alone and following == seed:
                missing = ["a second seed"]
            if missing:
                reason = f"the ensemble needs {', '.join(missing)}"
                self.outcomes[variant.key, seed] = Outcome(variant.key, seed, "skipped", reason)
                continue
            folders = [self.folder(*run) for run in runs]
            facts = {"study": self.study.name, "variant": variant.key, "seed": seed}
            measured = self._measured(variant.key, seed, folders, facts)
            self.outcomes[variant.key, seed] = Outcome(variant.key, seed, "trained", measured=measured)

    def _failed(self, variant: Variant, seed: int, reason: str) -> Outcome:
        self.display.note(f"{variant.label}, seed {seed}, failed: {reason}")
        return Outcome(variant.key, seed, "failed", reason)

    def _train(self, variant: Variant, seed: int) -> None:
        folder = self.folder(variant.key, seed)
        folders = {key: self.folder(key, seed) for key in variant.needs}
        asked: dict[str, Any] = {
            "study": self.study.name,
            "variant": variant.key,
            "seed": seed,
            "recipe": variant.content(seed),
            "needs": {key: file_checksum(needed / "weights.safetensors") for key, needed in folders.items()},
        }
        record = _record(folder) if os.path.lexists(folder / "study.json") else asked
        if record["needs"] != asked["needs"]:
            raise RunError(
                f"{folder} was trained from other weights of {', '.join(asked['needs'])}; remove it to train it again"
            )
        if is_begun(folder) and read_head(folder)["status"] == "complete":
            return
        with writing(folder, f"training {variant.key}, seed {seed}, of study {self.study.name}"):
            write_json(folder / "study.json", record)
            noted = _Noting(self.display, record.get("notes", []))
            watch = _PeakMemory(self.device)
            try:
                if is_begun(folder):
                    stages.resume_run(folder, device=self.device, display=cast(Display, noted))
                else:
                    recipe = self._recipe(variant, seed)
                    share_lists(folder, recipe, self._siblings(seed))
                    stages.train_recipe(recipe, folder, device=self.device, display=cast(Display, noted))
            finally:
                facts = {"device": self.device, "notes": noted.notes} | watch.facts()
                write_json(folder / "study.json", record | facts)

    def _recipe(self, variant: Variant, seed: int) -> Recipe:
        return variant.recipe_for(seed, {key: self.folder(key, seed) for key in variant.needs})

    def _siblings(self, seed: int) -> dict[Path, Recipe]:
        """The finished runs of a seed."""
        done = [key for (key, other), found in self.outcomes.items() if other == seed and found.status == "trained"]
        return {self.folder(key, seed): self._recipe(self.study.variant(key), seed) for key in done}

    def _measure(self, variant: Variant, seed: int) -> dict[str, Measurement]:
        record = _record(self.folder(variant.key, seed))
        facts = {key: record.get(key) for key in ("study", "variant", "seed")}
        facts |= {"trained_on": record.get("device"), "peak_memory_bytes": record.get("peak_memory_bytes")}
        return self._measured(variant.key, seed, [self.folder(variant.key, seed)], facts)

    def _measured(self, key: str, seed: int, folders: list[Path], facts: dict[str, Any]) -> dict[str, Measurement]:
        facts = {"trained_on": None, "peak_memory_bytes": None} | facts

        def measured(split: Split, protocols: Sequence[str], results: Path) -> dict[str, Measurement]:
            return measure_run(
                self.folder(key, seed).name,
                folders,
                self.data.corpus,
                split,
                protocols,
                results,
                device=self.device,
                block=self.settings.block,
                bootstrap=self.settings.bootstrap,
                measures=self.study.measures,
                facts=facts,
            )

        found = measured(self.split, self.settings.protocols, self.out / "results")
        if self.validated:
            (validation,) = measured(self.data.validation, ["full"], self.out / "results" / VALIDATION).values()
            found[VALIDATION] = validation
        return found

    def _extra(self, extra: Extra) -> dict[str, Any]:
        """The rows of an extra measurement, of the first seed whose runs are there; measured once."""
        recipes = {v.key: v.content(self.settings.seeds[0]) for v in self.study.variants if v.key in extra.needs}
        asked = {"recipes": recipes, "device": self.device, "seeds": list(self.settings.seeds)}
        path = self.out / "results" / f"{extra.key}.json"
        check_output(path)
        known = read_json(path) if path.is_file() else None
        drawn = known is not None and all((self.out / figure).is_file() for figure in known.get("figures", ()))
        if known is not None and drawn and known["asked"] == asked:
            return dict(known)
        self.announce(extra.title)
        try:
            trained = self._trained(extra)
            rows = extra.measure(trained)
        except QuintetError as error:
            self.display.note(f"{extra.title}: {error}")
            return {"rows": [], "reason": str(error)}
        found = {"format": EXTRA, "asked": asked, "rows": rows}
        found |= {"figures": self._draw(trained), "provenance": provenance()}
        output_text(path, json_text(found))
        return found

    def _draw(self, trained: Trained) -> list[str]:
        """Write the figures of an extra measurement; their paths."""
        written = []
        for name, draw in trained.figures.items():
            try:
                files = save_figure(draw(), self.out / "figures" / name)
            except QuintetError as error:  # matplotlib is an extra
                self.display.note(f"{name} is not drawn: {error}")
                continue
            written += [str(path.relative_to(self.out)) for path in files]
        return written

    def _trained(self, extra: Extra) -> Trained:
        done = {
            seed: {key: self.folder(key, seed) for key in extra.needs}
            for seed in self.settings.seeds
            if all(self.outcomes[key, seed].status == "trained" for key in extra.needs)
        }
        if not done:
            raise QuintetError("not measured: a run that it needs did not finish")
        seed, folders = next(iter(done.items()))
        recipes = {key: parse_recipe(self.study.variant(key).content(seed)) for key in extra.needs}
        protocol = "5k" if "5k" in self.settings.protocols else self.settings.protocols[0]
        ranks = {key: self.outcomes[key, seed].measured[protocol].ranks for key in extra.needs}
        return Trained(folders, recipes, extra.labels, self.device, ranks, done)

    def _write(self, extras: Mapping[str, dict[str, Any]] | None = None) -> dict[str, Any]:
        facts = {
            "corpus": self.data.corpus.name,
            "split": self.split.name,
            "images": len(self.split.images),
            "texts": len(self.split.texts),
            "protocols": list(self.settings.protocols),
            "validation": len(self.data.validation.images) if self.validated else None,
            "device": self.device,
        }
        summary = summarise(self.study, self.outcomes, self.paired, facts, extras or {}, self.out)
        output_text(self.out / "summary.json", json_text(summary))
        output_text(self.out / "tables.md", f"<!-- {MARK} -->\n{render_tables(summary)}")
        return summary


class _Noting:
    """A display that also keeps the notes of the training (a collapse, for example)."""

    def __init__(self, display: Display, notes: list[str]) -> None:
        self._display = display
        self.notes = list(notes)

    def note(self, message: str) -> None:
        if message not in self.notes:  # a resumed training may repeat itself
            self.notes.append(message)
        self._display.note(message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._display, name)


class _PeakMemory:
    """The peak memory of tensors on a GPU since the object was created; unknown on a CPU."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def facts(self) -> dict[str, int]:
        if self.device.type != "cuda":
            return {}
        return {"peak_memory_bytes": torch.cuda.max_memory_allocated(self.device)}


def _record(folder: Path) -> dict[str, Any]:
    """What study.json of a run says."""
    path = folder / "study.json"
    record = read_json(path, dict[str, Any])
    if not {"study", "variant", "seed", "recipe", "needs"} <= record.keys():
        raise RunError(f"{path} is damaged, or no study wrote it; move it away")
    return record


def share_lists(run: Path, recipe: Recipe, siblings: Mapping[Path, Recipe]) -> None:
    """Copy into a run that is about to start the negative lists of a run that mines with the same matcher alike.

    `siblings` are the finished runs of the same seed and their recipes. Training checks the lists as it does its own.
    """
    for stage in recipe.stages:
        source = _find(stage, siblings)
        target = run / "stages" / stage.name / "negatives"
        if source is None or (target / "manifest.json").is_file():
            continue
        # The manifest comes last: until it is there, the folder holds no lists and training would mine.
        for path in sorted(source.iterdir(), key=lambda path: path.name == "manifest.json"):
            with atomic_write(target / path.name) as temporary:
                shutil.copyfile(path, temporary)


def _find(stage: StageRecipe, siblings: Mapping[Path, Recipe]) -> Path | None:
    if stage.negatives is None:
        return None
    wanted = stage.negatives
    for folder, recipe in siblings.items():
        names = {other.name for other in recipe.stages}
        for other in recipe.stages:
            lists = folder / "stages" / other.name / "negatives"
            same = other.negatives is not None and _mined_alike(other.negatives, wanted)
            # A stage mined with by its name belongs to one run alone.
            if same and wanted.source not in names and (lists / "manifest.json").is_file():
                return lists
    return None


def _mined_alike(one: NegativesRecipe, other: NegativesRecipe) -> bool:
    return one.source == other.source and one.mining() == other.mining()
