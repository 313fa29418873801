from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quintet.cli import main
from quintet.errors import QuintetError
from quintet.search import index_folder
from quintet.serve import server as serve_run
from quintet.serve.settings import Settings

runner = CliRunner()


def serve(*arguments: str) -> QuintetError:
    error = runner.invoke(main.app, ["serve", *arguments]).exception
    assert isinstance(error, QuintetError)
    return error


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUINTET_TOKEN", raising=False)


@pytest.fixture
def any_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_folder, "check_marker", lambda index: None)


def test_an_absent_index_is_told(tmp_path: Path) -> None:
    assert str(tmp_path / "nothing") in str(serve(str(tmp_path / "nothing"), "--port", "0"))


def test_beyond_this_computer_a_token_is_needed(tmp_path: Path) -> None:
    assert "QUINTET_TOKEN" in str(serve(str(tmp_path), "--host", "0.0.0.0"))


@pytest.mark.parametrize("missing", ["fastapi", "uvicorn"])
def test_without_the_extra_it_says_how_to_get_it(
    missing: str, any_index: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("quintet.serve")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    said = str(serve("index"))
    assert missing in said
    assert "quintet-retrieval[serve]" in said


def test_options_become_settings(any_index: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Path, Settings, object]] = []

    def note(index: Path, settings: Settings, **others: object) -> None:
        seen.append((index, settings, others["rerank_with"]))
        raise KeyboardInterrupt

    monkeypatch.setattr(serve_run, "serve_index", note)
    token = tmp_path / "token"
    token.write_text("a-token-of-some-length\n")
    options = ["--host", "0.0.0.0", "--token-file", str(token), "--max-upload", "3M", "--thumbnails-size", "1G"]
    result = runner.invoke(main.app, ["serve", "index", *options, "--rerank", "50", "--rerank-with", "runs/scan"])
    assert result.exit_code == 0
    ((index, settings, rerank_with),) = seen
    assert (index, rerank_with) == (Path("index"), Path("runs/scan"))
    assert settings.token == "a-token-of-some-length"
    assert (settings.max_upload_bytes, settings.cache_bytes, settings.rerank) == (3 * 2**20, 2**30, 50)


def test_a_size_that_is_none_is_told() -> None:
    assert "'much'" in str(serve("index", "--max-upload", "much"))
