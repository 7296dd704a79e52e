"""The contract of an exported policy: all that somebody without Headrace needs to act with it, as JSON.

`headrace/evaluation/contract.schema.json` describes it; `CONTRACT_VERSION` goes up when a field changes its meaning.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from headrace.config import Config
from headrace.config.envs import OF_ONE_MACHINE
from headrace.config.io import to_dict
from headrace.envs.core.actions import choices_of
from headrace.envs.core.contract import MASK_KEY, Categorical, Continuous, EnvSpec
from headrace.envs.core.imports import needed_code
from headrace.envs.core.last_step import PREVIOUS_ACTION, PREVIOUS_REWARD
from headrace.envs.core.spaces import PLAIN_KEY, Leaf
from headrace.envs.core.wrappers import RESIZE_METHOD
from headrace.envs.groups.rewards import NEGATIVE
from headrace.evaluation.evaluate import EvalResult
from headrace.evaluation.interface import ActionLeaf, encoding_of, raw_dtype
from headrace.evaluation.onnx_policy import CONTRACT_VERSION
from headrace.evaluation.trained_policy import TrainedPolicy
from headrace.learning.exploration import EVALUATION_EPSILON
from headrace.policies.distributions import LOG_STD_RANGE, MASKED_LOGIT
from headrace.runs.system_facts import versions

PACKAGES = ("headrace", "torch", "onnx", "onnxscript", "onnxruntime", "numpy", "gymnasium")
ATARI_ACTIONS = (
    "NOOP", "FIRE", "UP", "RIGHT", "LEFT", "DOWN", "UPRIGHT", "UPLEFT", "DOWNRIGHT", "DOWNLEFT", "UPFIRE", "RIGHTFIRE",
    "LEFTFIRE", "DOWNFIRE", "UPRIGHTFIRE", "UPLEFTFIRE", "DOWNRIGHTFIRE", "DOWNLEFTFIRE",
)  # fmt: skip
CLASSIC_ACTIONS = {
    "gym/CartPole": ("push the cart to the left", "push the cart to the right"),
    "gym/MountainCar-": ("accelerate to the left", "do not accelerate", "accelerate to the right"),
    "gym/Acrobot": ("torque -1 Nm on the joint", "torque 0 Nm", "torque +1 Nm"),
}
"""By the beginning of the environment's id; Gymnasium has these in its pages only."""


def contract(
    policy: TrainedPolicy,
    observations: list[Leaf],
    actions: list[ActionLeaf],
    sampled_from: Iterable[str],
    env: Any,
) -> dict[str, Any]:
    """What is known of the policy before it is exported. `env`: one environment of its kind; `sampled_from`: names of outputs."""
    config, spec, names = policy.config, policy.spec, list(sampled_from)
    width = int(policy.model.core_width)
    return {
        "contract": CONTRACT_VERSION,
        "inputs": [_input(leaf, config) for leaf in observations] + _core_inputs(width),
        "outputs": [*(_action(leaf, _meanings(config, leaf, env)) for leaf in actions), *_parameters(spec, names, width)],
        "core": {"width": width, "start": 0.0} if width else None,
        "sampling": _sampling(spec, names, config.q.noisy),
        "observation_pipeline": _pipeline(config, spec, env),
        "environment": {
            "id": config.env,
            "settings": to_dict(config)["envs"] | dict.fromkeys(OF_ONE_MACHINE),
            "imports": [Path(path).name if path.endswith(".py") else path for path in needed_code(config)],
            "policy": policy.number,
            "agents": list(spec.agents),
            "frames_per_step": spec.frameskip,
        },
        "training": {
            "algorithm": config.learning.algorithm,
            "step": policy.step,
            "precision": config.precision,
            "network": to_dict(config)["policy"],
        },
        "evaluation": None,
        "versions": {"python": platform.python_version(), **versions(PACKAGES)},
        "licence": None,
    }


def evaluation(result: EvalResult, seed: int) -> dict[str, Any]:
    kept = ("env", "deterministic", "mean", "std", "ci95", "distinct")
    data = result.to_dict()
    return {key: data[key] for key in kept} | {"episodes": len(result.returns), "seed": seed}


def to_json(contract: dict[str, Any]) -> str:
    return json.dumps(contract, indent=2, allow_nan=False) + "\n"


# -- inputs -----------------------------------------------------------------------------------------------------------------


def _input(leaf: Leaf, config: Config) -> dict[str, Any]:
    if leaf.name in (PREVIOUS_ACTION, PREVIOUS_REWARD):
        return {
            "name": leaf.name, "role": leaf.name, "shape": ["batch", *leaf.spec.shape], "dtype": leaf.spec.dtype.name,
            "encoding": encoding_of(leaf), "meaning": _last_step(leaf.name, config),
        }  # fmt: skip
    space = leaf.source
    low, high = (space.low, space.high) if isinstance(space, spaces.Box) else (np.zeros(1), np.ones(1))
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        n, low = choices_of(space)
        high = low + n - 1
    unit = "1: allowed, 0: forbidden" if leaf.name == MASK_KEY else "brightness" if leaf.spec.is_image else "the environment's"
    return {
        "name": leaf.name,
        "role": "observation",
        "path": list(leaf.path),
        "shape": ["batch", *(space.shape or ())],
        "dtype": raw_dtype(leaf).name,
        "low": _bound(low),
        "high": _bound(high),
        "unit": unit,
        "encoding": encoding_of(leaf),
    }


def _last_step(name: str, config: Config) -> str:
    if name == PREVIOUS_ACTION:
        return "the action that the environment got before, its numbers in the order of outputs, choices from 0; zeros at first"
    c = config.envs
    soft = c.reward_soft_clip
    squashed = f", then x made {soft:g} tanh(x / {soft:g}), times {NEGATIVE:g} where negative" if soft is not None else ""
    clipped = f", then clipped to -{c.reward_clip:g} to {c.reward_clip:g}" if c.reward_clip is not None else ""
    return f"the reward that came with this observation, times {c.reward_scale:g}{squashed}{clipped}; at first 0"


def _bound(values: Any) -> Any:
    """One number where all are equal; null for infinity."""
    numbers = [float(x) if math.isfinite(x) else None for x in np.ravel(values)]
    return numbers[0] if len(set(numbers)) == 1 else numbers


def _core_inputs(width: int) -> list[dict[str, Any]]:
    return [
        {
            "name": "core", "role": "core", "shape": ["batch", width], "dtype": "float32",
            "meaning": "memory before this observation: zeros at first, then next_core of the step before",
        },
        {
            "name": "first", "role": "reset", "shape": ["batch"], "dtype": "bool",
            "meaning": "true where the observation is the first of an episode: the core is zeroed before it",
        },
    ] if width else []  # fmt: skip


# -- outputs ----------------------------------------------------------------------------------------------------------------


def _action(leaf: ActionLeaf, meanings: tuple[str, ...] | None) -> dict[str, Any]:
    space = leaf.space
    item: dict[str, Any] = {
        "name": leaf.name,
        "role": "action",
        "path": list(leaf.path),
        "space": type(space).__name__,
        "shape": ["batch", *(space.shape or ())],
        "dtype": np.dtype(space.dtype).name,
        "width": leaf.columns.stop - leaf.columns.start,
    }
    if isinstance(space, spaces.Box):
        return item | {"low": _bound(space.low), "high": _bound(space.high), "unit": "the environment's"}
    n, start = [2] * item["width"], [0] * item["width"]  # MultiBinary
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        n, start = (numbers.tolist() for numbers in choices_of(space))
    return item | {"n": n, "start": start, "meanings": list(meanings) if meanings and len(meanings) == n[0] else None}


def _meanings(config: Config, leaf: ActionLeaf, env: Any) -> tuple[str, ...] | None:
    if not isinstance(leaf.space, spaces.Discrete):
        return None
    if config.env.startswith("atari/"):
        from headrace_atari import games

        ids = games()[config.tasks[0].partition("/")[2]]["minimal_actions"]
        return tuple(ATARI_ACTIONS[i] for i in ids) if leaf.space.n == len(ids) else ATARI_ACTIONS
    if (player := _doom_player(config, env)) is not None:
        meanings: tuple[str, ...] = player.meanings(int(leaf.path[0]) if leaf.path else 0)
        return meanings
    named = getattr(getattr(env, "unwrapped", env), "get_action_meanings", None)
    if callable(named):
        return tuple(map(str, named()))
    return next((names for start, names in CLASSIC_ACTIONS.items() if config.env.startswith(start)), None)


def _doom_player(config: Config, env: Any) -> Any:
    """The player of a Doom environment, or the first one of a match; None for other environments."""
    if not config.env.startswith("vizdoom/"):
        return None
    own = getattr(env, "unwrapped", env)
    return own.players[0] if hasattr(own, "players") else own.player


def _parameters(spec: EnvSpec, names: list[str], core: int) -> list[dict[str, Any]]:
    """What actions are sampled from, and the core state, `core` numbers wide."""
    numbers = sum(part.width for part in spec.action.parts if isinstance(part, Continuous))
    choices = spec.action.mask_width
    widths = {"logits": choices, "q": choices, "mean": numbers, "std": numbers, "next_core": core}
    meanings = {
        "logits": f"of all choices, action by action; {MASKED_LOGIT:g} for what the mask forbids",
        "q": "expected return of each choice",
        "mean": "of the Gaussian before it is squashed into the action's range",
        "std": "standard deviation of the same",
        "next_core": "memory after this observation: core of the next step",
    }
    names = [*names, "next_core"] if core else names
    return [{"name": n, "role": n, "shape": ["batch", widths[n]], "dtype": "float32", "meaning": meanings[n]} for n in names]


def _sampling(spec: EnvSpec, names: list[str], noisy: bool = False) -> dict[str, Any]:
    """How actions are drawn. `noisy`: also by noise in its layers, which the file lacks."""
    if "q" in names:
        how = "with probability epsilon an action drawn evenly from those that are allowed, else the one of the largest q"
        how += ", which is without the noise of the layers that `headrace eval` of the run draws, too" if noisy else ""
        return {"kind": "epsilon-greedy", "epsilon": EVALUATION_EPSILON, "how": how}
    if not names:
        return {"kind": "none", "how": "the policy is deterministic"}
    numbers = [
        {"low": low if math.isfinite(low) else None, "high": high if math.isfinite(high) else None, "squashed": bounded}
        for part in spec.action.parts
        if isinstance(part, Continuous)
        for low, high in zip(part.low, part.high, strict=True)
        for bounded in (math.isfinite(low) and math.isfinite(high),)
    ]
    how = (
        "choices: softmax over the logits of each action; numbers: x = mean + std * standard normal, and where squashed "
        "(low + high) / 2 + (high - low) / 2 * tanh(x), else x, not beyond low or high where there is one; "
        "rounded where the action's dtype is an integer"
    )
    choices = [part.n for part in spec.action.parts if isinstance(part, Categorical)]
    return {"kind": "distribution", "choices": choices, "numbers": numbers, "log_std_range": list(LOG_STD_RANGE), "how": how}


# -- what happens before the file ---------------------------------------------------------------------------------------------


def _pipeline(config: Config, spec: EnvSpec, env: Any) -> list[dict[str, Any]]:
    """What the environment does to its observations and steps before the file's inputs; none of it is in the file."""
    c = config.envs
    if config.env.startswith("atari/"):
        from headrace.envs.atari.family import vector_options

        o = vector_options(c)
        return [
            {"step": "repeat the action", "frames": o["frameskip"], "rewards": "summed"},
            {"step": "sticky actions", "probability": o["repeat_action_probability"]},
            {"step": "begin of an episode", "noops": [o.get("noop_min", 0), o["noop_max"]], "then_fire": o["use_fire_reset"]},
            {"step": "grey scale", "applied": bool(o["grayscale"])},
            {"step": "brighter of the last two frames", "applied": o["maxpool"]},
            {"step": "resize", "height": o["img_height"], "width": o["img_width"], "method": "area averaging"},
            _stack(o["stack_num"], "black images before the first"),
            {"step": "time limit", "frames": o["max_num_frames_per_episode"]},
        ]
    steps: list[dict[str, Any]] = []
    if c.info_action_mask:
        steps.append({"step": "action mask", "from": f'info["{MASK_KEY}"]', "plain_observation": f"under {PLAIN_KEY}"})
    if spec.frameskip > 1:
        steps.append({"step": "repeat the action", "frames": spec.frameskip, "rewards": "summed"})
    player = _doom_player(config, env)
    if player is not None:
        steps += player.preparation()
    else:
        if c.grayscale:
            steps.append({"step": "grey scale", "applied": True})
        if c.resize is not None:
            steps.append({"step": "resize", "height": c.resize[0], "width": c.resize[1], "method": RESIZE_METHOD})
    if spec.frame_stack > 1:
        steps.append(_stack(spec.frame_stack, "the first image, repeated"))
    if player is not None and player.limit:
        steps.append({"step": "time limit", "frames": player.limit})
    if c.max_episode_steps is not None:
        steps.append({"step": "time limit", "steps": c.max_episode_steps})
    return steps


def _stack(images: int, at_reset: str) -> dict[str, Any]:
    return {"step": "stack", "images": images, "order": "oldest first", "at_reset": at_reset}
