from __future__ import annotations

import torch
from PIL import Image
from torch import nn

from quintet.backbones.small import SmallCNN


def test_sixty_four_pixels_make_four_by_four_cells() -> None:
    tower = SmallCNN()
    pixels = tower.preprocess(Image.new("RGB", (96, 96), (200, 10, 10)))[None]
    assert tower(pixels).shape == (1, 128, 4, 4)
    assert sum(parameter.numel() for parameter in tower.parameters()) < 150_000


def test_a_image_does_not_depend_on_its_batch_even_in_training() -> None:
    tower = SmallCNN().train()
    assert not any(isinstance(module, nn.BatchNorm2d) for module in tower.modules())
    pixels = torch.randn(5, 3, 64, 64)
    together, alone = tower(pixels), torch.cat([tower(image[None]) for image in pixels])
    assert torch.allclose(together, alone, atol=1e-4)


def test_it_knows_where_things_are() -> None:
    """With average pooling, a network of convolutions alone would hardly tell these two apart."""
    torch.manual_seed(0)
    tower = SmallCNN()
    left = torch.zeros(1, 3, 64, 64)
    left[..., 24:40, 8:24] = 1
    features = tower.pooled(torch.cat([left, left.flip(3)]))
    assert (features[0] - features[1]).norm() / features[0].norm() > 0.05


def test_it_learns() -> None:
    torch.manual_seed(0)
    tower, head = SmallCNN(), nn.Linear(128, 3)
    pixels = torch.randn(12, 3, 64, 64) * 0.1
    labels = torch.arange(12) % 3
    for row, label in enumerate(labels):
        pixels[row, label] += 1
    optimizer = torch.optim.Adam([*tower.parameters(), *head.parameters()], lr=1e-3)
    for _ in range(10):
        loss = nn.functional.cross_entropy(head(tower.pooled(pixels)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert (head(tower.pooled(pixels)).argmax(1) == labels).all()
