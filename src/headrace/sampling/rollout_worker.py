"""The rollout worker: steps environments, holds no policy.

Its environments form groups. While the actions of one group are being computed, another group is stepped (double buffering),
so with k environments the worker never waits if k/2 > ceil(t_inference / t_environment). A group whose world is elsewhere costs
it no waiting either: `send` begins a step, and the worker goes on with whatever is ready first, actions or environments. Nor
does a group that needs a slot while there is none keep the others waiting: with several policies theirs may be free.

In a multi-agent environment every agent is a lane. Only those with a new observation ask for an action, and a group is stepped
when all of these have theirs. A lane *rests* between two episodes: its next observation is the first of a slot, or the one after
the last observation of the episode before, in the same slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Literal

from headrace.envs.contract import EnvGroup, EnvironmentFault, LaneRow, ObsRow, StepRow
from headrace.envs.group import LocalGroup, close_all
from headrace.envs.multi_agent import MultiAgentGroup
from headrace.sampling.lanes import Group, Lane
from headrace.sampling.run_memory import RunMemory
from headrace.sampling.seating import Seating
from headrace.sampling.trajectory_fields import lane_row, obs_row
from headrace.shm.run_control import POLL_INTERVAL
from headrace.shm.trajectory_store import TrajectoryStore

InlineAct = Callable[[int, list[int]], None]
"""Computes the actions of these lanes (numbers) with this policy (number)."""
Seat = Callable[[int, EnvGroup, int, list[int]], Sequence[int]]
"""The policies of one match: given the match's number in the run, its group and its number there, and the lanes of its agents.
The group knows how the match before ended."""
SLOT_POLL = 0.005
"""Seconds between two looks for a free slot while the worker waits for something else, too."""


class RolloutWorker:
    """Environments of one worker. `act` is called to get a group's actions where the policy is `inline`; None: they are
    requested from the policy workers. `make_group` is given the group's number among those of all workers. `seat` says, in
    multi-agent environments, which policy acts for which agent of the next match.

    `start`, `run`, `ready` and `step` raise `Closed` when the run has ended.
    """

    def __init__(
        self,
        index: int,
        memory: RunMemory,
        make_group: Callable[[int], EnvGroup],
        act: InlineAct | None = None,
        seat: Seat | None = None,
    ):
        self.index, self.memory, self.requests, self._act, self._seat = index, memory, memory.requests, act, seat
        # Not from the environments' specification: those that are elsewhere may not have given it yet.
        self._multi_agent = memory.standings is not None
        """Every lane is one agent of a multi-agent environment, and not all of them act in every step."""
        first = index * self.requests.num_groups
        self.groups = [self._group(g, make_group(first + g)) for g in range(self.requests.num_groups)]
        self._without_slots: list[Group] = []
        self._views: dict[tuple[int, int], tuple[ObsRow, list[LaneRow]]] = {}  # views of rows are made once for each slot
        self._no_step = StepRow.zeros(1)
        self._agents = len(self.groups[0].lanes) // self.groups[0].envs.num_envs
        """Of a match, in a multi-agent environment."""
        self.clock = memory.control.clock("rollout", index)

    def _group(self, g: int, envs: EnvGroup) -> Group:
        lanes = [Lane(number, int(self.requests.policy[number])) for number in self.requests.lanes_of(self.index, g)]
        self._check_group(envs)
        envs.notify(lambda: self.requests.wake(self.index, g))
        return Group(g, envs, lanes)

    def _check_group(self, envs: EnvGroup) -> None:
        """What population-based training asks of environments and whole batches of them cannot do would be missed in silence."""
        population = self.memory.population
        if population is None or isinstance(envs, LocalGroup | MultiAgentGroup):
            return
        asked = ["envs.reward_weights"] if population.reward_names else []
        if "episode_objective" in self.memory.policies[0].trajectories.arrays:
            asked.append("pbt.objective true_objective")
        if asked:
            raise EnvironmentFault(
                f"{' and '.join(asked)} need environments that are stepped one by one in this process; these are a "
                f"{type(envs).__name__}"
            )

    def start(self, seed: int) -> None:
        """Reset all environments and ask for their first actions. Environment i of group g has seed `seed` + (g E + i)."""
        for group in self.groups:
            group.seed = seed + group.number * group.envs.num_envs
            if self._multi_agent:
                self._seat_matches(group, range(group.envs.num_envs))
            self._go_on(group)

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
            if group.busy == "seats":
                found.append(group)  # its actions are taken; `step` looks for slots again
            else:
                self._go_on(group)
        # A wake-up is only a hint: after a policy worker's death everybody is woken once more.
        for g in self.requests.woken_groups(self.index):
            group = self.groups[g]
            if group.busy in ("slots", "seats"):
                continue
            if group.busy:
                self._receive(group)
            elif self.requests.take(group.acting_numbers):
                found.append(group)
        return found

    def step(self, group: Group) -> None:
        """Step a group with the actions of its lanes' current rows; when that is done, ask for the actions of the next rows."""
        rows = group.rows
        if self._multi_agent:
            self._seat_matches(group, group.new_matches)
            group.new_matches = ()
            if not self._get_slots(group, group.lanes, "seats"):
                return
            for i, lane in enumerate(group.lanes):
                rows[i] = lane.row
        else:
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
        if self._multi_agent:
            self._advance(group)
        if stepped:
            self.clock.spent("step", perf_counter())
            self.clock.count(len(group.acting) * self.requests.C)
        if stepped or self._multi_agent:
            finished = False
            for lane in group.acting:
                lane.t += 1
                if lane.t == self.memory.T:
                    self._finish(lane)
                    finished = True
            if finished:
                if self._multi_agent:
                    group.set_acting([lane for lane in group.acting if lane.slot >= 0 or lane.last is not None])
                self._go_on(group)
                return
        self._request(group)

    def _finish(self, lane: Lane) -> None:
        """Hand the finished slot to the learner."""
        last = lane.rows[-1].after
        # Copied, because from the next line on the slot may be learned from and given to somebody else.
        if not self._multi_agent or last.valid[0]:
            lane.last = last.map(lambda array: array.copy())
        self._hand_in(lane)

    def _hand_in(self, lane: Lane) -> None:
        """Give the lane's slot to the learner, or back where there is none."""
        policy, standings = self.memory.policies[lane.policy], self.memory.standings
        if policy.learns and (standings is None or not standings.done[lane.policy]):
            lane.finished += 1
            policy.trajectories.finish(lane.slot, lane.finished)
        else:
            policy.trajectories.put_back(lane.slot, self.index)
        lane.slot = -1

    def _go_on(self, group: Group) -> None:
        """Get the slots that the group's lanes need and, when all have theirs, reset the environments or ask for actions.

        This is the only brake of the engine: without a free slot the learner is behind, and waiting bounds memory and policy
        lag."""
        if not self._get_slots(group, group.acting, "slots"):
            return
        if self.memory.population is not None and not self._multi_agent:
            self._look_for_reward_weights(group)
        if group.seed is not None:
            first = [self._slot_views(lane.policy, lane.slot)[0] for lane in group.lanes]
            group.envs.reset(group.seed, first)
            group.busy, group.seed = "reset", None
            self.clock.spent("other", perf_counter())
            self._receive(group)
            return
        for lane in group.acting:
            self._write_first_row(lane)
        self.clock.spent("other", perf_counter())
        self._request(group)

    def _write_first_row(self, lane: Lane) -> None:
        """The last observation of the slot before is the first of this one."""
        if lane.last is None:
            return
        row = self._slot_views(lane.policy, lane.slot)[0]
        for name, array in row.obs.items():
            array[:] = lane.last.obs[name]
        row.first[:], row.valid[:] = lane.last.first, lane.last.valid
        lane.last = None

    def _look_for_reward_weights(self, group: Group) -> None:
        """Once per trajectory: the weights of the policy's reward, if population-based training has changed them."""
        population, policy = self.memory.population, group.lanes[0].policy
        assert population is not None
        updates = int(population.reward_updates[policy])
        if updates != group.reward_updates:
            group.reward_updates = updates
            weights = population.weights_of(policy)
            if weights != group.reward_weights:
                self.set_reward_weights(group, weights)

    def set_reward_weights(self, group: Group, weights: dict[str, float]) -> None:
        """Let the group's environments weigh the parts of their rewards like this."""
        group.envs.set_reward_weights(weights)  # type: ignore[attr-defined]
        group.reward_weights = weights

    def _get_slots(self, group: Group, lanes: Sequence[Lane], busy: Literal["slots", "seats"]) -> bool:
        """Get a slot for each of these lanes that has none. False where there are too few: the group then waits for them, and is
        `busy` with that."""
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
        """The lane's next rows are those of this slot."""
        first, lane.rows = self._slot_views(lane.policy, slot)
        lane.slot, lane.t = slot, 0
        self.requests.cursor[lane.number] = slot, 0
        # A saved state has nothing of an earlier trajectory in its unwritten rows: those differ after a resume.
        if self._multi_agent:
            arrays = self._store(lane).arrays
            for array in arrays.values():
                array[slot] = 0
            if "agent" in arrays:
                arrays["agent"][slot] = lane.number % self._agents
        if lane.last is None:
            lane.before = LaneRow(None, self._no_step, first)
            if self._multi_agent:
                lane.t = -1

    def _request(self, group: Group) -> None:
        """Ask for the actions of the group's acting lanes; where this worker holds the policy, compute them."""
        for lane in group.acting:
            self.requests.cursor[lane.number, 1] = lane.t
        asking = group.acting
        if self._multi_agent:
            asking = self._ask_scripts(asking)
            if not group.acting:
                self.requests.wake(self.index, group.number)  # nobody acts in this step
        if self._act is None:
            for lane in asking:
                self.requests.request(lane.number)
            return
        for policy in dict.fromkeys(lane.policy for lane in asking):
            self._act(policy, [lane.number for lane in asking if lane.policy == policy])
        for lane in asking:
            self.requests.answered(lane.number)
        self.clock.spent("forward", perf_counter())

    # -- multi-agent environments -----------------------------------------------------------------------------------------

    def _advance(self, group: Group) -> None:
        """The lanes with a new observation are those that act; the others keep their rows."""
        assert group.envs.advanced is not None
        group.set_acting([group.lanes[i] for i in group.envs.advanced])
        group.new_matches = group.envs.ended

    def _ask_scripts(self, lanes: list[Lane]) -> list[Lane]:
        """Let scripted opponents act; returns the other lanes."""
        others = []
        for lane in lanes:
            if self.memory.policies[lane.policy].acts:
                others.append(lane)
                continue
            assert isinstance(self._seat, Seating)
            arrays, at = self._store(lane).arrays, (lane.slot, lane.t)
            self._seat.act(lane.policy, obs_row(arrays, at).obs, arrays["action"][at])
            self.requests.answered(lane.number)
        return others

    def _seat_matches(self, group: Group, matches: Sequence[int]) -> None:
        """Let `seat` choose who acts in these matches, which the next step begins. A lane whose policy changes hands over its
        slot."""
        if self._seat is None or not matches:
            return
        A = len(group.lanes) // group.envs.num_envs  # the specification is not known before a server has answered
        first = (self.index * self.requests.num_groups + group.number) * group.envs.num_envs
        for m in matches:
            lanes = group.lanes[m * A : (m + 1) * A]
            for lane, policy in zip(lanes, self._seat(first + m, group.envs, m, [lane.number for lane in lanes]), strict=True):
                if policy != lane.policy:
                    self._hand_over(lane)
                    lane.policy = policy
                    self.requests.policy[lane.number] = policy
            population = self.memory.population
            if population is not None and population.reward_names:
                families = [self.memory.policies[lane.policy].family for lane in lanes]
                group.envs.set_reward_weights(m, [population.weights_of(p) for p in families])  # type: ignore[attr-defined]

    def _hand_over(self, lane: Lane) -> None:
        """Part with the slot between two episodes. Its last row written is the last observation of an episode; those after it
        repeat it, and are not valid either."""
        if lane.slot >= 0:
            store, slot, t = self._store(lane), lane.slot, lane.t
            if t < 0:
                store.put_back(slot, self.index)
                lane.slot = -1
            else:
                lane.rows[t].step.write_nothing()
                for name, field_ in store.fields.items():
                    if field_.rows != "once":
                        store.arrays[name][slot, t + 1 :] = store.arrays[name][slot, t]
                store.arrays["first"][slot, t + 1 :] = False
                self._hand_in(lane)
        lane.last = None

    # -- exact resume -----------------------------------------------------------------------------------------------------

    def lane_state(self, lane: Lane) -> dict[str, Any]:
        """Where the lane is, with the contents of its slot."""
        arrays = self._store(lane).arrays
        slot = None if lane.slot < 0 else {name: array[lane.slot].copy() for name, array in arrays.items()}
        return {"policy": lane.policy, "row": lane.t, "slot": slot}

    def resume(self, group: Group, lanes: list[dict[str, Any]], acting: list[int], new_matches: list[int]) -> None:
        """Put a group's lanes back to what `lane_state` gave. `acting`: indices of those that act; `new_matches`: which are to
        begin with the next step."""
        for lane, state in zip(group.lanes, lanes, strict=True):
            lane.policy = state["policy"]
            self.requests.policy[lane.number] = lane.policy
            if state["slot"] is None:
                continue
            if not self._acquire(lane, timeout=0):
                raise RuntimeError("no free slot to go on in")
            for name, array in state["slot"].items():
                self._store(lane).arrays[name][lane.slot] = array
            lane.t = state["row"]
            self.requests.cursor[lane.number, 1] = max(lane.t, 0)
        if self._multi_agent:
            group.set_acting([group.lanes[i] for i in acting])
            group.new_matches = new_matches

    # ---------------------------------------------------------------------------------------------------------------------

    def _store(self, lane: Lane) -> TrajectoryStore:
        return self.memory.policies[lane.policy].trajectories

    def _slot_views(self, policy: int, slot: int) -> tuple[ObsRow, list[LaneRow]]:
        """Row 0's observation, and for every row its actions, their consequences and the observation after it."""
        views = self._views.get((policy, slot))
        if views is None:
            arrays = self.memory.policies[policy].trajectories.arrays
            rows = [lane_row(arrays, (slot, t), (slot, t + 1)) for t in range(self.memory.T)]
            views = self._views[policy, slot] = obs_row(arrays, (slot, 0)), rows
        return views

    def close(self) -> None:
        """Close every group's environments, also when one of them fails to."""
        close_all([group.envs for group in self.groups])
