"""Mining with a trained run: encode a split, mine it, write the lists. Goes on by itself where it was killed."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import torch

from quintet import distributed
from quintet.codes import Codes
from quintet.data.corpus import Corpus, Split, split_checksum
from quintet.data.negatives import NegativeLists
from quintet.evaluation.evaluator import encode_split
from quintet.mining.journal import remove_journal
from quintet.mining.mine import mine
from quintet.runs.run import Run

DEFAULTS = {"top_texts": 300, "top_images": 60, "exclude_duplicates": False, "false_negative_margin": None}


def mine_run(
    run: Run,
    corpus: Corpus,
    split: Split,
    out: Path | str,
    *,
    device: torch.device | str = "cpu",
    batch_size: int = 128,
    **options: Any,
) -> NegativeLists:
    """Mine a split of a corpus with a run's matcher into the folder `out`; `options` are those of `mine`.

    Lists that are there already, from the same weights, split and options, are opened and not mined again. Under
    torchrun encoding and mining are shared out, every process gets the lists and the first one writes them.
    """
    out = Path(out)
    settings = {name: options.get(name, default) for name, default in DEFAULTS.items()}
    ready = _already(out, run, split, settings)
    if ready is not None:
        return ready
    images, texts = encode_shared(run, corpus, split, device, batch_size)
    journal = _journal(out, run, split, settings)
    source = {"name": run.name, "weights": run.weights_checksum}
    lists = mine(run.matcher, images, texts, split, device=device, journal=journal, source=source, **options)
    if distributed.is_main():
        lists.save(out)
        own = re.compile(re.escape(f".{out.name}.mining-") + "[0-9a-f]{12}")
        for old in list(out.parent.iterdir()):  # also those of minings that were given up
            if own.fullmatch(old.name):
                remove_journal(old)
    distributed.barrier()
    return lists


def _already(out: Path, run: Run, split: Split, settings: dict[str, Any]) -> NegativeLists | None:
    lists = NegativeLists.find(out)
    if lists is None:
        return None
    wanted = (split_checksum(split), run.weights_checksum, settings)
    known = lists.manifest
    found = (known.get("split_checksum"), known.get("matcher", {}).get("weights"), known.get("options"))
    return lists if wanted == found else None


def _journal(out: Path, run: Run, split: Split, settings: dict[str, Any]) -> Path:
    """Beside the lists, under a name of its own for each way of mining: an abandoned one is in nobody's way."""
    facts = json.dumps([settings, split_checksum(split), run.weights_checksum])
    return out.parent / f".{out.name}.mining-{hashlib.sha256(facts.encode()).hexdigest()[:12]}"


def encode_shared(
    run: Run, corpus: Corpus, split: Split, device: torch.device | str, batch_size: int
) -> tuple[Codes, Codes]:
    """The codes of a split, on every process, each of which encodes its share of whole batches.

    The batches are those of one process, so the codes are too.
    """
    everyone = distributed.world_size()
    keep: torch.device | str = "cpu" if everyone == 1 else device
    parts = {"images": _share(len(split.images), batch_size), "texts": _share(len(split.texts), batch_size)}
    mine = {side: of_process[distributed.rank()] for side, of_process in parts.items()}
    # A process without a share encodes one item all the same: the others need to know what codes look like.
    image_rows = split.images[mine["images"]] or split.images[:1]
    text_rows = split.texts[mine["texts"]] or split.texts[:1]
    image_batches = run.image_batches(corpus, image_rows, batch_size)
    text_batches = run.text_batches(text_rows, batch_size)
    images, texts = encode_split(run.matcher, image_batches, text_batches, None, device, keep)
    if everyone == 1:
        return images, texts
    return _together(images, parts["images"]), _together(texts, parts["texts"])


def _share(items: int, batch_size: int) -> list[slice]:
    batches = -(-items // batch_size)
    shares = (distributed.share(batches, process) for process in range(distributed.world_size()))
    return [slice(share.start * batch_size, min(share.stop * batch_size, items)) for share in shares]


def _together(codes: Codes, parts: list[slice]) -> Codes:
    sizes = [max(0, part.stop - part.start) for part in parts]
    longest = max(sizes)
    rows = torch.arange(longest, device=codes.device).clamp(max=len(codes) - 1)  # filled up, so that all are alike
    gathered = distributed.gather_codes(codes[rows], longest * len(parts))
    kept = torch.cat([torch.arange(size) + number * longest for number, size in enumerate(sizes)])
    return gathered[kept.to(codes.device)]
