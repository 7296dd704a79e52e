"""What is wrong with the words after a command, as one sentence that says what to write. The parser refuses them; its own
message is a box with Python's names of types."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import io
import re
import types
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tyro

from headrace.cli.help import field_docs, shown
from headrace.config.ranges import KINDS
from headrace.experiments.plan import MINUTES, STEPS


@dataclasses.dataclass(frozen=True)
class _Option:
    """A field of a command's options."""

    flag: str  # as it is typed; in capitals if it is a word without a flag
    hint: Any
    type: Any  # the hint's without None; of several types one is a path, and so any text
    default: Any
    optional: bool  # it may be None
    unit: str
    name: str  # what stands for a value, in capitals

    @property
    def required(self) -> bool:
        return self.default is tyro.MISSING or self.default is dataclasses.MISSING

    @property
    def switch(self) -> bool:
        return self.type is bool and not self.optional

    @property
    def items(self) -> tuple[Any, ...]:
        """The types of a list's items; empty for what is no list."""
        return tuple(map(_plain, typing.get_args(self.type))) if typing.get_origin(self.type) is tuple else ()

    def refuses(self, words: Sequence[str]) -> str | None:
        """What the flag takes instead of these words, and how it is written; None if it accepts them."""
        if self.switch:
            off = re.sub(r"(--.*[.]|--)", r"\1no-", self.flag)
            return f"no value: {self.flag} or {off}" if words else None
        try:  # the parser says whether, but not why
            with contextlib.redirect_stderr(io.StringIO()):
                tyro.cli(self.hint, args=words if self.items else words[:1])
        except SystemExit:
            return f"{self._takes()}: {self.flag} {self.example(words)}"
        return None

    def _takes(self) -> str:
        if self.items:
            number = "" if self.items[-1] is ... else f"{len(self.items)} "
            return f"{number}{'values' if self.items[0] in (str, Path) else 'numbers'}, with spaces between them"
        if self.type is bool:
            return "True, False or None"
        if typing.get_origin(self.type) is typing.Literal:
            *choices, last = typing.get_args(self.type)
            return f"{', '.join(choices)} or {last}"
        unit = f" ({self.unit})" if self.unit else ""
        return f"{KINDS[typing.get_origin(self.type) or self.type][1]}{unit}{' or None' if self.optional else ''}"

    def example(self, words: Sequence[str]) -> str:
        """What somebody who wrote these words may have meant, else the default, else a name in capitals."""
        if self.items and self.items[0] not in (str, Path):
            numbers = re.findall(r"[-+]?[\d.][\d_.]*(?:[eE][-+]?\d+)?", " ".join(words)) or ["A", "B"]
            return " ".join(numbers if self.items[-1] is ... else (numbers * 2)[: len(self.items)])
        if typing.get_origin(self.type) is typing.Literal and words:
            choices = typing.get_args(self.type)
            return next(iter(difflib.get_close_matches(words[0].lower(), choices, 1, 0.7)), shown(self.default or choices[0]))
        if self.type is bool:
            return "True"
        if typing.get_origin(self.type) is dict:
            return """'{"name": 1}'"""
        if words and self.type in (int, float) and (number := _number(words[0], self)) is not None:
            return number
        return self.name if self.required or self.default in (None, ()) else shown(self.default)


def _plain(hint: Any) -> Any:
    return typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint


def _number(word: str, option: _Option) -> str | None:
    """The number that 1e6, 1M, 500k, 1,000,000 or 0,99 mean, and for a time 30s, 5m or 1h; None for anything else."""
    if match := re.fullmatch(r"([\d.]+)([smh])(?:in|ins|ec|secs?|ours?)?", word):
        scale = {"minutes": 1, "seconds": 60}.get(option.unit)
        return None if scale is None else f"{float(match[1]) * MINUTES[match[2]] * scale:g}"
    digits = re.sub("[kKmM]$", "", word)
    unit = word[len(digits) :]
    if option.type is int:
        digits = re.sub(r"(?<=\d)[,'](?=\d{3}\b)", "", digits)
    with contextlib.suppress(ValueError, OverflowError):
        number = float(digits.replace(",", ".")) * STEPS[{"K": "k", "m": "M"}.get(unit, unit)]
        return f"{number:g}" if option.type is float else str(int(number)) if number == int(number) else None
    return None


def _options(kind: type, default: Any, prefix: str = "") -> Iterator[_Option]:
    docs, hints = field_docs(kind), typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        made = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        hint, value = hints[field.name], getattr(default, field.name, made)
        if dataclasses.is_dataclass(hint):
            yield from _options(typing.cast(type, hint), value, f"{prefix}{field.name}.")
            continue
        extras = typing.get_args(hint)[1:] if typing.get_origin(hint) is typing.Annotated else ()
        bare = str if tyro.conf.UseAppendAction in extras else _plain(hint)  # a flag for each value
        union = typing.get_args(bare) if typing.get_origin(bare) in (typing.Union, types.UnionType) else (bare,)
        kinds = [option for option in union if option is not types.NoneType]
        named = next((extra.name for extra in extras if getattr(extra, "name", None)), field.name)
        metavar = next((extra.metavar for extra in extras if getattr(extra, "metavar", None)), None)
        unit = re.search(r"\((seconds|minutes)\)", docs[field.name])
        yield _Option(
            flag=metavar if metavar and tyro.conf.Positional in extras else f"--{prefix}{named}".replace("_", "-"),
            hint=bare if bare is str else hint,
            type=_plain(kinds[0]) if len(kinds) == 1 else str,
            default=value,
            optional=len(kinds) < len(union),
            unit=unit[1] if unit else "",
            name=metavar or named.rpartition("_")[2].upper(),
        )


def refusal(command: str, kind: type, arguments: Sequence[str], default: Any = None, others: bool = False) -> str | None:
    """The first thing that is wrong with the words after `headrace COMMAND`, whose options are the fields of `kind`. None if
    nothing was found. With `others`, flags that are no options are allowed."""
    options = {option.flag: option for option in _options(kind, default)}
    help_shows = f"headrace {command} --help shows"
    words: list[list[str]] = [[""]]  # each flag with its words; those before the first flag stand behind none
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        if re.match(r"--?[a-zA-Z]", argument):
            words.append([flag.replace("_", "-"), *([value] if equals else [])])
        else:
            words[-1].append(argument)
    places = [option for option in options.values() if not option.flag.startswith("--")]
    loose: list[str] = []  # words that stand behind no flag
    for flag, *values in words:
        option = options.get(flag) or options.get(re.sub(r"(--|\.)no-", r"\1", flag))
        if not flag or (option and option.switch and places):
            loose += values
        elif option is None and not others:
            near = difflib.get_close_matches(flag, options, 1)
            return f"there is no flag {flag}; " + (f"did you mean {near[0]}?" if near else f"{help_shows} every flag")
        elif option and (text := option.refuses(values)):
            return f"{flag} takes {text}"
        elif option and not option.items:
            loose += values[1:]
    given = {*(flag for flag, *_ in words), *(place.flag for place in places[: len(loose)])}
    missing = [option.flag for option in options.values() if option.required and option.flag not in given]
    if missing:
        flags = [f"{flag} {options[flag].example([])}" for flag in missing if flag.startswith("--")]
        usage = " ".join([command, *(place.flag for place in places), *flags])
        return f"{command} needs {' and '.join(missing)}: headrace {usage}"
    if loose[len(places) :] and not any(place.items for place in places):
        return f"{command} does not take {loose[len(places)]!r} here: {help_shows} what it takes"
    return None
