"""A GRU over sequences of different lengths, padded at the end: what stands at padding counts for nothing.

On a CPU sequences are packed, so that padding costs nothing. To pack them torch wants their lengths on the CPU, and a
GPU would have to be waited for in every step: there, padding is computed and left out of the result.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

# cuDNN wants a GRU's weights in one piece, and those of one direction out of two never are: it makes a small copy.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
_UNPACKED = ContextVar("unpacked", default=False)


@contextmanager
def unpacked() -> Iterator[None]:
    """In here the same states are computed without packing: slower, but in operations that ONNX knows."""
    token = _UNPACKED.set(True)
    try:
        yield
    finally:
        _UNPACKED.reset(token)


def gru_states(gru: nn.GRU, inputs: Tensor, lengths: Tensor) -> Tensor:
    """(n, L, in), (n,) -> (n, L, d or 2 d): the state at every place, zero at padding."""
    if _UNPACKED.get() or inputs.is_cuda:
        return _unpacked(gru, inputs, lengths)[0]
    packed, _ = gru(_pack(inputs, lengths))
    states, _ = pad_packed_sequence(packed, batch_first=True, total_length=inputs.shape[1])
    return states


def gru_final(gru: nn.GRU, inputs: Tensor, lengths: Tensor) -> Tensor:
    """(n, L, in), (n,) -> (directions, n, d): the state of each direction after its last real place."""
    if _UNPACKED.get() or inputs.is_cuda:
        return _unpacked(gru, inputs, lengths)[1]
    _, final = gru(_pack(inputs, lengths))
    return final


def _pack(inputs: Tensor, lengths: Tensor) -> PackedSequence:
    # torch wants the lengths on the CPU; it sorts and unsorts by itself.
    return pack_padded_sequence(inputs, lengths.cpu(), batch_first=True, enforce_sorted=False)


def _unpacked(gru: nn.GRU, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Padding stands behind what is real, so only the backward direction must not begin there: it reads a copy whose
    real places are reversed."""
    place = torch.arange(inputs.shape[1], device=inputs.device)  # (L,)
    real = place < lengths[:, None]  # (n, L)
    reverse = torch.where(real, lengths[:, None] - 1 - place, place)  # (n, L)
    last = (lengths - 1)[:, None, None].expand(-1, 1, gru.hidden_size)  # (n, 1, d)
    states, final = [], []
    for direction in ("", "_reverse") if gru.bidirectional else ("",):
        given = _reordered(inputs, reverse) if direction else inputs
        along = _one_way(gru, given, direction)  # (n, L, d)
        final.append(along.gather(1, last)[:, 0])  # (n, d)
        along = _reordered(along, reverse) if direction else along
        states.append(along.masked_fill(~real[..., None], 0))
    return torch.cat(states, dim=-1), torch.stack(final)


def _one_way(gru: nn.GRU, inputs: Tensor, direction: str) -> Tensor:
    """(n, L, in) -> (n, L, d): one direction of a GRU of one layer, from the first place to the last."""
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    weights = [getattr(gru, name + direction) for name in names]
    start = inputs.new_zeros((1, inputs.shape[0], gru.hidden_size))
    return torch.gru(inputs, start, weights, True, 1, 0.0, gru.training, False, True)[0]


def _reordered(sequences: Tensor, order: Tensor) -> Tensor:
    """(n, L, d) with place i taken from place order[i]."""
    return sequences.gather(1, order[..., None].expand(-1, -1, sequences.shape[2]))
