"""How far back a new GRU remembers."""

from __future__ import annotations

import torch
from torch import nn


def remember(gru: nn.GRU, places: int) -> None:
    """Start a GRU with a memory of 2 to `places` places, evenly spread over its channels.

    A state is moved on as h = (1 - z) n + z h, so with an update gate of z it remembers 1 / (1 - z) places. torch
    starts at z = 1/2: a last state then holds the last two places and hardly any of the others, and thousands of small
    steps must pass before the gates' biases have moved far enough to read a whole sequence. Here they start at
    log(m - 1), for which 1 / (1 - z) = m (Tallec, Ollivier: Can recurrent neural networks warp time?, ICLR 2018, who
    draw m at random).

    >>> gru = nn.GRU(3, 2)
    >>> remember(gru, places=10)
    >>> (1 / (1 - gru.bias_ih_l0[2:4].sigmoid())).round(decimals=4).tolist()
    [2.0, 10.0]
    """
    if places < 2:
        raise ValueError(f"a GRU remembers at least 2 places, got {places}")
    update = slice(gru.hidden_size, 2 * gru.hidden_size)  # torch keeps the gates as reset, update, new
    spans = torch.linspace(2, places, gru.hidden_size)
    with torch.no_grad():
        for name, parameter in gru.named_parameters():
            if name.startswith("bias_ih"):
                parameter[update] = (spans - 1).log()
            elif name.startswith("bias_hh"):
                parameter[update] = 0
