"""A multi-agent world in which every number is known, an algorithm that checks them, and matchmakers by formula.

Three agents take turns, leave, come back within a match with a new episode, and are matched anew for every match. Observation:
(number of the world, match, agent, episode within the match, step within the episode, tick of the match, 0 alive, 1 terminated
or 2 truncated, life). Everything follows from the first three, so a learner can check every row of its batches, and the test can
play every match again by itself and say which rows must have been learned from, and by whom.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from headrace.config import Config, EnvConfig, LearningConfig
from headrace.envs.core.contract import ArraySpec, EnvSpec
from headrace.envs.core.registry import register_parallel
from headrace.learning.algorithm import Algorithm, register_algorithm
from headrace.population import register_matchmaker

AGENTS = ("a", "b", "c")
ACTIONS = 5
WORLDS = 500_009


def policy_of(match: Any, agent: Any, P: int) -> Any:
    """Who acts."""
    return (2 * match + agent + match // 3) % P


def action_of(world: Any, match: Any, agent: Any, tick: Any) -> Any:
    """The action that belongs to an observation."""
    return (world + 3 * match + agent + tick) % ACTIONS


def reward_of(world: Any, match: Any, agent: Any, tick: Any) -> Any:
    """What acting on an observation gives; every tick of waiting gives 1000 more."""
    return world % 16 + 20 * agent + tick + match % 7


def last_tick(world: int, match: int) -> int:
    return 6 + (world + 5 * match) % 9


class CountingMatch:
    """See the module. Refuses any action but the one that belongs to the observation, and actions of those that do not act."""

    def __init__(self, step_seconds: float = 0.0, ledger: str = "") -> None:
        self.possible_agents = list(AGENTS)
        self.agents: list[str] = []
        self._world, self._life, self._match, self._step_seconds = 0, 0, -1, step_seconds

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0, 1e6, (8,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(ACTIONS)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """The first seed says which world it is; later ones only that the next match begins."""
        if self._match < 0:
            assert seed is not None
            self._life, self._world = divmod(seed, WORLDS)
        self._match += 1
        self._tick = 0
        self._episode = dict.fromkeys(AGENTS, -1)
        self._steps = dict.fromkeys(AGENTS, 0)
        self._waits = dict.fromkeys(AGENTS, True)
        self._acts: set[str] = set()
        self.agents = []
        return self._arrivals(), {}

    def _here(self, agent: int) -> bool:
        """Whether the agent is in the match at this tick."""
        return (self._world + self._match + self._tick + 3 * agent) % 7 != 0 or agent == 2

    def _turn(self, agent: int) -> bool:
        """Whether it is given an observation."""
        return (self._match + self._tick + agent) % (agent + 1) == 0

    def _arrivals(self) -> dict[str, np.ndarray]:
        observations = {}
        for i, agent in enumerate(AGENTS):
            if agent not in self.agents and self._here(i):
                self.agents.append(agent)
                self._episode[agent] += 1
                self._steps[agent] = 0
                self._waits[agent] = True
            if agent in self.agents and self._waits[agent] and self._turn(i):
                observations[agent] = self._observe(i, 0)
                self._acts.add(agent)
                self._waits[agent] = False
        return observations

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        time.sleep(self._step_seconds)
        assert set(actions) == self._acts, f"{sorted(actions)} acted, not {sorted(self._acts)}"
        rewards: dict[str, float] = {}
        for i, agent in enumerate(AGENTS):
            if agent in actions:
                here = (self._world, self._match, i, self._tick)
                assert int(actions[agent]) == action_of(*here), f"action {actions[agent]} came to {here}"
                rewards[agent] = float(reward_of(*here))
                self._steps[agent] += 1
                self._waits[agent] = True
            elif agent in self.agents and self._steps[agent]:
                rewards[agent] = 1000.0
        self._acts = set()
        self._tick += 1
        over = self._tick == last_tick(self._world, self._match)
        observations: dict[str, Any] = {}
        ends: tuple[dict[str, bool], dict[str, bool]] = ({}, {})
        for i, agent in enumerate(AGENTS):
            if agent in self.agents and (over or not self._here(i)):
                kind = self._match % 2 if over else self._episode[agent] % 2
                ends[kind][agent] = True
                observations[agent] = self._observe(i, 1 + kind)
                self.agents.remove(agent)
        if not over:
            observations |= self._arrivals()
        return observations, rewards, *ends, {}

    def _observe(self, agent: int, end: int) -> np.ndarray:
        name = AGENTS[agent]
        numbers = (self._match, agent, self._episode[name], self._steps[name], self._tick, end)
        return np.array([self._world, *numbers, self._life], np.float32)

    def get_state(self) -> dict[str, Any]:
        """For an exact resume."""
        return {
            "numbers": [self._world, self._life, self._match, self._tick], "agents": list(self.agents),
            "acts": sorted(self._acts), "episode": dict(self._episode), "steps": dict(self._steps), "waits": dict(self._waits),
        }  # fmt: skip

    def set_state(self, state: dict[str, Any]) -> None:
        self._world, self._life, self._match, self._tick = state["numbers"]
        self.agents, self._acts = list(state["agents"]), set(state["acts"])
        self._episode, self._steps, self._waits = dict(state["episode"]), dict(state["steps"]), dict(state["waits"])

    def close(self) -> None:
        pass


@register_parallel("counting-match", agents=3)
def make(options: EnvConfig, *, render_mode: str | None = None) -> CountingMatch:
    """The counting world."""
    return CountingMatch(**options.kwargs)


@register_matchmaker("by-formula")
def by_formula(match: Any, population: Any, generator: Any) -> list[int]:
    """See `policy_of`."""
    return [policy_of(match.played, a, len(population.learners)) for a in range(3)]


class Model(nn.Module):
    core_width = 1
    policy: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.updates = nn.Parameter(torch.zeros(()))
        self.register_buffer("policy", torch.tensor(-1.0))


def _agents_own(match: Tensor, agent: Tensor, P: int) -> Tensor:
    return agent % P


class CountingMatches(Algorithm):
    """The algorithm."""

    def __init__(self, config: Config) -> None:
        self._P, self._folder = config.population.size, config.envs.kwargs.get("ledger")
        self._policy_of = {"by-formula": policy_of, "fixed": _agents_own}.get(config.matches.matchmaker)
        """Which policy acts, by match, agent and number of policies; None: the rows do not tell."""
        self._may_be_cut = bool(config.envs.remote)
        self._ledger: int | None = None

    def make_model(self, spec: EnvSpec, config: Config) -> Model:
        return Model()

    def extra_fields(self, spec: EnvSpec) -> dict[str, ArraySpec]:
        return {"policy": ArraySpec((), np.dtype(np.float32))}

    def act(self, model: Any, obs: Any, core: Tensor, first: Tensor, envs: Tensor, generator: Any, mode: str = "train") -> Any:
        world, match, agent, _, step, tick, _, _ = obs["obs"].int().T
        count = torch.where(first[:, None], 0.0, core) + 1
        action = action_of(world, match, agent, tick)[:, None].int()
        policy = model.policy.expand(len(action))
        return {"action": action, "value": count[:, 0], "log_prob": -step.float(), "policy": policy}, count

    def prepare(self, model: Any, batch: dict[str, Tensor], config: LearningConfig) -> None:
        rows = batch["obs/obs"][: len(batch["reward"])][batch["valid"][: len(batch["reward"])]].long()
        acted = batch["policy"][batch["valid"][: len(batch["reward"])]]
        if self._policy_of is not None:
            policies = self._policy_of(rows[:, 1], rows[:, 2], self._P).unique().tolist()
            assert len(policies) <= 1, f"samples of the policies {policies} in one batch"
            for mine in policies:
                assert float(model.policy) in (-1.0, mine)
                model.policy.fill_(mine)
                assert set(acted.unique().tolist()) <= {-1.0, float(mine)}, "another policy's weights acted"
        if self._folder:
            if self._ledger is None:
                path = Path(self._folder) / f"{time.time_ns()}-{os.getpid()}"
                self._ledger = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
            mine = int(model.policy)
            text = "".join(f"{mine} {life} {w} {m} {a} {e} {s}\n" for w, m, a, e, s, _, _, life in rows.tolist())
            os.write(self._ledger, text.encode())

    def loss(self, model: Any, batch: dict[str, Tensor], config: LearningConfig) -> tuple[Tensor, dict[str, Tensor]]:
        check({name: t.detach().cpu().numpy() for name, t in batch.items()}, self._may_be_cut)
        loss = model.updates.sum()
        return loss, {"losses/loss": loss}


@register_algorithm("counting-matches")
def make_algorithm(config: Config) -> CountingMatches:
    """The counting algorithm."""
    return CountingMatches(config)


def check(batch: dict[str, np.ndarray], may_be_cut: bool = False) -> None:
    """Every number of a batch [T(+1), B]. `may_be_cut`: matches may have been lost with their server."""
    world, match, agent, episode, step, tick, end, _ = np.moveaxis(batch["obs/obs"], -1, 0).astype(np.int64)
    equal, T = np.testing.assert_array_equal, len(batch["reward"])
    now, then = np.s_[:T], np.s_[1 : T + 1]
    valid = batch["valid"]
    lost = ~valid & (end == 0)  # the last observation of a match that was cut
    assert may_be_cut or not lost.any()
    assert not (valid & (end != 0)).any()
    equal(batch["first"], (step == 0) & valid)
    cut = valid[now] & lost[then]
    assert batch["truncated"][cut].all()
    for name in ("reward", "terminated", "episode_length"):
        assert not batch[name][cut].any()
    for x in (world, match, agent, episode, step):
        equal(x[then][cut], x[now][cut])
    acted, real = valid[now], valid[now] & ~cut

    def where(values: np.ndarray) -> np.ndarray:
        return values[real]

    equal(batch["action"][..., 0][acted], action_of(world, match, agent, tick)[now][acted])
    equal(batch["agent"][acted], agent[now][acted])
    equal(batch["log_prob"][acted], -step[now][acted])
    equal(batch["value"][acted], step[now][acted] + 1)
    equal(np.where(batch["first"][0], 0, batch["core"][:, 0])[valid[0]], step[0][valid[0]])
    # a valid row is followed by the next step of the same episode
    for x in (world, match, agent, episode):
        equal(where(x[then]), where(x[now]))
    equal(where(step[then]), where(step[now]) + 1)
    waited = where(tick[then]) - where(tick[now]) - 1
    assert (waited >= 0).all()
    equal(where(batch["reward"]), where(reward_of(world, match, agent, tick)[now]) + 1000 * waited)
    equal(where(batch["terminated"]), where(end[then] == 1))
    equal(where(batch["truncated"]), where(end[then] == 2))
    equal(where(batch["episode_length"]), where(np.where(end[then] > 0, step[then], 0)))
    # an invalid row is followed by a first one, later, or by copies of itself to the end
    for t, b in np.argwhere(~valid[now]):
        assert batch["reward"][t, b] == 0
        assert not batch["terminated"][t, b]
        assert not batch["truncated"][t, b]
        assert np.isnan(batch["episode_return"][t, b])
        if valid[t + 1, b]:
            assert step[t + 1, b] == 0
            assert agent[t + 1, b] == agent[t, b]
            if not may_be_cut:  # else a new server's worlds may have begun
                assert world[t + 1, b] == world[t, b]
                assert (match[t + 1, b], episode[t + 1, b]) > (match[t, b], episode[t, b])
        else:
            equal(batch["obs/obs"][t:, b], np.broadcast_to(batch["obs/obs"][t, b], batch["obs/obs"][t:, b].shape))


# -- what must have been learned from ---------------------------------------------------------------------------------


@cache
def rows_of(world: int, match: int) -> list[tuple[int, int, int]]:
    """(agent, episode, step) of every action of a match, in order for each agent."""
    env = CountingMatch()
    env._world, env._match = world, match - 1
    observations, _ = env.reset(seed=world)
    rows = []
    while env.agents:
        alive = [o.astype(int).tolist() for o in observations.values() if o[6] == 0]
        rows += [(agent, episode, step) for _, _, agent, episode, step, _, _, _ in alive]
        actions = {AGENTS[agent]: action_of(world, match, agent, tick) for _, _, agent, _, _, tick, _, _ in alive}
        observations = env.step(actions)[0]
    return rows


def read_ledger(folder: Path) -> dict[tuple[int, int, int, int], list[tuple[int, int, int]]]:
    """By (policy, life, world, agent): (match, episode, step) of every sample, in the order in which they were learned from."""
    found: dict[tuple[int, int, int, int], list[tuple[int, int, int]]] = defaultdict(list)
    for path in sorted(folder.iterdir()):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                policy, life, world, match, agent, episode, step = map(int, line.split())
                found[policy, life, world, agent].append((match, episode, step))
    return found


def check_ledger(folder: Path, P: int, may_miss: int = 0) -> int:
    """Every sample was learned from by the policy that acted and at most once, and nothing between two samples of a lane is
    missing, but for `may_miss` that were lost with a learner. Returns how many there were."""
    total = missing = 0
    for (policy, _, world, agent), samples in read_ledger(folder).items():
        assert len(set(samples)) == len(samples), f"policy {policy}, world {world}, agent {agent}: learned from twice"
        matches = range(max(match for match, _, _ in samples) + 1)
        mine = [match for match in matches if policy_of(match, agent, P) == policy]
        expected = [(match, e, s) for match in mine for a, e, s in rows_of(world, match) if a == agent]
        numbers = {sample: number for number, sample in enumerate(sorted(expected))}
        assert set(samples) <= set(numbers), f"policy {policy}, world {world}, agent {agent}: another policy acted"
        missing += max(numbers[sample] for sample in samples) + 1 - len(samples)
        total += len(samples)
    assert missing <= may_miss, f"{missing} samples are missing"
    return total
