"""`push`: a run on the hub of Hugging Face, as safetensors and JSON, with a model card written from the run."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

import quintet
from quintet.data.pretrained import is_pretrained
from quintet.errors import QuintetError, RunError
from quintet.files import check_shape, file_checksum, read_bytes, read_json, user_path, write_json, write_text
from quintet.runs.run import read_tokenizer
from quintet.runs.run_folder import (
    HUB,
    LARGEST_RECIPE,
    WEIGHTS,
    find_weights,
    locate,
    read_head,
    read_image_input,
    read_model,
    write_checksums,
)

RECALLS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "rsum")
HEADINGS = "| i2t R@1 | R@5 | R@10 | t2i R@1 | R@5 | R@10 | rsum |"


def push(
    run: Path | str,
    name: str,
    *,
    licence: str,
    result: Path | str | None = None,
    limits: str | None = None,
    private: bool = False,
) -> str:
    """Upload a run, so that `quintet.load("hub:OWNER/NAME")` opens it anywhere; returns its page.

    - `run`: a finished run, or a stage of one.
    - `name`: OWNER/NAME on the hub; it is made where it does not exist.
    - `licence`: of the weights, as the hub names it ("apache-2.0", "cc-by-nc-4.0").
    - `result`: a file of `quintet evaluate RUN -o FILE` for the table of the model card.
    - `limits`: what the model should not be used for, in your words, for the model card.

    Paths of this machine and the corpus stay here.
    """
    if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name):
        raise QuintetError(f"{name!r} is not OWNER/NAME, as models of the hub are called")
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", licence):
        raise QuintetError(f"{licence!r} is not a licence as the hub names it, such as apache-2.0 or cc-by-nc-4.0")
    folder, stage = locate(run)
    if is_pretrained(folder):
        raise RunError(f"{folder} is a published model; only runs of Quintet are uploaded")
    weights = find_weights(folder, stage)
    table = None if result is None else _result(user_path(result), file_checksum(weights))
    with tempfile.TemporaryDirectory() as staging:
        files = Path(staging)
        _write_files(files, folder, weights)
        write_text(files / "README.md", _card(folder, files, name, licence, table, limits))
        return _upload(files, name, private)


def _write_files(files: Path, folder: Path, weights: Path) -> None:
    """The files of a run, without paths of this machine."""
    model, images, head = read_model(folder), read_image_input(folder), read_head(folder)
    own = {key: value for key, value in model["arguments"].items() if key not in ("source", "tower_weights")}
    tower = images.get("tower")
    write_json(files / "model.json", model | {"arguments": own})
    write_json(files / "images.json", images | ({"tower": tower | {"weights": None}} if tower else {}))
    if (tokenizer := read_tokenizer(folder)) is not None:
        write_json(files / "tokenizer.json", tokenizer.state())
    if (recipe := _recipe(folder)) is not None:
        write_text(files / "recipe.yaml", yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True, width=120))
    shutil.copyfile(weights, files / WEIGHTS)
    write_json(files / "run.json", head | {"status": "complete", "corpus": None})
    write_checksums(files, {"run.json": file_checksum(files / "run.json")})


def _recipe(folder: Path) -> dict[str, Any] | None:
    path = folder / "recipe.yaml"
    if not path.is_file():
        return None
    recipe = check_shape(yaml.safe_load(read_bytes(path, LARGEST_RECIPE)), dict[str, Any], str(path))
    return {key: _without_paths(value) for key, value in recipe.items()}


def _without_paths(value: Any) -> Any:
    """Absolute paths become their last part."""
    if isinstance(value, Mapping):
        return {key: _without_paths(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_paths(inner) for inner in value]
    bare = value.removeprefix("hf:") if isinstance(value, str) else ""
    return Path(bare).name if bare.startswith(("/", "~")) else value


def _result(path: Path, weights: str) -> dict[str, Any]:
    """A result that was measured with these weights."""
    content = check_shape(read_json(path), dict[str, Any], str(path))
    made = content.get("provenance", {}).get("runs", [])
    if content.get("format") != "quintet-result" or content.get("kind") != "single model":
        raise QuintetError(f"{path} is not the result of one model; write it with `quintet evaluate RUN -o {path}`")
    if [each.get("weights_sha256") for each in made] != [weights]:
        raise QuintetError(f"{path} was measured with other weights; evaluate this run again")
    return content


def _card(folder: Path, files: Path, name: str, licence: str, result: dict[str, Any] | None, limits: str | None) -> str:
    head, model = read_head(folder), read_model(folder)
    corpus = Path(head["corpus"]).name if head.get("corpus") else None
    lines = ["---", f"license: {licence}", "library_name: quintet", "tags: [image-text-retrieval]", "---", ""]
    lines += [f"# {name.partition('/')[2]}", ""]
    lines += [f"A `{model['name']}` matcher of images and texts, trained with Quintet {head.get('quintet')}.", ""]
    lines += ["```python", "import quintet", "", f'run = quintet.load("{HUB}{name}")', "```", ""]
    lines += ["## Data", ""]
    if corpus is None:
        lines += ["The run does not say what it was trained on.", ""]
    else:
        splits = (head.get("splits") or {}).items()
        lines += [f"Corpus `{corpus}`; checksums of its splits (ids and groups): "]
        lines += [f"- {split}: `{checksum}`" for split, checksum in splits] + [""]
    lines += ["## Recipe", ""]
    if (files / "recipe.yaml").is_file():
        lines += ["```yaml", (files / "recipe.yaml").read_text(encoding="utf-8").rstrip(), "```", ""]
    else:
        lines += [f"None: the weights were not trained with a recipe of Quintet. {_origin(head)}", ""]
    lines += ["## Results", "", *_results(head, result), ""]
    lines += ["## Limits", "", *_limits(folder, limits), "", "## Licence", "", f"The weights: {licence}."]
    return "\n".join(lines) + "\n"


def _origin(head: Mapping[str, Any]) -> str:
    origin = head.get("origin") or {}
    return f"Origin: {json.dumps(_without_paths(origin), ensure_ascii=False)}." if origin else ""


def _results(head: Mapping[str, Any], result: dict[str, Any] | None) -> list[str]:
    if result is not None:
        metrics, intervals = result["metrics"], result["intervals"]
        rows = [" | ".join(f"{metrics[key]:.1f}" for key in RECALLS)]
        if intervals:
            cells = ("{:.1f} to {:.1f}".format(*intervals[key]) if key in intervals else "" for key in RECALLS)
            rows.append(" | ".join(cells))
        told = "95 % bootstrap intervals below." if intervals else "No intervals were computed."
        corpus = (result["provenance"].get("corpus") or {}).get("name", "its corpus")
        where = f"`{corpus}`, split `{result['split']}` ({result['protocol']})"
        return [f"On {where}, one model. {told}", "", HEADINGS, "|---" * 7 + "|", *(f"| {row} |" for row in rows)]
    found = [(stage, facts["metrics"]) for stage, facts in head.get("stages", {}).items() if facts.get("metrics")]
    if not found:
        return ["None were measured."]
    lines = [
        "On the validation split that selected the epoch, which flatters them; no intervals.",
        "",
        f"| stage {HEADINGS}",
        "|---" * 8 + "|",
    ]
    for stage, metrics in found:
        cells = (f"{metrics[key]:.1f}" if key in metrics else "" for key in RECALLS)
        lines.append(f"| {stage} | {' | '.join(cells)} |")
    return lines


def _limits(folder: Path, limits: str | None) -> list[str]:
    images, tokenizer = read_image_input(folder), read_tokenizer(folder)
    known = ["It has seen the data above and nothing else; on other images and texts it is worse."]
    if images["kind"] == "features":
        known.append(f"It reads features of an image tower (`{images.get('name')}`), whose weights are not here.")
    if getattr(tokenizer, "max_length", None) is not None:
        known.append(f"Texts are cut at {getattr(tokenizer, 'max_length', None)} tokens.")
    if tokenizer is None:
        known.append("It has no tokenizer, so it takes token ids alone.")
    return [f"- {line}" for line in ([limits] if limits else []) + known]


def _upload(files: Path, name: str, private: bool) -> str:
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError
    except ImportError as error:
        raise QuintetError(f"the hub needs the `hf` extra: `pip install 'quintet-retrieval[hf]'` ({error})") from None
    api = HfApi(library_name="quintet", library_version=quintet.__version__)
    try:
        page = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(folder_path=files, repo_id=name, commit_message=f"Run of Quintet {quintet.__version__}")
    except LocalTokenNotFoundError:
        raise QuintetError("the hub does not know you; log in with `hf auth login`") from None
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        hint = "log in with `hf auth login`" if status in (401, 403) else "try again later"
        raise QuintetError(f"the hub refused {name} ({str(error).strip().splitlines()[0]}); {hint}") from None
    except Exception as error:  # noqa: BLE001  # of the transport: no connection, a connection that broke
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise QuintetError(f"{name} could not be uploaded ({reason}); is there a connection?") from None
    return str(page)
