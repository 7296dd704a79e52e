"""The flags of `headrace train` as a configuration.

A setting takes its value from the last of these sources that has one: the defaults in `headrace.config`, the environment's
defaults, the algorithm's preset, the result of `headrace tune` for this machine, config.json in the run folder, the flags.
"""

from __future__ import annotations

import itertools
import shutil
from collections import deque
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from headrace import config as configs
from headrace import tune
from headrace.cli import help
from headrace.cli.options import joined_imports, parse
from headrace.config import Config, ConfigError
from headrace.config.file_reading import Unreadable, read_json
from headrace.config.suggestions import suggestions
from headrace.envs.core.imports import absolute
from headrace.make_config import LEARNED_WITH, continued, make_config
from headrace.processes.output import show

_SETTINGS = frozenset(configs.NAMES)
_SWITCHES = frozenset(name for name in configs.NAMES if isinstance(attrgetter(name)(Config()), bool))
_OPEN_SWITCHES = frozenset(
    f"{group}.{field.name}"
    for group, settings in vars(Config()).items()
    if is_dataclass(settings)
    for field in fields(settings)
    if field.type == "bool | None"
)
"""Switches that may be None. Their flags have a value."""
_CHOOSE_DEFAULTS = ("learning.algorithm", "learning.preset", "envs.remote", "envs.remote_token_file", "envs.remote_ca")
"""Settings that determine the defaults which --help shows."""


def parse_config(arguments: Sequence[str], tuned: bool = True) -> Config:
    """The configuration for the flags of `headrace train`; with `tuned`, including the result of `headrace tune`.

    Raises `ConfigError`, and `SystemExit` for --help.
    """
    arguments, help_of = _without_help(arguments)
    if arguments and not arguments[0].startswith("-"):
        if "--env" in map(_flag, arguments):
            raise ConfigError(f"{arguments[0]!r} and --env both name an environment: leave out one of them")
        arguments = ["--env", *arguments]  # headrace train gym/CartPole-v1
    arguments, preset = without_preset_file(arguments)
    given = {**(given_settings(preset) if preset else {}), **given_settings(arguments)}
    env, imports = given.get("env", Config.env), given.get("imports", ())
    settings = {name: given[name] for name in given if name not in ("env", "imports")}
    config = make_config(env, imports=imports, **settings)
    found: dict[str, Any] = {}
    if tuned and config.sampling.placement != "device":  # what `headrace tune` found is for processes
        found = {name: value for name, value in tune.load(config).items() if name not in given}
    if found:  # anew, since sizes that nobody gave follow from what was found
        config = make_config(env, imports=imports, **found, **settings)
    assert config.defaults is not None
    config.defaults = {**config.defaults, **found, **({} if "env" in given else {"env": config.env})}
    made = continued(config)
    if help_of is not None:
        plain = make_config(env, imports=imports, **{name: given[name] for name in _CHOOSE_DEFAULTS if name in given})
        sources = dict.fromkeys(found, "found by headrace tune")
        if made is not config:
            sources = dict.fromkeys(configs.NAMES, f"of the run in {made.run_folder}")
        sources |= dict.fromkeys(given, "given")
        show(help.help_text(plain, help_of, min(130, shutil.get_terminal_size((100, 24)).columns), made, sources))
        raise SystemExit(0)
    made.imports = tuple(map(absolute, made.imports))
    return made


def without_preset_file(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The flags without a --preset that names a file, and the flags in that file, which are those of a trial of `headrace
    search`. Raises `ConfigError` where the file cannot be read, or sets something else than how to learn."""
    words = [word for argument in arguments for word in (argument.split("=", 1) if argument.startswith("--") else [argument])]
    at = next((i for i, word in enumerate(words) if full_name(word) == "--learning.preset"), None)
    if at is None or at + 1 == len(words) or not (file := words[at + 1]).endswith(".json"):
        return list(arguments), []
    try:
        data = read_json(Path(file))
    except Unreadable as error:
        raise ConfigError(str(error)) from error
    if not isinstance(data, dict) or not isinstance(data.get("flags"), list):
        raise ConfigError(f"{file} is no preset: it needs a list named flags, as headrace search writes it")
    try:
        settings = given_settings(flags := [str(flag) for flag in data["flags"]])
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
    if others := sorted(name for name in settings if not name.startswith(LEARNED_WITH)):
        raise ConfigError(f"{file} sets {', '.join(others)}; a preset says only how to learn ({', '.join(LEARNED_WITH)})")
    return words[:at] + words[at + 2 :], flags


def learning_flags(arguments: Sequence[str]) -> list[str]:
    """Those of the flags, with their values, that say how to learn (`LEARNED_WITH`), and those in a preset file."""
    arguments, flags = without_preset_file(arguments)
    taken = False
    for argument in map(full_name, arguments):
        taken = _setting(argument).startswith(LEARNED_WITH) if argument.startswith("--") else taken
        flags += [argument] if taken else []
    return flags


def given_settings(arguments: Sequence[str]) -> dict[str, Any]:
    """The settings that the flags name, by their dotted names.

    Raises `ConfigError` for flags that do not exist or cannot be parsed, and for values out of range.
    """
    arguments = joined_imports(_with_switches([full_name(argument) for argument in arguments]))
    for argument in arguments:
        if (flag := _flag(argument)) not in ("", "--import") and _setting(argument) not in _SETTINGS:
            raise ConfigError(f"there is no flag {flag}; {_perhaps(flag)}")
    parsed: Config = parse(Config, "train", arguments, description="Train a policy.")
    return {name: attrgetter(name)(parsed) for name in map(_setting, arguments) if name in _SETTINGS}


def setting_name(word: str) -> str:
    """The dotted name of the setting that a word of the command line names, with or without its group: `num-workers` is
    `sampling.num_workers`. Raises `ConfigError` where there is none."""
    if (name := _setting(flag := full_name(f"--{word}"))) not in _SETTINGS:
        raise ConfigError(f"there is no setting {word}; {_perhaps(flag)}")
    return name


def _perhaps(flag: str) -> str:
    """A hint about a flag that does not exist."""
    meant = suggestions(flag, _SETTINGS)
    off = flag.startswith("--no-")
    words = [name.replace(".", ".no-") if off and name in _SWITCHES else name for name in meant]
    flags = " or ".join(f"--{word.replace('_', '-')}" for word in words)
    return f"did you mean {flags}?" if meant else "headrace train --help-all shows every flag"


def _flag(argument: str) -> str:
    """The flag of --flag and of --flag=value; empty for a value."""
    return argument.partition("=")[0] if argument.startswith("--") else ""


def _setting(argument: str) -> str:
    """The dotted name of the setting that a flag names: that of --run.no-video is run.video."""
    name = _flag(argument).removeprefix("--").replace("-", "_")
    if name == "import":
        return "imports"
    return name if name in _SETTINGS else name.replace(".no_", ".", 1)


def _with_switches(arguments: list[str]) -> list[str]:
    """The flags with --run.no-video for --run.video false and --run.video=false, as people write them. Of switches that may be
    None, with --envs.grayscale=True for --envs.grayscale, with =False for --envs.no-grayscale, and with True for true."""
    found: list[str] = []
    words = deque(arguments)
    while words:
        argument = words.popleft()
        flag, equals, value = argument.partition("=")
        said = (value if equals else words[0] if words else "").lower()
        if said in ("true", "false") and flag.startswith("--") and flag[2:].replace("-", "_") in _SWITCHES:
            if not equals:
                words.popleft()
            argument = flag if said == "true" else flag.replace(".", ".no-")
        elif _setting(flag) in _OPEN_SWITCHES:
            if equals:
                argument = f"{flag}={value.capitalize()}"
            elif ".no-" in flag:
                argument = f"{flag.replace('.no-', '.')}=False"
            elif not words or words[0].startswith("--"):
                argument = f"{flag}=True"
            else:
                words[0] = words[0].capitalize()
        found.append(argument)
    return found


def _without_help(arguments: Sequence[str]) -> tuple[list[str], tuple[str, ...] | None]:
    """The flags without --help, and the groups of settings that help is wanted for. None: no help."""
    arguments = list(arguments)
    at = next((i for i, argument in enumerate(arguments) if argument in ("-h", "--help", "--help-all")), None)
    if at is None:
        return arguments, None
    words = list(itertools.takewhile(lambda argument: not argument.startswith("-"), arguments[at + 1 :]))
    env = [word for word in words if "/" in word]  # --help gym/CartPole-v1
    asked = (help.EVERY,) if arguments[at] == "--help-all" else tuple(word for word in words if word not in env)
    return env + arguments[:at] + arguments[at + 1 + len(words) :], asked


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
