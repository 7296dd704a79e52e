"""Which values a setting may have. The type and the range stand beside the field, and `check` compares a whole tree with them.

    num_workers: Annotated[int, Range(1, 4096)] = 2
    support: tuple[Annotated[float, Range(-1e9, 1e9)], ...] = (-10.0, 10.0)

Upper limits are far above what is useful. They keep such values away from libraries in C, which would crash, or hang where
Ctrl-C does not reach them.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from headrace.config.errors import ConfigError
from headrace.config.file_reading import shortened
from headrace.config.suggestions import WORDS, suggestions


@dataclass(frozen=True)
class Range:
    """The values that a number may have: finite, from `low` to `high`; `above` and `below` exclude the ends themselves."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    below: bool = False

    def fault(self, value: float) -> str | None:
        """What a number outside the range must be, e.g. "at least 1"; None for one inside. NaN and infinity are never inside."""
        if not abs(value) <= sys.float_info.max:
            return "a finite number"
        if value < self.low or (self.above and value == self.low):
            return f"{'above' if self.above else 'at least'} {_plain(self.low)}"
        if value > self.high or (self.below and value == self.high):
            return f"{'below' if self.below else 'at most'} {_plain(self.high)}"
        return None

    def describe(self) -> str:
        """For documentation: "1 to 4096", "above 0", "0 to below 1". Upper limits from a million on are left out."""
        if self.high >= 1e6:
            return f"{'above' if self.above else 'at least'} {_plain(self.low)}"
        end = f"{'below ' if self.below else ''}{_plain(self.high)}"
        return f"above {_plain(self.low)}, up to {end}" if self.above else f"{_plain(self.low)} to {end}"


def _plain(number: float) -> str:
    return str(int(number)) if abs(number) <= MANY and number == int(number) else f"{number:g}"


MANY = 2**53  # the largest whole number that every float below it represents exactly: the limit of counters

Count = Annotated[int, Range(1, MANY)]  # at least 1
Width = Annotated[int, Range(1, 65_536)]  # units of a layer
Length = Annotated[int, Range(1, 1_000_000)]  # rows of a sequence, groups, minibatches
Positive = Annotated[float, Range(0, above=True)]
NonNegative = Annotated[float, Range(0)]
Fraction = Annotated[float, Range(0, 1)]
Seconds = Annotated[float, Range(0, 1e9)]  # up to 31 years: times in nanoseconds fit into 64 bits
Timeout = Annotated[float, Range(0, 1e9, above=True)]


DEEPEST_JSON = 100
"""Largest depth of nested lists and objects in a JSON object: the functions that copy and write it are recursive."""


def _from_text(words: list[str]) -> Any:
    try:
        return json.loads(words[0])
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


JsonObject = Annotated[
    dict[str, Any],
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="JSON",
        instance_from_str=_from_text,
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=lambda value: [json.dumps(value)],
    ),
]
"""A dictionary, given on the command line as one JSON object."""


def check(settings: Any, prefix: str = "") -> None:
    """Compare every field of a dataclass, and of the dataclasses in it, with its type and range.

    Raises `ConfigError` with the dotted name of the first field whose value has another type or is out of range, or of an
    attribute that is no field, which is a misspelt setting. A bool is no number, and a whole number may stand where a float is
    expected.
    """
    hints = typing.get_type_hints(type(settings), include_extras=True)
    for name in vars(settings).keys() - hints.keys() - vars(type(settings)).keys():
        meant = suggestions(prefix + name, {*WORDS, *(prefix + field for field in hints)})
        raise ConfigError(f"there is no setting {prefix}{name}" + (f"; did you mean {' or '.join(meant)}?" if meant else ""))
    for field in dataclasses.fields(settings):
        name, value, hint = prefix + field.name, getattr(settings, field.name), hints[field.name]
        if dataclasses.is_dataclass(hint):
            if not isinstance(value, hint):  # type: ignore[arg-type]
                raise ConfigError(f"{name} is {shortened(repr(value), 100)}; it must be a group of settings")
            check(value, f"{name}.")
        elif fault := _fault(value, hint):
            raise ConfigError(f"{name} is {shortened(repr(value), 100)}; {fault}")


KINDS: dict[type, tuple[Any, str]] = {
    bool: (bool, "true or false"),
    int: (int, "a whole number"),
    float: (int | float, "a number"),
    str: (str, "text"),
    Path: (Path, "a path"),
    dict: (dict, "a JSON object"),
}
"""For each type of a setting: the types its value may have, and its name in messages."""


def _fault(value: Any, hint: Any) -> str | None:
    """The text "it must be ..." where `value` is not what the annotation `hint` says; None where it is."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        ranges = [limit for limit in arguments[1:] if isinstance(limit, Range) and value is not None]
        faults = (f"it must be {fault}" for limit in ranges if (fault := limit.fault(value)))
        return _fault(value, arguments[0]) or next(faults, None)
    if origin in (typing.Union, types.UnionType):
        found = [_fault(value, option) for option in arguments if option is not types.NoneType]
        allowed = None in found or (value is None and types.NoneType in arguments)
        return None if allowed else found[0]
    if origin is Literal:
        return None if value in arguments else f"it must be one of {', '.join(arguments)}"
    if origin is tuple:
        return _tuple_fault(value, arguments)
    allowed_types, words = KINDS[origin or hint]
    if not isinstance(value, allowed_types) or (isinstance(value, bool) and hint is not bool):
        return f"it must be {words}"
    if origin is dict and _nested_too_deeply(value):
        return f"it must not be nested more than {DEEPEST_JSON} times"
    if origin is dict and (fault := _json_fault(value)):
        return f"it must be a JSON object, which other processes and a resumed run get: {fault}"
    finite = hint is not float or abs(value) <= sys.float_info.max
    return None if finite else "it must be a finite number"


def _nested_too_deeply(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST_JSON + 1):
        inside = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list | tuple)]
        level = [item for items in inside for item in items]
    return bool(level)


def _json_fault(value: Any) -> str | None:
    """Why a value cannot be written as JSON; None if it can."""
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        return str(error)
    return None


def _tuple_fault(value: Any, items: tuple[Any, ...]) -> str | None:
    if not isinstance(value, list | tuple):
        return "it must be a list"
    if items[-1] is Ellipsis:
        items = items[:1] * len(value)
    if len(value) != len(items):
        return f"it must be a list of {len(items)}"
    faults = filter(None, map(_fault, value, items))
    return next((fault.replace("it must", "each must", 1) for fault in faults), None)
