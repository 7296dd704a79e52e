"""Groups whose environments raise what is no `Exception`, return another shape, or do not end when they are closed."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper
from worlds import CountingEnv, LosingLives, local_group, reset_group, rows_for, step_group

from headrace.config import EnvConfig
from headrace.envs.core import registry
from headrace.envs.core.errors import EnvironmentFault, cause
from headrace.envs.groups import base
from headrace.envs.groups.episode_statistics import LIFE_LOST
from headrace.envs.groups.vector import VectorGroup
from headrace.envs.make import make_group
from headrace.processes.interrupt import interrupts


def test_close_reaches_every_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after one that raises whatever it likes, and one that would never end."""
    monkeypatch.setattr(base, "CLOSE_TIMEOUT", 0.2)
    closed = []

    class Stubborn(CountingEnv):
        def close(self) -> None:
            closed.append(self)
            if len(closed) == 1:
                raise GeneratorExit("will not close")
            if len(closed) == 2:
                time.sleep(3600)

    with pytest.warns(UserWarning, match="closing environment") as warned:
        local_group([Stubborn(), Stubborn(), Stubborn()]).close()
    assert len(closed) == 3
    first, second = (str(warning.message) for warning in warned)
    assert first.startswith("closing environment 0 (Stubborn) failed: GeneratorExit: will not close\nTraceback"), first
    assert "closing environment 1 (Stubborn) failed: TimeoutError: no end after" in second
    assert "time.sleep(3600)" in second, "where it hangs"


class Silent(BaseException):
    """An error of a kind that programs rarely expect, whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), GeneratorExit(), Silent(), BaseExceptionGroup("Silent", [Silent()])])
@pytest.mark.parametrize("call", ["reset", "step"])
def test_whatever_an_environment_raises_is_a_fault_with_its_place(error: BaseException, call: str) -> None:
    """In a child process, or within a run: there Ctrl-C raises no KeyboardInterrupt of its own at once."""

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    group = local_group([CountingEnv(), CountingEnv()])
    now, after = rows_for(group.spec, 2)
    setattr(group.envs[1], call, fail)

    def play() -> None:
        reset_group(group, 3, after)
        step_group(group, np.zeros((2, 1), np.int32), now, after)

    where = f"environment 1 (seed 4), game 1, step 1: {call} failed: {cause(error)}"
    with interrupts(lambda: None), pytest.raises(EnvironmentFault, match=re.escape(where)):
        play()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Silent()])
def test_whatever_a_constructor_raises_is_a_fault_that_names_the_environment(error: BaseException) -> None:
    def fail(options: Any, *, render_mode: str | None = None) -> Any:
        raise error

    registry.register("test/fails-to-be-made")(fail)
    with interrupts(lambda: None), pytest.raises(EnvironmentFault, match=re.escape(f"cannot be made: {cause(error)}")):
        make_group("test/fails-to-be-made", EnvConfig(), 1)


def test_ctrl_c_is_no_fault_of_an_environment() -> None:
    class Interrupting(CountingEnv):
        def reset(self, **_: Any) -> Any:
            os.kill(os.getpid(), signal.SIGINT)

    group = local_group([Interrupting()])
    _, after = rows_for(group.spec, 1)
    with pytest.raises(KeyboardInterrupt):
        reset_group(group, 3, after)


@pytest.mark.parametrize(("part", "name"), [(1, "reward"), (2, "terminated"), (3, "truncated")])
def test_results_of_vector_environments_have_one_number_for_each_environment(part: int, name: str) -> None:
    class Column(VectorWrapper):
        def step(self, actions: Any) -> Any:
            return tuple(x[:, None] if i == part else x for i, x in enumerate(self.env.step(actions)))

    envs = Column(SyncVectorEnv([CountingEnv] * 2, autoreset_mode=AutoresetMode.NEXT_STEP))
    vector = VectorGroup(envs, EnvConfig(), "my/vector")
    now, after = rows_for(vector.spec, 2)
    reset_group(vector, 7, after)
    with pytest.raises(EnvironmentFault, match=rf"step failed: ValueError: {name} has shape \(2, 1\); one number .* is \(2,\)"):
        step_group(vector, np.zeros((2, 1), np.int32), now, after)


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("kind", [np.bool_, int], ids=["numpy", "int"])
def test_lost_lives_of_vector_environments_may_be_flags_of_several_types(mode: AutoresetMode, kind: Any) -> None:
    """Gymnasium makes an array of objects of NumPy's flags, and of numbers one of numbers."""

    class Lives(LosingLives):
        def step(self, action: int) -> Any:
            *results, info = super().step(action)
            return *results, {LIFE_LOST: kind(info[LIFE_LOST])}

    groups = [VectorGroup(SyncVectorEnv([each] * 2, autoreset_mode=mode), EnvConfig(), "lives") for each in (Lives, LosingLives)]
    rows = [rows_for(group.spec, 2) for group in groups]
    for group, (_, after) in zip(groups, rows, strict=True):
        reset_group(group, 7, after)
    for _ in range(40):
        for group, (now, after) in zip(groups, rows, strict=True):
            step_group(group, np.zeros((2, 1), np.int32), now, after)
        for name in ("terminated", "reward", "episode_return", "episode_length"):
            np.testing.assert_array_equal(*(getattr(now, name) for now, _ in rows))
