"""Writing a run: its folder, its weights, and checkpoints. `run_folder` describes the files.

A checkpoint is one safetensors file with everything a stage needs to go on exactly where it stopped. Tensors are named
`module/...`, `optimizer/INDEX/KEY` and `random/RANK/...`; what is not a tensor is JSON in the file's metadata. Nothing
in the file can execute code, and the file is written atomically.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

import quintet
from quintet import distributed
from quintet.data.tokenizers import Tokenizer
from quintet.errors import QuintetError, RunError
from quintet.files import atomic_write, read_json, write_json
from quintet.protocols import Matcher, module_of
from quintet.runs import run_folder

VERSION = 1


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, Any]) -> None:
    """Write a safetensors file with JSON metadata, atomically."""
    plain = {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    shared = {tensor.data_ptr() for tensor in plain.values() if tensor.numel()}
    if len(shared) < sum(1 for tensor in plain.values() if tensor.numel()):
        plain = {name: tensor.clone() for name, tensor in plain.items()}  # the format allows no shared memory
    try:
        with atomic_write(path) as temporary:
            save_file(plain, temporary, metadata={"quintet": json.dumps(metadata)})
    except SafetensorError as error:
        raise QuintetError(f"could not write {path}: {error}; the previous file was kept") from error


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = json.loads((file.metadata() or {}).get("quintet", "{}"))
            return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118 (not a dict)
    except FileNotFoundError:
        raise RunError(f"{path} does not exist") from None
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path} is damaged or not a safetensors file: {error}") from None


def start_run(
    folder: Path,
    *,
    name: str,
    model: dict[str, Any],
    tokenizer: Tokenizer | None,
    image_input: dict[str, Any],
    corpus: Path | None = None,
    splits: dict[str, str] | None = None,
) -> None:
    """Write what is known before the first step; `splits` are checksums of what it trains and selects on."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "model.json", model)
    write_json(folder / "images.json", image_input)
    if tokenizer is not None:
        write_json(folder / "tokenizer.json", tokenizer.state())
    _write_head(folder, name, "training", corpus, splits)


def finish_run(folder: Path, state_dict: dict[str, Tensor], facts: dict[str, Any] | None = None) -> None:
    """Write the final weights and mark the run complete, in this order."""
    head = read_json(folder / "run.json")
    save_tensors(folder / "weights.safetensors", state_dict, {"run": head["name"], "quintet": quintet.__version__})
    write_json(folder / "run.json", head | {"status": "complete"} | (facts or {}))


def write_run(
    folder: Path,
    *,
    name: str,
    model: dict[str, Any],
    state_dict: dict[str, Tensor],
    tokenizer: Tokenizer | None,
    image_input: dict[str, Any],
    facts: dict[str, Any] | None = None,
) -> None:
    """A complete run from weights that were trained elsewhere. `facts` are added to run.json (origin, notes)."""
    if (folder / "run.json").exists():
        raise RunError(f"{folder} is a run already; choose another folder or remove it first")
    start_run(folder, name=name, model=model, tokenizer=tokenizer, image_input=image_input)
    finish_run(folder, state_dict, facts)


def _write_head(folder: Path, name: str, status: str, corpus: Path | None, splits: dict[str, str] | None) -> None:
    head = {
        "format": run_folder.FORMAT,
        "version": run_folder.VERSION,
        "quintet": quintet.__version__,
        "name": name,
        "status": status,
        "corpus": None if corpus is None else str(corpus.resolve()),
        "splits": splits,
    }
    write_json(folder / "run.json", head)


def save_checkpoint(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """`state` is what the loop wants back: counters, best metric, log windows. All processes call; the first writes."""
    randomness = _gather_random_states()
    parameters = _parameters(optimizer)
    tensors = {f"module/{name}": tensor for name, tensor in whole_state(module).items()}
    tensors |= {
        f"optimizer/{index}/{key}": _whole(value, parameters[index])
        for index, entry in optimizer.state_dict()["state"].items()
        for key, value in entry.items()
        if isinstance(value, Tensor)
    }
    if distributed.is_main():
        save_tensors(
            path, tensors | randomness, {"version": VERSION, "processes": distributed.world_size(), "state": state}
        )
    distributed.barrier()


def load_checkpoint(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Put everything back and return `state`."""
    tensors, metadata = load_tensors(path)
    if metadata.get("version") != VERSION:
        raise RunError(f"{path} is of version {metadata.get('version')}; this Quintet reads version {VERSION}")
    if metadata["processes"] != distributed.world_size():
        raise RunError(
            f"{path} was written by {metadata['processes']} processes and cannot be resumed exactly by "
            f"{distributed.world_size()}; start as many as before"
        )
    module.load_state_dict(own_rows(module, _under(tensors, "module/")))
    parameters = _parameters(optimizer)
    saved: dict[int, dict[str, Tensor]] = {}
    for name, tensor in _under(tensors, "optimizer/").items():
        index, key = name.split("/")
        saved.setdefault(int(index), {})[key] = _own(tensor, parameters[int(index)])
    optimizer.load_state_dict({"state": saved, "param_groups": optimizer.state_dict()["param_groups"]})
    _set_random_state(_under(tensors, f"random/{distributed.rank()}/"))
    return metadata["state"]


def load_weights(matcher: Matcher, state: dict[str, Tensor], where: Path) -> None:
    try:
        module_of(matcher).load_state_dict(state)
    except RuntimeError as error:
        raise RunError(f"the weights in {where} do not fit the matcher: {error}") from None


def whole_state(module: nn.Module) -> dict[str, Tensor]:
    """The state dict, with the rows gathered that processes share out among them. All processes call."""
    parameters = dict(module.named_parameters())
    return {name: _whole(tensor, parameters.get(name)) for name, tensor in module.state_dict().items()}


def own_rows(module: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The reverse: of what is shared out, the rows of this process."""
    parameters = dict(module.named_parameters())
    return {name: _own(tensor, parameters.get(name)) for name, tensor in state.items()}


def _parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """In the order in which the optimizer's state counts them."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _whole(tensor: Tensor, parameter: nn.Parameter | None) -> Tensor:
    rows = None if parameter is None else distributed.global_rows(parameter)
    if rows is None or not tensor.dim():  # numbers of the optimizer, such as its steps, belong to all
        return tensor
    return distributed.gather_rows(tensor.detach(), rows)


def _own(tensor: Tensor, parameter: nn.Parameter | None) -> Tensor:
    rows = None if parameter is None else distributed.global_rows(parameter)
    return tensor if rows is None or not tensor.dim() else tensor[distributed.share(rows)]


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _random_state() -> dict[str, Tensor]:
    _, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002 (saved for whoever uses the global one)
    version, internal, gauss = random.getstate()
    states = {
        "torch": torch.get_rng_state(),
        "numpy": torch.from_numpy(np.array(keys, dtype=np.int64)),
        "numpy_rest": torch.tensor([position, has_gauss, cached], dtype=torch.float64),
        "python": torch.tensor([version, *internal], dtype=torch.int64),
        "python_gauss": torch.tensor([float("nan") if gauss is None else gauss], dtype=torch.float64),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _set_random_state(states: dict[str, Tensor]) -> None:
    torch.set_rng_state(states["torch"])
    position, has_gauss, cached = states["numpy_rest"].tolist()
    np.random.set_state(("MT19937", states["numpy"].numpy().astype(np.uint32), int(position), int(has_gauss), cached))  # noqa: NPY002
    version, *internal = states["python"].tolist()
    gauss = states["python_gauss"].item()
    random.setstate((version, tuple(internal), None if np.isnan(gauss) else gauss))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def _gather_random_states() -> dict[str, Tensor]:
    mine = _random_state()
    if distributed.world_size() == 1:
        return {f"random/0/{name}": tensor for name, tensor in mine.items()}
    gathered: list[Any] = [None] * distributed.world_size()
    dist.all_gather_object(gathered, mine)
    return {f"random/{rank}/{name}": tensor for rank, states in enumerate(gathered) for name, tensor in states.items()}
