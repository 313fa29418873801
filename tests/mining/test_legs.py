from __future__ import annotations

import torch

from quintet.mining.legs import Legs


def test_legs_add_up() -> None:
    legs = Legs(torch.device("cpu"))
    for name in ("product", "filter", "product"):
        with legs(name):
            pass
    assert set(legs.seconds()) == {"product", "filter"}
    assert all(seconds >= 0 for seconds in legs.seconds().values())


def test_switched_off_they_keep_nothing() -> None:
    legs = Legs()
    with legs("product"):
        pass
    assert legs.seconds() == {}
