"""The rollout worker: steps environments, holds no policy.

Its environments form groups. While the actions of one group are being computed, another group is stepped (double buffering),
so with k environments the worker never waits if k/2 > ceil(t_inference / t_environment). A group whose world is elsewhere costs
it no waiting either: `send` begins a step, and the worker goes on with whatever is ready first, actions or environments. Nor
does a group that needs a slot while there is none keep the others waiting: with several policies theirs may be free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Literal

import numpy as np

from headrace.envs.contract import EnvGroup, LaneRow, ObsRow
from headrace.sampling.run_memory import RunMemory
from headrace.sampling.trajectory_fields import obs_row, step_row
from headrace.shm.run_control import POLL_INTERVAL
from headrace.shm.trajectory_store import TrajectoryStore

Act = Callable[[int, list[int]], None]
"""Computes the actions of these lanes (numbers) with this policy (number)."""
SLOT_POLL = 0.005
"""Seconds between two looks for a free slot while the worker waits for something else, too."""


@dataclass
class Lane:
    """Agents that act together, and the row of the slot whose action they wait for."""

    number: int
    policy: int
    slot: int = -1
    """-1: it needs one."""
    finished: int = 0
    """Slots so far."""
    t: int = 0
    last: ObsRow | None = None
    """A copy of row T of the slot before, to become row 0 of the next; None: the environments' first observation does."""
    rows: list[LaneRow] = field(default_factory=list)
    """Views of the slot's rows 0 to T-1."""


@dataclass
class Group:
    """Environments stepped together, and the lanes of their agents."""

    number: int
    envs: EnvGroup
    lanes: list[Lane]
    busy: Literal["", "slots", "reset", "step"] = ""
    """slots: it waits for free slots. reset, step: what the environments are doing, so that `recv` has to be asked. "" while the
    group waits for actions."""
    reward_weights: dict[str, float] | None = None
    """Those that population-based training has given its environments last."""
    reward_updates: int = 0
    """How often its policy's had been changed then."""
    seed: int | None = None
    """With which the environments are reset as soon as there are slots."""

    def __post_init__(self) -> None:
        self.lane_numbers = [lane.number for lane in self.lanes]
        self.rows: list[LaneRow] = [None] * len(self.lanes)  # type: ignore[list-item]  # reused by every step


class RolloutWorker:
    """Environments of one worker. `act` is called to get a group's actions where the policy is `inline`; None: they are
    requested from the policy workers. `make_group` is given the group's number among those of all workers.

    `start`, `run`, `ready` and `step` raise `Closed` when the run has ended.
    """

    def __init__(self, index: int, memory: RunMemory, make_group: Callable[[int], EnvGroup], act: Act | None = None):
        self.index, self.memory, self.requests, self._act = index, memory, memory.requests, act
        first = index * self.requests.num_groups
        self.groups = [self._group(g, make_group(first + g)) for g in range(self.requests.num_groups)]
        self._without_slots: list[Group] = []
        self._views: dict[tuple[int, int], tuple[ObsRow, list[LaneRow]]] = {}  # views of rows are made once for each slot
        self.clock = memory.control.clock("rollout", index)

    def _group(self, g: int, envs: EnvGroup) -> Group:
        lanes = [Lane(number, int(self.requests.policy[number])) for number in self.requests.lanes_of(self.index, g)]
        envs.notify(lambda: self.requests.wake(self.index, g))
        return Group(g, envs, lanes)

    def start(self, seed: int) -> None:
        """Reset all environments and ask for their first actions. Environment i of group g has seed `seed` + (g E + i)."""
        for group in self.groups:
            group.seed = seed + group.number * group.envs.num_envs
            self._go_on(group)

    def resume(self, group: Group, slots: list[dict[str, np.ndarray]], rows: list[int]) -> None:
        """Put a group's lanes back to these rows of half-filled slots with these contents."""
        for lane, arrays, t in zip(group.lanes, slots, rows, strict=True):
            if not self._acquire(lane, timeout=0):
                raise RuntimeError("no free slot to go on in")
            for name, array in arrays.items():
                self._store(lane).arrays[name][lane.slot] = array
            lane.t = t
            self.requests.cursor[lane.number, 1] = t

    def run(self) -> None:
        """Step whatever is ready until the run ends."""
        while not self.memory.control.stopped:
            for group in self.wait(POLL_INTERVAL):
                self.step(group)

    def wait(self, timeout: float) -> list[Group]:
        """Like `ready`, but sleeps up to `timeout` seconds until something may be."""
        if self._without_slots and len(self._without_slots) == len(self.groups):
            # Nothing else can happen here. With several policies another's slots may be free first.
            lane = next(lane for lane in self._without_slots[0].lanes if lane.slot < 0)
            self._acquire(lane, timeout if len(self.memory.policies) == 1 else min(timeout, SLOT_POLL))
            self.clock.spent("wait_slots", perf_counter())
        else:
            self.requests.wait(self.index, min(timeout, SLOT_POLL) if self._without_slots else timeout)
            self.clock.spent("wait_actions", perf_counter())
        return self.ready()

    def ready(self) -> list[Group]:
        """The groups whose lanes all have their actions. Environments that have finished a step are asked for their next ones."""
        found = []
        for group in self._without_slots[:]:
            self._go_on(group)
        # A wake-up is only a hint: after a policy worker's death everybody is woken once more.
        for g in self.requests.woken_groups(self.index):
            group = self.groups[g]
            if group.busy == "slots":
                continue
            if group.busy:
                self._receive(group)
            elif self.requests.take(group.lane_numbers):
                found.append(group)
        return found

    def step(self, group: Group) -> None:
        """Step a group with the actions of its lanes' current rows; when that is done, ask for the actions of the next rows."""
        rows = group.rows
        for i, lane in enumerate(group.lanes):
            rows[i] = lane.rows[lane.t]
        group.envs.send(rows)
        group.busy = "step"
        self._receive(group)

    def _receive(self, group: Group) -> None:
        """Where the environments have finished, move on to the next rows and ask for their actions."""
        if not group.envs.recv():
            return
        stepped, group.busy = group.busy == "step", ""
        if stepped:
            self.clock.spent("step", perf_counter())
            self.clock.count(len(group.lanes) * self.requests.C)
            finished = False
            for lane in group.lanes:
                lane.t += 1
                if lane.t == self.memory.T:
                    self._finish(lane)
                    finished = True
            if finished:
                self._go_on(group)
                return
        self._request(group)

    def _finish(self, lane: Lane) -> None:
        """Hand the finished slot to the learner."""
        last = lane.rows[-1].after
        # Copied, because from the next line on the slot may be learned from and given to somebody else.
        lane.last = ObsRow({name: array.copy() for name, array in last.obs.items()}, last.first.copy(), last.valid.copy())
        lane.finished += 1
        self._store(lane).finish(lane.slot, lane.finished)
        lane.slot = -1

    def _go_on(self, group: Group) -> None:
        """Give the group's lanes the slots they need, and go on in them if there are enough: the last row of the slot before is
        the first of the next. The only brake: without a free slot the learner is behind, and waiting bounds memory and policy
        lag."""
        for lane in group.lanes:
            if lane.slot < 0 and not self._acquire(lane, timeout=0):
                if group.busy != "slots":
                    group.busy = "slots"
                    self._without_slots.append(group)
                return
        if group.busy == "slots":
            self._without_slots.remove(group)
            group.busy = ""
        if self.memory.population is not None:
            self._look_for_reward_weights(group)
        if group.seed is not None:
            first = [self._slot_views(lane.policy, lane.slot)[0] for lane in group.lanes]
            group.envs.reset(group.seed, first)
            group.busy, group.seed = "reset", None
            self.clock.spent("other", perf_counter())
            self._receive(group)
            return
        for lane in group.lanes:
            if lane.last is not None:
                row = self._slot_views(lane.policy, lane.slot)[0]
                for name, array in row.obs.items():
                    array[:] = lane.last.obs[name]
                row.first[:], row.valid[:] = lane.last.first, lane.last.valid
                lane.last = None
        self.clock.spent("other", perf_counter())
        self._request(group)

    def _look_for_reward_weights(self, group: Group) -> None:
        """Once per trajectory: the weights of the policy's reward, if population-based training has changed them."""
        population, policy = self.memory.population, group.lanes[0].policy
        assert population is not None
        updates = int(population.reward_updates[policy])
        if updates != group.reward_updates:
            group.reward_updates = updates
            weights = dict(zip(population.reward_names, population.reward_weights[policy].tolist(), strict=True))
            if weights != group.reward_weights:
                self.set_reward_weights(group, weights)

    def set_reward_weights(self, group: Group, weights: dict[str, float]) -> None:
        """Let the group's environments weigh the parts of their rewards like this."""
        group.envs.set_reward_weights(weights)  # type: ignore[attr-defined]
        group.reward_weights = weights

    def _acquire(self, lane: Lane, timeout: float) -> bool:
        """Get a free slot for the lane; False if there is none within `timeout` seconds."""
        slot = self._store(lane).acquire(self.index, timeout)
        if slot is None:
            return False
        lane.slot, lane.t = slot, 0
        self.requests.cursor[lane.number] = slot, 0
        lane.rows = self._slot_views(lane.policy, slot)[1]
        return True

    def _request(self, group: Group) -> None:
        for lane in group.lanes:
            self.requests.cursor[lane.number, 1] = lane.t
        if self._act is None:
            for lane in group.lanes:
                self.requests.request(lane.number)
            return
        for policy in dict.fromkeys(lane.policy for lane in group.lanes):
            self._act(policy, [lane.number for lane in group.lanes if lane.policy == policy])
        for lane in group.lanes:
            self.requests.answered(lane.number)
        self.clock.spent("forward", perf_counter())

    def _store(self, lane: Lane) -> TrajectoryStore:
        return self.memory.policies[lane.policy].trajectories

    def _slot_views(self, policy: int, slot: int) -> tuple[ObsRow, list[LaneRow]]:
        """Row 0's observation, and for every row its actions, their consequences and the observation after it."""
        views = self._views.get((policy, slot))
        if views is None:
            store = self.memory.policies[policy].trajectories
            observations = [obs_row(store, slot, t) for t in range(store.T + 1)]
            actions = store.arrays["action"]
            rows = [LaneRow(actions[slot, t], step_row(store, slot, t), observations[t + 1]) for t in range(store.T)]
            views = self._views[policy, slot] = observations[0], rows
        return views

    def close(self) -> None:
        """Close the environments."""
        for group in self.groups:
            group.envs.close()
