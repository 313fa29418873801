"""Help pages, lists, completion and early errors answer without importing torch, which takes seconds."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from typer.testing import CliRunner

from quintet.cli import analyse as cli_analyse
from quintet.cli import convert as cli_convert
from quintet.cli import evaluate as cli_evaluate
from quintet.cli import mining as cli_mine
from quintet.cli.main import app
from quintet.evaluation import split_protocols
from quintet.mining.block_scores import Precision
from quintet.report import analysis
from quintet.runs import convert

HEAVY = ("torch", "transformers", "faiss", "fastapi", "matplotlib", "onnxruntime", "sklearn")
# typer then takes the name of the shell as a value, instead of finding out in which one it runs.
NAMED_SHELL = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
PROGRAM = """
import json, sys
from quintet.cli.main import run
calls = json.loads(sys.argv[1])
results = []
for call in calls:
    sys.argv = ["quintet", *call]
    try:
        run()
        status = 0
    except SystemExit as stop:
        status = stop.code or 0
    heavy = [name for name in json.loads(%r) if name in sys.modules]
    results.append([status, heavy])
    if heavy:
        break
print("RESULTS" + json.dumps(results))
""" % json.dumps(HEAVY)  # noqa: UP031 (braces of the program)


def every_command() -> Iterator[list[str]]:
    group = typer.main.get_command(app)
    yield []
    for name, command in sorted(group.commands.items()):  # type: ignore[attr-defined]
        yield [name]
        inner = getattr(command, "list_commands", lambda _: [])
        yield from ([name, each] for each in sorted(inner(None)))


def answers(calls: list[list[str]], folder: Path, status: int, **variables: str) -> None:
    """Run the calls in one process: each ends with the status, and none has imported anything heavy."""
    command = [sys.executable, "-c", PROGRAM, json.dumps(calls)]
    environment = {key: value for key, value in os.environ.items() if key != "QUINTET_TOKEN"} | variables
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)
    assert "RESULTS" in done.stdout, done.stderr
    for call, (code, heavy) in zip(calls, json.loads(done.stdout.rpartition("RESULTS")[2]), strict=False):
        assert not heavy, f"quintet {' '.join(call)} imports {heavy}"
        assert code == status, f"quintet {' '.join(call)} ended with {code}: {done.stderr[-2000:]}"


def test_help_of_every_command(tmp_path: Path) -> None:
    answers([[*words, "--help"] for words in every_command()], tmp_path, 0)


def test_help_names_values_and_not_types() -> None:
    for words in every_command():
        page = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "120", "TERM": "dumb"}).output
        assert "Show this message" in page
        assert not re.search(r"<\w+( range)?>|<list\[|LAMBDA|\bPath\b|StrEnum", page), (
            f"quintet {' '.join(words)}\n{page}"
        )


def test_the_output_has_one_option() -> None:
    """`-o` is `--out` in every command that has it."""
    for words in every_command():
        command: Any = typer.main.get_command(app)
        for word in words:
            command = command.get_command(None, word)
        for parameter in command.params:
            assert "-o" not in parameter.opts or parameter.name == "out", words


def test_lists(tmp_path: Path) -> None:
    calls = [
        ["--version"],
        ["recipes"],
        ["recipes", "show", "aoq-vse-scenes"],
        ["models"],
        ["models", "--json"],
        ["data", "formats"],
        ["study", "--list"],
        ["--show-completion", "bash"],
    ]
    answers(calls, tmp_path, 0, **NAMED_SHELL)


def test_wrong_usage(tmp_path: Path) -> None:
    calls = [[*words, "--no-such-option"] for words in every_command()]
    calls += [
        ["trian"],
        ["data", "imprt"],
        ["evaluate"],
        ["search", "x", "text", "-k", "0"],
        ["search", "x", "--image", "absent.jpg"],
        ["search", "x", "text", "--find", "sounds"],
        ["index", "quintet-small", "absent", "-o", "out"],
        ["convert", "scan", "absent.pth.tar", "-o", "out"],
        ["convert", "scna", "model.pth.tar", "-o", "out"],
        ["evaluate", "quintet-small", "--protocol", "5flod"],
        ["analyse", "quintet-small", "--what", "ranks,wrods", "-o", "out"],
        ["mine", "quintet-small", "--precision", "float8"],
    ]
    (tmp_path / "model.pth.tar").touch()
    answers(calls, tmp_path, 2)


def test_errors_that_are_found_early(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "empty.pth").touch()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "run.json").write_text("{}")
    calls = [
        ["train"],
        ["train", "no-such-recipe", "-o", "out"],
        ["train", "absent.yaml", "-o", "out"],
        ["train", "vse-scenes", "no.such.field=3", "-o", "out"],
        ["train", "vse-scenes", "--corpus", "absent", "-o", "out"],
        ["train", "--resume", "absent"],
        ["recipes", "no-such-recipe"],
        ["models", "no-such-matcher"],
        ["evaluate", "absent"],
        ["evaluate", "damaged"],
        ["evaluate", "quintet-small", "--corpus", "absent"],
        ["evaluate", "quintet-small", "--compare", "absent"],
        ["analyse", "absent", "-o", "out"],
        ["report", "absent", "-o", "out"],
        ["report", "quintet-small", "--ensemble", "quintet-small", "-o", "out"],
        ["mine", "absent"],
        ["mine", "quintet-small", "absent"],
        ["mine", "quintet-small", "--memory", "much"],
        ["export", "absent", "--onnx"],
        ["export", "quintet-small"],
        ["features", "absent"],
        ["index", "absent", "images", "-o", "out"],
        ["index", "quintet-small", "images", "--with", "absent", "-o", "out"],
        ["search", "absent", "a dog"],
        ["search", "images", "a dog"],
        ["search", "images"],
        ["search", "images", "a dog", "--where", "size >"],
        ["serve", "absent"],
        ["serve", "images"],
        ["data", "import", "no-such-format", "images", "out"],
        ["data", "import", "flickr", "absent", "out"],
        ["data", "import", "flickr", "images"],
        ["data", "import", "flickr", "images", "out", "--option", "nonsense"],
        ["data", "inspect", "absent"],
        ["demo", "--recipe", "no-such-recipe"],
    ]
    answers(calls, tmp_path, 1)


def test_names_are_those_of_the_library() -> None:
    assert set(cli_evaluate.PROTOCOLS) == set(split_protocols.PROTOCOLS)
    assert set(cli_analyse.ANALYSES) == set(analysis.ANALYSES.names())
    assert set(cli_convert.KINDS) == set(convert.kinds())
    assert set(cli_mine.PRECISIONS) == set(get_args(Precision))


def test_completion_is_installed_for_a_shell(tmp_path: Path) -> None:
    answers([["--install-completion", "bash"]], tmp_path, 0, HOME=str(tmp_path), **NAMED_SHELL)
    assert "_QUINTET_COMPLETE" in (tmp_path / ".bash_completions" / "quintet.sh").read_text()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", "index"),
        ("ind", "index"),
        ("train aoq-vse-sc", "aoq-vse-scenes"),
        ("train vse-scenes --devi", "--device"),
        ("train vse-scenes --device cu", "cuda"),
        ("evaluate quin", "quintet-small"),
        ("evaluate quintet-small --protocol 5", "5fold"),
        ("analyse quintet-small --what ranks,wo", "ranks,words"),
        ("data import fl", "flickr"),
        ("data inspect corpus --split te", "test"),
        ("evaluate quintet-small --corpus corpus --split ho", "holdout"),
        ("models vs", "vse++"),
        ("recipes show mmca-sc", "mmca-scenes"),
        ("search index --find te", "texts"),
        ("features corpus --crop ce", "center"),
    ],
)
def test_completion(words: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "splits.json").write_text('{"train": [], "holdout": []}')
    typed = f"quintet {words}"
    variables = {
        "_QUINTET_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split(" ")) - 1),
    }
    program = (
        "import sys\nsys.argv = ['quintet']\nfrom quintet.cli.main import run\n"
        "try:\n    run()\nfinally:\n    assert 'torch' not in sys.modules, 'torch'\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | variables,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout.split()


def test_a_search_ends_with_its_status_and_all_of_its_output(tmp_path: Path) -> None:
    """It leaves without taking modules down; what is printed, and what is to be done at the end, is done before."""
    program = (
        "import atexit, sys, types\n"
        "sys.modules['torch'] = types.ModuleType('torch')\n"
        "sys.argv = ['quintet', 'search', *sys.argv[1:]]\n"
        f"atexit.register(open, {str(tmp_path / 'ended')!r}, 'w')\n"
        "from quintet.cli.main import run\n"
        "run()\n"
    )
    for arguments, status, said in (
        (["--help"], 0, "--copy-to"),
        (["nothing", "a dog"], 1, "not an index"),
        ([], 2, "INDEX"),
    ):
        done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == status
        assert said in done.stdout + done.stderr
        assert (tmp_path / "ended").exists()
        (tmp_path / "ended").unlink()
