"""Population-based training of one policy: decisions, copies and mutations, which its learner makes between updates.

Every policy decides about itself, with the objectives that the others have written to shared memory, and waits for no other
policy. What it takes over from another policy (weights, state of the optimizer and of the algorithm, normalisers,
hyperparameters) is copied in memory; until the copy is there it learns on with its own.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from headrace.config.population import REWARD
from headrace.envs.core.contract import OBJECTIVE
from headrace.experience.batch import Arrivals
from headrace.learning.learner import Learner
from headrace.learning.training_log import EPISODE_WINDOW, TrainingLog
from headrace.population import pbt
from headrace.population.ratings import RecentGames
from headrace.population.records import NEWEST
from headrace.runs import state_tree
from headrace.runs.messages import Message
from headrace.runs.training_state import load_optimizer
from headrace.sampling.placements.base import Placement


class PbtPolicy:
    """See the module. Made for each learner where `pbt.rule` is not "off"."""

    def __init__(self, placement: Placement, policy: int, learner: Learner, log: TrainingLog):
        assert placement.memory.population is not None
        self._placement, self._policy, self._learner, self._log = placement, policy, learner, log
        self._shared, self._spec = placement.memory.population, placement.spec
        self._pbt = placement.config.pbt
        self._base = placement.configs[policy]
        weights = placement.config.envs.reward_weights
        self._mutables = pbt.mutables(self._base, weights)
        self._weights: dict[str, float] = dict(weights)  # of the parts of the reward, as the settings say
        self._values: dict[str, pbt.Value] = {name: self._initial(name) for name in self._mutables}
        """The hyperparameters that may be mutated, as they are now."""
        self._first = dict(self._values)  # these hyperparameters as they were at the beginning
        self._decisions = 0  # decisions made so far
        self._next = max(self._pbt.number("warmup"), self._pbt.period)  # frames of the policy when the next decision is due
        self._pending: dict[str, Any] | None = None  # what was decided, while the copy of the donor is waited for
        self._copied_after = 0  # what `PopulationMemory.want` returned for that copy
        self._objectives: deque[float] = deque(maxlen=EPISODE_WINDOW)
        self._standings = placement.memory.standings
        self._games = None if self._standings is None else RecentGames(self._standings, policy)
        self._replaced = self._mutated = 0
        """How often it became a copy of another policy, and how often its hyperparameters have changed."""
        self._fresh = True  # whether the run begins, instead of going on from a checkpoint
        self._records: deque[dict[str, Any]] = deque(maxlen=NEWEST)
        self._explained = False  # whether the user was told why nothing is decided
        self._overruled: dict[str, pbt.Value] = {}
        """Hyperparameters for which a resumed run was given another value than it began with."""

    def _initial(self, name: str) -> pbt.Value:
        value = self._weights[name.removeprefix(REWARD)] if name.startswith(REWARD) else pbt.get(self._base, name)
        assert value is not None
        return value

    # -- the run begins, or goes on ----------------------------------------------------------------------------------------

    def begin(self) -> Iterator[Message]:
        """Called when the newest checkpoint, if there is one, was loaded."""
        self._shared.offer(self._policy, self._copy)
        record = None
        if self._fresh and self._pbt.number("keep_first") and self._policy > 0:
            before = dict(self._values)
            self._values = pbt.mutate(self._pbt, before, self._first, self._mutables, self._generator(mutation=True))
            record = self._record(None) | {"values": self._apply(), "before": before}
        self._fresh = False
        self._apply()
        self._publish_objective()
        if self._pending is not None:
            self._ask(self._pending["donor"])
        yield from [Message("population", earlier, self._policy) for earlier in self._records]
        for name, value in self._overruled.items():
            goes_on = f"policy {self._policy} goes on with the {name} of its checkpoint, {self._values[name]:.4g}"
            why = f"{value:.4g} has no effect on what is mutated"
            yield Message("message", f"Population: {goes_on}; {why}", self._policy)
        if record is not None:
            yield self._report(record)

    def get_state(self) -> dict[str, Any]:
        return {
            "values": self._values, "first": self._first, "decisions": self._decisions, "next": self._next,
            "pending": self._pending, "objectives": list(self._objectives), "replaced": self._replaced, "mutated": self._mutated,
            "games": None if self._games is None else self._games.get_state(), "records": list(self._records),
            "first_version": self._log.first_version,
        }  # fmt: skip

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from `get_state`. Hyperparameters that were not mutated then begin with the settings."""
        given, began = self._first, state["first"]
        self._overruled = {name: value for name, value in given.items() if value != began.get(name, value)}
        self._values |= {name: value for name, value in state["values"].items() if name in self._values}
        self._first |= {name: value for name, value in state["first"].items() if name in self._first}
        self._decisions, self._next, self._pending = state["decisions"], state["next"], state["pending"]
        self._objectives.extend(state["objectives"])
        if self._games is not None and state["games"] is not None:
            self._games.set_state(state["games"])
        self._replaced, self._mutated = state["replaced"], state["mutated"]
        self._records.extend(state["records"])
        self._log.first_version = state.get("first_version", 0)
        self._fresh = False

    # -- after every round of the learner ----------------------------------------------------------------------------------

    def step(self, arrivals: Arrivals | None) -> Iterator[Message]:
        """Copy this policy for others that have asked for it; take over a copy that has arrived; make a decision if one is due.
        `arrivals`: the experience that has arrived since."""
        if arrivals is not None:
            infos = arrivals.since(self._log.first_version).infos
            if self._pbt.objective == OBJECTIVE and len(infos):
                objectives = infos[:, self._spec.info_metrics.index(OBJECTIVE)].tolist()
                self._objectives.extend(x for x in objectives if not math.isnan(x))  # NaN: not known
        self._publish_objective()
        self._shared.serve(self._policy)
        if self._pending is not None:
            yield from self._adopt(self._pending)
        elif self._frames >= self._next:
            yield from self._decide()

    def finish(self) -> None:
        """The policy learns no more; it may still be copied. Without an objective it will never have one, and the others go on:
        then it counts as the worst."""
        if math.isnan(self._shared.objectives[self._policy]):
            self._shared.objectives[self._policy] = -math.inf
        self._shared.serve(self._policy, last=True)

    def metrics(self) -> dict[str, float]:
        values = {f"population/{name}": float(value) for name, value in self._values.items()}
        counts = {"population/replacements": float(self._replaced), "population/mutations": float(self._mutated)}
        return {"population/objective": float(self._shared.objectives[self._policy]), **counts, **values}

    @property
    def _frames(self) -> int:
        return self._learner.progress.global_step * self._spec.frameskip

    def _publish_objective(self) -> None:
        if self._games is not None:
            self._games.update()
        self._shared.objectives[self._policy] = self._objective()

    def _objective(self) -> float:
        if self._games is not None and self._standings is not None and self._pbt.of_matches:
            rate = self._games.win_rate
            return rate if self._pbt.objective == "win_rate" or math.isnan(rate) else float(self._standings.rating[self._policy])
        if self._pbt.objective == "return":
            return self._log.mean_return
        return float(np.mean(self._objectives)) if self._objectives else math.nan

    def _generator(self, mutation: bool) -> np.random.Generator:
        """A generator for the next decision, seeded by the decision's number, so that checkpoints need not hold its state."""
        return np.random.default_rng([self._placement.config.seed, self._policy, self._decisions, int(mutation)])

    def _decide(self) -> Iterator[Message]:
        self._next += self._pbt.period * (1 + (self._frames - self._next) // self._pbt.period)
        self._decisions += 1
        decision = pbt.decide(self._pbt, self._policy, self._shared.objectives.tolist(), self._generator(mutation=False))
        if decision is None:
            yield from self._explain()
            return
        record = self._record(decision)
        if decision.donor is not None:
            self._pending = {"donor": decision.donor, "mutate": decision.mutate, "record": record}
            self._ask(decision.donor)
            yield from self._adopt(self._pending)  # at once, where learners take turns
            return
        if decision.mutate:
            self._mutate()
        yield self._report(record | {"values": self._apply()})

    def _report(self, record: dict[str, Any]) -> Message:
        self._records.append(record)
        return Message("population", record, self._policy)

    def _explain(self) -> Iterator[Message]:
        """Say why nothing is decided: once, since that may take long."""
        if self._explained:
            return
        self._explained = True
        *others, last = [str(q) for q, value in enumerate(self._shared.objectives.tolist()) if math.isnan(value)]
        who = f"policies {', '.join(others)} and {last} have" if others else f"policy {last} has"
        tasks = " of some task" if self._spec.tasks else ""
        games = "no game against another member has ended since the policy began or became a copy"
        why = games if self._pbt.of_matches else "no episode has ended"
        text = (
            f"Population: nothing is decided about policy {self._policy} at step {self._learner.progress.global_step:,}, because "
            f"{who} no objective (pbt.objective {self._pbt.objective}: {why}{tasks}). Nobody is replaced or mutated before "
            f"all have one; learning goes on, and the next decision about this policy is due at frame {self._next:,}"
        )
        yield Message("message", text, self._policy)

    def _ask(self, donor: int) -> None:
        self._copied_after = self._shared.want(donor, self._policy)

    def _record(self, decision: pbt.Decision | None) -> dict[str, Any]:
        return {
            "policy": self._policy,
            "global_step": self._learner.progress.global_step,
            "frames": self._frames,
            "decision": self._decisions,
            "objectives": [value if math.isfinite(value) else None for value in self._shared.objectives.tolist()],
            "rank": decision and decision.rank,
            "donor": decision and decision.donor,
            "before": dict(self._values),
        }

    # -- changes -----------------------------------------------------------------------------------------------------------

    def _mutate(self) -> None:
        before = self._values
        self._values = pbt.mutate(self._pbt, before, self._first, self._mutables, self._generator(mutation=True))
        self._mutated += self._values != before

    def _apply(self) -> dict[str, pbt.Value]:
        """Learn with the hyperparameters from now on; returns them."""
        self._base, self._values = pbt.with_values(self._base, self._values)
        self._learner.reconfigure(self._base)
        if self._weights:
            new = [float(self._values.get(REWARD + name, weight)) for name, weight in self._weights.items()]
            self._shared.set_reward_weights(self._policy, new)
        return dict(self._values)

    def _copy(self) -> bytes:
        """This policy as others take it over."""
        learner = self._learner
        learner.settle()  # nothing is copied that is not finite
        return state_tree.to_bytes(
            {
                "model": learner.model.state_dict(),
                "optimizer": learner.optimizer.state_dict(),
                "learner": learner.algorithm.state_dict(learner.model),
                "values": self._values,
                "log": self._log.get_state(),
                "objectives": list(self._objectives),
                "global_step": learner.progress.global_step,
            }
        )

    def _adopt(self, pending: dict[str, Any]) -> Iterator[Message]:
        """Become a copy of the donor, with the returns of its games, if the copy is there. Experience and games of the former
        weights do not count any more."""
        arrived = self._shared.read(pending["donor"], self._copied_after)
        if arrived is None:
            return
        self._pending, learner, copy = None, self._learner, state_tree.from_bytes(arrived)
        learner.model.load_state_dict(copy["model"])
        load_optimizer(learner.optimizer, copy["optimizer"])
        learner.algorithm.load_state_dict(learner.model, copy["learner"])
        self._values = dict(copy["values"])
        if self._games is not None and self._standings is not None:  # the games of the weights from before say nothing of it
            self._games.clear()
            self._standings.take_over(self._policy, pending["donor"])
        self._replaced += 1
        if pending["mutate"]:
            self._mutate()
        values = self._apply()
        learner.progress.lost_versions += self._base.learning.max_policy_lag + 1
        self._log.set_state(copy["log"])
        self._log.first_version = learner.progress.version
        self._objectives = deque(copy["objectives"], maxlen=EPISODE_WINDOW)
        self._placement.publish(self._policy, learner.model, learner.progress.version)
        taken = {"values": values, "donor_step": copy["global_step"], "taken_at": learner.progress.global_step}
        yield self._report(pending["record"] | taken)
