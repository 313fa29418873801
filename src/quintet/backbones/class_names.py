"""What the ImageNet classifiers of the towers see in an image, as a vector of the text encoder.

ConSE (Norouzi et al. 2014): the mean of the sentence vectors of the likeliest classes' names, weighted by their
probabilities. A text that names such a thing is close to it, whatever pairs the matcher was trained on.

`imagenet_classes.tsv` has the names and kinds of the 1,000 classes in the order of the classifiers, and
`imagenet_classes.safetensors` what MiniLM makes of them (`python -m benchmarks.measure.class_names` writes it).
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import embedding, normalize

from quintet.backbones.create import read_classifier
from quintet.errors import QuintetError

NAMES = Path(__file__).with_name("imagenet_classes.tsv")
VECTORS = Path(__file__).with_name("imagenet_classes.safetensors")


class ClassNames(nn.Module):
    """Pooled features of towers to unit vectors of the text encoder. It has no parameters and is never trained."""

    def __init__(self, towers: str, top: int = 10, temperature: float = 1.0) -> None:
        """`towers`: the name that the features were made with, `efficientnet-lite2+efficientnet-lite0`."""
        super().__init__()
        self.towers, self.top, self.temperature = towers, top, temperature
        # Read with the first image: a search by text needs neither.
        self._maps: tuple[Tensor, Tensor, Tensor] | None = None

    def forward(self, pooled: Tensor) -> Tensor:
        """(n, dim) -> (n, 384)."""
        weight, bias, vectors = self._read(pooled.device)
        if pooled.shape[1] != weight.shape[1]:
            raise QuintetError(
                f"the classifiers of {self.towers} read {weight.shape[1]} channels, and the features have "
                f"{pooled.shape[1]}: class_names must name the towers of the features"
            )
        logits = torch.addmm(bias, pooled, weight.t()) / self.temperature  # (n, 1000)
        chances, classes = logits.softmax(dim=1).topk(self.top, dim=1)  # (n, top) each
        return normalize(
            (chances[..., None] * embedding(classes, vectors)).sum(dim=1), dim=1
        )  # (n, top, 384) -> (n, 384)

    def _read(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """The classifier's weights and biases, and the vectors of the names."""
        if self._maps is None or self._maps[0].device != device:
            weight, bias = read_classifier(self.towers)  # (1000, dim), (1000,)
            vectors = load_file(VECTORS)["vectors"].float()  # (1000, 384)
            self._maps = weight.to(device), bias.to(device), vectors.to(device)
        return self._maps


def read_names() -> list[tuple[list[str], list[str]]]:
    """The names of each class, and the kinds of thing that it is."""
    rows = [line.split("\t") for line in NAMES.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return [(names.split(", "), kinds.split(", ") if kinds else []) for names, kinds in rows]
