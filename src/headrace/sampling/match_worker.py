"""The rollout worker of multi-agent environments: before every match the matchmaker assigns a member to each agent.

Every agent is a lane. Only lanes with a new observation request an action, and a group is stepped when all of these have theirs.
A lane *rests* between two episodes. The first observation of its next episode goes into row 0 of a new slot, or into the row
after the last observation of the previous episode in the same slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from headrace.envs.core.contract import EnvGroup, LaneRow, ObsRow, StepRow
from headrace.envs.core.last_step import last_step_names, remember_last_step, without_last_step
from headrace.envs.make import make_group
from headrace.sampling.lanes import Group, Lane
from headrace.sampling.match_protocols import Matches
from headrace.sampling.placements.base import Placement
from headrace.sampling.rollout_worker import InlineAct, RolloutWorker
from headrace.sampling.run_memory import RunMemory
from headrace.sampling.worker_process import matchmaking_seed


def make_rollout_worker(placement: Placement, index: int, restarts: int = 0, act: InlineAct | None = None) -> RolloutWorker:
    """Make rollout worker `index` of a run. `restarts`: how many processes the run has replaced so far."""
    config, memory, members = placement.config, placement.memory, placement.members
    own = without_last_step(placement.spec, names := last_step_names(config))

    def make(number: int) -> EnvGroup:
        how: dict[str, Any] = {"number": number, "task": config.task_of_group(number), "spec": own}
        return remember_last_step(make_group(config.env, config.envs, config.envs_per_group, **how), names)

    if members is None:
        return RolloutWorker(index, memory, make, act)
    assert memory.standings is not None
    matches = members.matches(index, memory.standings, matchmaking_seed(config, index, restarts))
    groups = range(index * config.sampling.num_groups, (index + 1) * config.sampling.num_groups)
    first = [config.turn_of_group(group) * config.envs_per_group for group in groups]
    return MatchWorker(index, memory, make, act, matches, first)


class MatchWorker(RolloutWorker):
    """`matches` chooses the members of every match; `first`: the number of each group's first match. The other arguments are
    those of `RolloutWorker`."""

    def __init__(
        self, index: int, memory: RunMemory, make_group: Callable[[int], EnvGroup], act: InlineAct | None, matches: Matches,
        first: Sequence[int],
    ) -> None:  # fmt: skip
        super().__init__(index, memory, make_group, act)
        self._matches, self._first = matches, first
        assert memory.standings is not None
        self._standings = memory.standings
        self._no_step = StepRow.zeros(1)
        # Not read from the environments' specification: an environment server may not have sent it yet.
        self._agents = len(self.groups[0].lanes) // self.groups[0].envs.num_envs  # agents of one match

    def _begin(self, group: Group) -> None:
        self._begin_matches(group, range(group.envs.num_envs))
        super()._begin(group)

    def _begin_matches(self, group: Group, matches: Sequence[int]) -> None:
        """Choose the members of matches that begin with the next step. A lane whose member changes hands in its slot."""
        A, first = self._agents, self._first[group.number]
        for m in matches:
            lanes = group.lanes[m * A : (m + 1) * A]
            outcomes = partial(group.envs.outcomes, m)  # type: ignore[attr-defined]
            for lane, policy in zip(lanes, self._matches.begin(first + m, outcomes), strict=True):
                if policy != lane.policy:
                    self._hand_over(lane)
                    lane.policy = policy
                    self.requests.policy[lane.number] = policy
            population = self.memory.population
            if population is not None and population.reward_names:
                weights = [population.weights_of(self.memory.policies[lane.policy].queue) for lane in lanes]
                group.envs.set_reward_weights(m, weights)  # type: ignore[attr-defined]

    def _look_for_reward_weights(self, group: Group) -> None:
        """Do nothing: `_begin_matches` sets the reward weights of a match."""

    def _hand_over(self, lane: Lane) -> None:
        """Hand in the lane's slot between two episodes. The last written row is the last observation of an episode; the rows
        after it become copies of it, and are not valid."""
        if lane.slot >= 0:
            store, slot, t = self._store(lane), lane.slot, lane.t
            if t < 0:
                store.put_back(slot, self.index)
                lane.slot = -1
            else:
                lane.rows[t].step.write_nothing()
                for name, field in store.fields.items():
                    if field.rows != "once":
                        store.arrays[name][slot, t + 1 :] = store.arrays[name][slot, t]
                store.arrays["first"][slot, t + 1 :] = False
                self._hand_in(lane)
        lane.last = None

    # -- steps ------------------------------------------------------------------------------------------------------------

    def ready(self) -> list[Group]:
        """See `RolloutWorker.ready`. A group that has its actions but lacks slots for a new match is ready too: `step` tries
        again to get the slots."""
        return [group for group in self._without_slots if group.busy == "match slots"] + super().ready()

    def step(self, group: Group) -> None:
        """See `RolloutWorker.step`. Before the step, new matches replace those that have ended."""
        self._begin_matches(group, group.new_matches)
        group.new_matches = ()
        if self._get_slots(group, group.lanes, "match slots"):
            group.rows[:] = [lane.row for lane in group.lanes]
            self._send(group)

    def _advanced(self, group: Group, stepped: bool) -> Sequence[Lane]:
        """The lanes with a new observation. They act next; the other lanes stay at their rows. The first observation of a lane
        moves it from row -1 to row 0."""
        assert group.envs.advanced is not None
        group.set_acting([group.lanes[i] for i in group.envs.advanced])
        group.new_matches = group.envs.ended
        return group.acting

    def _go_on(self, group: Group) -> None:
        if group.busy == "match slots":
            return
        if group.seed is None:  # a lane whose episode ended in the last row of its slot rests
            group.set_acting([lane for lane in group.acting if lane.slot >= 0 or lane.last is not None])
        super()._go_on(group)

    def _request(self, group: Group) -> None:
        super()._request(group)
        if not group.acting:
            self.requests.wake(self.index, group.number)  # no lane acts in this step

    def _ask(self, lanes: Sequence[Lane]) -> None:
        """Let scripted opponents act, and request the actions of the other lanes."""
        others = []
        for lane in lanes:
            if self.memory.policies[lane.policy].acts:
                others.append(lane)
                continue
            arrays, at = self._store(lane).arrays, (lane.slot, lane.t)
            self._matches.act(lane.policy, ObsRow.view(arrays, at).obs, arrays["action"][at])
            self.requests.answered(lane.number)
        super()._ask(others)

    # -- slots ------------------------------------------------------------------------------------------------------------

    def _begin_slot(self, lane: Lane, slot: int) -> None:
        super()._begin_slot(lane, slot)
        arrays = self._store(lane).arrays
        for array in arrays.values():  # an earlier trajectory's rows would make a resumed run differ
            array[slot] = 0
        if "agent" in arrays:
            arrays["agent"][slot] = lane.number % self._agents
        if lane.last is None:
            first, _ = self._slot_views(lane.policy, slot)
            lane.before, lane.t = LaneRow(None, self._no_step, first), -1

    def _finish(self, lane: Lane) -> None:
        if lane.rows[-1].after.valid[0]:
            super()._finish(lane)
        else:
            self._hand_in(lane)  # the episode ended with the slot: the next episode begins in row 0 of a new slot

    def _hand_in(self, lane: Lane) -> None:
        """Give the lane's slot to the learner, or free it where the policy has no learner."""
        if self.memory.policies[lane.policy].learns and not self._standings.done[lane.policy]:
            super()._hand_in(lane)
        else:
            self._store(lane).put_back(lane.slot, self.index)
            lane.slot = -1

    # -- exact resume -----------------------------------------------------------------------------------------------------

    def matches_state(self) -> dict[str, Any] | None:
        return self._matches.get_state()

    def resume_matches(self, state: Any) -> None:
        self._matches.set_state(state)
