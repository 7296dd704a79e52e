"""Errors that are explained to the user: their message says what is wrong and what to do, and no traceback is shown."""

from __future__ import annotations

import importlib
from typing import Any

RANK_LOST = 75  # exit code of a rank that ended because another rank, or its own learner, was killed. It may be started again.


class UserError(Exception):
    """Base of all errors whose message is all that the user has to see."""

    exit_code = 1
    """Of the command line: 2 for what the user can correct before anything runs, 1 for a run that failed."""


class ConfigError(UserError, ValueError):
    """A configuration that cannot work; the message says why and what to change."""

    exit_code = 2


class MissingExtra(ConfigError):
    """Packages that one of our extras brings are not installed; the message contains the command that installs them."""


def package(name: str, extra: str = "export", problem: str = "") -> Any:
    """Import a package that one of our extras brings. Raises `MissingExtra`, with pip's command, if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        problem = problem or f"this needs {name}, which is not installed"
        raise MissingExtra(f'{problem}: pip install "headrace[{extra}]"') from error
