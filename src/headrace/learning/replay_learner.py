"""The learner of off-policy algorithms: batches of replayed transitions, one optimizer step each."""

from __future__ import annotations

from typing import Any

import torch

from headrace.accelerator.graphs import Tensors
from headrace.learning.learner import Learner


class ReplayLearner(Learner):
    """Model, target networks, optimizer and counters. `global_step` counts the steps that entered the replay."""

    def learn(self, batch: Tensors, host: Tensors | None = None) -> Tensors:
        """One batch of transitions, one optimizer step. Adds `priority` [B] to the batch; returns the loss's statistics.

        `batch`: what the algorithm wants (see `ApexDQN`), `version` int32 [B] of the weights that chose the actions, and of the
        experience that arrived since the last batch: `new_steps` (int64, scalar), `episode_return`, `episode_length` [k]. While
        the replay fills there are only these: they are counted, no step is made and nothing returned.

        Raises `FloatingPointError`, see `Learner.learn`.
        """
        here = {name: batch.pop(name) for name in ("new_steps", "episode_return", "episode_length")}
        self.progress.global_step += int(here["new_steps"])
        self.progress.episodes += len(here["episode_return"])
        if not batch:
            batch |= here
            return {}
        self._set_learning_rate()
        with torch.no_grad():
            prepared = self._prepare(batch)
        out = self._step(batch | prepared)
        batch |= here | {"priority": out["priority"]}
        statistics = self._reported(out["statistics"].clone().unsqueeze(0))
        self.progress.updates += 1
        self.algorithm.after_update(self.model, self.progress.updates)
        lag = (self.progress.version - 1 - batch["version"]).float()
        return statistics | {"lag/mean": lag.mean(), "lag/min": lag.min(), "lag/max": lag.max()}

    def extra_state(self) -> dict[str, Any]:
        """The algorithm's memory."""
        return self.algorithm.state_dict(self.model)

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """Go on from `extra_state`."""
        self.algorithm.load_state_dict(self.model, state)
