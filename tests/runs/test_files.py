"""Files that are written whole, on a disk without room: a process that may write no file over so many bytes."""

import os
import subprocess
import sys
import textwrap

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from headrace.runs.files import AppendFile, write_whole
from headrace.runs.metrics import read_jsonl


def run(code, *arguments):
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_lines_are_appended(tmp_path):
    for lines in (["one", "zwei €"], ["three"]):
        file = AppendFile(tmp_path / "f")
        assert [file.append(line.encode() + b"\n") for line in lines] == [None] * len(lines)
        file.close()
    assert (tmp_path / "f").read_text() == "one\nzwei €\nthree\n"


def test_a_file_that_others_have_closed_is_opened_again(tmp_path):
    """An environment in the same process may close whatever is open; the number is then another file's."""
    file, last = AppendFile(tmp_path / "f"), AppendFile(tmp_path / "last")
    for each in (file, last):
        each.append(b"one\n")
    closed = {file._fd, last._fd}
    for fd in closed:
        os.close(fd)
    others = [os.open(tmp_path / f"other {i}", os.O_WRONLY | os.O_CREAT) for i in range(2)]
    assert set(others) == closed, "the test shows nothing"
    assert file.append(b"two\n") is None
    file.close()
    last.close()
    assert (tmp_path / "f").read_text() == "one\ntwo\n"
    for i, other in enumerate(others):
        assert os.path.samestat(os.fstat(other), os.stat(tmp_path / f"other {i}")), "it was closed"
        assert os.fstat(other).st_size == 0
        os.close(other)


CLOSED = r"""
    import os, sys
    from headrace.runs.files import AppendFile
    from headrace.runs.folder import RunFolder
    file, folder = AppendFile(sys.argv[1] + "/f"), RunFolder(sys.argv[1])
    for first in ("file", "folder"):
        os.closerange(0, 256)
        file.append(b"line\n") if first == "file" else folder.check()
        print("printed", flush=True)
        folder.log("logged")
    file.close()
    folder.close()
"""


def test_what_is_printed_goes_into_no_file_where_standard_output_was_closed(tmp_path):
    assert run(CLOSED, tmp_path) == ""
    assert (tmp_path / "f").read_text() == "line\n"
    assert "printed" not in (tmp_path / "log.txt").read_text() + (tmp_path / "run.lock").read_text()
    assert (tmp_path / "log.txt").read_text().count("logged") == 2


LIMITED = r"""
    import resource, sys
    from pathlib import Path
    from headrace.runs.files import AppendFile
    def room(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    path = Path(sys.argv[1])
    file = AppendFile(path)
    room(25)
    print([file.append(b"123456789\n") for _ in range(2)])
    print(file.append(b"too long\n"))
    print(path.read_text().split())
    room(28)
    print(file.append(b"x\n") is None)
    room(1000)
    print(file.append(b"y\n"))
    file.append(b"last\n")
    file.close()
    print(path.read_text().split())
    file = AppendFile(path)
    room(10)
    file.append(b"lost\n")
    try:
        file.close()
    except OSError as error:
        print(error)
"""


def test_what_a_full_disk_refuses_is_written_when_there_is_room(tmp_path):
    fits, refused, whole, still, room, after, lost = run(LIMITED, tmp_path / "f").splitlines()
    assert fits == "[None, None]"
    assert "cannot be written now (File too large). The data is kept" in refused
    assert whole == "['123456789', '123456789']", "no torn line"
    assert still == "True", "it was said once"
    assert "f is written again, with all that was kept" in room
    assert after == "['123456789', '123456789', 'too', 'long', 'x', 'y', 'last']"
    assert "No space left on the disk for the last data" in lost


METRICS = """
    import resource, sys
    from contextlib import closing
    from headrace.config import Config
    from headrace.runs.metrics import MetricsWriter
    def room(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    with closing(MetricsWriter(sys.argv[1], Config())) as writer:
        writer.write({"global_step": 1, "charts/SPS": 1.0})
        room(10)
        problems = [writer.write({"global_step": step, "charts/SPS": 1.0}) for step in (2, 3, 4)]
        room(10**9)
        problems += [writer.write({"global_step": step, "charts/SPS": 1.0}) for step in (5, 6)]
    print([bool(problem) for problem in problems])
"""

REWIND = """
    import resource, sys
    from contextlib import closing
    from headrace.config import Config
    from headrace.runs.metrics import MetricsWriter
    def room(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    with closing(MetricsWriter(sys.argv[1], Config())) as writer:
        for step in range(1, 9):
            writer.write({"global_step": step, "charts/SPS": 1.0})
            writer.write_curve([(step, 1.0, 0.0, 2.0)])
        room(10)
        print(writer.rewind(6))
        other = open(sys.argv[1] + "/other", "wb")  # it may get the number of a file that was closed too early
        print(writer.write_curve([(7, 3.0, 0.0, 2.0)]), writer.write({"global_step": 7, "charts/SPS": 3.0}))
        room(10**9)
        print(writer.write_curve([(8, 3.0, 0.0, 2.0)]))
"""


def test_metrics_survive_a_full_disk(tmp_path):
    assert run(METRICS, tmp_path).strip() == "[True, False, False, True, False]"
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("charts/SPS")] == [1, 2, 3, 4, 5, 6]
    assert [line["global_step"] for line in read_jsonl(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]


def test_nothing_but_a_file_is_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder", "/dev/null"):
        with pytest.raises(OSError, match="it is no regular file"):
            write_whole(tmp_path / name, "text")
    (tmp_path / "link").symlink_to("real")
    for text in ("first", "second"):
        write_whole(tmp_path / "link", text)
        assert (tmp_path / "real").read_text() == text
    assert sorted(os.listdir(tmp_path)) == ["folder", "link", "pipe", "real"]


def test_what_cannot_be_rewound_on_a_full_disk_is_when_there_is_room(tmp_path):
    """Files that were closed before they could be replaced took their later lines into whatever got their number."""
    problem, known, again = run(REWIND, tmp_path).splitlines()
    assert "metrics.jsonl cannot be written now (File too large)" in problem
    assert known == "None None", "it was said once"
    assert "curve.jsonl is written again" in again
    assert (tmp_path / "other").read_bytes() == b""
    assert [line["global_step"] for line in read_jsonl(tmp_path / "curve.jsonl")] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [line["charts/SPS"] for line in read_jsonl(tmp_path / "metrics.jsonl")] == [1.0] * 6 + [3.0]
