"""The Python front door as a stranger uses it: real files, home folders, odd input, and the same names as the shell."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from torch.testing import assert_close

import quintet
from quintet.cli.main import app
from quintet.errors import ArgumentError

IMAGE_MODES = ("1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr", "I;16")
SMALL = ["stages.online.epochs=1", "stages.online.batches.size=8"]

# What has another name or another form in the shell, and what only one of both has. Everything else is called the same.
PRINTING = {"as_json", "out", "ranks", "open_sheet"}
COMMANDS: dict[str, tuple[Callable[..., Any], set[str], set[str]]] = {
    # command: function, only in the shell, only in Python
    # --with RUN: `run` takes several
    "index": (quintet.build_index, {"as_json", "ensemble", "verify", "backup", "watch"}, {"progress"}),
    "evaluate": (quintet.evaluate, PRINTING - {"open_sheet"}, {"progress"}),
    "train": (quintet.train, {"as_json"}, {"seed", "display"}),  # a seed is written seed=1 like any field
    "mine": (quintet.mine, {"as_json"}, {"progress"}),
    "features": (quintet.extract_features, {"as_json"}, {"progress"}),
    "convert": (quintet.convert, {"as_json", "option"}, {"options"}),  # --option KEY=VALUE, one after the other
    "results add": (quintet.add_results, {"as_json"}, set()),
    "data import": (quintet.import_corpus, {"option"}, {"options", "progress"}),
    "search": (
        quintet.Searcher.search,
        {*PRINTING - {"ranks"}, "explain", "texts", "text", "queries", "find", "paths", "copy_to"}
        | {"index", "device", "rerank_with"},
        {"self", "query", "kind"},
    ),
}


@pytest.fixture(scope="module")
def run() -> quintet.Run:
    pytest.importorskip("onnxruntime")
    return quintet.load("quintet-small", device="cpu")


@pytest.fixture(scope="module")
def noise() -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 255, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((96, 72))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noise: Image.Image) -> Path:
    """A home folder with two photos, which is not the working directory."""
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    (home / "Pictures").mkdir(parents=True)
    elsewhere.mkdir()
    noise.save(home / "Pictures/noise.jpg")
    Image.new("RGB", (64, 48), "green").save(home / "Pictures/green.png")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(elsewhere)
    return home


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_and_its_function_take_the_same_names(command: str) -> None:
    function, shell_only, python_only = COMMANDS[command]
    group: Any = typer.main.get_command(app)
    for word in command.split():
        group = group.commands[word]
    in_shell = {parameter.name for parameter in group.params}
    in_python = set(inspect.signature(function).parameters)
    assert shell_only <= in_shell
    assert python_only <= in_python
    assert in_shell - shell_only == in_python - python_only


def test_the_type_hints_of_the_front_door_resolve() -> None:
    for name in set(quintet.__all__) - {"__version__", "create_model"}:  # `create_model` leaves torch out until called
        thing = getattr(quintet, name)
        members = list(vars(thing).values()) if inspect.isclass(thing) else []
        functions = [member for member in members if inspect.isfunction(member) and member.__name__[0] != "_"]
        for one in (thing, *functions):
            typing.get_type_hints(one)
        assert inspect.getdoc(thing), name


@pytest.mark.parametrize("mode", IMAGE_MODES)
def test_images_of_every_mode_are_encoded_as_what_they_show(mode: str, run: quintet.Run, noise: Image.Image) -> None:
    if mode == "I;16":
        image = Image.fromarray(np.asarray(noise.convert("L")).astype(np.uint16) * 257)
        shown = noise.convert("L").convert("RGB")
    else:
        image = noise.convert(mode)
        shown = image.convert("RGB")
    assert image.mode == mode
    assert_close(run.encode_images(image).embedding, run.encode_images(shown).embedding)


def test_a_path_may_begin_with_the_home_folder(run: quintet.Run, home: Path) -> None:
    known = run.encode_images(home / "Pictures/noise.jpg").embedding
    assert_close(run.encode_images("~/Pictures/noise.jpg").embedding, known)
    assert_close(run.encode_images([Path("~/Pictures/noise.jpg")]).embedding, known)
    corpus = quintet.import_corpus("scenes", "-", "~/scenes", train=4, dev=2, test=2, size=32)
    assert corpus.root == home / "scenes"
    assert quintet.Corpus.open("~/scenes").root == home / "scenes"
    report = quintet.extract_features("~/scenes", "efficientnet-lite2+efficientnet-lite0", grid=1, device="cpu")
    assert report.folder.is_relative_to(home / "scenes")
    quintet.evaluate(run, "~/scenes", bootstrap=0, device="cpu").save("~/result.json")
    assert (home / "result.json").is_file()
    quintet.mine(run, "~/scenes", top_texts=2, top_images=1, out="~/lists")
    assert (home / "lists").is_dir()
    run.encode_texts("a dog").save("~/dog.safetensors")
    assert_close(quintet.Codes.load("~/dog.safetensors").embedding, run.encode_texts("a dog").embedding)
    quintet.build_index(run, "~/Pictures", "~/photos.index")
    with quintet.open_index("~/photos.index") as index:
        (hit,) = index.search(Path("~/Pictures/noise.jpg"), k=1)
    assert hit.path == home / "Pictures/noise.jpg"
    assert not list(Path().iterdir())  # nothing called "~" in the working directory


@pytest.mark.slow
def test_training_in_the_home_folder(home: Path) -> None:
    quintet.import_corpus("scenes", "-", "~/scenes", train=12, dev=4, test=4, size=32)
    trained = quintet.train("vse-scenes", "~/scenes", out="~/run", seed=1, overrides=SMALL, device="cpu")
    assert trained.folder == home / "run"
    assert trained.default_corpus == home / "scenes"
    assert len(quintet.load("~/run", stage="online", device="cpu").encode_images("~/Pictures/green.png")) == 1
    assert quintet.train(resume="~/run", device="cpu").weights_checksum == trained.weights_checksum
    assert not list(Path().iterdir())


def test_a_file_whose_name_begins_with_a_tilde(run: quintet.Run, home: Path) -> None:
    (home / "Pictures/noise.jpg").rename("~noise.jpg")
    assert len(run.encode_images("~noise.jpg")) == 1
    assert quintet.build_index(run, ["~noise.jpg"], "tilde.index").added == 1


def test_batch_sizes_change_nothing(run: quintet.Run, noise: Image.Image) -> None:
    images = [noise, noise.convert("L"), noise.rotate(90, expand=True), noise, Image.new("RGB", (1, 1))]
    texts = ["a dog", "naïve café 北京 🐕", "a " * 600 + "dog", "a dog", "!!!"]
    sizes = [(run.encode_images(images, batch_size=n), run.encode_texts(texts, batch_size=n)) for n in (1, 3, 32)]
    for image_codes, text_codes in sizes:
        assert_close(image_codes.embedding, sizes[-1][0].embedding, atol=1e-5, rtol=0)
        assert_close(text_codes.embedding, sizes[-1][1].embedding, atol=1e-5, rtol=0)
    image_codes, text_codes = sizes[-1]
    scores = run.score(image_codes, text_codes)
    with torch.no_grad():
        assert_close(scores, run.matcher.score(image_codes, text_codes))
    assert scores.shape == (5, 5)
    assert scores.dtype == torch.float32
    assert_close(run.score_pairs(image_codes, text_codes), scores.diagonal())


@pytest.mark.parametrize(
    ("call", "noun"),
    [
        (lambda run: run.encode_images([]), "no image"),
        (lambda run: run.encode_images("absent.jpg"), r"absent\.jpg"),
        (
            lambda run: run.encode_images([Image.new("RGB", (9, 9)), quintet.ImageBatch(torch.ones(1, 3, 9))]),
            "one kind",
        ),
        (lambda run: run.encode_images(Image.new("RGB", (9, 9)), batch_size=2.5), "batch_size"),
        (lambda run: run.encode_texts([]), "no text"),
        (lambda run: run.encode_texts(["a", ""]), "text 1"),
        (lambda run: run.encode_texts(["a", 3]), "item 1"),
        (lambda run: run.encode_texts(["a", quintet.TextBatch(torch.ones(1, 1, dtype=torch.long), [1])]), "one kind"),
        (lambda run: run.encode_texts("a", keep="nowhere"), "nowhere"),
        (lambda run: quintet.evaluate(run, batch_size=0), "corpus"),
        (lambda run: quintet.load("absent"), "absent"),
        (lambda run: quintet.load("quintet-small", device="nowhere"), "nowhere"),
        (lambda run: quintet.open_index("absent"), "absent"),
    ],
)
def test_wrong_input_is_an_error_that_names_it(call: Callable[[quintet.Run], Any], noun: str, run: quintet.Run) -> None:
    with pytest.raises(quintet.QuintetError, match=noun):
        call(run)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_absent_is_named(run: quintet.Run) -> None:
    for call in (lambda: quintet.load("quintet-small", device="cuda"), lambda: run.encode_texts("a", keep="cuda")):
        with pytest.raises(quintet.QuintetError, match="cuda"):
            call()


def test_an_index_of_files_folders_and_corpora(
    run: quintet.Run, home: Path, noise: Image.Image, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = quintet.import_corpus("scenes", "-", home / "scenes", train=2, dev=1, test=1, size=32)
    sources = [home / "Pictures/noise.jpg", str(home / "Pictures"), corpus]
    report = quintet.build_index(run, sources, "all.index", texts=corpus, progress=True)
    assert "all.index" in capsys.readouterr().out  # the bar
    assert report.added == 2 + 4 + 20
    calls: list[tuple[int, int | None]] = []
    quintet.build_index(run, sources, "all.index", texts=corpus, progress=lambda *numbers: calls.append(numbers))
    assert {total for _, total in calls} == {26}
    turned = noise.transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6  # shown turned back
    turned.save("turned.png", exif=exif.tobytes())
    assert repr(corpus) == "<Corpus 'scenes': 4 images, 20 texts, splits train, dev, test>"
    with quintet.open_index("all.index", device=torch.device("cpu")) as index:
        assert repr(index) == f"<Searcher of {Path('all.index').resolve()}: 6 images, 20 texts>"
        by_path = index.search(Path("turned.png"), k=3)
        by_image = index.search(Image.open("turned.png"), k=3)
        assert [(hit.path, hit.score) for hit in by_path] == [(hit.path, hit.score) for hit in by_image]
        assert by_path[0].path == home / "Pictures/noise.jpg"
        hits = index.search("a red circle", k=4)
        codes = run.encode_images([hit.path for hit in hits if hit.path is not None])
        expected = run.score(codes, run.encode_texts("a red circle"))[:, 0]
        assert_close(torch.tensor([hit.score for hit in hits]), expected, atol=1e-5, rtol=0)
        for wrong in (None, 3):
            with pytest.raises(quintet.QuintetError, match=type(wrong).__name__):
                index.search(wrong)  # type: ignore[call-overload]
    with pytest.raises(quintet.QuintetError, match="closed"):
        index.search("a red circle")
    index.close()


SCRIPT = """
from pathlib import Path
from PIL import Image
import quintet

run: quintet.Run = quintet.load("quintet-small", device="cpu")
images = run.encode_images(["dog.jpg", Path("cat.jpg"), Image.new("RGB", (4, 4))])
texts = run.encode_texts(text for text in ["a dog"])
first: float = run.score(images, texts)[0, 0].item()
quintet.build_index([run, "runs/first"], ["~/Pictures", Path("more")], "photos.index", progress=True)
with quintet.open_index("photos.index") as index:
    paths: list[Path | None] = [hit.path for hit in index.search("a dog", k=5)]
    lists: list[list[float]] = [[hit.score for hit in hits] for hits in index.search(["a dog", Path("cat.jpg")])]
corpus = quintet.import_corpus("scenes", "-", "corpora/scenes", train=4)
rsum: float = quintet.evaluate([run, "runs/first"], corpus).rsum
trained: quintet.Run = quintet.train("vse-scenes", corpus, out="runs/second", seed=1, overrides=["matcher.embed_dim=8"])
lists_of_negatives = quintet.mine(trained, corpus, top_texts=3)
done: int = quintet.extract_features(corpus).images
theirs: quintet.Run = quintet.convert("scan", "model_best.pth.tar", "runs/theirs")
reveal_type(images)
reveal_type(run.matcher.score(images, texts))
quintet.absent
"""


@pytest.mark.slow
def test_a_strictly_typed_program(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "program.py").write_text(SCRIPT)
    source = str(Path(quintet.__file__).parents[1])
    options = ["--strict", "--disallow-any-expr", "--follow-imports", "silent"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "program.py"],
        cwd=tmp_path,
        env=os.environ | {"MYPYPATH": source},
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert 'Revealed type is "quintet.codes.Codes"' in done.stdout
    assert 'Revealed type is "torch._tensor.Tensor"' in done.stdout
    assert [error for error in errors if "absent" in error]
    assert not [error for error in errors if "absent" not in error], done.stdout


def public_functions() -> Iterator[tuple[str, Any]]:
    for name in quintet.__all__:
        thing = getattr(quintet, name)
        if inspect.isclass(thing):
            yield name, thing
            for key, member in vars(thing).items():
                if key.startswith("_") and key != "__init__":
                    continue
                function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
                if inspect.isfunction(function):
                    yield f"{name}.{key}", function
        elif callable(thing):
            yield name, thing


def test_type_hints_can_be_read() -> None:
    named = dict(public_functions())
    assert {"create_model", "Evaluation.__init__", "Run.encode_images"} <= named.keys()
    for function in named.values():
        typing.get_type_hints(function)  # a NameError where a name is imported for type checkers only


@pytest.mark.parametrize("given", [None, 3, b"run", ["quintet-small"]])
def test_a_run_has_a_path_or_a_name(given: Any) -> None:
    with pytest.raises(ArgumentError, match="path or the name"):
        quintet.load(given)
