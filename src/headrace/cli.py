"""The command line: headrace train | tune | eval | watch | envs.

Settings come, weakest first, from `config.py`, from the environment's defaults and the algorithm's preset, from what `headrace
tune` found for this machine, from the run found in the folder, and from the flags. A person sees one message and exit code 2 for
what a person can put right; a run that failed ends with 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from headrace import config as configs
from headrace import tune as tune_module
from headrace.config import Config, ConfigError
from headrace.config.validation import validate

USAGE = """usage: headrace VERB ...

  train   train a policy; the same command goes on with a run that was stopped
  tune    find the workers, environments and placement that train fastest on this machine
  eval    play whole games with a trained policy and report their returns
  watch   record a video of a trained policy
  envs    list the environments

headrace VERB --help shows the verb's flags."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    verbs: dict[str, Callable[[list[str]], int]] = {
        "train": train,
        "tune": tune,
        "eval": evaluate,
        "watch": watch,
        "envs": envs,
    }
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if arguments else 2
    verb, rest = arguments[0], arguments[1:]
    if verb not in verbs:
        print(f"headrace: there is no verb {verb!r}\n{USAGE}", file=sys.stderr)
        return 2
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _without_source(warnings.showwarning)
            return verbs[verb](rest)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        code = _exit_code(error)
        if code is None:
            raise
        frames = getattr(error, "frames", "")  # an environment's fault: where in the user's code
        print(f"{frames}headrace: {error}", file=sys.stderr)
        return code


def _without_source(show: Callable[..., None]) -> Callable[..., None]:
    """What is said to the user needs no file, line and source; DeprecationWarning and the like do, and go to `show`."""

    def told(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if category is UserWarning:
            print(f"warning: {message}", file=sys.stderr)
        else:
            show(message, category, *where, **more)

    return told


def _exit_code(error: Exception) -> int | None:
    """2 for what the user can put right, 1 for a run that failed; None for a defect of ours, which shows its traceback."""
    if isinstance(error, ConfigError | MemoryError):
        return 2
    # Only what was imported can have been raised: a message about a wrong flag does not wait for torch.
    for module, name, code in (
        ("headrace.runs.folder", "FolderInUse", 2),
        ("headrace.runs.folder", "FolderUnusable", 2),
        ("headrace.runs.checkpoint", "CheckpointError", 2),
        ("headrace.envs.contract", "EnvironmentFault", 1),
        ("headrace.sampling.supervisor", "RunFailed", 1),
    ):
        if module in sys.modules and isinstance(error, getattr(sys.modules[module], name)):
            return code
    return None


# -- train ------------------------------------------------------------------------------------------------------------


def train(arguments: list[str]) -> int:
    """`headrace train`: exit code 0 when the run ended as it should, 130 when it was interrupted."""
    config = parse_config(arguments)
    validate(config)
    print(f"{config.env}, {config.learning.algorithm}, run folder {config.run_folder}", flush=True)
    if found := tune_module.in_use(config):
        print(f"As headrace tune found: {tune_module.describe(found)} ({tune_module.path(config)})", flush=True)
    from headrace.train import train as run  # seconds, for torch

    result = run(config)
    print(
        f"{result.reason} at step {result.global_step:,}; mean return of the last 100 episodes {result.mean_return:.2f}\n"
        f"headrace eval {result.folder}\nheadrace watch {result.folder}"
    )
    return 130 if result.reason == "interrupted" else 0


def parse_config(arguments: Sequence[str], tuned: bool = True) -> Config:
    """The configuration that `headrace train`'s flags mean; with `tuned`, on top of what `headrace tune` found.

    Raises `ConfigError`, and `SystemExit` for flags that are wrong in themselves and for --help.
    """
    from headrace.presets import make_config

    arguments = [_full_name(argument) for argument in arguments]
    # These decide the defaults of the other flags, and an imported file may define the environment.
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    first.add_argument("--env", default=Config.env)
    first.add_argument("--learning.algorithm", dest="algorithm")
    first.add_argument("--learning.preset", dest="preset", choices=("small", "paper"), default="small")
    first.add_argument("--import", dest="imports", nargs="*", default=[])
    try:
        known, _ = first.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise ConfigError(str(error)) from error
    config = make_config(known.env, known.algorithm, known.imports, **{"learning.preset": known.preset})
    if config.env != known.env:
        arguments += ["--env", config.env]  # the last one counts
    if tuned:
        config = configs.override(config, **tune_module.load(config))
    config = _parse(arguments, config)
    saved = config.run_folder / "config.json"
    if os.path.exists(saved):  # False, too, where it may not be looked for: `RunFolder` says so
        before = configs.load(saved)
        before.run.must_be_new = False  # a question about this command, not a property of the run
        config = _parse(arguments, before)
    config.imports = tuple(str(Path(path).resolve()) for path in config.imports)
    return config


def _parse(arguments: list[str], default: Config) -> Config:
    return tyro.cli(Config, prog="headrace train", args=arguments, default=default, description="Train a policy.")


def _full_name(argument: str) -> str:
    """A flag without its group, where only one group has it: --placement means --sampling.placement."""
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
    kind = group.default_factory if group.default_factory is not dataclasses.MISSING else None
    return dataclasses.is_dataclass(kind) and setting in {field.name for field in dataclasses.fields(kind)}


# -- tune -------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Tune:
    """Find the workers, environments, placement and threads that train fastest on this machine, by short real trainings.

    Further flags are those of `headrace train`; what they set stays as it is. `headrace train` starts from the result.
    """

    env: tyro.conf.Positional[str]
    """family/name, as for --env."""
    minutes: float = 2.0
    """About how long it may take."""
    batch_sizes: tuple[int, ...] = ()
    """Learner's batch sizes to try as well. Another batch size changes what is learned, not only how fast."""


def tune(arguments: list[str]) -> int:
    """`headrace tune`."""
    asked, rest = tyro.cli(Tune, prog="headrace tune", args=arguments, return_unknown_args=True)
    config = parse_config(["--env", asked.env, "--run.folder", os.devnull, *rest], tuned=False)
    given = {_full_name(flag).removeprefix("--").partition("=")[0].replace("-", "_") for flag in rest if flag.startswith("--")}
    tune_module.tune(config, asked.minutes, given, asked.batch_sizes)
    return 0


# -- eval, watch, envs ------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Eval:
    """Play whole games with a trained policy and report their unclipped returns."""

    run: tyro.conf.Positional[Path]
    """Run folder."""
    episodes: int = 100
    """Games, shared out evenly over the environments."""
    num_envs: int | None = None
    """Environments stepped together. None: as many as episodes, at most 16."""
    deterministic: bool = False
    """The most probable action instead of a sampled one."""
    checkpoint: Literal["newest", "best"] = "newest"
    """Which checkpoint."""
    seed: int = 1_000_000
    """Seed of the environments and of sampling; the same seed gives the same games."""
    json: bool = False
    """Print JSON with every episode."""


def evaluate(arguments: list[str]) -> int:
    """`headrace eval`."""
    asked = tyro.cli(Eval, prog="headrace eval", args=arguments)
    if asked.episodes < 1:
        raise ConfigError(f"--episodes is {asked.episodes}; it must be at least 1")
    from headrace.evaluation.play import evaluate as play

    result = play(
        asked.run,
        asked.episodes,
        num_envs=asked.num_envs,
        deterministic=asked.deterministic,
        seed=asked.seed,
        which=asked.checkpoint,
    )
    print(result.to_json() if asked.json else result)
    return 0


@dataclasses.dataclass
class Watch:
    """Record a video of a trained policy."""

    run: tyro.conf.Positional[Path]
    """Run folder."""
    video: Path | None = None
    """The mp4 file. None: videos/step-N.mp4 in the run folder."""
    episodes: int = 1
    """Games, one after the other."""
    deterministic: bool = False
    """The most probable action instead of a sampled one."""
    max_steps: int | None = None
    """Stop recording after this many steps."""
    checkpoint: Literal["newest", "best"] = "newest"
    """Which checkpoint."""
    seed: int = 1_000_000
    """Seed of the environment and of sampling."""


def watch(arguments: list[str]) -> int:
    """`headrace watch`."""
    asked = tyro.cli(Watch, prog="headrace watch", args=arguments)
    from headrace.evaluation.play import load_policy, record

    policy = load_policy(asked.run, which=asked.checkpoint, seed=asked.seed)
    path = asked.video or asked.run / "videos" / f"step-{policy.step}.mp4"
    returns = record(
        policy, path, episodes=asked.episodes, deterministic=asked.deterministic, max_steps=asked.max_steps, seed=asked.seed
    )
    print(f"{path}: step {policy.step:,}, returns {', '.join(f'{value:.2f}' for value in returns)}")
    return 0


@dataclasses.dataclass
class Envs:
    """List the environments."""

    pattern: tyro.conf.Positional[str] = ""
    """Show only ids that contain this or match it (with * and ?)."""
    imports: Annotated[tuple[str, ...], tyro.conf.arg(name="import")] = ()
    """Python files to import first."""


def envs(arguments: list[str]) -> int:
    """`headrace envs`: exit code 1 if nothing matches."""
    asked = tyro.cli(Envs, prog="headrace envs", args=arguments)
    from headrace.envs import registry

    registry.import_files(asked.imports)
    pattern = asked.pattern.lower()
    wanted = pattern if any(sign in pattern for sign in "*?[") else f"*{pattern}*"
    found = [name for name in registry.list_ids() if fnmatch.fnmatchcase(name.lower(), wanted)]
    print("\n".join(found))
    for family in registry.FAMILIES:
        try:
            registry.list_ids(family)
        except registry.MissingExtra as error:
            print(f"headrace: {error}", file=sys.stderr)
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
