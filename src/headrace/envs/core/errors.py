"""Errors of environments, and which frames of their tracebacks a user is shown."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import dropwhile
from pathlib import Path

from headrace.config.errors import ConfigError, UserError
from headrace.processes.interrupt import is_interrupt
from headrace.transport.messages import Refused

_BETWEEN = (
    *(str(Path(__file__).parents[1] / folder) + os.sep for folder in ("core", "groups", "families", "remote")),
    str(Path(__file__).parents[2] / "evaluation") + os.sep,
    str(Path(__file__).parents[1] / "make.py"),
)
_WRAPPERS = ("/gymnasium/", "/torch/utils/", "/importlib/__init__.py", "<frozen importlib")
"""Frames between the engine and an environment's own code: of this package, and of what wraps environments or imports them."""


def faults() -> type[BaseException] | tuple[()]:
    """What the `except` clause around an environment's code catches: every error but an interrupt by the user. An environment may
    call `sys.exit` or raise `KeyboardInterrupt`, which would end the run without a word."""
    error = sys.exception()
    return () if error is None or is_interrupt(error) else BaseException


def cause(error: BaseException) -> str:
    """The type and the message of an error, of a group of errors those of its members."""
    if isinstance(error, BaseExceptionGroup):
        return f"{error.message}: " + "; ".join(map(cause, error.exceptions))
    try:
        return f"{type(error).__name__}: {error}".removesuffix(": ")
    except Exception:
        return f"{type(error).__name__}, which cannot be shown as text"


OLD_GYM = "(the interface of old Gym?)"  # in the message about an environment with another interface than Gymnasium's


class EnvironmentFault(UserError, RuntimeError):
    """An environment misbehaved; the message names the environment, its index, seed and step.

    `frames`: the traceback as text, if another process raised the error; else that of `__cause__` is used.
    """

    def __init__(self, message: str, frames: str = "") -> None:
        super().__init__(message)
        self._frames = frames

    @property
    def repeats(self) -> bool:
        """Whether every other process would meet it too: the environment has another interface, or a setting does not fit it."""
        return OLD_GYM in str(self) or f"{ConfigError.__name__}: " in str(self)

    @property
    def frames(self) -> str:
        """The traceback from the first frame of the environment's own code on; empty if the environment raised nothing."""
        if self.__cause__ is None:
            return self._frames
        own = [*dropwhile(_is_between, traceback.extract_tb(self.__cause__.__traceback__))]
        return "".join(["Traceback (most recent call last):\n", *traceback.format_list(own)]) if own else ""


@contextmanager
def naming(fault: Callable[[str], EnvironmentFault], what: str) -> Iterator[None]:
    """Turn an error of an environment within the context into the one that `fault` makes of `what` went wrong, and its cause."""
    try:
        yield
    except EnvironmentFault:
        raise
    except faults() as error:
        raise fault(f"{what}: {cause(error)}") from error


def is_own(error: BaseException) -> bool:
    """Whether an environment's own code raised an error, not the call of it or a wrapper around it."""
    frames = traceback.extract_tb(error.__traceback__)
    return not frames or not _is_between(frames[-1])


def _is_between(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(_BETWEEN) or any(part in frame.filename for part in _WRAPPERS)


class OutOfBounds(UserWarning):
    """Observations lie outside their space. Only a warning, since well-known environments do this by small amounts."""


class BadObservation(ValueError):
    """An observation is not in the declared space."""


class UnsupportedSpace(ConfigError):
    """A space cannot be turned into flat arrays; the message names it and says what to do."""


class TooFewFree(ConfigError, Refused):
    """An environment server has fewer free environments than are asked for: `free`."""

    def __init__(self, message: str, free: int) -> None:
        super().__init__(message)
        self.free = free


class UnknownEnvironment(ConfigError):
    """There is no environment with this id; the message names the nearest ids."""
