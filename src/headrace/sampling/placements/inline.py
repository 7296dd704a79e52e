"""The inline placement: every rollout worker holds a copy of the policy (MonoBeast, Ape-X)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.sampling.placements.processes import Main, ProcessPlacement, rollout_main
from headrace.sampling.worker_process import Role, Start, actor_seed, make_actor

if TYPE_CHECKING:
    from headrace.sampling.actor import Actor
    from headrace.sampling.rollout_worker import InlineAct


class Inline(ProcessPlacement):
    """Rollout workers that compute their own actions."""

    def workers(self) -> dict[Role, tuple[range, Main]]:
        return {"rollout": (self.rollout_workers, inline_main)}


def inline_main(start: Start) -> None:
    """The main function of a rollout worker with its own policy."""
    import torch

    torch.set_num_threads(1)
    config, memory = start.placement.config, start.placement.memory
    actors = {m: make_actor(start.placement, m, "cpu") for m, policy in enumerate(memory.policies) if policy.acts}

    def seed() -> None:
        for p, actor in actors.items():
            number = start.index + p * config.sampling.num_workers
            actor.generator.manual_seed(actor_seed(config, number, start.restarts, start.placement.version(p)))

    static = {m for m, policy in enumerate(memory.policies) if not policy.learns}
    G = config.sampling.num_groups
    groups = Counter(map(config.policy_of_group, range(start.index * G, (start.index + 1) * G)))  # in matches, on average
    periods = {p: config.sampling.weights_period * n for p, n in groups.items()}
    rollout_main(start, refreshing(actors, periods, static), seed)


def refreshing(
    actors: Mapping[int, Actor] | Sequence[Actor], periods: Mapping[int, int], static: Collection[int] = ()
) -> InlineAct:
    """A function that acts and takes newer weights when a policy has acted as often as its period, 1 where it has none. Actors of
    `static` members look every time, because a newer past version may have replaced the one in their place."""
    import numpy as np

    calls: dict[int, int] = defaultdict(int)

    def act(policy: int, lanes: list[int]) -> None:
        if calls[policy] % periods.get(policy, 1) == 0 or policy in static:
            actors[policy].refresh()
        calls[policy] += 1
        actors[policy].act(np.array(lanes))

    return act
