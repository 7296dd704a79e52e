"""The flags of `headrace train` as a configuration.

A setting takes its value from the last of these sources that has one: the defaults in `headrace.config`, the environment's
defaults, the algorithm's preset, the result of `headrace tune` for this machine, config.json in the run folder, the flags.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import tyro

from headrace import config as configs
from headrace import tune
from headrace.config import Config, ConfigError, describe
from headrace.config.groups import Placement
from headrace.envs.tasks import without
from headrace.envs.trust import check_given, needed_code
from headrace.make_config import make_config, task_flags
from headrace.runs.folder import compare
from headrace.runs.output import discard, show, tolerantly

_SIZES = ("sampling.num_workers", "sampling.num_groups", "sampling.envs_per_worker", "sampling.rollout", "learning.batch_size",
          "population.size")  # fmt: skip
"""What the defaults of the device placement are made of, and whether it is the default."""
_CONNECTION = ("remote", "remote_token_file", "remote_ca", "remote_tls_cert", "remote_tls_key")


def parse_config(arguments: Sequence[str], tuned: bool = True) -> Config:
    """The configuration for the flags of `headrace train`; with `tuned`, including the result of `headrace tune`.

    Raises `ConfigError`, and `SystemExit` for flags that cannot be parsed and for --help.
    """
    arguments, help_of = _without_help([full_name(argument) for argument in arguments])
    # These flags determine the defaults of the others, and an imported file may register the environment.
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    first.add_argument("--env", default=Config.env)
    first.add_argument("--learning.algorithm", dest="algorithm")
    first.add_argument("--learning.preset", dest="preset", choices=("small", "paper"), default="small")
    first.add_argument("--import", dest="imports", nargs="*", action="extend", default=[])
    first.add_argument("--sampling.placement", dest="placement")
    for name in _SIZES:
        first.add_argument(f"--{name.replace('_', '-')}", f"--{name}", dest=name)
    for name in _CONNECTION:  # an environment server determines them, too
        first.add_argument(f"--envs.{name}", f"--envs.{name.replace('_', '-')}", dest=name)
    try:
        known, _ = first.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise ConfigError(str(error)) from error
    given = {f"envs.{name}": value for name in _CONNECTION if (value := getattr(known, name)) not in (None, "None")}
    for name in _SIZES:
        with suppress(TypeError, ValueError):  # not given; or it is no number, which is said when all flags are read
            given[name] = int(getattr(known, name))
    if known.placement in get_args(Placement):
        given["sampling.placement"] = known.placement
    of_tasks, named = task_flags(known.env, arguments)
    config = make_config(known.env, known.algorithm, known.imports, **{"learning.preset": known.preset}, **given, **of_tasks)
    if config.env != known.env:
        arguments += ["--env", config.env]  # the last one counts
    arguments += ["--import", *known.imports] if known.imports else []  # all of them, where the flag is there twice
    own = without(config.envs.task_options, named, of_tasks.get("envs.task_options", {}))
    more = ["--envs.task-options", json.dumps(own)] if of_tasks else []
    if tuned and config.sampling.placement != "device":  # what `headrace tune` found is for processes
        config = configs.override(config, **tune.load(config))
    config = _parse([*arguments, *more], config)
    given_env = any(argument.partition("=")[0] == "--env" for argument in arguments)
    saved, before = config.run_folder / "config.json", None
    if os.path.lexists(saved):  # also False without permission to look: `RunFolder` reports that
        before = configs.load(saved)
        before.run.must_be_new = False  # it is about this command, not a property of the run
        # The flags replace these; what they do not name stays out.
        check_given(before, [*known.imports, *(needed_code(config) if given_env else ())], saved.parent)
        config = _parse(arguments, before)
    if help_of is not None:
        show(describe.help_text(config, help_of, min(130, shutil.get_terminal_size((100, 24)).columns)))
        raise SystemExit(0)
    if before is not None and not config.run.must_be_new:
        compare(before, config, saved.parent)  # before anybody says that the run's settings and the flags do not go together
    config.imports = tuple(str(Path(path).resolve()) for path in config.imports)
    return config


def _without_help(arguments: list[str]) -> tuple[list[str], tuple[str, ...] | None]:
    """The flags without --help, and the groups of settings that help is wanted for. None: no help."""
    at = next((i for i, argument in enumerate(arguments) if argument in ("-h", "--help", "--help-all")), None)
    if at is None:
        return arguments, None
    groups = list(itertools.takewhile(lambda argument: not argument.startswith("-"), arguments[at + 1 :]))
    asked = (describe.EVERY,) if arguments[at] == "--help-all" else tuple(groups)
    return arguments[:at] + arguments[at + 1 + len(groups) :], asked


def _parse(arguments: list[str], default: Config) -> Config:
    config: Config = parse(Config, "train", arguments, default=default, description="Train a policy.")
    return config


def parse(kind: type, command: str, arguments: Sequence[str], **more: Any) -> Any:
    """What a command was given, as `tyro.cli` reads it. The reader of its help may go away (`headrace eval --help | head`)."""
    try:
        return tyro.cli(kind, prog=f"headrace {command}", args=arguments, **more)
    except BrokenPipeError:
        discard(sys.stdout)
        raise SystemExit(0) from None
    finally:
        tolerantly(sys.stdout.flush, sys.stdout)


def full_name(argument: str) -> str:
    """Add the group to a flag without one, if only one group has the setting: --placement is --sampling.placement."""
    name, equals, value = argument.removeprefix("--").partition("=")
    if not argument.startswith("--") or "." in name:
        return argument
    plain = name.replace("-", "_")
    for prefix in ("", "no_"):
        setting = plain.removeprefix(prefix) if plain.startswith(prefix) else ""
        groups = [group.name for group in dataclasses.fields(Config) if _has_field(group, setting)]
        if len(groups) == 1 and setting not in {field.name for field in dataclasses.fields(Config)}:
            return f"--{groups[0]}.{prefix.replace('_', '-')}{setting}{equals}{value}"
    return argument


def _has_field(group: dataclasses.Field, setting: str) -> bool:
    kind = group.default_factory
    return dataclasses.is_dataclass(kind) and setting in {field.name for field in dataclasses.fields(kind)}
