"""Checkpoints of the original implementations, made into runs."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from quintet.data.vocabulary import WordVocabulary
from quintet.files import user_path
from quintet.runs.checkpoint import write_run
from quintet.runs.convert.kinds import KINDS, kinds, resolve
from quintet.runs.convert.original import ConversionError, is_plain, read_checkpoint
from quintet.runs.convert.translate import read_vocabulary, translate
from quintet.runs.run import Run, load

MOST_OPTIONS = 1000  # of the authors' program, that are kept in run.json

__all__ = ["ConversionError", "convert", "kinds", "read_checkpoint", "read_vocabulary", "translate"]


def convert(
    kind: str,
    checkpoint: Path | str,
    out: Path | str,
    vocab: Path | str | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    features: str = "regions",
) -> Run:
    """Make a run folder of an original `model_best.pth.tar`; returns the run, opened. Nothing in the file is executed.

    - `vocab`: the vocabulary it was trained with; without one the run takes token ids, not texts.
    - `options`: replace options of the checkpoint, by the authors' names.
    - `features`: the features of a corpus (a folder under `CORPUS/features`) of the kind it was trained on.

        run = quintet.convert("scan", "model_best.pth.tar", "runs/theirs", vocab="f30k_precomp_vocab.json")
        run.score(*run.encode_split("corpora/f30k", "test"))
    """
    out = user_path(out)
    original = read_checkpoint(checkpoint)
    made = translate(kind, original, options)
    tokenizer = None if vocab is None else read_vocabulary(vocab)
    added = KINDS[resolve(kind, original)].added_words
    if isinstance(tokenizer, WordVocabulary) and len(tokenizer) + len(added) == made.arguments["vocabulary_size"]:
        tokenizer = WordVocabulary([*tokenizer.words, *added], tokenizer.special_tokens)
    if tokenizer is not None and len(tokenizer) != made.arguments["vocabulary_size"]:
        raise ConversionError(
            f"{vocab} has {len(tokenizer)} words, but {checkpoint} was trained with "
            f"{made.arguments['vocabulary_size']}: it is another vocabulary"
        )
    plain = {key: value for key, value in original.options.items() if isinstance(key, str) and is_plain(value)}
    origin = {"kind": kind, "file": original.path.name, "epoch": original.epoch, "best": original.best}
    notes = {"assumed": made.assumed, "left_out": made.dropped}
    write_run(
        out,
        name=out.name,
        model={"name": made.model, "arguments": made.arguments},
        state_dict=made.state,
        tokenizer=tokenizer,
        image_input={"kind": "features", "name": features, "tower": None},
        facts={
            "origin": origin
            | {"options": dict(islice(plain.items(), MOST_OPTIONS)), "overrides": dict(options or {})}
            | notes
        },
    )
    return load(out, device="cpu")
