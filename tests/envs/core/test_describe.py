"""Describing an environment: constructors that end the process, hang or leave things behind harm nobody; errors arrive whole."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial
from itertools import chain, repeat
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from worlds import CountingEnv

from headrace.config import ConfigError, EnvConfig
from headrace.config.errors import MissingExtra
from headrace.envs.core import imports, registry
from headrace.envs.core.contract import MASK_KEY, ActionSpec, ArraySpec, Categorical, Continuous, EnvSpec
from headrace.envs.core.description import describe_in_child, spec_from_json, spec_to_json
from headrace.envs.core.errors import EnvironmentFault, UnsupportedSpace
from headrace.envs.core.imports import import_files
from headrace.envs.make import describe, describe_here
from headrace.processes.child import Child
from headrace.processes.start import start_child

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("bare_fork_server")]

ODD = Path(__file__).parents[1] / "odd_constructors.py"
PLAIN = EnvConfig()


@pytest.fixture(autouse=True)
def imported() -> None:
    import_files([ODD])


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def ended(pid: int) -> bool:
    """Whether a process has, though nobody may have asked for its exit code."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def odd(way: str, **more: object) -> EnvSpec:
    """Describe an environment whose constructor does this."""
    return describe("odd/env", EnvConfig(kwargs={"way": way, **more}))


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("segfault", r"the process that made one ended \(killed by SIGSEGV\)"),
        ("abort", r"the process that made one ended \(killed by SIGABRT\)"),
        ("kill", r"the process that made one ended \(killed by SIGKILL\)"),
        ("exit at once", r"the process that made one ended \(exit code 3\)"),
        ("sys.exit", r"it called sys.exit\('no licence'\)"),
        ("raise", "OSError: no display"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise in silence", "Silent, which cannot be shown as text"),
        ("raise in a thread", None),
        ("leave a thread", None),
        ("leave a process", None),
        ("print", None),
    ],
)
def test_whatever_a_constructor_does(way: str, message: str | None, tmp_path: Path) -> None:
    threads = set(threading.enumerate())
    if message is None:
        assert odd(way, file=str(tmp_path / "pid")).observation["obs"].shape == (4,)
    else:
        with pytest.raises(EnvironmentFault, match=f"odd/env cannot be made: {message}"):
            odd(way)
    assert set(threading.enumerate()) <= threads  # those of earlier tests may end now
    if way == "leave a process":
        pid = int((tmp_path / "pid").read_text())
        until(lambda: ended(pid))


@pytest.mark.parametrize("way", ["killed once", "fork server killed once"])
def test_a_child_that_was_killed_from_outside_is_started_again(way: str, tmp_path: Path) -> None:
    assert odd(way, file=str(tmp_path / "killed")).observation["obs"].shape == (4,)
    assert (tmp_path / "killed").exists()


def test_a_fork_server_that_is_killed_while_it_starts_the_child_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kills = chain([True], repeat(False))

    def start(*arguments: Any, **more: Any) -> Any:
        if next(kills):
            os.kill(forkserver._forkserver._forkserver_pid, 9)  # type: ignore[attr-defined]
            raise EOFError("unexpected EOF")  # what multiprocessing says
        return start_child(*arguments, **more)

    assert odd("fine").observation
    monkeypatch.setattr("headrace.processes.child.start_child", start)
    assert odd("fine").observation["obs"].shape == (4,)


def test_crashes_and_errors_show_where() -> None:
    for way in ("segfault", "raise"):
        with pytest.raises(EnvironmentFault) as fault:
            odd(way)
        assert "odd_constructors.py" in fault.value.frames
        assert "registry.py" not in fault.value.frames or way == "segfault"  # a crash shows the whole stack
        assert "in construct" in fault.value.frames


def test_a_constructor_that_hangs_is_ended_and_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The deadline begins here when the child is in the constructor: what it imports before takes as long as it takes."""
    reached = tmp_path / "reached"

    receive = Child.receive

    def receive_then(child: Child, timeout: float) -> list[Any]:
        until(reached.exists)
        return receive(child, timeout)

    monkeypatch.setattr(Child, "receive", receive_then)
    describe = partial(describe_here, "odd/env", EnvConfig(kwargs={"way": "hang", "file": str(reached)}), (ODD,))
    with pytest.raises(EnvironmentFault, match="odd/env cannot be made: making one did not end within 1 s") as fault:
        describe_in_child(describe, "odd/env", deadline=1)
    assert "in construct" in fault.value.frames


@pytest.mark.parametrize("way", ["text", "mask"])
def test_errors_of_settings_keep_their_type(way: str) -> None:
    with pytest.raises(UnsupportedSpace, match="odd/env: "):
        odd(way)
    with pytest.raises(ConfigError, match="takes no such way"):
        odd("another")


def test_missing_extras_keep_their_type(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Here the package is found, in the child it is not."""
    (tmp_path / "vizdoom.py").write_text("raise ImportError('no such package')")
    pytest.importorskip("vizdoom")
    registry.check_id("vizdoom/basic")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtra, match=r'pip install "headrace\[vizdoom\]"'):
        describe("vizdoom/basic", PLAIN)


def test_warnings_are_shown_here() -> None:
    with pytest.warns(UserWarning, match="only a prototype"):
        odd("warn")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        odd("fine")


def test_the_child_has_the_environment_and_the_directory_of_now(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    odd("fine")  # the fork server runs
    monkeypatch.setenv("HEADRACE_TEST_WIDTH", "7")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "height").write_text("5")
    assert odd("look around").observation["obs"].shape == (5, 7)


def test_environments_of_this_process_only_are_made_here() -> None:
    made = []
    registry.register("here/env")(lambda options, *, render_mode=None: made.append(os.getpid()) or CountingEnv())
    gymnasium.register("HeadraceHere-v0", entry_point=lambda **kwargs: made.append(os.getpid()) or CountingEnv())
    try:
        for env_id in ("here/env", "gym/HeadraceHere-v0"):
            assert describe(env_id, PLAIN).name == env_id
        assert set(made) == {os.getpid()}
    finally:
        del registry._registered["here/env"], gymnasium.registry["HeadraceHere-v0"]


def test_a_process_that_may_have_no_children_describes_by_itself(tmp_path: Path) -> None:
    module = tmp_path / "describing.py"
    module.write_text(
        "from headrace.config import EnvConfig\n"
        "from headrace.envs.make import describe\n"
        "from headrace.envs.core.description import spec_to_json\n"
        "def main(report): report.send_bytes(spec_to_json(describe('gym/CartPole-v1', EnvConfig())).encode())\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        from describing import main  # type: ignore[import-not-found]

        here, there = multiprocessing.Pipe(duplex=False)
        process = start_child(main, (there,), "a daemon")
        assert here.poll(60)
        assert spec_from_json(here.recv_bytes().decode()).name == "gym/CartPole-v1"
        process.join()
    finally:
        sys.path.remove(str(tmp_path))


SCRIPT = """
from headrace.config import EnvConfig
from headrace.envs.make import describe
print("described", describe("gym/CartPole-v1", EnvConfig()).observation["obs"].shape)
"""


@pytest.mark.parametrize("how", ["stdin", "script", "-c"])
def test_scripts_need_no_main_guard(how: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    arguments = {"stdin": ["-"], "script": [str(script)], "-c": ["-c", SCRIPT]}[how]
    done = subprocess.run([sys.executable, *arguments], input=SCRIPT, capture_output=True, text=True, timeout=120)
    assert done.stdout == "described (4,)\n", done.stderr  # once: no process ran the script again
    assert done.returncode == 0


def test_a_child_without_a_standard_output_is_silent() -> None:
    code = SCRIPT.partition("print")[0] + "describe(\"gym/CartPole-v1\", EnvConfig())"
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, preexec_fn=partial(os.close, 1), timeout=120)
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_child_ends_with_its_parent(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    code = (
        "from headrace.config import EnvConfig\n"
        "from headrace.envs.make import describe; from headrace.envs.core.imports import import_files\n"
        f"import_files([{str(ODD)!r}])\n"
        f"describe('odd/env', EnvConfig(kwargs={{'way': 'hang', 'file': {str(pid)!r}}}))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    until(lambda: pid.exists() and bool(pid.read_text()))
    child = int(pid.read_text())
    assert psutil.pid_exists(child)
    process.kill()
    process.wait()
    until(lambda: ended(child))


def test_a_warm_description_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "_imported", {})  # files that other tests imported would be imported by the child, too
    describe("gym/CartPole-v1", PLAIN)
    server = psutil.Process(forkserver._forkserver._forkserver_pid)  # type: ignore[attr-defined]

    def spent() -> float:
        """Seconds of the processor that all children of the fork server took which have ended."""
        times = server.cpu_times()
        return times.children_user + times.children_system

    before = spent()
    for _ in range(5):
        describe("gym/CartPole-v1", PLAIN)
    assert 0 < spent() - before < 5 * 0.5


@pytest.mark.parametrize(
    "spec",
    [
        EnvSpec({"obs": ArraySpec((4,), np.dtype(np.float32))}, ActionSpec((Categorical(2),))),
        EnvSpec(
            {
                "camera/left": ArraySpec((3, 84, 84), np.dtype(np.uint8), 0, 255),
                "speed": ArraySpec((), np.dtype(np.float32), -0.1, float(np.float32(0.1))),
                MASK_KEY: ArraySpec((5,), np.dtype(np.uint8), 0, 1),
            },
            ActionSpec((Categorical(3), Continuous((-np.inf, 1 / 3), (np.inf, 2.5e-300)), Continuous((0.0,), (9.0,), True))),
            frameskip=4,
            autoreset="same-step",
            name="my/env",
        ),
    ],
)
def test_a_specification_is_the_same_as_text_and_back(spec: EnvSpec) -> None:
    again = spec_from_json(spec_to_json(spec))
    assert again == spec
    assert hash(again.action) == hash(spec.action)  # tuples, not lists
    assert [array.dtype for array in again.observation.values()] == [array.dtype for array in spec.observation.values()]
