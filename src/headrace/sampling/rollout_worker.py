"""The rollout worker: steps environments, holds no policy.

Its environments form groups. While the actions of one group are being computed, another group is stepped (double buffering),
so with k environments the worker never waits if k/2 > ceil(t_inference / t_environment).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

import numpy as np

from headrace.envs.contract import EnvGroup, LaneRow, ObsRow
from headrace.envs.group import Completion
from headrace.sampling.exchange import IDLE, READY, ROLLOUT_PHASES, Clock, Exchange


class _Row(NamedTuple):
    """Views of one row of a slot, as a group of environments takes them: one of each lane. Row T has only the observation."""

    observation: tuple[ObsRow]
    lanes: tuple[LaneRow, ...]


@dataclass
class _Group:
    """Where one group is: the row of the slot whose action it waits for."""

    number: int
    envs: EnvGroup
    completion: Completion
    slot: int = -1
    t: int = 0


class RolloutWorker:
    """Environments of one worker. `act` is called to get a group's actions where the policy is `inline`; None: they are
    requested from the policy workers."""

    def __init__(
        self, index: int, exchange: Exchange, make_group: Callable[[], EnvGroup], act: Callable[[list[int]], None] | None = None
    ):
        self.index, self.exchange, self._act = index, exchange, act
        first = index * exchange.num_groups
        self.groups = [
            _Group(first + g, envs, Completion(envs)) for g, envs in enumerate(make_group() for _ in range(exchange.num_groups))
        ]
        self._views: dict[int, list[_Row]] = {}  # views of rows are made once for each slot
        self._one = np.zeros(1, np.int32)
        self.clock = Clock(exchange.clocks["rollout"][index], ROLLOUT_PHASES, perf_counter())

    def start(self, seed: int) -> bool:
        """Reset all environments and ask for their first actions. Environment i of group g has seed `seed` + (g E + i).
        False: the run ended meanwhile."""
        for g, group in enumerate(self.groups):
            if not self._acquire(group):
                return False
            group.envs.reset(seed + g * self.exchange.E, self._rows(group.slot)[0].observation)
            group.completion.wait()
            self.clock.spent("other", perf_counter())
            self._request(group)
        return True

    def resume(self, group: _Group, arrays: dict[str, np.ndarray], t: int) -> None:
        """Put a group back to row t of a half-filled slot with these contents."""
        self._acquire(group)
        for name, array in arrays.items():
            self.exchange.slab.arrays[name][group.slot] = array
        group.t = t
        self.exchange.cursor[group.number] = group.slot, t

    def ready(self) -> list[int]:
        """Which of this worker's groups (0, 1, ...) have their actions; clears the wake-up word."""
        bits = self.exchange.wake.take(self.index)
        return [g for g in range(len(self.groups)) if bits >> g & 1 and self._take(g)]

    def wait(self, timeout: float) -> list[int]:
        """Like `ready`, but sleeps up to `timeout` seconds until a group has its actions."""
        self.exchange.wake.wait_nonzero(self.index, timeout)
        self.clock.spent("wait_actions", perf_counter())
        return self.ready()

    def _take(self, g: int) -> bool:
        # A wake-up is only a hint: after a policy worker's death everybody is woken once more.
        x, number = self.exchange, self.groups[g].number
        taken = x.requests.compare_exchange(number, READY, IDLE)
        if taken:
            x.cores[number] = x.next_cores[number]  # nobody computes this group's row any more
        return taken

    def step(self, g: int) -> bool:
        """Step group g with the actions of its row, write row t+1 and ask for its actions. False: the run ended meanwhile."""
        group = self.groups[g]
        lanes, t = self._rows(group.slot)[group.t].lanes, group.t
        group.envs.send(lanes)
        group.completion.wait()
        self.clock.spent("step", perf_counter())
        self.clock.count(self.exchange.E)
        group.t = t + 1
        if group.t == self.exchange.T and not self._next_slot(group):
            return False
        self._request(group)
        return True

    def _next_slot(self, group: _Group) -> bool:
        """Hand the finished slot to the learner and go on in a free one: row T here is row 0 there."""
        x, (last,) = self.exchange, self._rows(group.slot)[self.exchange.T].observation
        # Kept aside, because from the next line on the slot may be learned from and given to somebody else.
        last = ObsRow({name: array.copy() for name, array in last.obs.items()}, last.first.copy(), last.valid.copy())
        x.hand_over(group.slot)
        # The only brake: without a free slot the learner is behind, and waiting here bounds memory and policy lag.
        if not self._acquire(group):
            return False
        (first,) = self._rows(group.slot)[0].observation
        for name, array in first.obs.items():
            array[:] = last.obs[name]
        first.first[:], first.valid[:] = last.first, last.valid
        return True

    def _acquire(self, group: _Group) -> bool:
        x = self.exchange
        while not x.slots.acquire(self.index + 1, self._one, timeout=0.2):
            self.clock.spent("wait_slots", perf_counter())
            if x.stopped:
                return False
        self.clock.spent("wait_slots", perf_counter())
        group.slot, group.t = int(self._one[0]), 0
        return True

    def _request(self, group: _Group) -> None:
        x = self.exchange
        x.cursor[group.number] = group.slot, group.t
        if self._act is None:
            x.request(group.number)
        else:
            self._act([group.number])
            x.requests.store(group.number, READY)
            x.wake.fetch_or(self.index, 1 << (group.number - self.groups[0].number))
            self.clock.spent("forward", perf_counter())

    def _rows(self, slot: int) -> list[_Row]:
        rows = self._views.get(slot)
        if rows is None:
            slab, T = self.exchange.slab, self.exchange.T
            obs = [slab.obs_row(slot, t) for t in range(T + 1)]
            steps = [LaneRow(slab.arrays["action"][slot, t], slab.step_row(slot, t), obs[t + 1]) for t in range(T)]
            rows = [_Row((obs[t],), (steps[t],)) for t in range(T)] + [_Row((obs[T],), ())]
            self._views[slot] = rows
        return rows

    def close(self) -> None:
        """Close the environments."""
        for group in self.groups:
            group.envs.close()
