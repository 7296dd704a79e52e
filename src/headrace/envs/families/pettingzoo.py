"""``pettingzoo/NAME``: the multi-agent environments registered with PettingZoo, such as ``pettingzoo/connect_four_v3``.

The particle environments of the package mpe2, which PettingZoo no longer has, have the same ids: ``pettingzoo/simple_spread_v3``.

Environments with PettingZoo's parallel interface are used as they are. Games that only have the agent-environment cycle are
converted: by PettingZoo's `aec_to_parallel` if the game's metadata says `is_parallelizable`, else by `TurnBased`.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import pettingzoo
from pettingzoo.env_registry.exceptions import FailedToImport
from pettingzoo.utils.conversions import aec_to_parallel

from headrace.config import ConfigError, EnvConfig
from headrace.envs.core.family_interface import Family, ParallelEnv
from headrace.envs.core.wrappers import APPLIED_TO_MATCHES, check_applied
from headrace.envs.groups.base import close_all

MPE2 = (
    "simple_adversary_v3", "simple_crypto_v3", "simple_push_v3", "simple_reference_v3", "simple_speaker_listener_v4",
    "simple_spread_v3", "simple_tag_v3", "simple_v3", "simple_world_comm_v3",
)  # fmt: skip
"""Modules of the package mpe2."""


def ids() -> list[str]:
    """The module names of the environments in PettingZoo's registry."""
    return sorted(_names())


def knows(name: str) -> bool:
    """Whether PettingZoo has this environment: ``connect_four_v3``, or with its family, ``classic/connect_four_v3``."""
    return _registered(name) is not None


def _names() -> dict[str, str]:
    """Name -> id in the registry, or of a module of mpe2."""
    every = [*(f"mpe2/{name}" for name in MPE2), *pettingzoo.aec_registry, *pettingzoo.parallel_registry]
    return {known.rpartition("/")[2].replace("-v", "_v"): known for known in every}


def _registered(name: str) -> str | None:
    asked = name.replace("-v", "_v")
    names = _names()
    return names.get(asked) or next((known for known in names.values() if known.replace("-v", "_v") == asked), None)


def make_parallel(name: str, options: EnvConfig, *, render_mode: str | None = None) -> Any:
    """A ParallelEnv or an AECEnv; `options.kwargs` go to its constructor. Raises `ConfigError` if packages that it needs are
    missing, and for a frame skip."""
    check_applied(f"pettingzoo/{name}", options, APPLIED_TO_MATCHES)
    known = _registered(name)
    assert known is not None
    kwargs = dict(options.kwargs) | ({} if render_mode is None else {"render_mode": render_mode})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PettingZoo warns of modules that it imports itself
            if known.startswith("mpe2/"):
                return importlib.import_module(known.replace("/", ".")).parallel_env(**kwargs)
            return pettingzoo.make("parallel" if known in pettingzoo.parallel_registry else "aec", known, **kwargs)
    except (ImportError, FailedToImport) as error:
        advice = "pip install mpe2" if known.startswith("mpe2/") else str(error)
        raise ConfigError(f"pettingzoo/{name} needs packages that are not installed: {advice}") from error


def parallel(game: Any) -> ParallelEnv:
    """Convert an AECEnv to a ParallelEnv, see the module."""
    return aec_to_parallel(game) if getattr(game, "metadata", {}).get("is_parallelizable") else TurnBased(game)


def defaults(name: str) -> dict[str, Any]:
    """Settings for small games, and the number of agents if the packages that the game needs are installed."""
    return {
        **_agents(name),
        "policy.mlp": [128, 128], "policy.activation": "tanh",
        "sampling.num_workers": 1, "sampling.envs_per_worker": 32, "sampling.rollout": 16,
        "learning.algorithm": "ppo", "learning.total_steps": 1_000_000, "learning.batch_size": 2048,
        "learning.num_epochs": 4, "learning.num_minibatches": 4, "learning.num_threads": 1,
        "learning.learning_rate": 1e-3, "learning.gamma": 0.99,
        "learning.ppo_clip": 0.2, "learning.entropy_coef": 0.01, "learning.max_grad_norm": 0.5,
    }  # fmt: skip


def _agents(name: str) -> dict[str, int]:
    try:
        env = make_parallel(name, EnvConfig())
    except ConfigError:
        return {}
    try:
        return {"envs.num_agents": len(env.possible_agents)}
    finally:
        close_all([env])


FAMILY = Family(None, defaults, ids, knows, observes=lambda name: "vectors", make_parallel=make_parallel)


class TurnBased:
    """A turn-based game (PettingZoo's AECEnv) as a ParallelEnv: only the agent whose turn it is observes and acts.

    PettingZoo's own conversion gives observations to all agents in every step, but takes the action of one of them.
    """

    def __init__(self, game: Any) -> None:
        self.game = game
        self.possible_agents = list(game.possible_agents)
        self.agents: list[Any] = []
        self._present: list[Any] = []  # also agents whose episode has ended, until the game takes them out
        self._selected: Any = None  # the agent whose turn it is
        self.metadata = getattr(game, "metadata", {})
        self.render_mode = getattr(game, "render_mode", None)

    def observation_space(self, agent: Any) -> Any:
        return self.game.observation_space(agent)

    def action_space(self, agent: Any) -> Any:
        return self.game.action_space(agent)

    def observe(self, agent: Any) -> Any:
        """What the agent sees now, also where it is not its turn."""
        return self.game.observe(agent)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Begin a match; returns the observation of the agent that moves first."""
        self.game.reset(seed=seed, options=options)
        self.agents = self._present = list(self.game.agents)
        return self._turn(), dict(self.game.infos)

    def step(self, actions: dict[Any, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Make one move, with the action of the agent whose turn it is."""
        game, agents = self.game, self._present
        game.step(actions[self._selected])
        # each attribute is read once, since every wrapper of the game looks it up in the next one
        rewards, terminated, truncated, infos = game.rewards, game.terminations, game.truncations, dict(game.infos)
        rewards = {agent: rewards.get(agent, 0) for agent in agents}
        terminations = {agent: bool(terminated.get(agent)) for agent in agents}
        truncations = {agent: bool(truncated.get(agent)) for agent in agents}
        ended = [agent for agent in agents if terminations[agent] or truncations[agent]]
        observations = {agent: game.observe(agent) for agent in ended if agent in self.agents}
        while ended and game.agents and (game.terminations[game.agent_selection] or game.truncations[game.agent_selection]):
            game.step(None)
        self._present = list(game.agents)
        self.agents = [agent for agent in self._present if agent not in ended]
        return observations | self._turn(), rewards, terminations, truncations, infos

    def _turn(self) -> dict[Any, Any]:
        if not self.agents:
            return {}
        self._selected = self.game.agent_selection
        return {self._selected: self.game.observe(self._selected)}

    def render(self) -> Any:
        return self.game.render()

    def close(self) -> None:
        close_all([self.game])
