"""The flags of `headrace train` as a configuration.

A setting takes its value from the last of these sources that has one: the defaults in `headrace.config`, the environment's
defaults, the algorithm's preset, the result of `headrace tune` for this machine, config.json in the run folder, the flags.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from headrace import config as configs
from headrace import tune
from headrace.cli import help
from headrace.cli.options import parse
from headrace.config import Config
from headrace.config.ranges import check
from headrace.envs.core.imports import check_given, needed_code
from headrace.make_config import make_config
from headrace.processes.output import show
from headrace.runs.changed_settings import compare

_SETTINGS = frozenset(configs.flattened(configs.to_dict(Config())))
"""Dotted names of all settings."""


def parse_config(arguments: Sequence[str], tuned: bool = True) -> Config:
    """The configuration for the flags of `headrace train`; with `tuned`, including the result of `headrace tune`.

    Raises `ConfigError`, and `SystemExit` for flags that cannot be parsed and for --help.
    """
    arguments, help_of = _without_help(arguments)
    given = given_settings(arguments)
    of_run = {name: value for name, value in given.items() if name not in ("env", "imports")}
    config = make_config(given.get("env", Config.env), imports=given.get("imports", ()), **of_run)
    if tuned and config.sampling.placement != "device":  # what `headrace tune` found is for processes
        config = configs.override(config, **{name: value for name, value in tune.load(config).items() if name not in given})
    saved, before = config.run_folder / "config.json", None
    if os.path.lexists(saved):  # also False without permission to look: `RunFolder` reports that
        before = configs.load(saved)
        before.run.must_be_new = False  # this setting is about the command, not about the run
        # The flags replace these; what they do not name stays out.
        named = (*config.imports, *(needed_code(config) if "env" in given else ()))
        check_given(before, named, saved.parent)
        of_command = {name: attrgetter(name)(config) for name in ("env", "imports") if name in given}
        config = configs.override(before, **of_run, **of_command)
    if help_of is not None:
        show(help.help_text(config, help_of, min(130, shutil.get_terminal_size((100, 24)).columns)))
        raise SystemExit(0)
    if before is not None and not config.run.must_be_new:
        compare(before, config, saved.parent)  # before anybody says that the run's settings and the flags do not go together
    config.imports = tuple(str(Path(path).resolve()) for path in config.imports)
    return config


def given_settings(arguments: Sequence[str]) -> dict[str, Any]:
    """The settings that the flags name, by their dotted names.

    Raises `ConfigError` for values out of range, and `SystemExit` for flags that cannot be parsed.
    """
    arguments = _joined_imports([full_name(argument) for argument in arguments])
    parsed: Config = parse(Config, "train", arguments, description="Train a policy.")
    check(parsed)
    return {name: attrgetter(name)(parsed) for name in map(_setting, arguments) if name in _SETTINGS}


def _flag(argument: str) -> str:
    """The flag of --flag and of --flag=value; empty for a value."""
    return argument.partition("=")[0] if argument.startswith("--") else ""


def _setting(argument: str) -> str:
    """The dotted name of the setting that a flag names: that of --run.no-video is run.video."""
    name = _flag(argument).removeprefix("--").replace("-", "_")
    if name == "import":
        return "imports"
    return name if name in _SETTINGS else name.replace(".no_", ".", 1)


def _joined_imports(arguments: list[str]) -> list[str]:
    """The flags with all files of --import behind one flag, where it is there twice."""
    others: list[str] = []
    files: list[str] = []
    reading = False
    for argument in arguments:
        if argument.startswith("-"):
            reading = argument.partition("=")[0] == "--import"
        if not reading:
            others.append(argument)
        elif argument != "--import":
            files.append(argument.removeprefix("--import="))
    return [*others, "--import", *files] if "--import" in map(_flag, arguments) else others


def _without_help(arguments: Sequence[str]) -> tuple[list[str], tuple[str, ...] | None]:
    """The flags without --help, and the groups of settings that help is wanted for. None: no help."""
    arguments = list(arguments)
    at = next((i for i, argument in enumerate(arguments) if argument in ("-h", "--help", "--help-all")), None)
    if at is None:
        return arguments, None
    groups = list(itertools.takewhile(lambda argument: not argument.startswith("-"), arguments[at + 1 :]))
    asked = (help.EVERY,) if arguments[at] == "--help-all" else tuple(groups)
    return arguments[:at] + arguments[at + 1 + len(groups) :], asked


def full_name(argument: str) -> str:
    """Add the group to a flag without one, if only one group has the setting: --placement is --sampling.placement."""
    name, equals, value = argument.removeprefix("--").partition("=")
    if not argument.startswith("--") or "." in name:
        return argument
    plain = name.replace("-", "_")
    for prefix, setting in (("", plain), ("no-", plain.removeprefix("no_"))):
        found = [full for full in _SETTINGS if full.partition(".")[2] == setting]
        if len(found) == 1 and setting not in _SETTINGS:
            return f"--{found[0].replace('.', f'.{prefix}')}{equals}{value}"
    return argument
