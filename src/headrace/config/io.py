"""A configuration as JSON, and copies of it with some settings replaced."""

from __future__ import annotations

import dataclasses
import json
import os
from operator import attrgetter
from pathlib import Path
from typing import Any

from headrace.config.errors import ConfigError
from headrace.config.file_reading import Unreadable, read_json
from headrace.config.ranges import check
from headrace.config.settings import Config
from headrace.config.suggestions import suggestions

FORMAT = 2
"""Version of config.json. It goes up when a setting keeps its name and changes its meaning; settings that come, go or are renamed
are noticed without it. Format 1 had no number."""

LATER = (
    "cluster", "envs.info_metrics", "policy.previous_action", "policy.previous_reward", "replay.packed_share", "replay.shards",
    "sampling.policy_lag",
)  # fmt: skip
"""Settings and groups of settings that were added without a new format number. A file without them is older, and their defaults
are what runs did then."""

GONE = {"cluster.min_nodes": None}
"""Settings that were removed without a new format number, each with the value that turned it off. A file in which a setting has
that value is read without it."""


def to_dict(config: Any) -> dict[str, Any]:
    """The configuration as plain JSON types."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def flattened(tree: dict[str, Any], within: bool = False, prefix: str = "") -> dict[str, Any]:
    """What `to_dict` gave, by dotted names. `within`: also what is within settings that are JSON objects."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        known = prefix + name
        group = isinstance(value, dict) and value and (within or known not in NAMES)
        flat |= flattened(value, within, f"{known}.") if group else {known: value}
    return flat


NAMES: tuple[str, ...] = ()
NAMES = tuple(flattened(to_dict(Config())))  # dotted names of all settings


def to_json(config: Config) -> str:
    return json.dumps({"format": FORMAT, **to_dict(config)}, indent=2) + "\n"


def from_dict(data: dict[str, Any]) -> Config:
    """The inverse of `to_dict`; settings that are not in `data` have their defaults.

    Raises `ConfigError` for unknown settings, and for values of another type than the setting's or out of its range.
    """
    config = _build(data, Config, "")
    check(config)
    return config


def _build(data: Any, cls: type, prefix: str) -> Any:
    """JSON has no tuples and no dataclasses: put them back where the settings have them."""
    if not isinstance(data, dict):
        raise ConfigError(f"{prefix.rstrip('.') or 'a configuration'} must be a JSON object, not {json.dumps(data):.40}")
    fields = {field.name: field for field in dataclasses.fields(cls)}
    if unknown := sorted(prefix + name for name in data.keys() - fields.keys()):
        raise ConfigError(f"unknown setting{'s' if len(unknown) > 1 else ''}: {', '.join(unknown)}")
    made = {}
    for name, value in data.items():
        group: Any = fields[name].default_factory
        if dataclasses.is_dataclass(group):
            value = _build(value, group, f"{prefix}{name}.")  # type: ignore[arg-type]
        made[name] = tuple(value) if isinstance(value, list) else value
    return cls(**made)


def load(path: os.PathLike[str] | str) -> Config:
    """Read a file with the text that `to_json` gives.

    Raises `ConfigError` if the file cannot be read, holds no configuration, was written by another version, or has a setting with
    a value that is not allowed.
    """
    path = Path(path)
    other_version = "version of headrace: start a new run in another folder, or use the version that made this one"
    try:
        data = read_json(path)
        if not isinstance(data, dict):
            raise ConfigError(f"it must hold a JSON object, not {json.dumps(data):.40}")
        if (found := data.pop("format", 1)) != FORMAT:
            age = "a newer" if isinstance(found, int) and found > FORMAT else "an older"
            raise ConfigError(f"it has format {found!r:.40}, not {FORMAT}. The run was made by {age} {other_version}")
        for name, nothing in GONE.items():
            group, _, setting = name.partition(".")
            if isinstance(data.get(group), dict) and data[group].get(setting, ...) == nothing:
                del data[group][setting]
        expected, names = _names(to_dict(Config())), _names(data)
        missing = {name for name in expected - names if not f"{name}.".startswith(tuple(f"{late}." for late in LATER))}
        if names - expected or missing:
            unlike = {"unknown": sorted(names - expected), "missing": sorted(missing)}
            faults = [f"{what}: {_some(which)}" for what, which in unlike.items() if which]
            raise ConfigError(f"its settings do not fit ({'; '.join(faults)}). The run was made by another {other_version}")
        return from_dict(data)
    except Unreadable as error:
        what_to_do = "Put back a copy of the file, or begin a new run in another folder"
        raise ConfigError(f"{path} is no configuration: {error.reason}. {what_to_do}") from error
    except ConfigError as error:
        raise ConfigError(f"{path} is no configuration of this version: {error}") from error


def _names(data: dict[str, Any]) -> set[str]:
    """Dotted names of the settings in `data`, groups included; what is within a setting is not looked at."""
    groups = [(name, group) for name, group in data.items() if isinstance(group, dict)]
    return data.keys() | {f"{name}.{setting}" for name, group in groups for setting in group}


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def override(config: Config, **settings: Any) -> Config:
    """A copy with dotted settings replaced, e.g. ``override(c, **{"learning.gamma": 0.9})``; raises `ConfigError`."""
    data = to_dict(config)
    for dotted, value in settings.items():
        *groups, name = dotted.split(".")
        node: Any = data
        for group in groups:
            node = node.get(group) if isinstance(node, dict) else None
        if not isinstance(node, dict) or name not in node:
            meant = suggestions(dotted, NAMES)
            raise ConfigError(f"there is no setting {dotted!r}" + (f"; did you mean {' or '.join(meant)}?" if meant else ""))
        if not groups and isinstance(node[name], dict) and not dataclasses.is_dataclass(value):  # the others would be reset
            example = next(iter(value if isinstance(value, dict) and value else node[name]))
            raise ConfigError(f"{name} is a group of settings: give each by its dotted name, such as '{name}.{example}'")
        node[name] = dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value  # type: ignore[arg-type]
    made = from_dict(data)
    if config.defaults is not None:
        given = tuple(f"{name}." for name in settings)
        made.defaults = {name: value for name, value in config.defaults.items() if not f"{name}.".startswith(given)}
        made.made_for = config.made_for
    return made


def given(config: Config) -> dict[str, Any]:
    """The settings that somebody gave, or changed since, by dotted names; see `Config.defaults`."""
    settings = {name: attrgetter(name)(config) for name in NAMES}
    known = config.defaults or {}
    return {name: value for name, value in settings.items() if name not in known or known[name] != value}
