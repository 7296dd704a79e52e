"""Options that several commands have, and how a command reads its own."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import itertools
import sys
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import tyro

from headrace.cli.help import field_docs
from headrace.cli.refusals import refusal
from headrace.config.errors import ConfigError
from headrace.config.ranges import Range, check
from headrace.processes.output import discard, tolerantly

Imports = Annotated[tuple[str, ...], tyro.conf.arg(name="import")]
NumEnvs = Annotated[int, Range(1, 65_536)]
RunWord = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
EnvWord = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV")]
Which = Literal["newest", "best"] | Path


@dataclasses.dataclass(kw_only=True)
class PolicyOptions:
    """Which trained policy acts, and how."""

    run: RunWord
    """Run folder, a folder that `headrace share` wrote, hf://NAME for one on the Hugging Face hub, or an ONNX file."""
    policy: Annotated[int, Range(0, 255)] = 0
    """Number of the policy, from 0, where the run trained several (`population.size`)."""
    checkpoint: Which = "newest"
    """Checkpoint that is loaded: the newest, the best (that of the highest mean return of the last 100 training episodes), or the
    one in a folder, RUN/checkpoints/NAME."""
    deterministic: bool = False
    """Take the most probable action, or the one of the highest value. Off: actions are sampled as in training. In Python,
    `policy.act` is deterministic by default."""
    seed: Annotated[int, Range(0, 2**53)] = 0
    """Seed of the environments and of action sampling. The same seed gives the same games, which are never played in training."""
    imports: Imports = ()
    """Python files to import first: those that the run was trained with. The run folder names them, but only files that are given
    here are run."""


@dataclasses.dataclass(kw_only=True)
class ExportOptions:
    """Which policy of a run is exported."""

    run: RunWord
    """Run folder."""
    which: Annotated[Which, tyro.conf.arg(name="checkpoint")] = "newest"
    """Checkpoint that is written: the newest, the best (that of the highest mean return of the last 100 training episodes), or
    the one in a folder, RUN/checkpoints/NAME."""
    policy: Annotated[int, Range(0, 255)] | None = None
    """Number of the policy, from 0; needed where the run trained several (`population.size`)."""
    seed: Annotated[int, Range(0, 2**53)] = 0
    """Seed of the games that are played with it."""
    licence: str | None = None
    """Licence of the weights, as the Hugging Face hub names it, such as apache-2.0. None: none is stated."""
    imports: Imports = ()
    """Python files to import first: those that the run was trained with. The run folder names them, but only files that are given
    here are run."""


@dataclasses.dataclass(kw_only=True)
class ExperimentOptions:
    """Many trainings in one environment, kept in one folder."""

    env: EnvWord
    """Environment, as family/name."""
    folder: Path
    """Folder in which everything is kept."""
    budget: str
    """When each run ends: after a time of training (30s, 5m, 1h) or a number of steps (20000, 500k, 2M)."""
    parallel: Annotated[int, Range(1, 4096)] = 1
    """Number of runs at a time. On this machine each has its own share of the cores."""
    on: Literal["this-machine", "ray"] = "this-machine"
    """Where runs are trained. `ray`: on nodes of a Ray cluster, --parallel of them at a time. A run takes all CPUs and GPUs of
    its node, and its files are copied to --folder while it trains. The Ray cluster is the one that RAY_ADDRESS names, or the one
    that this machine belongs to."""


def joined_imports(arguments: Sequence[str]) -> list[str]:
    """The flags with all files of --import behind one flag. Raises `ConfigError` where no file stands behind it."""
    words = [word for argument in arguments for word in argument.split("=", argument.startswith("--import="))]
    others: list[str] = []
    files: list[str] = []
    reading = False
    for word, following in itertools.zip_longest(words, words[1:], fillvalue=""):
        if word == "--import" and (not following or following.startswith("-")):
            raise ConfigError("--import takes Python files or modules, with spaces between them: --import FILE")
        reading = word == "--import" if word.startswith("-") else reading
        if not reading:
            others.append(word)
        elif word != "--import":
            files.append(word)
    return [*others, "--import", *files] if files else others


@functools.cache
def _with_help_on_one_line(kind: type) -> None:
    """Gives `tyro.cli` each option's help as one line: it takes the indented lines of a docstring for lines of their own."""
    docs, hints = field_docs(kind), typing.get_type_hints(kind, include_extras=True)
    for name, hint in hints.items():
        if dataclasses.is_dataclass(hint):
            _with_help_on_one_line(cast(type, hint))
        else:
            hints[name] = Annotated[hint, tyro.conf.arg(help=docs[name])]
    kind.__annotations__ = hints


def parse(kind: type, command: str, arguments: Sequence[str], **more: Any) -> Any:
    """Parse a command's options with `tyro.cli`. A closed pipe ends its help quietly (`headrace eval --help | head`).

    Raises `ConfigError` for words that cannot be parsed and for a value out of its range, and `SystemExit` for --help.
    """
    words, others = joined_imports(arguments), "return_unknown_args" in more
    _with_help_on_one_line(kind)
    try:
        with contextlib.redirect_stderr(io.StringIO()) as box:
            parsed = tyro.cli(kind, prog=f"headrace {command}", args=words, **more)
    except BrokenPipeError:
        discard(sys.stdout)
        raise SystemExit(0) from None
    except SystemExit as end:
        if not end.code:
            raise
        if others and words and words[0].startswith("-"):
            # a flag of `headrace train` is unknown to tyro, which takes an ENV behind it for its value
            raise ConfigError(f"the environment comes first: headrace {command} ENV ...") from None
        raise ConfigError(refusal(command, kind, words, more.get("default"), others) or box.getvalue()) from None
    finally:
        tolerantly(sys.stdout.flush, sys.stdout)
    check(parsed[0] if isinstance(parsed, tuple) else parsed)  # a tuple has the arguments that are not of this kind
    return parsed
