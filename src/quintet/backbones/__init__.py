"""Pretrained image towers behind one interface: image -> grid of features, and their average."""

from __future__ import annotations

from quintet.backbones.preprocess import Preprocess as Preprocess
from quintet.backbones.tower import DEFAULT_TOWER as DEFAULT_TOWER
from quintet.backbones.tower import ImageTower as ImageTower
from quintet.backbones.tower import create_tower as create_tower
from quintet.backbones.tower import list_towers as list_towers

__all__ = ["DEFAULT_TOWER", "ImageTower", "Preprocess", "create_tower", "list_towers"]
