"""The commands of every page are run in order, as a reader would, on small data; what is not run is listed."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image
from tests.data.formats import (
    sources,
    test_coco,
    test_cuhk,
    test_flickr,
    test_img2dataset,
    test_karpathy,
    test_multi30k,
    test_precomp,
    test_webdataset,
)
from tests.docs.commands import PAGES, Line, commands
from tests.docs.conftest import fenced_blocks
from tests.models.dual_encoders import save_dual_encoder
from tests.runs.convert.test_translate import save_vsepp

pytestmark = pytest.mark.timeout(1500)

# What makes a command small enough for a test. Nothing else of a documented command is changed.
SHORT = ("stages.*.epochs=1", "stages.*.select_after=0", "stages.*.batches.size=16")
SMALLER: dict[tuple[str, ...], tuple[str, ...]] = {
    ("data", "import", "scenes"): ("--option=train=48", "--option=dev=16", "--option=test=16"),
    ("train", "--resume"): (),
    ("train",): SHORT,
    ("study", "--list"): (),
    ("study", "clip"): (*SHORT, "--bootstrap=0"),
    ("study",): (*SHORT, "--bootstrap=0", "matcher.embed_dim=64"),
    ("features",): ("--workers=1",),
}
# What a page leaves to the reader, and what the test puts there.
PLACEHOLDERS = {
    "INDEX": "photos-and-texts",
    "train=2000": "train=48",
    "PATH_TO_FLICKR8K": "sources/flickr8k",
    "PATH_TO_CUHK_PEDES": "data/CUHK-PEDES",
    "data.tokenizer.source=FOLDER": "data.tokenizer.source=sources/pieces",
}
# What the test does not run, and why: a command with such a word. `test_commands.py` parses these.
NOT_RUN = {
    "pip": "sets the environment up",
    "source": "sets the environment up",
    "make": "sets the environment up, and runs these tests",
    "FORMAT": "a synopsis",
    "CORPUS": "a synopsis",
    "KIND": "a synopsis",
    "ExpertAnnotations.txt": "the judgements that come with Flickr8k, to download",
    "CrowdFlowerAnnotations.txt": "the judgements that come with Flickr8k, to download",
    "--eccv": "COCO's test split of 5,000 images, to download",
    "npy:embeddings": "embeddings of another program",
    "trec:rankings.txt": "rankings of another program",
    "length,size,field:category": "a field of one's own corpus",
    "5fold": "COCO's test split of 5,000 images, to download",
    "5k": "COCO's test split of 5,000 images, to download",
    "dual-path-coco": "ImageNet weights, to download",
    "resnet50.pth": "ImageNet weights, to download",
    "resnet50.safetensors": "ImageNet weights, to download",
    "matcher.tower_weights=FILE": "ImageNet weights and word vectors, to download",
    "matcher.tower_weights=resnet50.pth": "ImageNet weights and word vectors, to download",
    "efficientnet-lite2": "a package of weights, to install",
    "s3://bucket/shards/{00000..00099}.tar": "a bucket; tests/data/test_remote.py reads one",
    "https://example.org/f30k/train-0.parquet": "a server; tests/data/test_remote.py has one",
    "hf:jxie/flickr8k": "a data set of the hub, to download",
    "hf:umaru97/flickr30k_train_val_test": "a data set of the hub, to download",
    "hf:facebook/dinov2-small": "a model of the hub, to download",
    "auto": "a Ray cluster; tests/test_ray.py starts one",
    "ray://head:10001": "a Ray cluster; tests/test_ray.py starts one",
    "--nnodes": "two computers; tests/training/test_nodes.py has two network namespaces",
    "postgresql://HOST/DATABASE": "a server; tests/serve/test_replicas.py starts one",
    "push": "uploads to the hub; tests/runs/test_hub_upload.py does, to a stand-in",
    "mmca-f30k": "BERT of the hub, to download",
    "vse-infinity-bert-coco": "BERT of the hub, to download",
    "stages.offline.negatives.from=offcandipath": "lists of AOQ's own code",
    "stages.offline.negatives.from=candidates.csv": "lists of another program",
    "model_best.pth": "a checkpoint of the authors, to download",
    "runs/dual-path-cuhk": "a run that needs ImageNet weights",
    "0.0.0.0": "opens a port to the network",
    "benchmarks.measure.flickr8k": "hours on a GPU; tests/benchmarks/test_flickr8k.py runs it on a toy grid",
    "benchmarks.measure.evidence": "minutes to hours; tests/benchmarks/test_evidence.py makes rows of a toy corpus",
    "benchmarks.pages.results_page": "writes pages of this repository; tests/benchmarks/test_results_page.py runs it",
    "benchmarks.torture.campaign": "attacks for minutes; tests/benchmarks/test_torture.py runs it",
    "docs/make_serve_images.py": "trains for ten minutes and needs a browser",
}
# These pages make everything that they use; the last thing that they make.
COMPLETE = {
    "README.md": "runs/scan/weights.safetensors",
    "docs/README.md": "photos.index/items.sqlite",
    "docs/tutorials/search-your-photos.md": "photos.index/items.sqlite",
    "docs/tutorials/train-a-method.md": "towers/images.onnx",
    "docs/tutorials/reproduce-a-table.md": "studies/mmca/tables.md",
    "docs/tutorials/fine-tune-clip.md": "student.index/items.sqlite",
}
TOURS = [
    page for page in PAGES if any(line.quintet and not NOT_RUN.keys() & set(line.words) for line in commands(page))
]


def small(words: tuple[str, ...]) -> list[str]:
    for start, more in SMALLER.items():
        if words[: len(start)] == start:
            given = {word.partition("=")[0] for word in words if "*" not in word}
            return [*words, *(word for word in more if word.removeprefix("--option=").partition("=")[0] not in given)]
    return list(words)


def named_files(word: str, home: Path) -> list[str]:
    """The files that a pattern names, as a shell gives them."""
    found = home.glob(word) if "*" in word and not word.startswith("/") else ()
    return sorted(map(str, found)) or [word]


def run(line: Line, home: Path) -> str:
    assert line.quintet is not None
    words = [str(home / word[2:]) if word.startswith("~/") else word for word in small(line.quintet)]
    words = [word.replace("$HOME", str(home)) for word in words]
    words = [each for word in words for each in named_files(word, home)]
    command = [sys.executable, "-m", "quintet", *words]
    if line.words[0] == "torchrun":
        before = line.words[1 : line.words.index("-m")]
        command = [sys.executable, "-m", "torch.distributed.run", *before, "-m", "quintet", *words]
    if words[0] == "serve":
        with serving(command, home):
            return ""
    done = subprocess.run(command, cwd=home, env=environment(home), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def environment(home: Path) -> dict[str, str]:
    # BROWSER: what `--open` starts. Two processes of gloo meet on this computer only.
    more = {"HOME": str(home), "BROWSER": "true", "COLUMNS": "200", "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1"}
    return os.environ | more


@contextmanager
def serving(command: list[str], home: Path) -> Iterator[str]:
    """Start the server, wait until it is well, stop it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [*command, "--port", str(port)]
    with subprocess.Popen(command, cwd=home, env=environment(home), stderr=subprocess.PIPE, text=True) as server:
        try:
            for _ in range(120):
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as answer:
                        assert json.load(answer)["status"] == "ok"
                        break
                except OSError:
                    assert server.poll() is None, server.stderr.read() if server.stderr else ""
                    time.sleep(0.5)
            else:
                raise AssertionError("the server did not answer within a minute")
            yield f"localhost:{port}"
        finally:
            server.terminate()


def ask(line: Line, home: Path) -> None:
    """A `curl` of a page, asked of a server of the page's index."""
    with serving([sys.executable, "-m", "quintet", "serve", "holiday.index"], home) as address:
        words = [word.replace("localhost:8000", address) for word in line.words]
        done = subprocess.run(words, cwd=home, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["hits"], done.stdout


def quintet(home: Path, *words: str) -> None:
    run(Line("(set-up)", 0, ("quintet", *words)), home)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pages take for granted: a corpus with features, and two trained runs."""
    home = tmp_path_factory.mktemp("made")
    quintet(home, "data", "import", "scenes", "-", "corpora/scenes")
    quintet(home, "features", "corpora/scenes")
    for recipe, name in (("vse", "vse"), ("aoq-scan", "scan")):
        quintet(home, "train", f"{recipe}-scenes", "--corpus", "corpora/scenes", "-o", f"runs/{name}")
    return home


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A person's computer: photos, and datasets as they are distributed."""
    home = tmp_path / "home"
    rng = np.random.default_rng(0)
    for folder in ("Pictures/2024", "trip"):
        (home / folder).mkdir(parents=True)
        for number in range(6):
            pixels = rng.integers(0, 255, (48, 64, 3), dtype=np.uint8)
            exif = Image.Exif()
            exif[ExifTags.Base.Make], exif[ExifTags.Base.Model] = "Apple", "iPhone"
            Image.fromarray(pixels).resize((320, 240)).save(home / folder / f"{number}.jpg", exif=exif)
            (home / folder / f"{number}.txt").write_text(f"noise of number {number}\n")
    for name in ("photo.jpg", "dog.jpg"):
        shutil.copy(home / "trip/0.jpg", home / name)
    (home / "questions.txt").write_text("a dog\na cat\n")
    return home


def datasets(home: Path) -> None:
    """The sources of docs/corpora.md under ~/data, in the layouts in which they are distributed."""
    data = home / "data"
    test_cuhk.make_source(data / "CUHK-PEDES", test_cuhk.ROWS)
    test_flickr.make_source(data / "flickr8k")
    test_flickr.make_source(data / "flickr30k")
    (data / "flickr30k/Flickr8k.token.txt").rename(data / "flickr30k/results_20130124.token")
    (data / "flickr30k/images").rename(data / "flickr30k/flickr30k-images")
    for name, rows in (("flickr30k", test_karpathy.COCO), ("coco", test_karpathy.COCO)):
        made = test_karpathy.make_source(home / f"made-{name}", rows, f"dataset_{name}.json")
        (made / f"dataset_{name}.json").rename(data / f"dataset_{name}.json")
        shutil.copytree(made / "images", data / name if name == "coco" else data / "flickr30k-images")
    for name in ("f30k_precomp", "coco_precomp"):
        for first, split in enumerate(("train", "dev", "test")):
            test_precomp.write_split(data / name, split, 1001 if split == "dev" else 4, first=2000 * first)
    pair = {"1.png": test_webdataset.png(), "1.txt": b"A red square."}
    test_webdataset.write_shard(data / "shards/0.tar", pair)
    for name, year in (("coco", 2017), ("coco2014", 2014)):
        sources.as_coco(home / f"made-{year}", year)
        shutil.copytree(home / f"made-{year}", data / name, dirs_exist_ok=True)
    test_coco.karpathy(data / "coco2014/dataset_coco.json")
    test_multi30k.make_source(data / "multi30k")
    for number in (1, 2, 3):
        (data / "flickr30k-images" / f"{number}.jpg").write_bytes(sources.jpeg(number))
    test_cuhk.make_source(data / "ICFG-PEDES", test_cuhk.ROWS, "ICFG-PEDES.json")
    test_cuhk.make_source(data / "RSTPReid", test_cuhk.RSTP_ROWS, "data_captions.json")
    sources.as_parquet(data / "f30k-parquet")
    sources.as_parquet(home / "data/my-dataset")
    for name in ("train-0", "test-0"):
        columns = {"image": sources.images(range(2)), "title": ["a", "b"], "key": [f"{name}/{at}" for at in range(2)]}
        sources.write_parquet(data / "shop" / f"{name}.parquet", columns)
    test_img2dataset.make_source(data / "cc3m")
    (home / "shop").mkdir()
    shutil.copy(home / "photo.jpg", home / "shop/photo.jpg")
    (home / "shop/products.csv").write_text("image,title,description\nphoto.jpg,A photo,Of noise\n")
    shutil.copytree(data / "flickr30k", home / "flickr30k")
    shutil.copy(home / "photo.jpg", home / "flickr30k/1.jpg")
    (home / "flickr30k/results.csv").write_text("image_name|comment_number|comment\n1.jpg|0|A dog .\n")


def flickr8k(home: Path, made: Path) -> None:
    """The generated scenes in the layout of Flickr8k, and word pieces in the place of MiniLM's."""
    source = home / "sources/flickr8k"
    source.mkdir(parents=True)
    scenes = made / "corpora/scenes"
    rows = {name: [json.loads(line) for line in (scenes / f"{name}.jsonl").open()] for name in ("images", "texts")}
    (source / "images").mkdir()
    for image in rows["images"]:
        shutil.copy(scenes / image["path"], source / "images" / f"{image['id']}.png")
    tokens = [f"{text['id'].replace('#', '.png#')}\t{text['text']}\n" for text in rows["texts"]]
    (source / "Flickr8k.token.txt").write_text("".join(tokens))
    for split, groups in json.loads((scenes / "splits.json").read_text()).items():
        (source / f"Flickr_8k.{split}Images.txt").write_text("".join(f"{group}.png\n" for group in groups))
    (home / "sources/pieces").mkdir()
    words = sorted({word for text in rows["texts"] for word in re.findall(r"\w+|[^\w\s]", text["text"].lower())})
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (home / "sources/pieces/vocab.txt").write_text("\n".join([*special, *words]) + "\n")


def hub_models(home: Path) -> None:
    """Small models in the hub's cache, under the names of the published ones and with their sizes of images."""
    for name, kind, patch in (
        ("openai/clip-vit-base-patch32", "clip", 32),
        ("openai/clip-vit-large-patch14", "clip", 14),
        ("google/siglip-base-patch16-224", "siglip", 16),
    ):
        folder = home / ".cache/huggingface/hub" / f"models--{name.replace('/', '--')}"
        save_dual_encoder(folder / "snapshots/1", kind, image=224, patch=patch, limit=77)
        (folder / "refs").mkdir()
        (folder / "refs/main").write_text("1")


def prepare(page: str, home: Path, made: Callable[[], Path]) -> None:
    """What a page speaks of, beside runs and corpora."""
    if page in ("docs/methods/clip.md", "docs/tutorials/fine-tune-clip.md"):
        hub_models(home)
    if page == "docs/corpora.md":
        shutil.copytree(home / "trip", home / "holiday")
    if page in ("docs/corpora.md", "docs/methods/dual-path.md"):
        datasets(home)
    if page in ("docs/studies.md", "docs/methods/heads.md", "docs/methods/hrem.md"):
        flickr8k(home, made())
    if page == "docs/studies.md":
        (home / "my.yaml").write_text(run(Line(page, 0, ("quintet", "recipes", "show", "aoq-vse-scenes")), home))
        (home / "mine.yaml").write_text(fenced_blocks(page, "yaml")[0].text)
    if page == "docs/indexes.md":
        quintet(home, "index", "quintet-small", "~/Pictures", "-o", "holiday")
    if page == "docs/search.md":
        quintet(home, "index", "quintet-small", "~/Pictures", "--texts", "questions.txt", "-o", "photos-and-texts")
    if page == "docs/convert.md":
        save_vsepp(home / "model_best.pth.tar", home / "f30k_precomp_vocab.json")


NAMED = re.compile(r"(runs|corpora)/([\w-]+)")


def provide(line: Line, home: Path, made: Callable[[], Path], lent: set[Path]) -> None:
    """Lend the runs and corpora that a command reads and no earlier command of the page has made."""
    words = list(line.words)
    outputs = {words[at + 1] for at, word in enumerate(words[:-1]) if word in ("-o", "--out")}
    if words[1:3] == ["data", "import"]:
        outputs.add(
            [
                word
                for word, before in zip(words, ["", *words], strict=False)
                if not word.startswith("-") and before != "--option"
            ][-1]
        )
    for output in lent & {home / name for name in outputs}:  # what was lent, the page makes now
        shutil.rmtree(output)
    for kind, name in NAMED.findall(" ".join(word for word in words if word not in outputs)):
        folder = home / kind / name
        if folder.exists():
            continue
        source = "scenes" if kind == "corpora" else "vse" if "vse" in name else "scan"
        shutil.copytree(made() / kind / source, folder)
        lent.add(folder)
        if name == "f30k":  # whose features are those of a detector's regions
            shutil.copytree(folder / "features/efficientnet-lite0", folder / "features/regions")
        if kind == "runs" and (folder / "stages/online").exists():  # the page's name of a first stage
            shutil.copytree(folder / "stages/online", folder / "stages/one")


@pytest.mark.slow
@pytest.mark.parametrize("page", TOURS)
def test_the_commands_of_a_page_run(page: str, home: Path, request: pytest.FixtureRequest) -> None:
    made = functools.partial(request.getfixturevalue, "made")  # minutes of training, only where a page needs it
    prepare(page, home, made)
    lent: set[Path] = set()
    for line in commands(page):
        if NOT_RUN.keys() & set(line.words):
            continue
        line = Line(page, line.number, tuple(PLACEHOLDERS.get(word, word) for word in line.words))
        if line.words[0] == "curl":
            ask(line, home)
            continue
        if page not in COMPLETE:
            provide(line, home, made, lent)
        if ">" in line.words:  # quintet recipes show NAME > my.yaml
            cut = line.words.index(">")
            (home / line.words[cut + 1]).write_text(run(Line(page, line.number, line.words[:cut]), home))
        else:
            run(line, home)
    if page in COMPLETE:
        assert (home / COMPLETE[page]).exists()


def test_what_is_not_run_is_listed_and_stands_on_a_page() -> None:
    lines = [line for page in PAGES for line in commands(page)]
    words = {word for line in lines for word in line.words}
    assert not NOT_RUN.keys() - words - {"source"}
    assert not PLACEHOLDERS.keys() - words
    left = [str(line) for line in lines if line.quintet is None and line.words[0] != "curl"]
    assert not [line for line in left if not any(word in line for word in NOT_RUN)], "nobody checks these"


def test_every_page_with_a_command_of_quintet_has_one_that_runs() -> None:
    without = {page for page in PAGES if any(line.quintet for line in commands(page))} - set(TOURS)
    assert not without
    for page in COMPLETE:  # no placeholder such as RUN stands in a tour
        for line in commands(page):
            assert not any(word.isupper() and len(word) > 2 for word in line.words), str(line)
    found = [line for page in TOURS for line in commands(page) if line.quintet and not NOT_RUN.keys() & set(line.words)]
    assert len(found) > 75
