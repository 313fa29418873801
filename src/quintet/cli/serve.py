"""`quintet serve`."""

from __future__ import annotations

import logging
import webbrowser
from contextlib import suppress
from pathlib import Path

import typer
from rich.console import Console

from quintet.cli.mine import parse_size
from quintet.errors import QuintetError


def serve_command(
    index: Path = typer.Argument(..., metavar="INDEX", help="What `quintet index` wrote.", show_default=False),
    host: str = typer.Option("127.0.0.1", help="Where to listen. Beyond this computer (0.0.0.0) needs a token."),
    port: int = typer.Option(8000, min=0, max=65535, help="0 takes any free port."),
    token_file: Path | None = typer.Option(
        None, help="A file that holds the token; default: the environment variable QUINTET_TOKEN."
    ),
    open_page: bool = typer.Option(False, "--open", help="Open the page in a browser."),
    device: str = typer.Option("auto", help="cpu, cuda, cuda:1 ...; auto takes a GPU where there is one."),
    rerank_with: Path | None = typer.Option(None, help="A run whose matcher orders the first results anew."),
    rerank: int | None = typer.Option(None, min=1, help="How many of the first results are ordered anew."),
    max_upload: str = typer.Option("20M", help="The largest image that may be sent."),
    threads: int = typer.Option(4, min=1, help="Searches at the same time."),
    queue: int = typer.Option(256, min=0, help="Searches that may wait; one more is told to try again."),
    timeout: float = typer.Option(30.0, min=0.1, help="Seconds after which a search is given up."),
    thumbnails: Path | None = typer.Option(None, help="Where small copies are kept; default: the user's cache folder."),
    thumbnails_size: str = typer.Option("512M", help="How much of them is kept."),
) -> None:
    """Search an index on a page of its own, and by an API.

    `quintet serve INDEX` listens on this computer only. It notices when the index is built anew and serves the new one
    without a pause; Ctrl-C answers what was asked and stops.
    """
    try:
        from quintet.serve.run import serve_index
        from quintet.serve.settings import Settings, default_cache, read_token
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "starlette", "uvicorn"):
            raise
        raise QuintetError(
            f"serving needs {error.name}, which is not installed: pip install 'quintet[serve]'"
        ) from None

    settings = Settings(
        host=host,
        port=port,
        token=read_token(token_file),
        max_upload_bytes=parse_size(max_upload),
        search_threads=threads,
        search_queue=queue,
        timeout_s=timeout,
        rerank=rerank,
        cache=thumbnails or default_cache(),
        cache_bytes=parse_size(thumbnails_size),
    )
    console = Console(stderr=True)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")

    def ready(address: str) -> None:
        console.print(f"serving {index} at {address}  (Ctrl-C stops)", markup=False, highlight=False, soft_wrap=True)
        if open_page:
            webbrowser.open(address)

    with suppress(KeyboardInterrupt):  # the usual way to end it
        serve_index(index, settings, device=device, rerank_with=rerank_with, ready=ready)
