"""The attack campaign of `make torture`: its machinery, its page, and two minutes of it."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from quintet.errors import CorpusError
from quintet.files import write_text

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "benchmarks/results/torture.json"


@pytest.fixture
def torture(script: Any) -> Any:
    return script


def refuse() -> None:
    raise CorpusError("damaged")


def test_every_ending_of_a_child_is_told_apart(torture: Any) -> None:
    attack = torture("attack")
    assert (attack.in_child(lambda: 3).kind, attack.in_child(lambda: 3).value) == ("done", 3)
    assert attack.in_child(refuse).kind == "refused"
    raised = attack.in_child(lambda: {}["x"])
    assert (raised.kind, raised.what, raised.told) == ("raised", "KeyError", False)
    died = attack.in_child(lambda: os.kill(os.getpid(), signal.SIGSEGV))
    assert (died.kind, died.what) == ("died", "SIGSEGV")
    assert attack.in_child(time.sleep, 60, seconds=0.2).kind == "endless"
    assert attack.in_child(time.sleep, 60, kill_after=0.2).kind == "killed"


def write_and_fail(torture: Any, folder: Path, action: str, at: int) -> None:
    torture("faults").FileFaults(folder, at, action, random.Random(0)).install()
    write_text(folder / "new.txt", "x" * 10_000)


@pytest.mark.parametrize("operation", ["write", "fsync", "replace", "fsync of the folder"])
def test_operations_fail_in_their_turn(torture: Any, tmp_path: Path, operation: str) -> None:
    (tmp_path / "new.txt").write_text("before")
    at = 2 + ["write", "fsync", "replace", "fsync of the folder"].index(
        operation
    )  # the first is mkdir, of a folder there is
    ending = torture("attack").in_child(write_and_fail, torture, tmp_path, "EIO", at)
    assert ending.kind == "refused", ending
    assert os.strerror(errno.EIO) in ending.detail
    assert (tmp_path / "new.txt").read_text() == ("before" if operation != "fsync of the folder" else "x" * 10_000)


def lose_power(torture: Any, folder: Path) -> None:
    torture("faults").FileFaults(folder, 7, "power", random.Random(0)).install()
    write_text(folder / "synced.txt", "x" * 10_000)  # mkdir, write, fsync, replace, fsync of the folder
    with (folder / "not synced.txt").open("w") as file:
        file.write("y" * 10_000)
        file.flush()
    (folder / "more").mkdir()


def test_a_power_failure_takes_what_was_not_synced(torture: Any, tmp_path: Path) -> None:
    (tmp_path / "before.txt").write_text("before")
    attack = torture("attack")
    ending = attack.in_child(lose_power, torture, tmp_path)
    assert ending.what == "SIGKILL", ending
    assert (tmp_path / "before.txt").read_text() == "before"
    assert (tmp_path / "synced.txt").read_text() == "x" * 10_000
    assert len((tmp_path / "not synced.txt").read_text()) < 10_000
    assert not (tmp_path / "more").exists()


def test_a_try_is_made_again_from_seed_attack_and_turn(torture: Any, tmp_path: Path) -> None:
    damage = torture("damage")
    for kind in ("bit flip", "truncation", "zeroed block", "hostile value"):
        found = []
        for seed in (1, 1, 2):
            path = tmp_path / "a.json"
            path.write_text(json.dumps({"a": list(range(200)), "b": {"c": "text"}}))
            damage.damage(path, kind, random.Random(f"{seed} {kind} 0"))
            found.append(path.read_bytes())
        assert found[0] == found[1]
        assert found[0] != found[2]


def test_results_of_an_index_are_equal_up_to_rounding(torture: Any) -> None:
    found = torture("material").Found
    assert found(a=0.5, b=0.25) == found(a=0.5 + 1e-7, b=0.25)
    assert not found(a=0.5) != found(a=0.5 + 1e-7)  # noqa: SIM202
    assert found(a=0.5) != found(a=0.5001)
    assert found(a=0.5) != found(a=0.5, b=0.25)


def test_the_page_is_made_of_the_result(torture: Any) -> None:
    page = torture("reliability_page")
    text = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    assert page.page(text, "campaign", json.loads(RESULT.read_text(encoding="utf-8"))) == text


def test_the_result_has_every_attack_with_its_losses(torture: Any) -> None:
    found = json.loads(RESULT.read_text(encoding="utf-8"))
    families = torture("campaign").FAMILIES
    assert {family: set(attacks) for family, attacks in found["attacks"].items()} == {
        family: set(families[family]) for family in found["attacks"]
    }
    for attacks in found["attacks"].values():
        for one in attacks.values():
            assert one["survived"] + one["lost"] == one["tries"]
            assert sum(loss["count"] for loss in one["losses"]) == one["lost"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_minutes_of_attacks_lose_nothing_that_survived_the_recorded_campaign(torture: Any) -> None:
    campaign = torture("campaign")
    recorded = json.loads(RESULT.read_text(encoding="utf-8"))["attacks"]
    survived = {
        name for attacks in recorded.values() for name, one in attacks.items() if one["tries"] and not one["lost"]
    }
    scores = campaign.run(2.0, seed=int(time.time()) // 86_400, names=list(campaign.ATTACKS))
    assert sum(score.tries for score in scores.values()) >= 5
    lost = {name: dict(score.losses) for name, score in scores.items() if score.lost and name in survived}
    assert not lost
