"""What mining finds for one anchor of scenes, and the curves of the two rounds around it.

    python -m benchmarks.measure.scenes_mining --corpus corpora/scenes --run runs/scenes-mining

Trains the recipe aoq-vse-scenes where there is no such run, mines the training split with the weights of its first
round, and keeps the lists of one pair: its image's hardest texts, and its text's hardest images. The corpus knows the
truth: a mined text is true of an image when the generator also writes it, word for word, among `--draws` times five
captions of that image. Writes benchmarks/results/scenes_mining.json, which docs/make_drawings.py draws.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import quintet
from quintet.data.scenes.captions import captions
from quintet.data.scenes.generate import SPLITS, scenes
from quintet.data.scenes.scene import Scene, generator
from quintet.evaluation.result import provenance
from quintet.files import write_json
from quintet.report.analysis.training_curves import epoch_curves

RESULTS = Path(__file__).parents[1] / "results"
RECIPE = "aoq-vse-scenes"
SIZES = {"train": 2000, "dev": 200, "test": 200}  # of `quintet data import scenes`, whose seed is 0


def train_scenes() -> list[Scene]:
    """The scenes of the training split, in order; no scene occurs twice, so the other splits are made first."""
    seen: set[Scene] = set()
    made = {split: [scene for scene, _ in scenes(0, key, SIZES[split], seen)] for key, split in enumerate(SPLITS)}
    return made["train"]


def writes(scene: Scene, text: str, draws: int) -> bool:
    """Whether the generator also writes this text of the scene; the full stop does not count."""
    bare = text.rstrip(".")
    return any(bare == own.rstrip(".") for key in range(draws) for own in captions(scene, generator(key)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0, help="of training")
    parser.add_argument(
        "--anchor", type=int, default=644, help="row of a training text; this one has negatives of both kinds"
    )
    parser.add_argument("--top", type=int, default=8, help="negatives that are kept")
    parser.add_argument("--draws", type=int, default=4000)
    parser.add_argument("--out", type=Path, default=RESULTS / "scenes_mining.json")
    options = parser.parse_args()
    if not options.corpus.exists():
        quintet.import_corpus("scenes", "-", options.corpus)
    if not options.run.exists():
        quintet.train(RECIPE, options.corpus, out=options.run, seed=options.seed, device="cpu")
    corpus = quintet.Corpus.open(options.corpus)
    split, drawn = corpus.split("train"), train_scenes()
    lists = quintet.mine(options.run, corpus, stage="online", top_texts=options.top, top_images=options.top)
    row_of = {image.group: row for row, image in enumerate(split.images)}
    text = split.texts[options.anchor]
    image = row_of[text.group]
    hard_texts: list[dict[str, Any]] = []
    for row, score in zip(lists.texts[image].tolist(), lists.text_scores[image].tolist(), strict=True):
        found = split.texts[row]
        true = writes(drawn[image], found.text, options.draws)
        hard_texts.append({"text": found.text, "image": row_of[found.group], "score": score, "true": true})
    hard_images: list[dict[str, Any]] = []
    for row, score in zip(
        lists.images[options.anchor].tolist(), lists.image_scores[options.anchor].tolist(), strict=True
    ):
        hard_images.append({"image": row, "score": score, "true": writes(drawn[row], text.text, options.draws)})
    content = {
        "benchmark": "scenes_mining",
        "recipe": RECIPE,
        "corpus": "scenes",
        "seed": options.seed,
        "device": "cpu",
        "draws": options.draws,
        "anchor": {"text": text.text, "image": image, "row": options.anchor},
        "hard_texts": hard_texts,
        "hard_images": hard_images,
        "curves": epoch_curves(options.run, ("rsum", "i2t_r1", "t2i_r1")),
    }
    write_json(options.out, content | {"provenance": provenance()})
    for one in hard_texts:
        print(f"text   {one['score']:.3f} {'true ' if one['true'] else 'wrong'} {one['text']}")
    for one in hard_images:
        print(f"image  {one['score']:.3f} {'true ' if one['true'] else 'wrong'} row {one['image']}")


if __name__ == "__main__":
    main()
