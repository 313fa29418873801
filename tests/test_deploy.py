"""The files of `deploy/`: valid by their schemas, pinned, without root, and of options that the server has."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from quintet.cli.main import app
from quintet.serve.settings import Settings

DEPLOY = Path(__file__).parents[1] / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
KUBERNETES = {document["kind"]: document for document in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
POD: dict[str, Any] = KUBERNETES["Deployment"]["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]


def test_the_manifests_are_valid_kubernetes() -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for document in KUBERNETES.values():
        kubernetes_validate.validate(document, "1.32", strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(KUBERNETES["Service"] | {"spek": {}}, "1.32", strict=True)


def test_the_compose_file_is_valid() -> None:
    compose_spec = pytest.importorskip("compose_spec")
    text = re.sub(
        r"\$\{[A-Z_]+:\?[^}]*\}", "/a/value", (DEPLOY / "compose.yaml").read_text()
    )  # as Compose fills them in
    compose_spec.PyCompose.from_yaml(text)
    with pytest.raises(Exception, match="spek"):
        compose_spec.PyCompose.from_yaml(text.replace("profiles:", "spek:"))


def test_every_image_is_pinned_to_a_version() -> None:
    images = [service["image"] for service in COMPOSE["services"].values()]
    images += [*re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE), CONTAINER["image"]]
    assert len(images) == 7
    assert all(re.search(r":v?\d+\.\d+\.\d+", image) for image in images)
    assert all("==" in package for package in re.findall(r"pip install --no-cache-dir (\S+)", DOCKERFILE))


def test_servers_run_without_root_and_write_nowhere_else() -> None:
    (user,) = re.findall(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE)
    assert int(user) == POD["securityContext"]["runAsUser"] > 0
    assert POD["securityContext"]["runAsNonRoot"]
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"]
    assert all(mount.get("readOnly") for mount in CONTAINER["volumeMounts"] if mount["mountPath"] != "/tmp")
    assert COMPOSE["services"]["quintet"]["read_only"]
    (volume,) = (each for each in COMPOSE["services"]["index"]["volumes"] if each.startswith("index:"))
    mounted = volume.partition(":")[2]
    assert f"install -d -o quintet -g quintet {mounted}\n" in DOCKERFILE  # so that the user may write there


@pytest.mark.skipif(shutil.which("nginx") is None, reason="no nginx: apt-get install nginx-light")
def test_nginx_reads_its_configuration(tmp_path: Path) -> None:
    """As Compose hands it over, with an address for the name that only Compose knows."""
    content = COMPOSE["configs"]["nginx"]["content"].replace("$$", "$").replace("quintet:8000", "127.0.0.1:8000")
    (tmp_path / "default.conf").write_text(content)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = " ".join(f"{kind}_temp_path {tmp_path}/{kind};" for kind in kinds)  # the usual ones are those of root
    (tmp_path / "nginx.conf").write_text(
        f"pid {tmp_path}/pid; error_log stderr; events {{}} http {{ include default.conf; access_log off; {folders} }}"
    )
    told = subprocess.run(["nginx", "-t", "-c", tmp_path / "nginx.conf"], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr


def test_probes_ask_routes_that_need_no_token() -> None:
    from quintet.serve.guard import OPEN

    probes = {name: CONTAINER[name]["httpGet"]["path"] for name in ("livenessProbe", "readinessProbe", "startupProbe")}
    assert probes == {"livenessProbe": "/health", "readinessProbe": "/ready", "startupProbe": "/health"}
    assert set(probes.values()) <= set(OPEN)
    assert "/health" in DOCKERFILE.partition("HEALTHCHECK")[2]


def commands() -> list[list[str]]:
    (of_image,) = re.findall(r"^CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    services = COMPOSE["services"]
    return [yaml.safe_load(of_image), CONTAINER["args"], services["quintet"]["command"], services["index"]["command"]]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_the_commands_have_options_of_quintet(words: list[str]) -> None:
    group: Any = typer.main.get_command(app)
    name, *arguments = words
    group.commands[name].make_context(name, list(arguments))  # raises at what it does not know


def test_there_is_time_to_drain_and_to_finish_what_is_in_progress() -> None:
    arguments = CONTAINER["args"]
    needed = float(arguments[arguments.index("--drain") + 1]) + Settings().shutdown_s
    assert POD["terminationGracePeriodSeconds"] > needed
    assert int(COMPOSE["services"]["quintet"]["stop_grace_period"].removesuffix("s")) > needed
