"""Which errors are explained, and which keep their own message and their traceback."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest

from headrace import cli
from headrace.runs.error_texts import explain

OF_A_PATH = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG)


def error(number: int, *names: str | Path | None) -> OSError:
    first, second = (*names, None, None)[:2]
    return OSError(number, os.strerror(number), first, None, second)


@pytest.mark.parametrize("number", OF_A_PATH)
def test_errors_about_paths_are_explained_only_where_the_run_needs_the_path(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")  # a checkout may be in a folder for temporary files
    run = tmp_path / "runs" / "one"
    for ours in (run, run / "checkpoints" / "3", run.parent, Path(tempfile.gettempdir(), "pymp-1", "x"), "/dev/shm/x", None):
        found = explain(error(number, ours), [run])
        assert found is not None, ours
        assert os.strerror(number) in found[0]
    assert explain(error(number, "/levels/one.txt", run / "log.txt"), [run]) is not None, "one of two"
    for theirs in ("/levels/one.txt", "levels/one.txt", b"/levels/one.txt"):
        assert explain(error(number, theirs), [run]) is None, "a bug: its traceback tells where"
    assert explain(FileNotFoundError("no level"), [run]) is None


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE, errno.EIO])
def test_errors_of_the_machine_are_explained_whatever_the_path(number: int) -> None:
    found = explain(error(number, "/levels/one.txt"))
    assert found is not None
    assert found[0].endswith(": /levels/one.txt")


def test_a_file_that_the_users_own_code_does_not_find_is_shown_with_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("open('/levels/one.txt')\n")
    with pytest.raises(Exception, match=r"/levels/one\.txt") as caught:
        cli.main(["envs", "--import", str(tmp_path / "mine.py")])
    assert "mine.py" in str(caught.traceback[-1].path) or "mine.py" in str(caught.value)
