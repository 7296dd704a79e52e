"""The specification of an environment as JSON, and a child process that makes one environment to read its specification.

A constructor may crash in a simulator's library, hang, call `sys.exit` or leave threads behind; in a child process none of that
reaches the run. The child reports JSON: the specification, or the error.
"""

from __future__ import annotations

import builtins
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import numpy as np

from headrace.config import ConfigError
from headrace.envs.core.contract import ActionSpec, ArraySpec, Categorical, Continuous, EnvSpec
from headrace.envs.core.errors import EnvironmentFault
from headrace.processes.child import LOST_EXIT_CODE, Child
from headrace.processes.output import tolerantly
from headrace.processes.reports import ReportWriter

ATTEMPTS = 3  # children that may be killed, one after the other
SERVER_GONE = (EOFError, ConnectionError, FileNotFoundError)
"""What starting a child raises where the fork server was killed, or removes its socket. Other errors are limits of the system."""
PAUSE = 0.1  # seconds between them, in which a fork server that was killed has ended
DEADLINE = 300.0  # seconds that constructing one environment may take
END_TIMEOUT = 5.0  # seconds that the child may take to end after its report, before it is killed
STACKS_TIMEOUT = 5.0  # seconds to wait for the Python stacks of a hanging child; one that is stuck in a library may not answer


# -- the specification as text ----------------------------------------------------------------------------------------


def spec_to_json(spec: EnvSpec) -> str:
    """The specification as JSON, with infinite bounds written as Infinity."""
    return json.dumps(_to_data(spec))


def _to_data(spec: EnvSpec) -> dict[str, Any]:
    observation = {name: asdict(array) | {"dtype": array.dtype.name} for name, array in spec.observation.items()}
    return asdict(spec) | {"observation": observation, "of_agents": [_to_data(own) for own in spec.of_agents]}


def spec_from_json(text: str) -> EnvSpec:
    """The inverse of `spec_to_json`. Raises `ValueError`, `KeyError` or `TypeError` for anything else."""
    return _from_data(json.loads(text))


def _from_data(data: dict[str, Any]) -> EnvSpec:
    observation = {
        name: ArraySpec(tuple(array.pop("shape")), np.dtype(array.pop("dtype")), **array)
        for name, array in data.pop("observation").items()
    }
    parts = tuple(
        Categorical(**part) if "n" in part else Continuous(tuple(part["low"]), tuple(part["high"]), part.get("integer", False))
        for part in data.pop("action")["parts"]
    )
    data |= {name: tuple(data.get(name, ())) for name in ("agents", "tasks", "info_metrics")}
    of_agents = tuple(_from_data(own) for own in data.pop("of_agents", ()))
    return EnvSpec(observation, ActionSpec(parts), of_agents=of_agents, **data)


# -- the parent's side ------------------------------------------------------------------------------------------------


def describe_in_child(describe: Callable[[], EnvSpec], env_id: str, deadline: float = DEADLINE) -> EnvSpec:
    """Call `describe`, which must be picklable, in a child process, which has ended when this returns.

    A child that was killed, or whose fork server was, is started again, `ATTEMPTS` times in all.

    Raises the `ConfigError` or `EnvironmentFault` that `describe` raises, and `EnvironmentFault` for any other error, for a child
    that ended without a report, and after `deadline` seconds. Warnings are shown in this process.
    """
    for _ in range(ATTEMPTS - 1):
        with suppress(_Killed, *SERVER_GONE):
            return _described(describe, env_id, deadline)
        time.sleep(PAUSE)
    try:
        return _described(describe, env_id, deadline)
    except SERVER_GONE as error:
        raise EnvironmentFault(f"{env_id} cannot be made: no process could be started for it ({error})") from None


class _Killed(EnvironmentFault):
    """By a signal that no fault of an environment sends."""


def _described(describe: Callable[[], EnvSpec], env_id: str, deadline: float) -> EnvSpec:
    # not a daemon: daemons may have no child processes, and some environments start processes
    child = Child(_report, (describe,), "describe", daemon=False)
    try:
        answers = child.receive(deadline)
        if not answers and not child.reports.ended and not child.gone:
            problem = f"making one did not end within {deadline:.0f} s"
            raise EnvironmentFault(f"{env_id} cannot be made: {problem}", child.stacks(STACKS_TIMEOUT))
        ended = child.wait(END_TIMEOUT)
        if not answers:
            how = f"the process that made one ended ({child.end_reason()})"
            problem = how if ended else "making one closed the pipe to this process"
            killed = child.process.exitcode in (-signal.SIGKILL, LOST_EXIT_CODE)
            raise (_Killed if killed else EnvironmentFault)(f"{env_id} cannot be made: {problem}", child.stack_text)
        return _result(answers[0], env_id)
    finally:
        child.end()


def _result(data: dict[str, Any], env_id: str) -> EnvSpec:
    for warning in data["warnings"]:
        category = getattr(builtins, warning["category"], UserWarning)
        warnings.showwarning(warning["message"], category, warning["filename"], warning["lineno"])
    if "spec" in data:
        return spec_from_json(data["spec"])
    error = data["error"]
    kind = getattr(sys.modules.get(error["module"]), error["kind"], None)
    if isinstance(kind, type) and issubclass(kind, ConfigError):
        raise kind(error["message"])
    if kind is EnvironmentFault:
        raise EnvironmentFault(error["message"], error["frames"])
    raise EnvironmentFault(f"{env_id} cannot be made: {error['kind']}: {error['message']}", error["frames"])


# -- the child's side -------------------------------------------------------------------------------------------------


def _report(report: ReportWriter, describe: Callable[[], EnvSpec]) -> None:
    shown: list[dict[str, Any]] = []

    def show(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any, **__: Any) -> None:
        shown.append({"message": str(message), "category": category.__name__, "filename": filename, "lineno": lineno})

    warnings.showwarning = show
    try:
        answer: dict[str, Any] = {"spec": spec_to_json(describe())}
    except BaseException as error:
        fault = error if isinstance(error, EnvironmentFault) else EnvironmentFault(str(error))
        if fault is not error:
            fault.__cause__ = error  # `frames` is read from it
        kind = {"module": type(error).__module__, "kind": type(error).__name__}
        answer = {"error": kind | {"message": str(error), "frames": fault.frames}}
    report.send(answer | {"warnings": shown})
    for stream in filter(None, (sys.stdout, sys.stderr)):
        tolerantly(stream.flush, stream)
    os._exit(0)  # does not wait for threads that the environment left
