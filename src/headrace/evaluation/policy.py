"""A trained policy: loaded from a run folder, asked for actions."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import safetensors
import torch

from headrace import config as configs
from headrace.accelerator.torch_defaults import torch_defaults
from headrace.config import ConfigError
from headrace.config.envs import OF_ONE_MACHINE
from headrace.config.file_reading import shortened
from headrace.config.validation import check_device
from headrace.envs.core.imports import check_given, import_files, name_environments
from headrace.envs.core.registry import is_known
from headrace.envs.make import describe_run
from headrace.evaluation.hub import local_folder
from headrace.evaluation.onnx_policy import load_onnx
from headrace.evaluation.trained_policy import TrainedPolicy
from headrace.learning.algorithm import make_agent
from headrace.runs import checkpoint
from headrace.runs.checkpoint import Checkpoint, CheckpointError
from headrace.runs.training_state import load_weights

Which = Literal["newest", "best"] | Path  # which checkpoint of a run: the newest, the best, or the one in this folder
SHARED = "model.safetensors"  # the weights in the folder of a shared policy, which has no checkpoints


@torch_defaults()
def load_policy(
    run: os.PathLike[str] | str,
    *,
    which: Which = "newest",
    device: str = "auto",
    seed: int = 0,
    policy: int = 0,
    imports: Iterable[os.PathLike[str] | str] = (),
    team: bool = True,
    env: str | None = None,
) -> TrainedPolicy:
    """Load a trained policy from a run folder (its newest or best checkpoint), from a folder that `headrace share` wrote, from
    `hf://NAME` (such a folder on the Hugging Face hub), or from an ONNX file (`headrace export`), which runs on onnxruntime.

    `seed`: for sampled actions. `policy`: its number, where the run trained several. `env`: play in this environment instead of
    the run's; it must have the same observations and actions.

    `team`: load the run's other policies as well, where the agents of a multi-agent environment have different spaces.

    `imports`: the Python files that the run was trained with (`headrace train --import`). They are run, so they must be given
    here and are not looked up in the folder; files that this process has imported already need not be given.

    Raises `ConfigError` if the folder holds no run or no such policy or no such checkpoint or the device is not here,
    `ImportsNotGiven` if it needs files that are not given, `CheckpointError` if every checkpoint is damaged.
    """
    if os.fspath(run).endswith(".onnx"):
        _check_only(run, policy=policy, which=which)
        return load_onnx(run, env=env, seed=seed, imports=imports)
    run = local_folder(run)
    path = Path(run) / "config.json"
    if not os.path.lexists(path):
        if runs := sorted({str(found.parent) for below in ("*", "*/*") for found in Path(run).glob(f"{below}/config.json")}):
            raise ConfigError(f"{shortened(str(run))} holds runs: choose one, such as {', '.join(runs[:3])}")
        raise ConfigError(f"{shortened(str(run))} is no run folder: there is no config.json in it")
    config = configs.load(path)
    if (path.with_name(SHARED)).is_file():
        config = configs.override(config, **{f"envs.{name}": None for name in OF_ONE_MACHINE})
    trained_in = config.env
    if env is not None:
        config = configs.override(config, env=env)
        name_environments(config.tasks)
    check_device(device)
    if not 0 <= policy < config.population.size:
        raise ConfigError(f"{run} has no policy {policy}; it has {config.population.size}, counted from 0")
    config = configs.policy_config(config, policy)
    config.learning.device = device
    config.imports = check_given(config, imports, run)
    import_files(config.imports)
    # Games are played here where the environment can be made; then no server is needed.
    here = bool(config.envs.remote) and is_known(config.env)
    whole = describe_run(configs.override(config, **{"envs.remote": None}) if here else config)
    spec = whole.of_policy(policy)
    with torch.random.fork_rng(devices=[]):  # numbers that a network draws and does not learn are those of training
        algorithm, model = make_agent(config, spec)
    # The run folder may have been moved since it was trained.
    folder = configs.override(config, **{"run.folder": str(run)}).policy_folder(policy)
    take = partial(_load, model, config.env, trained_in)
    if (folder / SHARED).is_file():
        _check_only(run, which=which)
        step = _load_shared(folder / SHARED, take)
    else:
        found = _checkpoint(folder, which, lambda found: take(found.unpack().get("model"), found.path))
        for damage in found.damaged:
            warnings.warn(f"{damage}; using {found.path.name}", stacklevel=2)
        step = found.step
    loaded = TrainedPolicy(config, spec, algorithm, model, step, seed)
    loaded.number = policy
    if whole.of_agents and team:
        others: dict[str, Any] = {"device": device, "seed": seed, "imports": imports, "team": False, "env": env}
        loaded.team = [loaded if p == policy else load_policy(run, policy=p, **others) for p in range(config.population.size)]
    return loaded


def _check_only(run: os.PathLike[str] | str, policy: int = 0, which: Which = "newest") -> None:
    """Raise `ConfigError` where another policy or checkpoint is asked for of what holds only one."""
    if policy or which != "newest":
        raise ConfigError(
            f"{run} holds one policy of one checkpoint: --policy and --checkpoint choose among those of a run folder"
        )


def _load(model: Any, env: str, trained_in: str, state: Any, path: Path) -> None:
    """`load_weights` of a model that was made for `env`. Raises `ConfigError` where they do not fit since it is another one."""
    try:
        load_weights(model, state, path)
    except CheckpointError as error:
        if env == trained_in:
            raise
        raise ConfigError(f"{env} has other observations or actions than {trained_in} has: {error}") from error


def _load_shared(path: Path, take: Callable[[Any, Path], None]) -> int:
    """`take` the weights of a shared policy; returns the step that they are of. Raises `CheckpointError` for a damaged file."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            step = int((file.metadata() or {})["step"])
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dictionary)
    except (OSError, KeyError, ValueError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path} is damaged: {shortened(str(error))}") from error
    take(state, path)
    return step


def _checkpoint(run: os.PathLike[str] | str, which: Which, use: checkpoint.Use) -> Checkpoint:
    folder = Path(run) / "checkpoints"
    if isinstance(which, Path):
        if not which.is_dir():
            raise ConfigError(f"there is no checkpoint {which}: give newest, best, or a folder such as {checkpoint.some(folder)}")
        one = checkpoint.load(which)
        use(one)
        return one
    if which not in ("newest", "best"):
        raise ConfigError(f"which is {which!r:.100}; it must be newest, best, or a checkpoint's folder as a pathlib.Path")
    found = (checkpoint.load_newest if which == "newest" else checkpoint.load_best)(folder, use)
    if found is None:
        missing = "checkpoint yet" if which == "newest" else "checkpoint with a score (100 finished episodes) yet"
        raise ConfigError(f"{run} has no {missing}")
    return found
