"""Pretrained image towers behind one interface: image -> grid of features, and their average."""

from __future__ import annotations

from quintet.backbones.create import DEFAULT_TOWER as DEFAULT_TOWER
from quintet.backbones.create import create_tower as create_tower
from quintet.backbones.create import list_towers as list_towers
from quintet.backbones.preprocess import Preprocess as Preprocess
from quintet.backbones.tower import ImageTower as ImageTower

__all__ = ["DEFAULT_TOWER", "ImageTower", "Preprocess", "create_tower", "list_towers"]
