"""What `headrace train --help` shows: the settings' types, defaults and help texts as words."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import json
import re
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping

from headrace.config.errors import ConfigError
from headrace.config.ranges import Range
from headrace.config.settings import Config
from headrace.learning.algorithm import declaration

COMMON: dict[str, tuple[str, ...]] = {
    "The run": ("env", "seed", "imports", "run.folder", "run.goal", "run.max_minutes"),
    "What is learned": (
        "learning.algorithm", "learning.total_steps", "learning.learning_rate", "learning.batch_size", "learning.num_epochs",
        "learning.entropy_coef",
    ),
    "The network": ("policy.encoder", "policy.core", "learning.device", "learning.precision"),
    "How experience is gathered": (
        "sampling.placement", "sampling.num_workers", "sampling.envs_per_worker", "sampling.rollout",
    ),
}  # fmt: skip
"""The settings that people change most."""

EVERY = "all"  # in the place of names of groups: every setting

NOTES = (
    "The name of a group may be left out where only one group has the setting: --num-workers 4. "
    "The values of a list are separated by spaces, the value None is written None, and a switch is turned off by --run.no-video."
)
"""How settings are typed."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """One setting, as words."""

    name: str
    """Dotted, as in a configuration: `learning.batch_size`."""
    type: str
    value: str
    text: str
    """Its help text, as one line."""
    now: str = ""
    """Where the value is not the default: the value, and where it comes from."""

    @property
    def flag(self) -> str:
        """As it is typed on the command line."""
        return "--" + ("import" if self.name == "imports" else self.name.replace("_", "-"))


def field_docs(cls: type) -> dict[str, str]:
    """Field name -> the docstring under it, as one line; inherited fields too."""
    docs = {}
    for kind in cls.__mro__[-2::-1]:
        body = ast.parse(inspect.getsource(kind)).body[0].body  # type: ignore[attr-defined]
        for field, text in itertools.pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                docs[ast.unparse(field.target)] = " ".join(str(text.value.value).split())
    return docs


def type_name(hint: typing.Any) -> str:
    """A field's type as a person would write it, with its range; choices are in backquotes."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        ranges = [f" ({entry.describe()})" for entry in arguments[1:] if isinstance(entry, Range)]
        return type_name(arguments[0]) + "".join(ranges)
    if origin is dict:
        return "JSON"
    if origin is typing.Literal:
        return " | ".join(f"`{choice}`" for choice in arguments)
    if origin in (typing.Union, types.UnionType):
        return " | ".join("None" if option is types.NoneType else type_name(option) for option in arguments)
    if origin is tuple:
        each = type_name(arguments[0])
        return f"list of {each}" if arguments[-1] is Ellipsis else f"{len(arguments)} x {each}"
    return hint.__name__


def shown(value: typing.Any) -> str:
    """A value as it is typed on the command line."""
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return json.dumps(value) if isinstance(value, dict) else str(value)


def settings(tree: typing.Any, prefix: str = "") -> Iterator[Setting]:
    """Every setting of a configuration, or of one of its groups; those of groups inside it come last."""
    docs, hints = field_docs(type(tree)), typing.get_type_hints(type(tree), include_extras=True)
    groups = []
    for field in dataclasses.fields(tree):
        value = getattr(tree, field.name)
        if dataclasses.is_dataclass(value):
            groups.append((field.name, value))
        else:
            yield Setting(prefix + field.name, type_name(hints[field.name]), shown(value), docs[field.name])
    for name, group in groups:
        yield from settings(group, f"{prefix}{name}.")


def help_text(config: Config, groups: tuple[str, ...], width: int, now: Config, sources: Mapping[str, str]) -> str:
    """The help of `headrace train`: the settings of `COMMON` in a line or two each, or everything about those of some groups.

    Args:
        config: its values are shown as the defaults.
        groups: names of groups of settings, such as `learning`, or `EVERY`.
        width: columns of the terminal.
        now: its values are shown as well, where they differ.
        sources: by dotted name, where such a value comes from.

    Raises `ConfigError` for an unknown group.
    """
    tree = {setting.name: setting for setting in settings(config)}
    for other in settings(now):
        if other.value != tree[other.name].value:
            source = sources.get(other.name, "with these flags")
            tree[other.name] = dataclasses.replace(tree[other.name], now=f"now {other.value or 'empty'}, {source}")
    names = [field.name for field in dataclasses.fields(config) if dataclasses.is_dataclass(getattr(config, field.name))]
    if unknown := set(groups) - {*names, EVERY}:
        raise ConfigError(f"--help {' '.join(sorted(unknown))}: the groups of settings are {', '.join(names)}")
    lines = ["usage: headrace train [ENV | --env ENV] [--GROUP.SETTING VALUE ...]", ""]
    if groups:
        lines += [f"The defaults are those for {config.env} with {config.learning.algorithm}.", ""]
        for group in ("", *names) if EVERY in groups else groups:
            purpose = (type(getattr(config, group)).__doc__ or "") if group else "What is trained, and with which seed."
            lines += [*_wrap(f"{group or 'The run'}: {' '.join(purpose.split())}", width - 1), ""]
            for setting in tree.values():
                if setting.name.rpartition(".")[0] == group:
                    values = "; ".join(filter(None, [f"default {setting.value or 'empty'}", setting.now]))
                    lines += [f"  {setting.flag} ({setting.type}; {values})"]
                    lines += _wrap(setting.text, width - 1, initial_indent=" " * 6, subsequent_indent=" " * 6)
            lines.append("")
        return "\n".join([*lines, *_wrap(NOTES, width - 1)])
    lines += [f"The settings that people change most, with the defaults for {config.env} and {config.learning.algorithm}:", ""]
    unused = declaration(config.learning.algorithm).without_effect(tree)
    chosen = {title: [tree[name] for name in part if name not in unused] for title, part in COMMON.items()}
    column = max(len(f"{s.flag} {s.value}") for part in chosen.values() for s in part) + 4
    for title, part in chosen.items():
        lines.append(title)
        for setting in part:
            head = f"  {setting.flag} {setting.value}".ljust(column)
            text = _wrap(_first_sentence(setting), max(30, width - 1 - column))
            lines += [head + text[0], *(" " * column + line for line in text[1:])]
        lines.append("")
    lines += _wrap(
        f"All about a group of settings: headrace train --help GROUP, with a GROUP of {', '.join(names)}. "
        f"Every setting: headrace train --help-all. {NOTES}",
        width - 1,
    )
    return "\n".join(lines)


def _wrap(text: str, width: int, **how: str) -> list[str]:
    """Lines of a text; names such as cartpole-swingup stay whole."""
    return textwrap.wrap(text, width, break_on_hyphens=False, **how)  # type: ignore[arg-type]


def _first_sentence(setting: Setting) -> str:
    """The first sentence of a help text, with the choices that there are and what the value None means; two sentences if the
    first is very short."""
    first, *others = re.split(r"(?<=\.) ", setting.text)
    choices = re.findall(r"`([\w-]+)`", setting.type)
    if setting.type == "str" and "`" not in first:  # names that are described one by one
        choices = re.findall(r"`([\w-]+)`(?=[:,])", " ".join(others))
    if choices:
        second = "" if all(f"`{choice}`" in first for choice in choices) else f"One of {', '.join(choices)}."
    elif setting.value == "None" or "`" in first:  # what None means, or a name that stands for others
        second = next((text for text in others if text.startswith(("None:", "`auto`:"))), "")
    else:
        second = others[0] if others and len(first) <= 30 else ""
    now = f"({setting.now})" if setting.now else ""
    return " ".join(filter(None, [first, second, now])).replace("`", "")
