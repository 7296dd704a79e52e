"""The fork server outlives signals to its process group and leaves no temporary folder behind, however its parent ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

CHILDREN = """
import os

def child(connection, there):
    assert not [name for name in os.environ if name.startswith("HEADRACE_FORK_SERVER")]
    there.close()
    connection.send(os.getppid())
    try:
        connection.recv()
    except EOFError:  # the parent has ended
        pass
"""
PROGRAM = """
import multiprocessing, signal, sys, time
from multiprocessing import forkserver
import children
from headrace.processes.start import start_child, start_fork_server

for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda *_: None)
ends = []
while True:
    if "early" in sys.argv:  # still importing
        start_fork_server()
        print(forkserver._forkserver._forkserver_pid, flush=True)
    else:
        here, there = multiprocessing.Pipe()
        start_child(children.child, (there, here), "child")
        there.close()
        ends.append(here)
        print(here.recv(), flush=True)
    if sys.stdin.readline() != "again\\n":
        break
for end in ends:
    end.send(None)
"""


class Program:
    """Starts the fork server and says its pid; when it is asked to, starts another child and says the fork server's pid again.
    With "early" in `arguments` it starts no children, and says the pid while the fork server is still importing."""

    def __init__(self, folder: Path, *arguments: str, temporary: Path | None = None) -> None:
        (folder / "program.py").write_text(PROGRAM)
        (folder / "children.py").write_text(CHILDREN)
        # A path of its own: the test's may be too long for the fork server's socket, which is then elsewhere.
        self.temporary = temporary or Path(tempfile.mkdtemp(prefix="headrace-tests-", dir="/tmp"))
        self.process = subprocess.Popen(
            [sys.executable, folder / "program.py", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"TMPDIR": str(self.temporary)}, start_new_session=True,
        )  # fmt: skip
        self.server = self.answer()
        assert list(self.temporary.rglob("listener-*")), "the fork server's socket is not where this test looks"

    def answer(self) -> int:
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def again(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.write("again\n")
        self.process.stdin.flush()
        return self.answer()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End it, and remove its temporary directory."""
        self.kill()
        shutil.rmtree(self.temporary, ignore_errors=True)

    def nothing_is_left(self) -> bool:
        return until(lambda: ended(self.server) and not list(self.temporary.iterdir()))


def ended(pid: int) -> bool:
    """Whether a process has, though nobody may have asked for its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def until(condition: Callable[[], bool]) -> bool:
    """Wait for it; whether it came true. A fork server that is still importing ends only after that."""
    deadline = time.monotonic() + 120
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return met


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Starts a program, which ends with the test."""
    with ExitStack() as stack:

        def started(*arguments: str) -> Program:
            program = Program(tmp_path, *arguments)
            stack.callback(program.close)
            return program

        yield started


@pytest.fixture
def program(start: Callable[..., Program]) -> Program:
    return start()


def test_a_normal_end(program: Program) -> None:
    program.process.communicate("end\n", timeout=100)
    assert program.process.returncode == 0
    assert program.nothing_is_left()


@pytest.mark.parametrize("attempt", [0, 1, *(pytest.param(i, marks=pytest.mark.slow) for i in range(2, 40))])
@pytest.mark.parametrize("when", ["early", "late"])
def test_the_parent_is_killed(start: Callable[..., Program], when: str, attempt: int) -> None:
    program = start(when)
    program.kill()
    assert program.nothing_is_left()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("when", ["early", "late"])
def test_signals_to_the_process_group(start: Callable[..., Program], when: str, number: signal.Signals) -> None:
    """As a terminal, `timeout` and service managers send them: they are the parent's to answer."""
    program = start(when)
    os.killpg(program.process.pid, number)
    time.sleep(0.2)
    assert program.again() == program.server
    program.kill()
    assert program.nothing_is_left()


def test_a_fork_server_that_was_killed_is_replaced_by_one_that_does_the_same(program: Program) -> None:
    os.kill(program.server, signal.SIGKILL)
    assert until(lambda: ended(program.server))
    before, program.server = program.server, program.again()
    assert program.server != before
    os.killpg(program.process.pid, signal.SIGTERM)
    time.sleep(0.2)
    assert not ended(program.server)
    program.kill()
    assert program.nothing_is_left()


def test_a_temporary_directory_whose_path_is_too_long_for_sockets(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    program = (
        "import tempfile\nfrom multiprocessing import util\nfrom headrace.processes.start import start_fork_server\n"
        "if __name__ == '__main__':\n    start_fork_server()\n    print(tempfile.gettempdir(), util.get_temp_dir())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"TMPDIR": str(folder)}, capture_output=True, text=True, timeout=60,
        check=True,
    )  # fmt: skip
    users, of_sockets = done.stdout.split()
    assert users == str(folder), "what else is temporary is where the user wants it"
    assert Path(of_sockets).parent == Path("/tmp")
    assert until(lambda: not Path(of_sockets).exists())


def runs(folder: Path, program: str) -> None:
    """The program ends without an error; it may import `children`."""
    (folder / "children.py").write_text(CHILDREN)
    (folder / "outer.py").write_text(program)
    assert subprocess.run([sys.executable, folder / "outer.py"], timeout=200).returncode == 0


def test_the_folder_of_a_program_that_lives_is_left_alone(tmp_path: Path) -> None:
    """A run in a child of multiprocessing has the temporary folder of the user's program."""
    runs(
        tmp_path,
        "import multiprocessing, os, time\n"
        "from multiprocessing import util\n"
        "import children\n"
        "from headrace.processes.start import start_child\n"
        "def run(end):\n"
        "    here, there = multiprocessing.Pipe()\n"
        "    start_child(children.child, (there, here), 'child')\n"
        "    end.send((util.get_temp_dir(), here.recv()))\n"
        "    time.sleep(1000)\n"
        "if __name__ == '__main__':\n"
        "    ours = util.get_temp_dir()\n"
        "    here, there = multiprocessing.Pipe()\n"
        "    child = multiprocessing.get_context('spawn').Process(target=run, args=(there,))\n"
        "    child.start()\n"
        "    folder, server = here.recv()\n"
        "    assert folder == ours\n"
        "    child.kill(); child.join()\n"
        f"    import sys; sys.path.append({str(Path(__file__).parent)!r}); from test_fork_server import ended, until\n"
        "    assert until(lambda: ended(server))\n"
        "    assert os.path.isdir(ours)\n",
    )


def test_a_fork_server_without_children_that_lacks_imports_is_replaced(tmp_path: Path) -> None:
    runs(
        tmp_path,
        "import multiprocessing\n"
        "import children\n"
        "from headrace.processes.start import preload, start_child\n"
        "def started():\n"
        "    here, there = multiprocessing.Pipe()\n"
        "    child = start_child(children.child, (there, here), 'child')\n"
        "    return child, here, here.recv()\n"
        "first, one, server = started()\n"
        "preload('wave')\n"
        "second, two, same = started()\n"
        "assert same == server, 'it has a child'\n"
        "one.send(None); two.send(None); first.join(); second.join()\n"
        "third, three, other = started()\n"
        "assert other != server\n"
        "fourth, four, last = started()\n"
        "assert last == other\n"
        "three.send(None); four.send(None); third.join(); fourth.join()\n",
    )


TORCH_IN_A_CHILD = """
import sys
from headrace.processes.start import preload, start_child

preload("torch")
start_child(sys.exit, (), "child").join()
"""


@pytest.mark.parametrize(("own", "expected"), [({}, 0), ({"OMP_WAIT_POLICY": "active"}, 30_000_000_000)])
def test_threads_of_torch_in_a_child_sleep_while_they_wait_unless_the_user_wants_otherwise(
    own: dict[str, str], expected: int
) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    ran = subprocess.run(
        [sys.executable, "-c", TORCH_IN_A_CHILD], capture_output=True, text=True, timeout=120, check=True,
        env=environment | own | {"OMP_DISPLAY_ENV": "verbose"},
    )  # fmt: skip
    assert f"GOMP_SPINCOUNT = '{expected}'" in ran.stderr


FORKED = """
import multiprocessing, os
from multiprocessing import forkserver
from headrace.processes.start import preload, start_child, start_fork_server

def started(number):
    preload("json" if number == 1 else "csv")  # what the fork server lacks, so that another would be started
    child = start_child(print, (f"child {number}",), "child")
    child.join()
    assert child.exitcode == 0

if __name__ == "__main__":
    started(1)
    before = forkserver._forkserver._forkserver_pid
    forked = multiprocessing.get_context("fork").Process(target=started, args=(2,))
    forked.start()
    forked.join()
    assert forked.exitcode == 0
    os.kill(before, 0)
    start_fork_server()
    assert forkserver._forkserver._forkserver_pid == before, "it was left alone"
    started(1)
"""


def test_a_forked_process_has_a_fork_server_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "forked.py").write_text(FORKED)
    done = subprocess.run([sys.executable, "forked.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == ["child 1", "child 2", "child 1", ""], done.stderr
