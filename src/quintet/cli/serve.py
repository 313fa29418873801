"""`quintet serve`."""

from __future__ import annotations

import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from quintet.cli.options import DeviceOption, parse_size
from quintet.errors import QuintetError

# Panels of the options.
NETWORK = "Network"
LIMITS = "Limits"


def serve_command(
    index: Annotated[
        Path, typer.Argument(metavar="INDEX", help="Folder written by `quintet index`.", show_default=False)
    ],
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    rerank: Annotated[
        int | None, typer.Option(metavar="K", min=1, help="Re-rank the first K results; default: do not re-rank.")
    ] = None,
    rerank_with: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Run to re-rank with, of those in the index.")
    ] = None,
    device: DeviceOption = "auto",
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Address to listen on. Addresses that other computers can reach (0.0.0.0) need a token.",
            rich_help_panel=NETWORK,
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            metavar="PORT", min=0, max=65535, help="Port to listen on; 0: any free one.", rich_help_panel=NETWORK
        ),
    ] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with the access token; default: the environment variable QUINTET_TOKEN.",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    read_token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with a token for searching and looking only; default: the variable QUINTET_READ_TOKEN.",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Serve HTTPS with this certificate (PEM).", rich_help_panel=NETWORK),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Its key, if not in the same file.", rich_help_panel=NETWORK),
    ] = None,
    proxy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS",
            help="Address of a proxy whose X-Forwarded-For and X-Forwarded-Proto are believed; repeatable.",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    drain: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="Go on for so long after SIGTERM, while /ready answers 503, so that a proxy notices.",
            rich_help_panel=NETWORK,
        ),
    ] = 0.0,
    max_upload: Annotated[
        str, typer.Option(metavar="SIZE", help="Largest image accepted as a query.", rich_help_panel=LIMITS)
    ] = "20M",
    threads: Annotated[
        int, typer.Option(metavar="N", min=1, help="Searches at the same time.", rich_help_panel=LIMITS)
    ] = 4,
    queue: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="Searches that may wait; further ones get HTTP status 503.", rich_help_panel=LIMITS
        ),
    ] = 256,
    timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0.1, help="Time limit of a search, in seconds.", rich_help_panel=LIMITS),
    ] = 30.0,
    max_connections: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Open connections; fewer where the system's limit of open files is lower.",
            rich_help_panel=LIMITS,
        ),
    ] = 1000,
    client_rate: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Requests a second of one client; 0: no limit. Default: 100, and no limit on this computer.",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    client_requests: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Requests of one client at the same time; 0: no limit. Default: 32, and no limit on this computer.",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    decoders: Annotated[
        int, typer.Option(metavar="N", min=1, help="Images decoded at the same time.", rich_help_panel=LIMITS)
    ] = 2,
    thumbnails: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder for thumbnails; default: quintet/thumbnails in the user's cache folder.",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    thumbnails_size: Annotated[
        str, typer.Option(metavar="SIZE", help="Disk space for thumbnails.", rich_help_panel=LIMITS)
    ] = "512M",
) -> None:
    """Serve a search page and an HTTP API for an index.

    `quintet serve holiday --open`

    By default it listens on this computer only. When the index is built again, it switches to the new one without a
    pause. Ctrl-C finishes the requests in progress and stops.
    """
    from quintet.search.index_folder import check_marker
    from quintet.serve.settings import READ_TOKEN_VARIABLE, Settings, default_cache, read_token, tls_context

    settings = Settings(
        host=host,
        port=port,
        token=read_token(token_file),
        read_token=read_token(read_token_file, READ_TOKEN_VARIABLE),
        tls=tls_context(tls_cert, tls_key),
        proxies=tuple(proxy or ()),
        client_rate=client_rate,
        client_concurrency=client_requests,
        decoders=decoders,
        drain_s=drain,
        max_upload_bytes=parse_size(max_upload),
        search_threads=threads,
        search_queue=queue,
        timeout_s=timeout,
        max_connections=max_connections,
        rerank=rerank,
        cache=thumbnails or default_cache(),
        cache_bytes=parse_size(thumbnails_size),
    )
    check_marker(index)  # report what is not an index before the slow imports below

    try:
        from quintet.serve.server import log_to_stderr, serve_index
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "starlette", "uvicorn"):
            raise
        raise QuintetError(
            f"serving needs {error.name}, which is not installed: pip install 'quintet-retrieval[serve]'"
        ) from None

    console = Console(stderr=True)
    log_to_stderr()

    def ready(address: str) -> None:
        console.print(f"serving {index} at {address}  (Ctrl-C stops)", markup=False, highlight=False, soft_wrap=True)
        if open_page:
            webbrowser.open(address)

    with suppress(KeyboardInterrupt):  # Ctrl-C is how it is stopped
        serve_index(index, settings, device=device, rerank_with=rerank_with, ready=ready)
