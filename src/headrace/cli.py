"""The command line: headrace train | tune | eval | watch | play | envs | serve-envs.

An error that the user can correct is one message and exit code 2. A run that failed ends with exit code 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import json
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from headrace import config as configs
from headrace import tune as tune_module
from headrace.cluster import launch
from headrace.config import Config, ConfigError, machine
from headrace.config.ranges import MANY
from headrace.config.reading import shortened
from headrace.flags import full_name, parse, parse_config
from headrace.make_config import check_config
from headrace.runs.explain import explain
from headrace.runs.output import show, show_without_source, tolerantly
from headrace.runs.processes import start_fork_server

if TYPE_CHECKING:
    from headrace.train import TrainResult

USAGE = """usage: headrace COMMAND [OPTIONS]

  train        train a policy; the same command resumes a run that was stopped
  tune         find the workers, environments and placement that train fastest on this machine
  eval         play whole games with a trained policy and report their returns
  watch        record a video of a trained policy
  play         play matches of one policy against another
  envs         list the environments
  serve-envs   step environments for training runs on other machines

headrace COMMAND --help shows the options of a command, headrace train --help-all every setting."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. A rank among others ends here."""
    if machine.rank().size == 1:
        return _run(arguments)
    launch.end_rank(lambda: _run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    commands: dict[str, Callable[[list[str]], int]] = {
        "train": train,
        "tune": tune,
        "eval": evaluate,
        "watch": watch,
        "play": play,
        "envs": envs,
        "serve-envs": serve_envs,
    }
    if not arguments or arguments[0] in ("-h", "--help"):
        show(USAGE)
        return 0 if arguments else 2
    command, rest = arguments[0], arguments[1:]
    if command not in commands:
        print(f"headrace: unknown command {command!r}\n{USAGE}", file=sys.stderr)
        return 2
    try:
        with warnings.catch_warnings():
            warnings.showwarning = show_without_source(warnings.showwarning)
            return commands[command](rest)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        given = [part for argument in arguments for part in argument.split("=", 1)]
        explained = explain(error, [*given, Path(Config().run_folder).parent])
        if explained is None:
            raise
        text, code = explained
        if needed := getattr(error, "needed", None):
            text += f". The command is then:\n  {shlex.join(['headrace', *arguments, '--import', *needed])}"
        frames = getattr(error, "frames", "")  # an environment's fault: where in the user's code
        tolerantly(lambda: print(f"{frames}headrace: {text}", file=sys.stderr, flush=True), sys.stderr)
        return code


# -- train ------------------------------------------------------------------------------------------------------------


def train(arguments: list[str]) -> int:
    """`headrace train`. Exit code 0 if the run ended by itself, 130 if it was interrupted."""
    config = parse_config(arguments)
    check_config(config)
    if launch.needs_launch(config):
        return launch.launch(arguments, config)
    first = machine.rank().index == 0  # the other ranks of a run say nothing but their errors
    if first:
        show(f"{config.env}, {config.learning.algorithm}, run folder {config.run_folder}")
        if found := tune_module.in_use(config):
            show(f"Settings found by headrace tune: {tune_module.describe(found)} ({tune_module.path(config)})")
    start_fork_server()
    from headrace.train import train as run  # seconds, for torch

    result = run(config)
    if first:
        show(
            f"{result.reason} at step {result.global_step:,}; mean return of the last 100 episodes {result.mean_return:.2f}\n"
            + "\n".join(_next_commands(result, config))
        )
    return 130 if result.reason == "interrupted" else 0


def _next_commands(result: TrainResult, config: Config) -> list[str]:
    """What the user may do with the run that has ended."""
    from headrace.envs.trust import needed_code

    commands = [["eval", result.folder], ["watch", result.folder]]
    if len(result.spec.agents) > 1 and not result.spec.of_agents:  # one player can take every place of a match
        commands.append(["play", result.folder, "--against", "random"])
    code = needed_code(config)
    imports = ["--import", *code] if code else []
    return [shlex.join(["headrace", *command, *imports]) for command in commands]


# -- tune -------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Tune:
    """Find the workers, environments, placement and threads that train fastest on this machine.

    Candidates are compared by short training runs. The flags of `headrace train` are accepted too; a setting given by a flag is
    not changed. `headrace train` uses the result.
    """

    env: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV")]
    """Environment, as family/name."""
    minutes: float = 2.0
    """Approximate time that the search takes (minutes)."""
    batch_sizes: tuple[int, ...] = ()
    """Values of learning.batch_size to try. Another batch size changes what is learned, not only how fast."""


def tune(arguments: list[str]) -> int:
    """`headrace tune`."""
    asked, rest = parse(Tune, "tune", arguments, return_unknown_args=True)
    config = parse_config(["--env", asked.env, "--run.folder", os.devnull, *rest], tuned=False)
    given = {full_name(flag).removeprefix("--").partition("=")[0].replace("-", "_") for flag in rest if flag.startswith("--")}
    tune_module.tune(config, asked.minutes, given, asked.batch_sizes)
    return 0


# -- serve-envs -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class ServeEnvs:
    """Step environments for training runs on other machines, until Ctrl-C.

    A run uses them with --envs.remote HOST:PORT. It needs none of the environment's packages.
    """

    env: str
    """Environment, as family/name."""
    num_envs: int = 32
    """Largest number of environments that are in use at a time."""
    listen: str = "127.0.0.1:7777"
    """Address at which to listen for runs, as HOST:PORT. An address that other machines can reach needs a token."""
    dial: str | None = None
    """Address of a run that listens for simulators (--envs.remote listen:HOST:PORT); it is dialled instead of listening here."""
    token_file: str | None = None
    """File with the token that runs and servers prove themselves with. None: the environment variable HEADRACE_TOKEN, if it is
    set."""
    tls_cert: str | None = None
    """File with the TLS certificate of this server. None: no TLS."""
    tls_key: str | None = None
    """File with the private key of the TLS certificate."""
    tls_ca: str | None = None
    """File with the certificate that signed the TLS certificate of the run that is dialled. None: no TLS."""
    compression: bool = False
    """Compress what is sent (gzip). This takes far more processor time than it saves on a fast network."""
    imports: Annotated[tuple[str, ...], tyro.conf.arg(name="import")] = ()
    """Python files to import first. They may register environments."""
    envs: configs.EnvConfig = dataclasses.field(default_factory=configs.EnvConfig)


def serve_envs(arguments: list[str]) -> int:
    """`headrace serve-envs`."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--env", default="")
    first.add_argument("--import", dest="imports", nargs="*", default=[])
    known, _ = first.parse_known_args(arguments)
    from headrace.envs import registry
    from headrace.envs.imports import import_files

    import_files(known.imports)
    default = configs.EnvConfig()
    if known.env:
        registry.check_id(known.env)
        default = registry.default_options(known.env)
    asked: ServeEnvs = parse(ServeEnvs, "serve-envs", arguments, default=ServeEnvs(env=known.env or tyro.MISSING, envs=default))
    _check_numbers(num_envs=(asked.num_envs, 1))
    configs.override(Config(), envs=asked.envs)  # their ranges
    from headrace.envs.remote.server import make_offer, serve_offer
    from headrace.envs.remote.transport import credentials

    own = credentials(asked.token_file, asked.tls_ca, asked.tls_cert, asked.tls_key)
    offer = make_offer(asked.env, asked.num_envs, asked.envs)
    serve_offer(offer, listen=asked.listen, dial=asked.dial, own=own, compression=asked.compression)
    return 0


# -- eval, watch, envs ------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Eval:
    """Play whole games with a trained policy and report their unclipped returns."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Run folder."""
    episodes: int = 100
    """Number of games, divided evenly among the environments."""
    num_envs: int | None = None
    """Number of environments that are stepped together. None: as many as games, at most 16."""
    deterministic: bool = False
    """Draw no action at random: take the most probable one, or the one of the highest value."""
    policy: int = 0
    """Number of the policy, from 0, where the run trained several (`population.size`)."""
    checkpoint: Literal["newest", "best"] = "newest"
    """Checkpoint that is loaded."""
    seed: int = 0
    """Seed of the environments and of action sampling. The same seed gives the same games, and none gives games of training."""
    max_episode_steps: int | None = None
    """Longest game in steps; it is cut off then. None: `envs.max_episode_steps` of the run."""
    imports: Annotated[tuple[str, ...], tyro.conf.arg(name="import")] = ()
    """Python files to import first: those that the run was trained with. The run folder names them, but no file runs unasked."""
    json: bool = False
    """Print the result as JSON, with the return and the length of every game."""


def _check_numbers(**options: tuple[int | None, int]) -> None:
    """Raise `ConfigError` where an option's value is below its least one, or above what counters hold."""
    for name, (value, least) in options.items():
        if value is not None and not least <= value <= MANY:
            limit = f"least {least}" if value < least else f"most {MANY}"
            raise ConfigError(f"--{name.replace('_', '-')} is {value}; it must be at {limit}")


def evaluate(arguments: list[str]) -> int:
    """`headrace eval`."""
    asked: Eval = parse(Eval, "eval", arguments)
    _check_numbers(seed=(asked.seed, 0), episodes=(asked.episodes, 1), num_envs=(asked.num_envs, 1))
    _check_numbers(max_episode_steps=(asked.max_episode_steps, 1))
    start_fork_server()
    from headrace.evaluation.play import evaluate as play

    result = play(
        asked.run,
        asked.episodes,
        num_envs=asked.num_envs,
        deterministic=asked.deterministic,
        seed=asked.seed,
        which=asked.checkpoint,
        number=asked.policy,
        imports=asked.imports,
        max_episode_steps=asked.max_episode_steps,
    )
    show(result.to_json() if asked.json else str(result))
    return 0


@dataclasses.dataclass
class Watch:
    """Record a video of a trained policy."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Run folder."""
    video: Path | None = None
    """Name of the mp4 file. None: videos/step-N.mp4 in the run folder."""
    episodes: int = 1
    """Number of games, recorded one after the other."""
    deterministic: bool = False
    """Draw no action at random: take the most probable one, or the one of the highest value."""
    max_steps: int | None = None
    """Stop recording after this many steps. None: no limit."""
    task: str | None = None
    """Id of the task to play, where the policy was trained on several. None: the first."""
    policy: int = 0
    """Number of the policy, from 0, where the run trained several (`population.size`)."""
    checkpoint: Literal["newest", "best"] = "newest"
    """Checkpoint that is loaded."""
    seed: int = 0
    """Seed of the environment and of action sampling. The same seed gives the same games, and none gives games of training."""
    imports: Annotated[tuple[str, ...], tyro.conf.arg(name="import")] = ()
    """Python files to import first: those that the run was trained with. The run folder names them, but no file runs unasked."""


def watch(arguments: list[str]) -> int:
    """`headrace watch`."""
    asked: Watch = parse(Watch, "watch", arguments)
    _check_numbers(seed=(asked.seed, 0), episodes=(asked.episodes, 1), max_steps=(asked.max_steps, 1))
    start_fork_server()
    from headrace.evaluation.policy import load_policy
    from headrace.evaluation.video import record_and_describe

    policy = load_policy(asked.run, which=asked.checkpoint, policy=asked.policy, imports=asked.imports)
    prefix = "" if policy.config.population.size == 1 else f"policy-{asked.policy}-"
    path = asked.video or asked.run / "videos" / f"{prefix}step-{policy.step}.mp4"
    how: Any = {"deterministic": asked.deterministic, "max_steps": asked.max_steps, "seed": asked.seed, "task": asked.task}
    show(f"{path}: {record_and_describe(policy, path, asked.episodes, **how)}")
    return 0


@dataclasses.dataclass
class Play:
    """Play matches of one trained policy against another in a multi-agent environment."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Run folder of the first player."""
    against: str = "random"
    """The second player, who acts for all other agents of the match: a run folder, or the name of a scripted opponent."""
    matches: int = 100
    """Number of matches. The first player takes every place in turn."""
    num_envs: int | None = None
    """Number of matches that are played at the same time. None: as many as matches, at most 16."""
    deterministic: bool = False
    """Draw no action at random: take the most probable one, or the one of the highest value."""
    policy: int = 0
    """Number of the first player's policy, from 0, where the run trained several."""
    against_policy: int = 0
    """Number of the second player's policy, from 0, where its run trained several."""
    checkpoint: Literal["newest", "best"] = "newest"
    """Checkpoint that is loaded, of both players."""
    video: Path | None = None
    """Name of an mp4 file for the first match. None: no video."""
    seed: int = 0
    """Seed of the environments and of action sampling."""
    max_episode_steps: int | None = None
    """Longest match in steps; it is cut off then, and whoever has the higher return by then wins. None:
    `envs.max_episode_steps` of the first player's run."""
    json: bool = False
    """Print the results as JSON."""
    imports: Annotated[tuple[str, ...], tyro.conf.arg(name="import")] = ()
    """Python files to import first: those that the runs were trained with, and those that register scripted opponents. The run
    folder names its own, but no file runs unasked."""


def play(arguments: list[str]) -> int:
    """`headrace play`."""
    asked: Play = parse(Play, "play", arguments)
    _check_numbers(seed=(asked.seed, 0), matches=(asked.matches, 1), num_envs=(asked.num_envs, 1))
    _check_numbers(max_episode_steps=(asked.max_episode_steps, 1))
    start_fork_server()
    from headrace.envs.imports import import_files
    from headrace.evaluation.matches import play as play_matches
    from headrace.evaluation.policy import load_policy
    from headrace.evaluation.waiting import with_limit
    from headrace.population import matchmaking

    import_files(asked.imports)
    one = load_policy(asked.run, which=asked.checkpoint, policy=asked.policy, imports=asked.imports)
    other = matchmaking.load_player(asked.against, one.spec, asked.checkpoint, asked.against_policy, asked.imports)
    options = with_limit(one.config, asked.max_episode_steps)
    results = play_matches(
        one, other, one.config.env, options, asked.matches, num_envs=asked.num_envs, deterministic=asked.deterministic,
        seed=asked.seed,
    )  # fmt: skip
    show(json.dumps(results.to_dict()) if asked.json else f"{asked.run} against {asked.against}: {results}")
    if asked.video is not None:
        shown: dict[str, Any] = {"deterministic": asked.deterministic, "seed": asked.seed, "video": asked.video}
        play_matches(one, other, one.config.env, options, 1, **shown)
        if not asked.json:
            show(f"Video: {asked.video}")
    return 0


@dataclasses.dataclass
class Envs:
    """List the environments."""

    pattern: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PATTERN")] = ""
    """Show only ids that contain this text, or match it as a pattern with * and ?."""
    imports: Annotated[tuple[str, ...], tyro.conf.arg(name="import")] = ()
    """Python files to import first. They may register environments, which are listed then."""


def envs(arguments: list[str]) -> int:
    """`headrace envs`. Exit code 1 if no id matches."""
    asked: Envs = parse(Envs, "envs", arguments)
    from headrace.envs import registry
    from headrace.envs.imports import import_files

    import_files(asked.imports)
    pattern = asked.pattern.lower()
    wanted = pattern if any(sign in pattern for sign in "*?[") else f"*{pattern}*"
    found = [name for name in registry.list_ids() if fnmatch.fnmatchcase(name.lower(), wanted)]
    if found:
        show("\n".join(found))
    else:
        print(f"headrace: no id matches {shortened(asked.pattern)!r}", file=sys.stderr)
    for family in registry.FAMILIES:
        try:
            registry.list_ids(family)
        except registry.MissingExtra as error:
            print(f"headrace: {error}", file=sys.stderr)
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
