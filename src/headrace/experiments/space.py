"""What a search may try: ranges and choices of settings, and which an algorithm starts with (`config/search_ranges.json`)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, get_args, get_type_hints

from headrace.config import Config, ConfigError


@dataclass(frozen=True)
class Dimension:
    """The values that a search may give one setting."""

    name: str  # dotted
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False
    choices: tuple[str, ...] = ()  # as text of the command line; if there are any, the range does not count

    @classmethod
    def parse(cls, name: str, text: str, default: Any) -> Dimension:
        """`1e-5:1e-2:log`, `1:8` or `0.9,0.99,0.999`. `default`: the setting's value; where it is a whole number, so are those of
        a range. Where it is None, the setting's type says it. Raises `ConfigError`."""
        if ":" not in text:
            choices = tuple(part.strip() for part in text.split(","))
            if len(choices) < 2 or not all(choices):
                raise ConfigError(f"--over {name}={text}: give two values or more, or a range LOW:HIGH or LOW:HIGH:log")
            return cls(name, choices=choices)
        low, _, rest = text.partition(":")
        high, _, kind = rest.partition(":")
        try:
            ends = float(low), float(high)
        except ValueError:
            ends = math.nan, math.nan
        if not -math.inf < ends[0] < ends[1] < math.inf or kind not in ("", "log") or (kind and ends[0] <= 0):
            raise ConfigError(f"--over {name}={text}: a range is LOW:HIGH or LOW:HIGH:log, LOW below HIGH, and above 0 for log")
        whole = _is_whole(name) if default is None else isinstance(default, int) and not isinstance(default, bool)
        if whole and (ends[0] % 1 or ends[1] % 1):
            raise ConfigError(f"--over {name}={text}: the setting is a whole number")
        return cls(name, *ends, bool(kind), whole)

    @property
    def ends(self) -> tuple[str, ...]:
        """The choices, or both ends of the range, as text of the command line."""
        return self.choices or tuple(f"{end:.0f}" if self.whole else f"{end:.4g}" for end in (self.low, self.high))

    def suggest(self, trial: Any) -> str:
        """The value that an `optuna.Trial` chooses, as text of the command line. Numbers have four digits."""
        if self.choices:
            return str(trial.suggest_categorical(self.name, self.choices))
        if self.whole:
            return str(trial.suggest_int(self.name, int(self.low), int(self.high), log=self.log))
        return f"{trial.suggest_float(self.name, self.low, self.high, log=self.log):.4g}"

    def holds(self, default: Any) -> Any:
        """The setting's default as Optuna knows it; None where the search cannot choose it."""
        if self.choices:
            return next((choice for choice in self.choices if _same(choice, default)), None)
        inside = isinstance(default, int | float) and self.low <= default <= self.high
        return (int(default) if self.whole else float(default)) if inside else None


def _is_whole(name: str) -> bool:
    """Whether a setting's numbers are whole."""
    hint: Any = Config
    for part in name.split("."):
        hint = get_type_hints(hint)[part]
    return int in get_args(hint) and float not in get_args(hint)


def _same(text: str, value: Any) -> bool:
    if isinstance(value, bool):
        return text.lower() == str(value).lower()
    if isinstance(value, tuple):
        return text.split() == [str(part) for part in value]
    try:
        return float(text) == float(value)
    except (TypeError, ValueError):
        return text == str(value)


def default_ranges(algorithm: str, continuous: bool) -> dict[str, str]:
    """What is searched where nothing was said, by dotted setting, as text. `continuous`: whether some action is. Raises
    `ConfigError` for an algorithm without any."""
    data = json.loads(resources.files("headrace.config").joinpath("search_ranges.json").read_text())
    fitting = [entry for entry in data.values() if algorithm in entry["algorithms"] and (continuous or "actions" not in entry)]
    found = {name: text for entry in fitting for name, text in entry["ranges"].items()}
    if not found:
        raise ConfigError(f"there are no default ranges for learning.algorithm {algorithm}: say what to search with --over")
    return found


def parse_over(texts: Sequence[str], setting: Callable[[str], str] = str) -> dict[str, str]:
    """`--over NAME=VALUES` as {name: values}. `setting`: from a name as it was typed to the setting's. Raises `ConfigError`."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not name or not values:
            raise ConfigError(f"--over {text!r}: give it as SETTING=LOW:HIGH, SETTING=LOW:HIGH:log or SETTING=VALUE,VALUE")
        if (name := setting(name)) in found:
            raise ConfigError(f"--over {name} is given twice")
        found[name] = values
    return found
