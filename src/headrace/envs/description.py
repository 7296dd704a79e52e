"""The specification of an environment: as text, and found out in a child process.

To know an environment's spaces it has to be constructed. A constructor may crash in a simulator's library, hang, call `sys.exit`
or leave threads behind; in a child process none of that reaches the run. The child reports JSON: the specification, or the error.
"""

from __future__ import annotations

import builtins
import faulthandler
import json
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from headrace.config import ConfigError
from headrace.envs.contract import ActionSpec, ArraySpec, Categorical, Continuous, EnvironmentFault, EnvSpec
from headrace.runs.processes import die_with_parent, start_child
from headrace.runs.programs import end_programs

DEADLINE = 300.0
"""Seconds that constructing one environment may take."""
END_TIMEOUT = 5.0
"""Seconds that the child may take to end when it has reported, before it is killed."""
STACKS_TIMEOUT = 5.0
"""Seconds to wait for the Python stacks of a child that hangs; one that is stuck in a library may not answer."""


# -- the specification as text ----------------------------------------------------------------------------------------


def spec_to_json(spec: EnvSpec) -> str:
    """JSON, but for infinite bounds, which are written as Infinity."""
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
        Categorical(**part) if "n" in part else Continuous(tuple(part["low"]), tuple(part["high"]))
        for part in data.pop("action")["parts"]
    )
    agents, tasks = tuple(data.pop("agents", ())), tuple(data.pop("tasks", ()))
    of_agents = tuple(_from_data(own) for own in data.pop("of_agents", ()))
    return EnvSpec(observation, ActionSpec(parts), agents=agents, tasks=tasks, of_agents=of_agents, **data)


# -- the parent's side ------------------------------------------------------------------------------------------------


def describe_in_child(describe: Callable[[], EnvSpec], env_id: str, deadline: float = DEADLINE) -> EnvSpec:
    """Call `describe`, which must be picklable, in a child process. No process of it is left afterwards.

    Raises the `ConfigError` or `EnvironmentFault` that `describe` raises, and `EnvironmentFault` for any other error, for a child
    that ended without a report, and after `deadline` seconds. Warnings are shown in this process.
    """
    report, child_report = multiprocessing.Pipe(duplex=False)
    stacks, child_stacks = multiprocessing.Pipe(duplex=False)
    # no daemon: those may have no child processes, and some environments are processes
    process = start_child(_report, (describe, child_report, child_stacks), f"headrace describe {env_id}", daemon=False)
    assert process.pid is not None
    child_report.close()
    child_stacks.close()
    try:
        if not connection.wait([report, process.sentinel], deadline):
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGUSR1)
            text = _stacks(stacks, STACKS_TIMEOUT)
            raise EnvironmentFault(f"{env_id} cannot be made: making one did not end within {deadline:.0f} s", text)
        try:
            answer = json.loads(report.recv_bytes()) if report.poll() else None
        except EOFError:
            answer = None
        process.join(END_TIMEOUT)
        if answer is None:
            raise EnvironmentFault(f"{env_id} cannot be made: {_end_of(process)}", _stacks(stacks))
        return _result(answer, env_id)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()  # nothing where it has ended: its number may be another process's
        process.join()
        end_programs({process.pid})
        report.close()
        stacks.close()


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


def _end_of(process: BaseProcess) -> str:
    code = process.exitcode
    if code is None:
        return "making one closed the pipe to this process"
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return f"the process that made one {how}"


def _stacks(pipe: connection.Connection, timeout: float = 0.0) -> str:
    """The Python stacks that the child has written, or begins to write within `timeout` seconds."""
    text = b""
    while pipe.poll(timeout) and (more := os.read(pipe.fileno(), 1 << 16)):
        text += more
        timeout = 0.05
    return text.decode(errors="replace")


# -- the child's side -------------------------------------------------------------------------------------------------


def _report(describe: Callable[[], EnvSpec], report: connection.Connection, stacks: connection.Connection) -> None:
    os.setsid()  # a process group, for the parent to end with the environment's own processes; Ctrl-C goes to the parent only
    die_with_parent()
    faulthandler.enable(stacks.fileno())
    faulthandler.register(signal.SIGUSR1, stacks.fileno())
    shown: list[dict[str, Any]] = []

    def show(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any, **__: Any) -> None:
        shown.append({"message": str(message), "category": category.__name__, "filename": filename, "lineno": lineno})

    warnings.showwarning = show
    try:
        answer: dict[str, Any] = {"spec": spec_to_json(describe())}
    except BaseException as error:
        fault = error if isinstance(error, EnvironmentFault) else EnvironmentFault(str(error))
        if fault is not error:
            fault.__cause__ = error  # whose frames are asked for
        kind = {"module": type(error).__module__, "kind": type(error).__name__}
        answer = {"error": kind | {"message": str(error), "frames": fault.frames}}
    report.send_bytes(json.dumps(answer | {"warnings": shown}).encode())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # whatever threads are left
