"""``gym/<id>``: every environment registered with Gymnasium, also by other packages (``gym/package:Name-v0``)."""

from __future__ import annotations

import re
import warnings
from importlib.metadata import entry_points
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from headrace.config import ConfigError, EnvConfig
from headrace.config.errors import package
from headrace.envs.core.family_interface import Env, Family, Observes
from headrace.envs.core.imports import NotCarried, import_module, script_that_registers, source_of
from headrace.envs.core.wrappers import preprocess, render_without_screen

_OBSERVE_IMAGES = (":AtariEnv", ":CarRacing")  # suffixes of the entry points of environments that observe images

_MUJOCO_MODULE = "gymnasium.envs.mujoco"
_EXTRAS = {_MUJOCO_MODULE: "mujoco", "gymnasium.envs.box2d": "box2d"}
"""Extras of ours that have what a module of environments needs."""
_SKIPPED = ("GymV2", "phys2d/", "tabular/", "headrace/")
"""Prefixes of ids that are not listed: adapters to other packages, JAX environments, and ours, listed as atari/<game>."""


def ids() -> list[str]:
    """The newest version of each id in Gymnasium's registry, and ids without a version."""
    newest: dict[str, int] = {}
    plain = []
    for env_id in gymnasium.registry:
        base, _, version = env_id.rpartition("-v")
        if env_id.startswith(_SKIPPED):
            continue
        if base and version.isdecimal():
            newest[base] = max(newest.get(base, 0), int(version))
        else:
            plain.append(env_id)
    return [*(f"{base}-v{version}" for base, version in newest.items()), *plain]


def knows(name: str) -> bool:
    """Whether Gymnasium has this id. Any ``package:Name-v0`` counts, since looking it up would import the package."""
    return bool(_entry_point(name)) or ":" in name


def make(name: str, options: EnvConfig, *, render_mode: str | None = None) -> Env:
    """`gymnasium.make` with the settings applied; `options.kwargs` go to the environment's constructor."""
    if _is_mujoco(name):
        render_without_screen()
    if (module := name.partition(":"))[1]:
        import_module(module[0])  # also from the working directory
    kwargs: dict[str, Any] = dict(options.kwargs)
    if render_mode is not None:
        kwargs["render_mode"] = render_mode  # constructors need not take it
    if options.max_episode_steps is not None:
        kwargs["max_episode_steps"] = -1  # Gymnasium's limit counts frames; ours, outside the frame skip, counts steps
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*not in the possible render_modes")  # `make_env` refuses it
            env = gymnasium.make(name, disable_env_checker=True, **kwargs)
    except gymnasium.error.DependencyNotInstalled as error:
        extra = next((extra for module, extra in _EXTRAS.items() if _entry_point(name).startswith(module)), None)
        advice = f'pip install "headrace[{extra}]"' if extra else str(error)
        raise ConfigError(f"gym/{name} needs packages that are not installed: {advice}") from error
    except TypeError as error:
        if render_mode is not None and "'render_mode'" in str(error):
            raise ConfigError(f"gym/{name} has no render mode {render_mode!r}: its constructor takes none") from error
        raise
    return preprocess(env, options)


_CARTPOLE_CLASS = "gymnasium.envs.classic_control.cartpole:CartPoleEnv"
_FEWEST = 6  # fewer environments are faster one by one


def make_vector(name: str, options: EnvConfig, num_envs: int) -> VectorEnv | None:
    """CartPole without settings of its own, all environments in one batch with the episodes of single environments; None for
    others: the vector environments of other makers draw all first states from one generator."""
    o = options
    images = o.resize is not None or o.grayscale or (o.frame_stack or 1) > 1
    changed = images or o.info_action_mask or (o.frameskip or 1) > 1 or o.kwargs or o.reward_weights
    if _entry_point(name) != _CARTPOLE_CLASS or num_envs < _FEWEST or changed:
        return None
    registered = gymnasium.registry[name]  # perhaps by the user
    limit = options.max_episode_steps or registered.max_episode_steps
    if registered.kwargs or registered.additional_wrappers or limit is None:
        return None
    from headrace.envs.families.gym_cartpole import CartPoles

    return CartPoles(num_envs, limit)


def _is_mujoco(name: str) -> bool:
    return _entry_point(name).startswith(_MUJOCO_MODULE)


_CARTPOLE: dict[str, Any] = {
    "policy.mlp": [64, 64], "policy.activation": "tanh",
    "sampling.num_workers": 1, "sampling.envs_per_worker": 16,
    "learning.algorithm": "ppo", "learning.total_steps": 500_000, "learning.batch_size": 512,
    "learning.num_minibatches": 4, "learning.num_epochs": 8, "learning.num_threads": 1,
    "learning.learning_rate": 1e-3, "learning.gamma": 0.98, "learning.gae_lambda": 0.9,
    "learning.ppo_clip": 0.2, "learning.entropy_coef": 0.0, "learning.max_grad_norm": 0.5,
}  # fmt: skip
"""Short horizons and many epochs over small batches: solves CartPole in some 130,000 steps."""
_MUJOCO: dict[str, Any] = {
    "policy.mlp": [64, 64], "policy.activation": "tanh", "policy.separate_critic": True,
    "policy.initial_std": 0.6, "policy.normalize_observations": True, "policy.normalize_returns": True,
    "sampling.placement": "inline", "sampling.num_workers": 2, "sampling.num_groups": 1, "sampling.envs_per_worker": 8,
    "sampling.rollout": 32,
    "learning.algorithm": "ppo", "learning.total_steps": 1_000_000, "learning.batch_size": 2048,
    "learning.num_epochs": 10, "learning.num_minibatches": 8,
    "learning.learning_rate": 6e-4, "learning.lr_schedule": "linear",
    "learning.ppo_clip": 0.2, "learning.entropy_coef": 0.0, "learning.max_grad_norm": 0.5,
}  # fmt: skip
"""Network, clip, batch and epochs are those of Schulman et al. 2017 (PPO), Table 3. Minibatches are four times as large and the
learning rate is doubled: learning costs about as much as simulating (benchmarks/learning/laboratory.py mujoco). With an
`initial_std` of 1, two of five seeds of HalfCheetah learn to slide on the back and never get up again."""
_IMAGES: dict[str, Any] = {
    "envs.resize": (84, 84), "envs.grayscale": True, "envs.frame_stack": 4,
    "policy.encoder": "nature-cnn",
    "learning.algorithm": "ppo",
}  # fmt: skip
"""Images are made as for Atari."""


def observes(name: str) -> Observes | None:
    """Whether an environment of Gymnasium, or a game of ale-py, observes images; None for those of other packages."""
    entry_point = _entry_point(name)
    if entry_point.endswith(_OBSERVE_IMAGES):
        return "images"
    return "vectors" if entry_point.startswith("gymnasium.envs.") else None


def defaults(name: str) -> dict[str, Any]:
    """Settings of CartPole and MuJoCo; with other environments algorithms start with settings of their own.

    One learner thread for environments whose networks are known to be small, since more threads cost more than they gain.
    """
    if re.match(r"CartPole-v\d", name):
        return dict(_CARTPOLE)
    if observes(name) == "images":
        atari = _entry_point(name).endswith(":AtariEnv")
        return _IMAGES | ({"envs.reward_clip": 1.0, "policy.normalize_returns": False} if atari else {})
    own: dict[str, Any] = dict(_MUJOCO) if _is_mujoco(name) else {"learning.algorithm": "ppo"}
    if _entry_point(name).startswith("gymnasium.envs."):
        own["learning.num_threads"] = 1
    if _entry_point(name).startswith("gymnasium.envs.toy_text"):
        own["policy.normalize_observations"] = False  # they are one-hot
    return own


def _entry_point(name: str) -> str:
    """Gymnasium's entry point of the environment, "module:class"; empty if its package is not imported yet."""
    if name.startswith("ALE/"):
        gymnasium.register_envs(package("ale_py", "atari", f"gym/{name} needs ale_py, which is not installed"))
    known = gymnasium.registry.get(name)
    return str(known.entry_point) if known is not None else ""


def code(name: str) -> tuple[str, ...]:
    """See `Family.code`: the module that defines an environment of the user's, and the script where that registers it."""
    spec = gymnasium.registry.get(name)
    if spec is None or not is_the_users(spec):
        return ()
    import_module(module := _module_of(spec))
    if (source := source_of(module)) is None:
        raise NotCarried(f"gym/{name}")
    script = script_that_registers()
    return (source,) if script is None else (source, script)


def is_the_users(spec: EnvSpec) -> bool:
    """Whether other processes do not know this environment by themselves: neither Gymnasium nor a plug-in of it registers it."""
    plugins = {plugin.value.partition(":")[0] for plugin in entry_points(group="gymnasium.envs")}
    known = {"gymnasium", "ale_py", "headrace"} | {plugin.partition(".")[0] for plugin in plugins}
    return spec.entry_point is not None and _module_of(spec).partition(".")[0] not in known


def _module_of(spec: EnvSpec) -> str:
    """The module of an environment's class."""
    made_by = spec.entry_point
    return made_by.partition(":")[0] if isinstance(made_by, str) else str(getattr(made_by, "__module__", ""))


FAMILY = Family(make, defaults, ids, knows, observes=observes, code=code, make_vector=make_vector)
