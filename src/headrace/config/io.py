"""A configuration as JSON, and copies of it with some settings replaced."""

from __future__ import annotations

import dataclasses
import json
import os
import types
import typing
from pathlib import Path
from typing import Any

from headrace.config.errors import ConfigError
from headrace.config.file_reading import Unreadable, read_json
from headrace.config.ranges import check
from headrace.config.settings import Config

FORMAT = 2
"""Version of config.json. It goes up when a setting keeps its name and changes its meaning; settings that come, go or are renamed
are noticed without it. Format 1 had no number."""


def to_dict(config: Any) -> dict[str, Any]:
    """The configuration as plain JSON types."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def flattened(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """What `to_dict` gave, by dotted names."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= flattened(value, f"{prefix}{name}.") if isinstance(value, dict) and value else {prefix + name: value}
    return flat


def to_json(config: Config) -> str:
    """The text of config.json."""
    return json.dumps({"format": FORMAT, **to_dict(config)}, indent=2) + "\n"


def from_dict(data: dict[str, Any]) -> Config:
    """The inverse of `to_dict`; settings that are not in `data` have their defaults.

    Raises `ConfigError` for unknown settings, and for values of another type than the setting's or out of its range.
    """
    config = _build(data, Config, "")
    check(config)
    return config


def _build(data: Any, cls: type, prefix: str) -> Any:
    if not isinstance(data, dict):
        raise ConfigError(f"{prefix.rstrip('.') or 'a configuration'} must be a JSON object, not {json.dumps(data):.40}")
    hints = typing.get_type_hints(cls)
    if unknown := sorted(prefix + name for name in data.keys() - hints.keys()):
        raise ConfigError(f"unknown setting{'s' if len(unknown) > 1 else ''}: {', '.join(unknown)}")
    return cls(**{name: _from_json(value, hints[name], f"{prefix}{name}.") for name, value in data.items()})


def _from_json(value: Any, hint: Any, prefix: str) -> Any:
    """JSON has no tuples and no dataclasses: put them back where the annotation has them."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _build(value, hint, prefix)
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union else (hint,)
    is_tuple = isinstance(value, list) and any(typing.get_origin(option) is tuple for option in options)
    return tuple(value) if is_tuple else value


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
        expected, names = _names(to_dict(Config())), _names(data)
        if names != expected:
            unlike = {"unknown": sorted(names - expected), "missing": sorted(expected - names)}
            faults = [f"{what}: {_some(which)}" for what, which in unlike.items() if which]
            raise ConfigError(f"its settings do not fit ({'; '.join(faults)}). The run was made by another {other_version}")
        return from_dict(data)
    except Unreadable as error:
        raise ConfigError(f"{path} is no configuration: {error.reason}") from error
    except ConfigError as error:
        raise ConfigError(f"{path} is no configuration of this version: {error}") from error


def _names(data: dict[str, Any]) -> set[str]:
    """Dotted names of the settings in `data`, groups included; what is within a setting is not looked at."""
    groups = {field.name for field in dataclasses.fields(Config) if dataclasses.is_dataclass(field.default_factory)}
    inside = [(name, data[name]) for name in groups & data.keys() if isinstance(data[name], dict)]
    return data.keys() | {f"{name}.{setting}" for name, settings in inside for setting in settings}


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
            raise ConfigError(f"there is no setting {dotted!r}")
        node[name] = dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value  # type: ignore[arg-type]
    return from_dict(data)
