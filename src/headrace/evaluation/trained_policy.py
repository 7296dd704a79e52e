"""A trained policy: a model with its weights that computes actions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from headrace.accelerator.torch_defaults import torch_defaults
from headrace.config import Config, ConfigError
from headrace.envs.core.actions import batch_decoder, decoder
from headrace.envs.core.contract import EnvSpec
from headrace.envs.core.last_step import PREVIOUS_ACTION, PREVIOUS_REWARD
from headrace.envs.core.settings import options_of
from headrace.envs.core.spaces import leaves
from headrace.envs.groups.rewards import RewardTransform, reward_transform
from headrace.envs.make import make_env, spaces_of
from headrace.evaluation.interface import interface, one_environment
from headrace.evaluation.module import PolicyModule
from headrace.learning.algorithm import Algorithm, Mode


class TrainedPolicy:
    """A model with its weights, the environment it was trained for, and its core state.

    For one environment, pass what `env.reset` and `env.step` return and get what `env.step` takes:

        policy = headrace.load_policy("runs/my-run")
        env = policy.make_env()
        observation, _ = env.reset()
        policy.reset()
        action = policy.act(observation)
    """

    def __init__(self, config: Config, spec: EnvSpec, algorithm: Algorithm, model: nn.Module, step: int, seed: int = 0) -> None:
        self.config, self.spec, self.algorithm = config, spec, algorithm
        self.step = step
        """The `global_step` of the checkpoint that the weights are from."""
        self.number = 0
        """Of the policy, where the run trained several."""
        self.team: list[TrainedPolicy] = []
        """In a multi-agent environment whose agents have different spaces: all policies of the run, this one among them."""
        self.device = torch.device(config.device)
        self.model: Any = model.to(self.device).eval()
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.reset()

    @contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """Context in which actions are sampled by a generator with this seed, and those of each other policy of its team by
        another. Afterwards the policies' own generators continue."""
        players = [self, *(other for other in self.team if other is not self)]
        own = [player.generator for player in players]
        seeds = [seed, *np.random.SeedSequence(seed).generate_state(len(players) - 1, np.uint64).tolist()]
        for player, its in zip(players, seeds, strict=True):
            player.generator = torch.Generator(player.device).manual_seed(its)
        try:
            yield
        finally:
            for player, generator in zip(players, own, strict=True):
                player.generator = generator

    def reset(self) -> None:
        """The next observation given to `act` is the first of an episode."""
        self._core = self.initial_core(1)
        self._first = np.ones(1, bool)
        self._last_action = np.zeros((1, self.spec.action.width), self.spec.action.dtype)

    @torch_defaults()
    def act(self, observation: Any, *, reward: float | None = None, deterministic: bool = True) -> Any:
        """The action for one observation of `make_env`'s environment. Call `reset` when an episode begins. `reward`: the reward
        of the previous action as the environment gave it, needed by a policy that has it as an input (`policy.previous_reward`):
        it is scaled and clipped here as in training, with several tasks as for the first one.

        `deterministic`: take the most probable action, or the one of the highest value. False: sample actions, as `headrace eval`
        and `evaluate` do by default.

        Raises `headrace.envs.core.errors.BadObservation` for observations that are not in the environment's space, `ValueError`
        where the reward is needed and not given.
        """
        if reward is None and PREVIOUS_REWARD in self.spec.observation and not self._first[0]:
            raise ValueError("this policy observes the last reward: act(observation, reward=reward)")
        rows = {leaf.name: np.zeros((1, *leaf.spec.shape), leaf.spec.dtype) for leaf in self._leaves}
        learned = self._reward_transform(np.array([reward or 0.0], np.float32))
        last = {PREVIOUS_ACTION: self._last_action, PREVIOUS_REWARD: learned}
        rows |= {name: array for name, array in last.items() if name in self.spec.observation}
        for leaf in self._leaves:
            leaf.put_one(rows[leaf.name], 0, observation)
        actions, self._core = self.act_rows(rows, self._core, self._first, deterministic=deterministic)
        self._first, self._last_action = np.zeros(1, bool), actions
        return self._decode(actions)[0]

    @torch_defaults()
    def predict(
        self,
        observations: Any,
        state: Tensor | None = None,
        episode_start: np.ndarray | None = None,
        *,
        deterministic: bool = True,
    ) -> tuple[Any, Tensor]:
        """The actions for the observations of N environments, as a `gymnasium.vector.VectorEnv` gives them and takes them.

        Args:
            observations: in the batched form of `make_env`'s observation space.
            state: the second result of the call before; None: all episodes begin. Needed for policies with a core only.
            episode_start: bool [N], observations that are the first of an episode. None: those of the first call only.

        Raises `headrace.envs.core.errors.BadObservation` for observations that are not in the environment's space.
        """
        if {PREVIOUS_ACTION, PREVIOUS_REWARD} & self.spec.observation.keys():
            raise ValueError("this policy observes its last action or reward; ask for one action at a time: act(..., reward=...)")
        n = len(self._leaves[0].find(observations))
        rows = {leaf.name: np.zeros((n, *leaf.spec.shape), leaf.spec.dtype) for leaf in self._leaves}
        for leaf in self._leaves:
            leaf.put_batch(rows[leaf.name], observations)
        first = np.full(n, state is None) if episode_start is None else np.asarray(episode_start, bool)
        core = self.initial_core(n) if state is None else state
        actions, core = self.act_rows(rows, core, first, deterministic=deterministic)
        return batch_decoder(self._spaces[1])(actions), core

    @torch.inference_mode()
    def act_rows(
        self, obs: dict[str, np.ndarray], core: Tensor, first: np.ndarray, *, deterministic: bool
    ) -> tuple[np.ndarray, Tensor]:
        """Actions of N environments in the engine's own form.

        Args:
            obs: by name, [N, ...], as described by `spec.observation`.
            core: float32 [N, S] core state before these observations; see `initial_core`.
            first: bool [N]: the core state is zeroed before these observations.
            deterministic: draw nothing at random: the most probable action, or the one of the highest value.

        Returns:
            actions [N, A] (int32 or float32) and the core state after these observations [N, S].
        """
        tensors = {name: torch.from_numpy(array).to(self.device) for name, array in obs.items()}
        envs = torch.arange(len(first), device=self.device)
        mode: Mode = "deterministic" if deterministic else "evaluate"
        begins = torch.from_numpy(first).to(self.device)
        fields, core = self.algorithm.act(self.model, tensors, core, begins, envs, self.generator, mode)
        return fields["action"].cpu().numpy(), core

    def initial_core(self, n: int) -> Tensor:
        """float32 zeros [n, S]."""
        return torch.zeros(n, self.model.core_width, dtype=torch.float32, device=self.device)

    def make_env(self, render_mode: str | None = None, task: str | None = None) -> gymnasium.Env[Any, Any]:
        """One environment of the kind the policy was trained in: whole games, raw rewards.

        `render_mode`: "rgb_array" for pictures, for `gym` environments also "human" for a window. `task`: where it was trained
        on several, the id of one of them; None: the first. Raises `ConfigError` for a mode that the environment does not have,
        and for a task on which it was not trained.
        """
        tasks = self.config.tasks
        if task is not None and task not in tasks:
            raise ConfigError(f"the policy was not trained on {task!r}; its tasks are {', '.join(tasks)}")
        env = task or tasks[0]
        return make_env(env, options_of(env, tasks, self.config.envs), render_mode=render_mode)

    def module(self) -> PolicyModule:
        """A copy of the policy as a plain `torch.nn.Module` on the CPU, in float32, with gradients. It maps a dictionary of the
        environment's observations to a dictionary of actions and the numbers they are sampled from. To play with the module's new
        weights: `trained.model.load_state_dict(module.model.state_dict())`, where `trained` is this object.

        Raises `ConfigError` where the environment cannot be made here.
        """
        observations, actions, env = interface(self.config, self.spec, self.number)
        env.close()
        model = copy.deepcopy(self.model).cpu()
        for part in model.modules():
            if hasattr(part, "precision"):
                part.precision = "float32"
        return PolicyModule(self.algorithm, model, self.spec, observations, actions)

    @cached_property
    def _spaces(self) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
        if not self.spec.agents:
            tasks = self.config.tasks
            return spaces_of(tasks[0], options_of(tasks[0], tasks, self.config.envs))
        observation, action, env = one_environment(self.config, self.spec, self.number)
        env.close()
        return observation, action

    @cached_property
    def _leaves(self) -> list[Any]:
        return leaves(self._spaces[0])

    @cached_property
    def _reward_transform(self) -> RewardTransform:
        """From the rewards of `make_env`'s environment to those that the policy was trained with."""
        tasks = self.config.tasks
        return reward_transform(options_of(tasks[0], tasks, self.config.envs))

    @cached_property
    def _decode(self) -> Callable[[np.ndarray], list[Any]]:
        return decoder(self._spaces[1])
