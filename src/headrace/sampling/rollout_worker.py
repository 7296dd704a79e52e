"""The rollout worker: steps environments, holds no policy.

Its environments form groups. While the actions of one group are being computed, another group is stepped (double buffering),
so with k environments the worker never waits if k/2 > ceil(t_inference / t_environment). It does not wait for remote
environments either: `send` begins a step, and the worker goes on with the group that is ready first. A group that needs a slot
while none is free does not delay the others: other policies may have free slots.

Multi-agent environments have a worker of their own: `headrace.sampling.match_worker`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from headrace.envs.core.contract import EnvGroup, LaneRow, ObsRow
from headrace.envs.core.errors import EnvironmentFault
from headrace.envs.groups.base import close_all
from headrace.envs.groups.local import LocalGroup
from headrace.envs.groups.multi_agent import MultiAgentGroup
from headrace.sampling.lanes import Busy, Group, Lane
from headrace.sampling.run_memory import RunMemory
from headrace.shm.run_control import POLL_INTERVAL
from headrace.shm.trajectory_store import TrajectoryStore

InlineAct = Callable[[int, list[int]], None]
"""Computes the actions of lanes; arguments: the policy's number, the lanes' numbers."""
SLOT_POLL = 0.005  # seconds between two checks for a free slot while the worker also waits for something else


class RolloutWorker:
    """Environments of one worker. `act` computes a group's actions in the `inline` placement; None: policy workers do.
    `make_group` makes a group from its number among the groups of all workers.

    `start`, `run`, `ready` and `step` raise `Closed` when the run has ended.
    """

    def __init__(self, index: int, memory: RunMemory, make_group: Callable[[int], EnvGroup], act: InlineAct | None = None):
        self.index, self.memory, self.requests, self._act = index, memory, memory.requests, act
        first = index * self.requests.num_groups
        self.groups = [self._group(g, make_group(first + g)) for g in range(self.requests.num_groups)]
        self._without_slots: list[Group] = []
        self._views: dict[tuple[int, int], tuple[ObsRow, list[LaneRow]]] = {}  # views of rows are made once for each slot
        self.clock = memory.control.clock("rollout", index)

    def _group(self, g: int, envs: EnvGroup) -> Group:
        lanes = [Lane(number, int(self.requests.policy[number])) for number in self.requests.lanes_of(self.index, g)]
        self._check_group(envs)
        envs.notify(lambda: self.requests.wake(self.index, g))
        return Group(g, envs, lanes)

    def _check_group(self, envs: EnvGroup) -> None:
        """Raise `EnvironmentFault` if population-based training is to set weights that batched environments cannot take."""
        population = self.memory.population
        if population is None or not population.reward_names:
            return
        if not isinstance(getattr(envs, "inner", envs), LocalGroup | MultiAgentGroup):
            raise EnvironmentFault(
                "envs.reward_weights, in population-based training, need environments that are stepped one by one in this "
                f"process, not a {type(envs).__name__}"
            )

    def start(self, seed: int) -> None:
        """Reset all environments and ask for their first actions. Environment i of group g has seed `seed` + (g E + i)."""
        for group in self.groups:
            group.seed = seed + group.number * group.envs.num_envs
            self._begin(group)

    def _begin(self, group: Group) -> None:
        """Reset the group's environments as soon as its lanes have slots."""
        self._go_on(group)

    def run(self) -> None:
        """Step whatever is ready until the run ends."""
        while not self.memory.control.stopped:
            for group in self.wait(POLL_INTERVAL):
                self.step(group)

    def wait(self, timeout: float) -> list[Group]:
        """Like `ready`, but sleeps up to `timeout` seconds until a group may be ready."""
        if self._without_slots and len(self._without_slots) == len(self.groups):
            # All groups wait for slots. With several policies, another policy's slots may be free first.
            lane = next(lane for lane in self._without_slots[0].lanes if lane.slot < 0)
            self._acquire(lane, timeout if len(self.memory.policies) == 1 else min(timeout, SLOT_POLL))
            self.clock.spent("wait_slots", perf_counter())
        else:
            self.requests.wait(self.index, min(timeout, SLOT_POLL) if self._without_slots else timeout)
            self.clock.spent("wait_actions", perf_counter())
        return self.ready()

    def ready(self) -> list[Group]:
        """The groups whose lanes all have their actions. Groups whose environments have finished a step request the next ones."""
        for group in self._without_slots[:]:
            self._go_on(group)
        found = []
        # A wake-up is only a hint: after a policy worker's death the supervisor wakes all workers once more.
        for g in self.requests.woken_groups(self.index):
            group = self.groups[g]
            if group.busy in ("reset", "step"):
                self._receive(group)
            elif not group.busy and self.requests.take(group.acting_numbers):
                found.append(group)
        return found

    def step(self, group: Group) -> None:
        """Step a group with the actions of its lanes' current rows, then request the actions of the next rows."""
        group.rows[:] = [lane.rows[lane.t] for lane in group.lanes]
        self._send(group)

    def _send(self, group: Group) -> None:
        group.envs.send(group.rows)
        group.busy = "step"
        self._receive(group)

    def _receive(self, group: Group) -> None:
        """If the environments have finished, move on to the next rows and request their actions."""
        if not group.envs.recv():
            return
        stepped, group.busy = group.busy == "step", ""
        advanced = self._advanced(group, stepped)
        if stepped:
            self.clock.spent("step", perf_counter())
            self.clock.count(len(advanced) * self.requests.C)
        finished = False
        for lane in advanced:
            lane.t += 1
            if lane.t == self.memory.T:
                self._finish(lane)
                finished = True
        if finished:
            self._go_on(group)
        else:
            self._request(group)

    def _advanced(self, group: Group, stepped: bool) -> Sequence[Lane]:
        """The lanes that have finished a row. After a reset (not `stepped`) there is only an observation in row 0."""
        return group.acting if stepped else ()

    def _finish(self, lane: Lane) -> None:
        # Copied, because after the next line the learner may free the slot and another lane may write to it.
        lane.last = lane.rows[-1].after.map(lambda array: array.copy())
        self._hand_in(lane)

    def _hand_in(self, lane: Lane) -> None:
        lane.finished += 1
        self._store(lane).finish(lane.slot, lane.finished, lane.number)
        lane.slot = -1

    def _go_on(self, group: Group) -> None:
        """Get the slots that the group's lanes need; when all have theirs, reset the environments or request actions.

        Nothing else slows sampling down: if no slot is free, the learner is behind, and waiting bounds memory and policy lag."""
        if not self._get_slots(group, group.acting, "slots"):
            return
        if self.memory.population is not None:
            self._look_for_reward_weights(group)
        if group.seed is not None:
            first = [self._slot_views(lane.policy, lane.slot)[0] for lane in group.lanes]
            group.envs.reset(group.seed, first)
            group.busy, group.seed = "reset", None
            self.clock.spent("other", perf_counter())
            self._receive(group)
            return
        for lane in group.acting:
            if lane.last is not None:  # the last observation of the previous slot is the first of this one
                self._slot_views(lane.policy, lane.slot)[0].copy_from(lane.last)
                lane.last = None
        self.clock.spent("other", perf_counter())
        self._request(group)

    def _look_for_reward_weights(self, group: Group) -> None:
        """Once per trajectory, take over reward weights that population-based training has changed."""
        population, policy = self.memory.population, group.lanes[0].policy
        assert population is not None
        updates = int(population.reward_updates[policy])
        if updates != group.reward_updates:
            group.reward_updates = updates
            weights = population.weights_of(policy)
            if weights != group.reward_weights:
                self.set_reward_weights(group, weights)

    def set_reward_weights(self, group: Group, weights: dict[str, float]) -> None:
        """Set the weights of the parts of the reward in the group's environments."""
        group.envs.set_reward_weights(weights)  # type: ignore[attr-defined]
        group.reward_weights = weights

    def _get_slots(self, group: Group, lanes: Sequence[Lane], busy: Busy) -> bool:
        """Get a slot for each of these lanes that has none. False if too few are free: then the group is `busy` and waits."""
        for lane in lanes:
            if lane.slot < 0 and not self._acquire(lane, timeout=0):
                if group.busy != busy:
                    group.busy = busy
                    self._without_slots.append(group)
                return False
        if group.busy == busy:
            self._without_slots.remove(group)
            group.busy = ""
        return True

    def _acquire(self, lane: Lane, timeout: float) -> bool:
        """Get a free slot for the lane; False if there is none within `timeout` seconds."""
        slot = self._store(lane).acquire(self.index, timeout)
        if slot is None:
            return False
        self._begin_slot(lane, slot)
        return True

    def _begin_slot(self, lane: Lane, slot: int) -> None:
        """Let the lane continue in this slot, at row 0."""
        _, lane.rows = self._slot_views(lane.policy, slot)
        lane.slot, lane.t = slot, 0
        self.requests.cursor[lane.number] = slot, 0

    def _request(self, group: Group) -> None:
        """Request the actions of the group's acting lanes, or compute them if this worker has the policy."""
        for lane in group.acting:
            self.requests.cursor[lane.number, 1] = lane.t
        self._ask(group.acting)

    def _ask(self, lanes: Sequence[Lane]) -> None:
        if self._act is None:
            for lane in lanes:
                self.requests.request(lane.number)
            return
        for policy in dict.fromkeys(lane.policy for lane in lanes):
            self._act(policy, [lane.number for lane in lanes if lane.policy == policy])
        for lane in lanes:
            self.requests.answered(lane.number)
        self.clock.spent("forward", perf_counter())

    # -- exact resume -----------------------------------------------------------------------------------------------------

    def lane_state(self, lane: Lane) -> dict[str, Any]:
        """The lane's policy and row, and the contents of its slot, or what it takes to the next one."""
        arrays = self._store(lane).arrays
        slot = None if lane.slot < 0 else {name: array[lane.slot].copy() for name, array in arrays.items()}
        return {"policy": lane.policy, "row": lane.t, "slot": slot, "last": lane.last and vars(lane.last)}

    def resume(self, group: Group, lanes: list[dict[str, Any]], acting: list[int], new_matches: list[int]) -> None:
        """Restore a group's lanes from `lane_state`. `acting`: indices of the acting lanes; `new_matches`: the matches that begin
        with the next step."""
        for lane, state in zip(group.lanes, lanes, strict=True):
            lane.policy = state["policy"]
            self.requests.policy[lane.number] = lane.policy
            if state["slot"] is None:
                if last := state.get("last"):  # it waits for a slot again; older checkpoints have none of these
                    lane.last, lane.t, group.busy = ObsRow(**last), state["row"], "slots"
                    self._without_slots.append(group)
                continue
            if not self._acquire(lane, timeout=0):
                raise RuntimeError("no free slot to go on in")
            for name, array in state["slot"].items():
                self._store(lane).arrays[name][lane.slot] = array
            lane.t = state["row"]
            self.requests.cursor[lane.number, 1] = max(lane.t, 0)
        group.set_acting([group.lanes[i] for i in acting])
        group.new_matches = new_matches

    def matches_state(self) -> dict[str, Any] | None:
        """The members and the matchmaker's state of the current matches; None in environments of one agent."""
        return None

    def resume_matches(self, state: Any) -> None:
        """Go on with matches from `matches_state`."""

    def _store(self, lane: Lane) -> TrajectoryStore:
        return self.memory.policies[lane.policy].trajectories

    def _slot_views(self, policy: int, slot: int) -> tuple[ObsRow, list[LaneRow]]:
        """Views of a slot: row 0's observation; for every row its action, reward, flags and the observation after it."""
        views = self._views.get((policy, slot))
        if views is None:
            arrays = self.memory.policies[policy].trajectories.arrays
            rows = [LaneRow.view(arrays, (slot, t), (slot, t + 1)) for t in range(self.memory.T)]
            views = self._views[policy, slot] = ObsRow.view(arrays, (slot, 0)), rows
        return views

    def close(self) -> None:
        close_all([group.envs for group in self.groups])
