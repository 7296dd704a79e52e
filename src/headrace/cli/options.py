"""Parsing of command options, shared by the commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import tyro

from headrace.config import ConfigError
from headrace.config.ranges import MANY
from headrace.processes.output import discard, tolerantly


def parse(kind: type, command: str, arguments: Sequence[str], **more: Any) -> Any:
    """Parse a command's options with `tyro.cli`. A closed pipe ends its help quietly (`headrace eval --help | head`)."""
    try:
        return tyro.cli(kind, prog=f"headrace {command}", args=arguments, **more)
    except BrokenPipeError:
        discard(sys.stdout)
        raise SystemExit(0) from None
    finally:
        tolerantly(sys.stdout.flush, sys.stdout)


def check_numbers(**options: tuple[int | None, int]) -> None:
    """Raise `ConfigError` where an option's value is below its least one, or above what counters hold."""
    for name, (value, least) in options.items():
        if value is not None and not least <= value <= MANY:
            limit = f"least {least}" if value < least else f"most {MANY}"
            raise ConfigError(f"--{name.replace('_', '-')} is {value}; it must be at {limit}")
