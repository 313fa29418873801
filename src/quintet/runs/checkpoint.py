"""Writing a run: its folder, its weights, and checkpoints. `run_folder` describes the files.

A checkpoint is one safetensors file with everything a stage needs to go on exactly where it stopped. Tensors are named
`module/...`, `optimizer/INDEX/KEY` and `random/RANK/...`; what is not a tensor is JSON in the file's metadata. Nothing
in the file can execute code, and the file is written atomically. A CRC-32 of all of it tells damage from weights.
"""

from __future__ import annotations

import hashlib
import json
import random
import threading
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

import quintet
from quintet import distributed
from quintet.data.tokenizers import Tokenizer
from quintet.errors import QuintetError, RunError
from quintet.files import atomic_write, open_regular, remove_partials, user_path, write_json, write_text
from quintet.locks import folder_lock
from quintet.protocols import Matcher, module_of
from quintet.runs import run_folder
from quintet.runs.run_folder import RUN_FILES, STAGE_FILES, WEIGHTS, read_head, write_checksums

VERSION = 1
_writing: set[tuple[Path, int]] = set()  # folders whose lock this process holds, and the thread


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, Any]) -> None:
    """Write a safetensors file with JSON metadata, atomically."""
    plain = {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    shared = {tensor.data_ptr() for tensor in plain.values() if tensor.numel()}
    if len(shared) < sum(1 for tensor in plain.values() if tensor.numel()):
        plain = {name: tensor.clone() for name, tensor in plain.items()}  # the format allows no shared memory
    text = json.dumps(metadata)
    header = {"quintet": _crc32(plain, text) + text}  # one value: the library writes several in any order
    try:
        with atomic_write(path) as temporary:
            save_file(plain, temporary, metadata=header)
    except SafetensorError as error:
        raise QuintetError(f"could not write {path}: {error}; the previous file was kept") from error


def _crc32(tensors: dict[str, Tensor], metadata: str) -> str:
    crc = zlib.crc32(metadata.encode())
    for name, tensor in sorted(tensors.items()):
        crc = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), crc)
        crc = zlib.crc32(tensor.flatten().view(torch.uint8).numpy().data, crc)
    return f"{crc:08x}"


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a safetensors file, and the metadata that `save_tensors` put there."""
    try:
        open_regular(path).close()  # raises where it is a folder, a FIFO, a link to itself
        if any("\ud800" <= letter <= "\udfff" for letter in str(path)):
            raise QuintetError(f"the path {path} is not UTF-8, which reading weights needs; rename the folder")
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            known, text = header.get("crc32"), header.get("quintet", "{}")
            if text[:1] != "{":  # files of earlier versions have the checksum as a value of its own, or none
                known, text = text[:8], text[8:]
            metadata = json.loads(text)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            damaged = known is not None and known != _crc32(tensors, text)
    except QuintetError as error:
        raise RunError(str(error)) from None
    except Exception as error:  # noqa: BLE001  # whatever the reader raises, the file is not one that it can read
        raise RunError(f"{path} is damaged or not a safetensors file: {error}") from None
    if damaged or not isinstance(metadata, dict):
        raise RunError(f"{path} is damaged: its content is not what was written")
    return tensors, metadata


@contextmanager
def writing(folder: Path, doing: str) -> Iterator[None]:
    """Be the only writer of a run folder: the first of the processes that share batches holds the lock for all.

    What killed writers left there is removed. Inside a block of the same folder and thread, another changes nothing.
    """
    run_folder.check_name(folder)
    with suppress(OSError, RuntimeError):  # of a link to itself, which the lock tells
        folder = folder.resolve()
    key = (folder, threading.get_ident())
    if key in _writing:
        yield
        return
    with ExitStack() as stack:
        problem: str | None = None
        if distributed.is_main():
            try:
                stack.enter_context(folder_lock(folder, doing))
                _remove_left_overs(folder)
            except QuintetError as error:
                problem = str(error)
        problem = distributed.from_main(problem)
        if problem is not None:
            raise RunError(problem)
        _writing.add(key)
        stack.callback(_writing.discard, key)
        yield


def _remove_left_overs(folder: Path) -> None:
    remove_partials(folder, RUN_FILES)
    for stage in folder.glob("stages/*"):
        remove_partials(stage, STAGE_FILES)
    with suppress(QuintetError):  # what cannot be read is reported by whoever needs it
        if read_head(folder)["status"] == "starting":  # stopped before all of its first files were written
            _clear(folder)


def _clear(folder: Path) -> None:
    """Remove the files of a run that never started, run.json last: until then they are known to be ours."""
    for name in RUN_FILES:
        (folder / name).unlink(missing_ok=True)


def check_new(folder: Path) -> None:
    """Raise where a run is in the folder, or a file of someone else that a new run would replace."""
    if (folder / "run.json").exists():
        read_head(folder)  # raises where someone else wrote it
        raise RunError(
            f"{folder} holds a run already; choose another folder (a training that was stopped goes on with "
            f"`quintet train --resume {folder}`)"
        )
    stages = [path for name in STAGE_FILES for path in folder.glob(f"stages/*/{name}")]
    for path in (*(folder / name for name in RUN_FILES), *stages):
        if path.is_symlink() or path.exists():
            raise RunError(
                f"{path} is in the way: it does not belong to a run, and Quintet does not replace it; move it, or "
                "choose another folder"
            )


def start_run(
    folder: Path,
    *,
    name: str,
    model: dict[str, Any],
    tokenizer: Tokenizer | None,
    image_input: dict[str, Any],
    recipe: str | None = None,
    corpus: Path | None = None,
    splits: dict[str, str] | None = None,
    dictionary: dict[str, Any] | None = None,
) -> None:
    """Write what is known before the first step; `splits` are checksums of what it trains and selects on.

    `dictionary`: what its vocabulary keeps of the training texts.

    Where that fails, nothing is left. The caller holds the lock (`writing`).
    """
    check_new(folder)
    try:
        _write_head(folder, {"name": name, "status": "starting"})
        if recipe is not None:
            write_text(folder / "recipe.yaml", recipe)
        _write_parts(folder, model, tokenizer, image_input)
        write_checksums(folder)
        head: dict[str, Any] = {"corpus": None if corpus is None else str(corpus.resolve()), "splits": splits}
        if dictionary is not None:
            head["dictionary"] = dictionary
        _write_head(folder, {"name": name, "status": "training", **head})
    except BaseException:
        _clear(folder)
        raise


def finish_run(folder: Path, state_dict: dict[str, Tensor], facts: dict[str, Any] | None = None) -> None:
    """Write the final weights, the checksums of all files, and mark the run complete, in this order."""
    head = read_head(folder)
    save_tensors(folder / WEIGHTS, state_dict, {"run": head["name"], "quintet": quintet.__version__})
    _write_head(folder, head | {"status": "complete"} | (facts or {}), with_checksums=True)


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
    """A complete run from weights that were trained elsewhere. `facts` are added to run.json (origin, notes).

    A kill leaves a folder that the next one takes over, any other failure leaves nothing.
    """
    folder = user_path(folder)
    with writing(folder, f"writing run {name}"):
        check_new(folder)
        try:
            _write_head(folder, {"name": name, "status": "starting"})
            _write_parts(folder, model, tokenizer, image_input)
            finish_run(folder, state_dict, {"corpus": None, "splits": None} | (facts or {}))
        except BaseException:
            _clear(folder)
            raise


def _write_parts(folder: Path, model: dict[str, Any], tokenizer: Tokenizer | None, image_input: dict[str, Any]) -> None:
    write_json(folder / "model.json", model)
    write_json(folder / "images.json", image_input)
    if tokenizer is not None:
        write_json(folder / "tokenizer.json", tokenizer.state())


def _write_head(folder: Path, head: dict[str, Any], with_checksums: bool = False) -> None:
    head = {"format": run_folder.FORMAT, "version": run_folder.VERSION, "quintet": quintet.__version__} | head
    text = json.dumps(head, ensure_ascii=False, indent=2) + "\n"
    if with_checksums:
        write_checksums(folder, {"run.json": hashlib.sha256(text.encode()).hexdigest()})
    write_text(folder / "run.json", text)


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
    if metadata.get("processes") != distributed.world_size():
        raise RunError(
            f"{path} was written by {metadata.get('processes')} processes and cannot be resumed exactly by "
            f"{distributed.world_size()}; start as many as before"
        )
    try:
        module.load_state_dict(own_rows(module, _under(tensors, "module/")))
        parameters = _parameters(optimizer)
        saved: dict[int, dict[str, Tensor]] = {}
        for name, tensor in _under(tensors, "optimizer/").items():
            index, key = name.split("/")
            saved.setdefault(int(index), {})[key] = _own(tensor, parameters[int(index)])
        _check_optimizer_state(saved, parameters)
        optimizer.load_state_dict({"state": saved, "param_groups": optimizer.state_dict()["param_groups"]})
        _set_random_state(_under(tensors, f"random/{distributed.rank()}/"))
        state: dict[str, Any] = metadata["state"]
    except (LookupError, RuntimeError, ValueError, TypeError, OverflowError) as error:
        raise RunError(
            f"{path} does not fit this run: {str(error).partition(chr(10))[0]}; remove it to start the stage again"
        ) from None
    return state


def _check_optimizer_state(saved: dict[int, dict[str, Tensor]], parameters: list[nn.Parameter]) -> None:
    """Raise unless all parameters have the same entries, each a number or of the parameter's shape."""
    for index, entries in saved.items():
        if entries.keys() != next(iter(saved.values())).keys():
            raise ValueError(f"the optimizer's state of parameter {index} has other entries than that of the first")
        for key, tensor in entries.items():
            if tensor.dim() and tensor.shape != parameters[index].shape:
                raise ValueError(f"the optimizer's {key} of parameter {index} has the shape {tuple(tensor.shape)}")


def load_weights(matcher: Matcher, state: dict[str, Tensor], where: Path) -> None:
    module = module_of(matcher)
    for name, wanted in module.state_dict().items():
        if name in state and state[name].is_floating_point() != wanted.is_floating_point():
            raise RunError(f"the weights in {where} do not fit the matcher: {name} is of type {state[name].dtype}")
    try:
        module.load_state_dict(state)
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
    if distributed.is_dtensor(tensor):
        whole: Tensor = tensor.full_tensor()  # type: ignore[attr-defined]
        return whole.cpu() if distributed.is_main() else whole.new_empty(0)  # only the first process writes
    rows = None if parameter is None else distributed.global_rows(parameter)
    if rows is None or not tensor.dim():  # numbers of the optimizer, such as its steps, belong to all
        return tensor
    return distributed.gather_rows(tensor.detach(), rows)


def _own(tensor: Tensor, parameter: nn.Parameter | None) -> Tensor:
    if parameter is not None and distributed.is_dtensor(parameter) and tensor.dim():
        return distributed.part_like(tensor, parameter)
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
    gathered = distributed.gather_objects(_random_state())
    return {f"random/{rank}/{name}": tensor for rank, states in enumerate(gathered) for name, tensor in states.items()}
