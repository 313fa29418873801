"""One target, fuzzed in this process by atheris (libFuzzer with the coverage of Python's byte code).

    python -m benchmarks.fuzz.target filters --material FOLDER --seconds 60 --found FILE

An exception that is no QuintetError is noted in FILE with its input, and fuzzing goes on; one kind is noted once. A
process that dies (a signal, the limit of memory or of time) is `fuzzing`'s to note.
"""

from __future__ import annotations

import argparse
import base64
import importlib
import json
import os
import pkgutil
import resource
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import atheris
import torch
from torch._weights_only_unpickler import Unpickler

MEMORY = 2 * 2**30  # bytes of address space beyond what the process has before it fuzzes
INPUT_SECONDS = 30
INSTRUMENTED = [
    "quintet",
    "PIL",
    "yaml",
    "tarfile",
    "csv",
    "zipfile",
    "gzip",
]  # packages: atheris takes all of their modules
LEFT_OUT = (".kernels", ".__main__")  # they import triton, or run


def import_quintet() -> None:
    """Every module, so that what is imported late has its coverage counted too."""
    import quintet

    for module in pkgutil.walk_packages(quintet.__path__, "quintet."):
        if not any(part in module.name for part in LEFT_OUT):
            importlib.import_module(module.name)


def kind_of(error: BaseException) -> tuple[str, str]:
    """The exception's type, and the last line of Quintet that it went through."""
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if "/quintet/" in frame.filename]
    where = f"{lines[-1].filename.rpartition('/quintet/')[2]}:{lines[-1].lineno}" if lines else ""
    return type(error).__name__, where


def limit() -> None:
    """No more memory than a parser of small inputs may take, no core files, and no waiting for disks."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
    os.sync, os.fsync, os.fdatasync = (lambda *_: None,) * 3  # type: ignore[assignment]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--material", type=Path, required=True, help="what `make_material` made")
    parser.add_argument("--inputs", type=Path, help="folder of inputs that reach something new; kept between runs")
    parser.add_argument("--found", type=Path, required=True, help="JSONL file of what was found")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", type=Path, help="read this input only, and show what it raises")
    options = parser.parse_args()
    torch.set_num_threads(1)
    Unpickler.load = atheris.instrument_func(Unpickler.load)  # type: ignore[method-assign]
    with atheris.instrument_imports(include=INSTRUMENTED):
        import_quintet()
        from benchmarks.fuzz.targets import LARGEST_SEED, TARGETS
        from benchmarks.torture.material import Material
        from quintet.errors import QuintetError

    with tempfile.TemporaryDirectory(prefix="quintet-fuzz-") as scratch:
        os.chdir(scratch)
        parsers = TARGETS[options.name](Material(options.material), Path(scratch))
        if options.again:
            data = options.again.read_bytes()
            parsers[data[0] % len(parsers)].read(data[1:])
            return
        inputs = options.inputs or Path(scratch) / "inputs"
        inputs.mkdir(exist_ok=True)
        for number, parser_ in enumerate(parsers):
            for which, seed in enumerate(parser_.seeds):
                if len(seed) <= LARGEST_SEED:
                    (inputs / f"seed-{number}-{which}").write_bytes(bytes([number]) + seed)
        known: set[tuple[Any, ...]] = set()

        def read(data: bytes) -> None:
            if not data:
                return
            number = data[0] % len(parsers)
            try:
                parsers[number].read(data[1:])
            except QuintetError:
                pass
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001  # whatever it is, it is told
                kind = kind_of(error)
                if (number, *kind) not in known:
                    known.add((number, *kind))
                    row = {"parser": number, "what": kind[0], "where": kind[1], "said": str(error)[:200]}
                    with options.found.open("a") as file:
                        file.write(json.dumps({**row, "input": base64.b64encode(data).decode()}) + "\n")

        limit()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        flags = [f"-max_total_time={options.seconds}", f"-timeout={INPUT_SECONDS}", "-rss_limit_mb=4096"]
        flags += [f"-max_len={LARGEST_SEED + 1}", "-print_final_stats=1", f"-seed={options.seed + 1}"]
        flags += [f"-artifact_prefix={options.found.parent}/{options.name.replace(' ', '-')}-", "-reload=0"]
        options.found.with_suffix(".began").touch()
        atheris.Setup([sys.argv[0], *flags, str(inputs)], read)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
