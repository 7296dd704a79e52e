"""A configuration as JSON, and copies of it with some settings replaced."""

from __future__ import annotations

import dataclasses
import json
import os
import types
import typing
from pathlib import Path
from typing import Any

from headrace.config.settings import Config, ConfigError


def to_dict(config: Any) -> dict[str, Any]:
    """The configuration as plain JSON types."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def from_dict(data: dict[str, Any], cls: type = Config) -> Any:
    """The inverse of `to_dict`. Raises `ConfigError` on fields this version does not know."""
    if not isinstance(data, dict):
        raise ConfigError(f"{cls.__name__} must be a JSON object, not {json.dumps(data):.40}")
    hints = typing.get_type_hints(cls)
    unknown = sorted(set(data) - set(hints))
    if unknown:
        raise ConfigError(f"unknown setting{'s' if len(unknown) > 1 else ''} in {cls.__name__}: {', '.join(unknown)}")
    return cls(**{name: _from_json(value, hints[name]) for name, value in data.items()})


def _from_json(value: Any, hint: Any) -> Any:
    """JSON knows no tuples and no dataclasses: put them back where the annotation says so."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return from_dict(value, hint)
    if isinstance(value, list):
        return tuple(value)
    if isinstance(hint, types.UnionType) and value is not None:
        for option in typing.get_args(hint):
            if dataclasses.is_dataclass(option) and isinstance(value, dict):
                return from_dict(value, option)  # type: ignore[arg-type]
    return value


def save(config: Config, path: os.PathLike[str] | str) -> None:
    """Write the configuration as JSON."""
    Path(path).write_text(json.dumps(to_dict(config), indent=2) + "\n")


def load(path: os.PathLike[str] | str) -> Config:
    """Read a configuration written by `save`. Raises `ConfigError` if it is none."""
    try:
        return from_dict(json.loads(Path(path).read_text()))
    except ValueError as error:  # no text, no JSON, or no settings of ours
        raise ConfigError(f"{path} is no configuration: {error}") from error


def override(config: Config, **settings: Any) -> Config:
    """A copy with dotted settings replaced, e.g. ``override(c, **{"learning.gamma": 0.9})``; raises `ConfigError`."""
    data = to_dict(config)
    for dotted, value in settings.items():
        *groups, name = dotted.split(".")
        node = data
        for group in groups:
            node = node.get(group, {})
        if name not in node:
            raise ConfigError(f"there is no setting {dotted!r}")
        node[name] = dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value  # type: ignore[arg-type]
    return from_dict(data)
