"""Files and command lines that somebody made to do harm.

Survived: the good items are there and the bad ones are listed, or a QuintetError explains; nothing is executed, and
nothing is written outside of the output.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import shutil
import struct
import tarfile
import warnings
import zlib
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.numpy import load_file

import quintet
from benchmarks.torture import material
from benchmarks.torture.attack import Attack, Outcome, copy_tree, in_child
from benchmarks.torture.material import Material

warnings.filterwarnings("ignore", message=".*quantize")  # old tensors are what is attacked with
NESTED = "[" * 100_000 + "]" * 100_000
FIELDS = ("caption", "album", "date", "rating", "tags", "kind", "path", "")
VALUES: tuple[Any, ...] = (
    10**5000,
    -1,
    float("nan"),
    float("inf"),
    "x" * 10**6,
    "\ud800",
    "\x1b[2J",
    [[]],
    {},
    None,
    "9999-99-99",
)


# Folders of images


def _name(rng: random.Random) -> bytes:
    """A file name, without its suffix, that a file system takes."""
    kinds = (
        lambda: rng.choice([b"\x1b[31mred", b"line\nbreak", b"bell\x07", b"tab\t", b"\r", b"\x7f"]),
        lambda: b"\xff\xfe" + rng.randbytes(3).hex().encode(),
        lambda: b"n" * 250,
        lambda: "é‮gnp".encode(),
        lambda: b"-o",
        lambda: b"..." + rng.randbytes(2).hex().encode(),
        lambda: b"a'b\"c`d$(e)%s{}",
        lambda: b" ",
    )
    return rng.choice(kinds)()


def _hostile_image(rng: random.Random, folder: Path, good: bytes) -> str:
    """Adds one thing to a folder of images; says what kind."""
    path = folder / "x.png"
    kinds: dict[str, Callable[[], Any]] = {
        "name": lambda: Path(os.fsdecode(os.fsencode(folder) + b"/" + _name(rng) + b".png")).write_bytes(good),
        "link to itself": lambda: path.symlink_to(path),
        "link to nothing": lambda: path.symlink_to("nowhere"),
        "link out of the folder": lambda: path.symlink_to("/etc/passwd"),
        "link to its own folder": lambda: (folder / "loop").symlink_to(folder),
        "FIFO": lambda: os.mkfifo(path),
        "sidecar FIFO": lambda: (path.write_bytes(good), os.mkfifo(folder / "x.json")),
        "caption FIFO": lambda: (path.write_bytes(good), os.mkfifo(folder / "x.txt")),
        "sidecar link to itself": lambda: (path.write_bytes(good), (folder / "x.json").symlink_to("x.json")),
        "sidecar is endless": lambda: (path.write_bytes(good), (folder / "x.json").symlink_to("/dev/zero")),
        "sidecar nested": lambda: (path.write_bytes(good), (folder / "x.json").write_text(NESTED)),
        "sidecar value": lambda: (path.write_bytes(good), (folder / "x.json").write_text(_sidecar(rng))),
        "sidecar bytes": lambda: (path.write_bytes(good), (folder / "x.json").write_bytes(rng.randbytes(200))),
        "sidecar folder": lambda: (path.write_bytes(good), (folder / "x.json").mkdir()),
        "folder called x.png": lambda: path.mkdir(),
        "truncated": lambda: path.write_bytes(good[: rng.randrange(len(good))]),
        "flipped": lambda: path.write_bytes(_flipped(good, rng)),
        "bomb": lambda: path.write_bytes(_bomb(rng.choice([8_900, 50_000, 2**31 - 1]))),
        "random bytes": lambda: path.write_bytes(rng.randbytes(500)),
        "empty": lambda: path.write_bytes(b""),
        "EXIF": lambda: (folder / "x.jpg").write_bytes(_exif(good, rng)),
        "time of change": lambda: (path.write_bytes(good), os.utime(path, (0, rng.choice([-(10**11), 10**12, 2**33])))),
        "deep folders": lambda: _deep(folder, good),
    }
    kind = rng.choice(sorted(kinds))
    kinds[kind]()
    return kind


def _sidecar(rng: random.Random) -> str:
    value = rng.choice(VALUES)
    if isinstance(value, int) and value > 10**100:
        return f'{{"{rng.choice(FIELDS)}": {"9" * 5000}}}'
    return json.dumps({rng.choice(FIELDS): value})


def _flipped(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 20)):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _bomb(side: int) -> bytes:
    """A small PNG that says that it is side x side pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    packed = zlib.compress(bytes(4 * 10**6), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def _exif(good: bytes, rng: random.Random) -> bytes:
    buffer = io.BytesIO()
    image = Image.open(io.BytesIO(good)).convert("RGB")
    exif = image.getexif()
    exif[274], exif[306], exif[271] = 6, "0000:99:99 25:61:61", "x" * 200
    image.save(buffer, "JPEG", exif=exif.tobytes())
    data = bytearray(buffer.getvalue())
    for _ in range(rng.randint(1, 6)):  # within the EXIF block, behind the markers
        data[rng.randrange(24, 100)] = rng.randrange(256)
    return bytes(data)


def _deep(folder: Path, good: bytes) -> None:
    """Longer in all than a path may be."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("deep", dir_fd=here)
        below = os.open("deep", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def images(rng: random.Random, made: Material, folder: Path) -> Iterator[Outcome]:
    photos = folder / "photos"
    photos.mkdir()
    good = sorted(made.images.glob("*.png"))
    for path in good[:3]:
        shutil.copy(path, photos)
    kind = _hostile_image(rng, photos, good[4].read_bytes())
    ending = in_child(_index_and_count, made, photos, folder / "index", [path.name for path in good[:3]], seconds=30)
    try:
        if not ending.told:
            yield ending.lost(f"index: {kind}")
        elif ending.kind == "refused":
            yield Outcome(f"index: {kind}", "one bad file stops the rest", ending.detail)
        else:
            yield Outcome(f"index: {kind}", ending.value)
    finally:
        _remove_deep(photos)


def _index_and_count(made: Material, photos: Path, out: Path, good: list[str]) -> str:
    material.index(made.run, photos, out)
    found = material.read_index(out)
    return "" if all(any(key.startswith(name + " ") for key in found) for name in good) else "good images are missing"


def _remove_deep(folder: Path) -> None:
    """`shutil.rmtree` recurses too deeply for the folders made here."""
    deep = folder / "deep"
    number = 0
    while deep.is_dir() and not deep.is_symlink():
        below = deep / "deep"
        if below.is_dir():
            below.rename(folder / f"deep-{number}")
            deep.rmdir()
            (folder / f"deep-{number}").rename(deep)
        else:
            shutil.rmtree(deep)
        number += 1


# Archives, pickles, arrays


def shards(rng: random.Random, made: Material, folder: Path) -> Iterator[Outcome]:
    """Members that lead out of the archive, links, devices, damage."""
    (folder / "in").mkdir()
    canary = folder / "canary"
    canary.write_bytes(b"mine")
    shard = folder / "in/shard-000.tar"
    good = sorted(made.images.glob("*.png"))[0].read_bytes()
    names = (
        str(folder / "stranger.png"),
        "../../stranger.png",
        "../canary",
        "a/../../../stranger.png",
        "\udcff.png",
        "x" * 300,
    )
    with tarfile.open(shard, "w", format=rng.choice([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])) as archive:
        for name in ("0001.png", rng.choice(names)):
            _member(archive, name, good)
        _member(archive, "0001.txt", b"a red circle")
        link = tarfile.TarInfo("0002.png")
        link.type, link.linkname = (
            rng.choice([tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE]),
            "../canary",
        )
        archive.addfile(link)
        _member(archive, "0003.png", good)
        _member(archive, "0003.json", rng.choice([NESTED.encode(), b'{"caption": 1e999}', b"\xff", b'{"caption": {}}']))
    if rng.random() < 0.3:
        data = shard.read_bytes()
        shard.write_bytes(data[: rng.randrange(len(data))])
    before = _listing(folder, ("out",))
    how = rng.choice(["import", "index"])
    work = _import_shards if how == "import" else material.index
    arguments = (folder / "in", folder / "out") if how == "import" else (made.run, folder / "in", folder / "out")
    ending = in_child(work, *arguments, seconds=30)
    if _listing(folder, ("out",)) != before:
        yield Outcome(f"{how} of shards", "wrote outside of the output")
    else:
        yield Outcome(f"{how} of shards") if ending.told else ending.lost(f"{how} of shards")


def _member(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def _import_shards(source: Path, out: Path) -> None:
    quintet.import_corpus("webdataset", source, out)


def _listing(folder: Path, without: tuple[str, ...]) -> dict[str, Any]:
    paths = [path for path in folder.rglob("*") if path.relative_to(folder).parts[0] not in without]
    return {str(path): path.read_bytes() if path.is_file() else None for path in paths}


class _Runs:
    """Unpickled without care, it makes a file."""

    def __init__(self, canary: Path, how: str) -> None:
        self.canary, self.how = canary, how

    def __reduce__(self) -> tuple[Any, ...]:
        if self.how == "os.system":
            return os.system, (f"touch {self.canary}",)
        if self.how == "exec":
            return exec, (f"open({str(self.canary)!r}, 'w')",)
        return open, (str(self.canary), "w")


def checkpoints(rng: random.Random, made: Material, folder: Path) -> Iterator[Outcome]:
    """`quintet convert` of checkpoints that execute, and of tensors and options that no checkpoint has."""
    canary, path = folder / "canary", folder / "model_best.pth.tar"
    evil = _Runs(canary, rng.choice(["os.system", "exec", "open"]))
    good = material.checkpoint()
    image, text = good["model"]
    weight = image["fc.weight"]
    changes: dict[str, dict[str, Any]] = {
        "pickle in opt": {"opt": evil},
        "pickle in model": {"model": [image, evil]},
        "pickle elsewhere": {"epoch": evil},
        "sparse tensor": {"model": [image | {"fc.weight": weight.to_sparse()}, text]},
        "meta tensor": {"model": [image | {"fc.weight": weight.to("meta")}, text]},
        "huge expanded tensor": {"model": [image | {"fc.weight": torch.zeros(1).expand(60_000, 20_000)}, text]},
        "quantised tensor": {
            "model": [image | {"fc.weight": torch.quantize_per_tensor(weight, 0.1, 0, torch.qint8)}, text]
        },
        "complex tensor": {"model": [image | {"fc.weight": weight.to(torch.complex64)}, text]},
        "integer tensor": {"model": [image | {"fc.weight": weight.to(torch.int8)}, text]},
        "empty tensor": {"model": [image | {"fc.weight": torch.empty(0, 0)}, text]},
        "NaN weights": {"model": [image | {"fc.weight": weight * float("nan")}, text]},
        "list option": {"opt": Namespace(focal_type=["equal"], lambda_softmax=20.0)},
        "text for a number": {"opt": Namespace(focal_type="equal", lambda_softmax="abc")},
        "huge option": {"opt": Namespace(focal_type="equal", lambda_softmax=10**400)},
        "infinite option": {"opt": Namespace(focal_type="equal", lambda_softmax=float("inf"))},
        "no model": {"model": None},
    }
    kind = rng.choice([*sorted(changes), "bare pickle"])
    if kind == "bare pickle":
        path.write_bytes(pickle.dumps(evil))
    else:
        torch.save(good | changes[kind], path)
    ending = in_child(_convert_and_open, path, folder / "run", seconds=30)
    if canary.exists():
        yield Outcome(f"convert: {kind}", "executed")
    elif not ending.told:
        yield ending.lost(f"convert: {kind}")
    elif ending.kind == "done" and kind in ("NaN weights", "text for a number", "infinite option"):
        yield Outcome(f"convert: {kind}", "was taken")
    else:
        yield Outcome(
            f"convert: {kind}", "left a run" if ending.kind == "refused" and (folder / "run").exists() else ""
        )


def _convert_and_open(path: Path, out: Path) -> None:
    quintet.convert("bfan", path, out)
    quintet.load(out, device="cpu")


def arrays(rng: random.Random, made: Material, folder: Path) -> Iterator[Outcome]:
    """Features and lists of NaN, infinities, wrong types and shapes, and arrays of pickled objects."""
    corpus, canary = copy_tree(made.corpus, folder / "corpus"), folder / "canary"
    path = corpus / "features/small/features.npy"
    array = np.load(path)
    kind = rng.choice(["NaN", "infinity", "objects", "integers", "complex", "shape", "big-endian", "Fortran order"])
    if kind in ("NaN", "infinity"):
        array = array.copy()
        array[rng.randrange(len(array)), 0, 0] = np.nan if kind == "NaN" else np.inf
    elif kind == "objects":
        array = np.array([_Runs(canary, "exec")], dtype=object)
    elif kind == "integers":
        array = array.astype(np.int64)
    elif kind == "complex":
        array = array.astype(np.complex64)
    elif kind == "shape":
        array = array.reshape(-1)
    elif kind == "big-endian":
        array = array.astype(">f2")
    else:
        array = np.asfortranarray(array)
    np.save(path, array, allow_pickle=True)
    ending = in_child(material.train, folder / "run", corpus)
    if canary.exists():
        yield Outcome(f"features: {kind}", "executed")
    elif ending.kind == "done" and kind in ("NaN", "infinity") and not _finite(folder / "run"):
        yield Outcome(f"features: {kind}", "trained to weights that are not finite")
    elif ending.kind == "done" and kind in ("complex", "shape"):
        yield Outcome(f"features: {kind}", "was taken")
    else:
        yield Outcome(f"features: {kind}") if ending.told else ending.lost(f"features: {kind}")


def _finite(run: Path) -> bool:
    return all(np.isfinite(array).all() for array in load_file(run / "weights.safetensors").values())


# Command lines


def command_lines(rng: random.Random, made: Material, folder: Path) -> Iterator[Outcome]:
    """Words that a shell could pass: the exit status is 0, 1 or 2, and there is no traceback."""
    hostile = folder / "hostile.yaml"
    hostile.write_text(
        rng.choice(
            [NESTED, "a: &a [*a]", "x: " + "9" * 5000, "date: 2024-99-99", "\x00", "!!python/object:os.system x"]
        )
    )
    words = [
        "9" * 5000,
        "-1",
        "nan",
        "1e12",
        "",
        "\udcff",
        "x" * 5000,
        "\x1b[2J",
        "/dev/full",
        "/dev/zero",
        "~",
        str(hostile),
        NESTED,
    ]
    word = rng.choice(words)
    run, corpus, index = str(made.run), str(made.corpus), str(made.index)
    out = str(folder / "out")
    field = rng.choice(["seed", "matcher.embed_dim", "stages.online.epochs", "name"])
    lines = [
        ["train", str(hostile), "-o", out],
        ["train", str(made.recipe.with_suffix(".yaml")), f"{field}={word}", "-o", out],
        ["train", word, "-o", out],
        ["evaluate", word, corpus],
        ["evaluate", run, corpus, "--split", word],
        ["mine", run, corpus, "--top-texts", word, "-o", out],
        ["mine", run, word, "-o", out],
        ["search", index, word],
        ["search", index, "a red circle", "-k", word],
        ["search", index, "a red circle", "--where", word],
        ["index", run, word, "-o", out],
        ["index", word, str(made.images), "-o", out],
        ["features", word],
        ["features", corpus, "--grid", word],
        ["convert", "bfan", word, "-o", out],
        ["convert", "bfan", str(made.folder / "model_best.pth.tar"), "-o", out, "--option", f"lambda_softmax={word}"],
        ["data", "inspect", word],
    ]  # fmt: skip
    line = rng.choice(lines)
    ending = in_child(_command, line, seconds=30)
    # An integer of 5000 digits may be a valid request for endless work; what it may not do is end in a traceback.
    name = " ".join(part for part in line[:1] if part != word)
    said = "hostile.yaml" if str(hostile) in line else ascii(word[:12])
    yield Outcome(f"{name} {said}") if ending.told else ending.lost(f"{name} {said}")


def _command(line: list[str]) -> int:
    from quintet.cli.main import app

    try:
        app(line, prog_name="quintet")
    except SystemExit as done:
        return int(done.code or 0)
    return 0


ATTACKS: dict[str, Attack] = {
    "hostile images": images,
    "hostile tar shards": shards,
    "hostile checkpoints": checkpoints,
    "hostile arrays": arrays,
    "hostile command lines": command_lines,
}
