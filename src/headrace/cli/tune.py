"""headrace tune."""

from __future__ import annotations

import dataclasses
import os
from typing import Annotated

from headrace import tune
from headrace.cli.flags import given_settings, parse_config
from headrace.cli.options import EnvWord, parse
from headrace.config.ranges import Range
from headrace.processes.output import show


@dataclasses.dataclass
class Tune:
    """Find the workers, environments, placement and threads that train fastest on this machine.

    Candidates are compared by short training runs. The flags of `headrace train` are accepted too; a setting given by a flag is
    not changed. `headrace train` uses the result.
    """

    env: EnvWord
    """Environment, as family/name."""
    minutes: Annotated[float, Range(0, 1e6, above=True)] = 2.0
    """Approximate time that the search takes (minutes)."""
    batch_sizes: tuple[Annotated[int, Range(1, 2**31 - 1)], ...] = ()
    """Values of learning.batch_size to try. Another batch size changes what is learned, not only how fast."""
    forget: bool = False
    """Instead of searching, delete the result of an earlier search for this environment and these flags."""


def run(arguments: list[str]) -> int:
    asked, rest = parse(Tune, "tune", arguments, return_unknown_args=True)
    config = parse_config(["--env", asked.env, "--run.folder", os.devnull, *rest], tuned=False)
    if asked.forget:
        file = tune.forget(config)
        show(f"Deleted: {file}" if file else f"There is nothing to forget: no {tune.path(config)}")
        return 0
    tune.tune(config, asked.minutes, given_settings(rest).keys(), asked.batch_sizes)
    return 0
