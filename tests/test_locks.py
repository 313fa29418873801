from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from quintet.errors import QuintetError
from quintet.locks import NO_LINKS, LockedError, folder_lock

HOLD = """
import sys, time
from quintet.locks import folder_lock
with folder_lock(sys.argv[1], "training"):
    print("held", flush=True)
    {then}
    time.sleep(60)
"""


def hold(folder: Path, then: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLD.format(then=then), str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_a_lock_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power failure leaves no lock that is cut short, which nobody would know as one."""
    done: list[str] = []
    for name in ("fsync", "link"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *given, name=name, real=real: (done.append(name), real(*given)))
    with folder_lock(tmp_path, "training"):
        assert done == ["fsync", "link"]


@pytest.mark.parametrize("code", NO_LINKS)
def test_a_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)
    with folder_lock(tmp_path, "training"):
        with pytest.raises(LockedError, match="training, process"), folder_lock(tmp_path, "mining"):
            pass
        assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "lock").write_bytes(b"mine")
    with pytest.raises(QuintetError, match="is in the way"), folder_lock(tmp_path, "mining"):
        pass
    assert (tmp_path / "lock").read_bytes() == b"mine"


def test_nothing_is_left_after_release(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with folder_lock(tmp_path / "run", "training"):
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["lock"]
    assert list((tmp_path / "run").iterdir()) == []


def test_a_folder_made_for_the_lock_goes_unless_it_was_filled(tmp_path: Path) -> None:
    with folder_lock(tmp_path / "a" / "b", "training"):
        pass
    assert list(tmp_path.iterdir()) == []
    with folder_lock(tmp_path / "a" / "b", "training"):
        (tmp_path / "a" / "b" / "file").touch()
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["file"]


def test_the_second_writer_is_told_who_holds_it(tmp_path: Path) -> None:
    process = hold(tmp_path)
    with pytest.raises(LockedError, match=f"training, process {process.pid}"), folder_lock(tmp_path, "mining"):
        pass
    assert (tmp_path / "lock").exists()
    kill(process)


def test_the_same_process_is_a_second_writer_too(tmp_path: Path) -> None:
    with folder_lock(tmp_path, "training"):
        with pytest.raises(LockedError, match=str(os.getpid())), folder_lock(tmp_path, "training"):
            pass
        assert (tmp_path / "lock").exists()
    with folder_lock(tmp_path, "training"):
        pass


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    kill(hold(tmp_path))
    assert (tmp_path / "lock").exists()
    with folder_lock(tmp_path, "mining"):
        assert json.loads((tmp_path / "lock").read_text())["doing"] == "mining"
    assert list(tmp_path.iterdir()) == []


def test_children_of_a_killed_process_do_not_keep_it(tmp_path: Path) -> None:
    then = "import os; os.fork() or print(os.getpid(), flush=True)"
    process = hold(tmp_path, then)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    kill(process)
    try:
        with folder_lock(tmp_path, "mining"):
            pass
    finally:
        os.kill(child, signal.SIGKILL)


def _end(folder: Path) -> None:
    with pytest.raises(LockedError), folder_lock(folder, "child"):
        pass


def test_a_forked_child_that_ends_does_not_release_it(tmp_path: Path) -> None:
    with folder_lock(tmp_path, "training"):
        child = multiprocessing.get_context("fork").Process(target=_end, args=(tmp_path,))
        child.start()
        child.join()
        assert child.exitcode == 0
        with pytest.raises(LockedError), folder_lock(tmp_path, "mining"):
            pass


@pytest.mark.parametrize("content", ["", "yarn", "[]", '{"format": "yarn-lock"}', "{" * 5000])
def test_a_file_of_someone_else_is_left_alone(tmp_path: Path, content: str) -> None:
    (tmp_path / "lock").write_text(content)
    with pytest.raises(QuintetError, match=r"lock is .*the way"), folder_lock(tmp_path, "training"):
        pass
    assert (tmp_path / "lock").read_text() == content
    assert len(list(tmp_path.iterdir())) == 1


def test_links_folders_and_fifos_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "lock").symlink_to(tmp_path / "target")
    (tmp_path / "b" / "lock").mkdir(parents=True)
    (tmp_path / "c").mkdir()
    os.mkfifo(tmp_path / "c" / "lock")
    for name in "abc":
        with pytest.raises(QuintetError), folder_lock(tmp_path / name, "training"):
            pass
    assert (tmp_path / "a" / "lock").is_symlink()
    assert not (tmp_path / "target").exists()
    assert (tmp_path / "b" / "lock").is_dir()
    assert (tmp_path / "c" / "lock").is_fifo()


def test_only_one_of_many_holds_it_at_any_time(tmp_path: Path) -> None:
    inside, most, times = 0, 0, 0
    guard = threading.Lock()

    def turn(_: int) -> None:
        nonlocal inside, most, times
        for _ in range(30):
            try:
                with folder_lock(tmp_path, "writing"):
                    with guard:
                        inside, times = inside + 1, times + 1
                        most = max(most, inside)
                    with guard:
                        inside -= 1
            except LockedError:
                pass

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(turn, range(8)))
    assert most == 1
    assert times > 8
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(QuintetError, match="could not write to"), folder_lock(tmp_path / "file" / "run", "training"):
        pass
