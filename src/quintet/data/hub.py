"""The Hugging Face hub; nothing else downloads. What shipped recipes ask for is pinned, and verified every time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from quintet.errors import QuintetError, first_line
from quintet.files import user_path, verify_checksums


@dataclass(frozen=True)
class Pinned:
    revision: str  # the commit that is asked for
    checksums: dict[str, str] = field(default_factory=dict)  # file -> SHA-256


PINNED = {
    "bert-base-uncased": Pinned(
        "86b5e0934494bd15c9632b12f734a8a67f723594",
        {"model.safetensors": "68d45e234eb4a928074dfd868cead0219ab85354cc53d20e772753c6bb9169d3"},
    ),
    "sentence-transformers/all-MiniLM-L6-v2": Pinned(
        "1110a243fdf4706b3f48f1d95db1a4f5529b4d41",
        {
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        },
    ),
}


def hub_source(name: str, files: Sequence[str] = ("config.json", "model.safetensors")) -> str:
    """What `from_pretrained` takes: the path of a folder, a name on the hub, or of a pinned name its verified folder.

    `files`: what is needed of a pinned model. Raises OSError or ValueError where the hub does not give them.
    """
    folder = user_path(name)
    if folder.is_dir():
        return str(folder)
    return str(hub_file(name, *files).parent) if name in PINNED else name


def hub_file(name: str, *files: str) -> Path:
    """The path of the last of these files in the hub's cache, after a download where they are not there."""
    from huggingface_hub import hf_hub_download

    pinned = PINNED.get(name, Pinned("main"))
    for file in files:
        path = Path(hf_hub_download(name, file, revision=pinned.revision))
        expected = {file: pinned.checksums[file]} if file in pinned.checksums else {}
        verify_checksums(
            path.parent, expected, f"it is not the file that was published as {name}: remove it and download it again"
        )
    return path


def verify_package_file(path: Path, package: str, checksum: str) -> None:
    """Raise unless a file that came with a package from PyPI is the one this Quintet was made with."""
    verify_checksums(path.parent, {path.name: checksum}, f"install {package} again")


def download(name: str, files: Sequence[str], kind: str = "model") -> Path:
    """The folder in the hub's cache with those files of a model that match the patterns; its bars show progress."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import (
            GatedRepoError,
            HfHubHTTPError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
        )
    except ImportError as error:
        raise QuintetError(f"the hub needs the `hf` extra: `pip install 'quintet-retrieval[hf]'` ({error})") from None
    try:
        return Path(snapshot_download(name, allow_patterns=list(files)))
    except GatedRepoError:
        raise QuintetError(
            f"{name} is given only to those who accepted its terms: accept them on its page, then `hf auth login`"
        ) from None
    except RepositoryNotFoundError:
        raise QuintetError(f"the hub has no {kind} {name} (of a private one: log in with `hf auth login`)") from None
    except LocalEntryNotFoundError:
        raise QuintetError(
            f"{name} is not in the hub's cache, and the hub cannot be reached (or HF_HUB_OFFLINE is set); connect "
            "once, or give the path of a folder that holds it"
        ) from None
    except HfHubHTTPError as error:
        raise QuintetError(f"the hub did not give {name}: {first_line(error)}; try again later") from None
    except Exception as error:  # noqa: BLE001  # of the transport, of a full disk, of a download that ended early
        raise QuintetError(
            f"{name} could not be downloaded ({first_line(error)}); run the command again, it goes on where it stopped"
        ) from None
