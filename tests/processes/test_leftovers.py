"""Temporary folders of killed processes are removed by a later run; those of strangers and of living processes are not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from test_fork_server import Program, ended, until

from headrace.processes import leftovers
from headrace.processes.leftovers import MARK, SHARED_MEMORY, mark, sweep

sys.path.append(str(Path(__file__).parent))

pytestmark = pytest.mark.process


def test_what_a_killed_process_group_leaves_is_removed_by_the_next_start(tmp_path: Path) -> None:
    """With the fork server dies who would have removed the folder."""
    with closing(Program(tmp_path)) as program:
        os.killpg(program.process.pid, signal.SIGKILL)
        program.process.wait()
        assert until(lambda: ended(program.server))
        (left,) = program.temporary.iterdir()
        with closing(Program(tmp_path, temporary=program.temporary)) as again:
            assert not left.exists()
            again.kill()
            assert again.nothing_is_left()


MARK_IT = "import sys; from headrace.processes.leftovers import mark; mark(sys.argv[1])"


@pytest.fixture
def dead(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The mark of a process that has ended."""
    folder = tmp_path_factory.mktemp("dead")
    subprocess.run([sys.executable, "-c", MARK_IT, folder], check=True)
    return (folder / MARK).read_text()


def folder_with(path: Path, owner: str | None, mode: int = 0o700) -> Path:
    path.mkdir(mode=mode)
    path.chmod(mode)
    (path / "content").write_text("x")
    if owner is not None:
        (path / MARK).write_text(owner)
    return path


def test_only_marked_folders_of_ended_processes_are_removed(tmp_path: Path, dead: str) -> None:
    mark(tmp_path)
    me = (tmp_path / MARK).read_text()
    boot, namespace, pid, start = me.split()
    kept = [
        folder_with(tmp_path / "pymp-of-somebody", None),
        folder_with(tmp_path / "headrace-of-somebody", None),
        folder_with(tmp_path / "pymp-alive", me),
        folder_with(tmp_path / "pymp-damaged", dead[:50]),
        folder_with(tmp_path / "pymp-another-boot", dead.replace(boot, "x" * len(boot))),
        folder_with(tmp_path / "pymp-another-container", dead.replace(namespace, "pid:[1]")),
        folder_with(tmp_path / "pymp-others-may-write", dead, mode=0o777),
        folder_with(tmp_path / "another-name", dead),
    ]
    target = folder_with(tmp_path / "linked-to", dead)
    (tmp_path / "pymp-link").symlink_to(target)
    removed = [
        folder_with(tmp_path / "pymp-dead", dead),
        folder_with(tmp_path / "headrace-dead", dead),
        folder_with(tmp_path / "pymp-pid-used-again", f"{boot} {namespace} {pid} {int(start) - 1}"),
    ]
    sweep(str(tmp_path))
    assert all(map(Path.exists, [*kept, target]))
    assert not any(map(Path.exists, removed))


def test_a_process_that_nobody_has_waited_for_has_ended(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "pymp-zombie", None)
    process = subprocess.Popen([sys.executable, "-c", MARK_IT, str(folder)])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    sweep(str(tmp_path))
    assert not folder.exists()
    process.wait()


@pytest.fixture
def shared() -> Iterator[Path]:
    path = Path("/dev/shm", f"headrace-test-{uuid.uuid4().hex}")
    path.write_text("x")
    yield path
    path.unlink(missing_ok=True)


def test_shared_memory_goes_with_the_folder_and_nothing_else_does(tmp_path: Path, dead: str, shared: Path) -> None:
    (tmp_path / "precious").write_text("x")
    folder = folder_with(tmp_path / "headrace-vizdoom-1", dead)
    (folder / SHARED_MEMORY).write_text(f"{shared}\n{tmp_path / 'precious'}\n/dev/shm/gone-already\n")
    sweep(str(tmp_path))
    assert not folder.exists()
    assert not shared.exists()
    assert (tmp_path / "precious").exists()


def test_a_folder_that_is_made_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers.tempfile, "tempdir", str(tmp_path))
    folder = leftovers.make_folder("vizdoom")
    assert folder.name.startswith("headrace-vizdoom-")
    sweep(str(tmp_path))
    assert (folder / MARK).exists(), "its process lives"
