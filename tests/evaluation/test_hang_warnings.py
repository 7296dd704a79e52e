"""Environments that hang in a step or a reset while a policy is evaluated, recorded or plays: the user hears which one it is."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from tiny_runs import trained

import headrace
from headrace import cli
from headrace.config import EnvConfig
from headrace.envs.core.contract import LaneRow, ObsRow, StepRow
from headrace.envs.core.registry import register_parallel
from headrace.envs.core.settings import default_options
from headrace.envs.make import make_group
from headrace.evaluation import hang_warnings
from headrace.evaluation.evaluate import evaluate
from headrace.evaluation.hang_warnings import HungEnvironments
from headrace.evaluation.matches import play
from headrace.evaluation.policy import load_policy
from headrace.evaluation.video import record
from headrace.processes import hangs

THIS = re.escape(str(Path(__file__)))
said: list[str] = []
"""Warnings so far. An environment that hangs goes on after the second one."""


class Hang:
    """Environments are numbered in the order in which they are made. The one of this number hangs once, in this method."""

    made, number, method, seconds = 0, 1, "", 20.0

    @classmethod
    def plan(cls, method: str, number: int = 1, seconds: float = 20.0) -> None:
        """The next environment that is made has the number 0."""
        cls.made, cls.number, cls.method, cls.seconds = 0, number, method, seconds
        said.clear()

    @classmethod
    def next_number(cls) -> int:
        cls.made += 1
        return cls.made - 1

    @classmethod
    def here(cls, method: str, number: int) -> None:
        if (method, number) == (cls.method, cls.number):
            cls.method, end = "", time.monotonic() + cls.seconds
            while len(said) < 2 and time.monotonic() < end:
                time.sleep(0.01)


class World(gymnasium.Env[np.ndarray, int]):
    """Episodes of four steps."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode, self._number = render_mode, Hang.next_number()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self._t = 0
        Hang.here("reset", self._number)
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._t += 1
        Hang.here("step", self._number)
        return np.zeros(2, np.float32), 1.0, self._t == 4, False, {}

    def render(self) -> np.ndarray:
        Hang.here("render", self._number)
        return np.zeros((32, 32, 3), np.uint8)


class Duel:
    """Two agents, matches of four steps."""

    possible_agents = ("one", "other")
    metadata = {"render_fps": 5}  # noqa: RUF012

    def __init__(self) -> None:
        self._number = Hang.next_number()

    def observation_space(self, agent: str) -> Any:
        return gymnasium.spaces.Box(0, 2, (2,), np.float32)

    def action_space(self, agent: str) -> Any:
        return gymnasium.spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.agents, self._t = list(self.possible_agents), 0
        return self._seen(), {}

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        self._t += 1
        Hang.here("step", self._number)
        seen, ends = self._seen(), dict.fromkeys(actions, self._t == 4)
        if self._t == 4:
            self.agents = []
        return seen, dict.fromkeys(actions, 1.0), ends, dict.fromkeys(actions, False), {}

    def _seen(self) -> dict[str, np.ndarray]:
        return {agent: np.zeros(2, np.float32) for agent in self.agents}

    def render(self) -> np.ndarray:
        return np.zeros((32, 32, 3), np.uint8)

    def close(self) -> None:
        pass


headrace.envs.register("test/hanging")(lambda options, render_mode=None: World(render_mode))
headrace.envs.register("test/hanging-too")(lambda options, render_mode=None: World(render_mode))
register_parallel("hanging-duel", agents=2)(lambda options, render_mode=None: Duel())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    return trained("test/hanging", tmp_path_factory.mktemp("run") / "r")


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Warnings, which come after a tenth of a second."""
    monkeypatch.setattr(hang_warnings, "SILENT", 0.1)
    monkeypatch.setattr(hang_warnings, "LOOK_INTERVAL", 0.02)
    said.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *where, **more: said.append(str(message))
        yield said
    Hang.plan("")


@pytest.mark.parametrize("method", ["step", "reset"])
def test_an_evaluation_names_the_environment_that_does_not_answer(run: str, heard: list[str], method: str) -> None:
    policy = load_policy(run)
    Hang.plan(method)
    assert evaluate(policy, 6, num_envs=3).lengths == [4] * 6
    assert len(heard) == 2
    for text in heard:
        place = rf'the call is at "{THIS}", line \d+, in here'
        assert re.fullmatch(rf"no answer for 0 s from environment 1 of test/hanging; {place}", text), text


def test_matches_name_it(heard: list[str]) -> None:
    Hang.plan("step")
    results = play(lambda o, g: 0, lambda o, g: 0, "hanging-duel", EnvConfig(), 3, num_envs=3)
    assert results.ties == 3
    assert len(heard) == 2
    assert "from environment 1 of hanging-duel; the call is at" in heard[0]


def test_evaluations_and_videos_of_matches_name_it(heard: list[str], tmp_path: Path) -> None:
    pytest.importorskip("imageio.v2")
    policy = load_policy(trained("hanging-duel", tmp_path / "r"))
    Hang.plan("step")
    assert evaluate(policy, 6, num_envs=3).lengths == [4] * 6
    assert "from environment 1 of hanging-duel; the call is at" in heard[0]
    Hang.plan("step", number=0)
    record(policy, tmp_path / "video.mp4")
    assert "from environment 0 of hanging-duel; the call is at" in heard[1]


@pytest.mark.parametrize("method", ["reset", "step", "render"])
def test_a_recording_names_it(run: str, heard: list[str], tmp_path: Path, method: str) -> None:
    pytest.importorskip("imageio.v2")
    policy = load_policy(run)
    Hang.plan(method, number=0)
    record(policy, tmp_path / "video.mp4")
    assert len(heard) == 2
    assert re.match(r"no answer for 0 s from environment 0 of test/hanging; the call is at .* in here", heard[1])


def test_the_command_says_it_as_a_line(run: str, heard: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Hang.plan("step", number=0, seconds=1.0)
    assert cli.main(["eval", run, "--episodes", "2"]) == 0
    shown = capsys.readouterr().err
    assert "warning: no answer for 0 s from environment 0 of test/hanging; the call is at " in shown


def test_what_answers_in_time_is_not_named(heard: list[str]) -> None:
    with HungEnvironments(lambda: "somebody") as answers:
        for _ in range(10):
            with answers.expected():
                time.sleep(0.02)
        time.sleep(0.2)  # nobody was called
    assert heard == []
    assert not answers._thread.is_alive()


def test_warnings_come_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a process that was stopped meanwhile: the environment could not answer then."""
    now, spoken = 0.0, []
    for module in (hang_warnings, hangs):
        monkeypatch.setattr(module, "perf_counter", lambda: now)
    answers = HungEnvironments(lambda: "somebody")
    monkeypatch.setattr(answers, "_place", lambda: "")

    def wait(interval: float) -> bool:
        nonlocal now
        now += 500 if now == 250 else interval
        return now > 1500

    monkeypatch.setattr(answers._stopped, "wait", wait)
    monkeypatch.setattr(warnings, "warn", lambda text, **more: spoken.append((now, text)))
    with answers.expected():
        answers._watch()
    assert [second for second, _ in spoken] == [30, 60, 120, 240, 750 + 480]
    assert [text for _, text in spoken[3:]] == [f"no answer for {seconds} s from somebody; " for seconds in (240, 480)]


def test_of_several_tasks_the_environment_is_named_by_its_number_in_the_group() -> None:
    group = make_group("test/hanging,test/hanging-too", default_options("test/hanging"), 6)
    assert len(group.parts) == 2
    group.reset(0, [ObsRow.zeros(group.spec, 6)])
    assert group.called == 5
    row = LaneRow(np.zeros((6, 1), np.int32), StepRow.zeros(6), ObsRow.zeros(group.spec, 6))
    seen: list[int | None] = []
    for part in group.parts:
        for env in part.envs:  # type: ignore[attr-defined]
            step = env.unwrapped.step
            env.unwrapped.step = lambda action, step=step: (seen.append(group.called), step(action))[1]
    group.send([row])
    assert seen == [0, 2, 4, 1, 3, 5]
    group.close()
