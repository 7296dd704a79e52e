"""Plays an exported policy beside the checkpoint it came from, and compares every output."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from headrace.config.seeds import Use, environment_seed
from headrace.envs.core.actions import batch_decoder
from headrace.envs.core.contract import Categorical, Continuous
from headrace.envs.make import make_group
from headrace.evaluation.games import Games, team_of
from headrace.evaluation.interface import ActionLeaf
from headrace.evaluation.module import act
from headrace.evaluation.onnx_policy import OnnxPolicy
from headrace.evaluation.trained_policy import TrainedPolicy
from headrace.export.graph import ExportError

STEPS = 64  # of each batch size
BATCHES = (1, 7)  # environments that are stepped together. In a multi-agent environment, matches.
TOLERANCE = 1e-3
"""Largest difference of a number, as a share of the number where that is above 1. Sums in another order differ by 1e-7 to 1e-4,
the latter where a core remembers them through a deep network."""


@dataclass
class Verification:
    """Result of the comparison of an exported policy with its checkpoint."""

    observations: int = 0
    batches: list[int] = field(default_factory=list)  # numbers of observations that were given at a time
    resets: int = 0  # observations before which the core was zeroed, or would have been
    differences: dict[str, float] = field(default_factory=dict)  # largest one of each output: |a - b| / max(1, |b|)
    tolerance: float = TOLERANCE
    other_choices: int = 0  # choices that differ because two of them are equally good up to the tolerance

    def note(self, output: str, ours: np.ndarray, theirs: np.ndarray) -> None:
        """Compare one output. Raises `ExportError` where it is not the same."""
        if ours.shape != theirs.shape:
            raise ExportError(f"the output {output} has shape {theirs.shape}, the policy's has {ours.shape}")
        reference = ours.astype(np.float64)
        difference = np.abs(theirs - reference) / np.maximum(1.0, np.abs(reference))
        largest = float(difference.max(initial=0.0))
        if not largest <= self.tolerance:  # NaN is not
            raise ExportError(
                f"the output {output} differs from the policy's by {largest:.3g}, more than {self.tolerance:g} allows, after "
                f"{self.observations} observations that were the same"
            )
        self.differences[output] = max(largest, self.differences.get(output, 0.0))


def verify(policy: TrainedPolicy, exported: OnnxPolicy, actions: list[ActionLeaf]) -> Verification:
    """Play both in the environment, `STEPS` steps for each of `BATCHES`: each goes on with its own core state, which begins with
    numbers other than zero and is reset half way, and wherever an episode ends.

    Raises `ExportError` for the first output that differs by more than `TOLERANCE`.
    """
    found = Verification()
    for envs in BATCHES:
        both = _Both(policy, exported, actions, found)
        num_envs = envs * (len(policy.spec.tasks) or 1)
        with closing(make_group(policy.config.env, policy.config.envs, num_envs, training=False)) as group:
            team, player_of = team_of(policy, group.spec)
            games = Games(group, [both if player is policy else player for player in team], player_of, deterministic=True)
            for _ in games.play([STEPS] * group.num_envs, environment_seed(Use.EVALUATION, 0), max_steps=STEPS):
                pass
    found.batches = sorted(set(found.batches))
    return found


class _Both(TrainedPolicy):
    """Acts as the checkpoint does and asks the exported policy the same. The core state is that of both, side by side."""

    def __init__(self, policy: TrainedPolicy, exported: OnnxPolicy, actions: list[ActionLeaf], found: Verification):
        self._policy, self._exported, self._found, self._calls = policy, exported, found, 0
        self._decoders = [(leaf.name, leaf.columns, batch_decoder(leaf.space)) for leaf in actions]
        self._scale = np.concatenate([_scale(part) for part in policy.spec.action.parts])
        self._width = int(policy.model.core_width)
        both = nn.Module()
        both.core_width = 2 * self._width  # type: ignore[assignment]
        super().__init__(policy.config, policy.spec, policy.algorithm, both, policy.step)

    @torch.inference_mode()
    def act_rows(
        self, obs: dict[str, np.ndarray], core: Tensor, first: np.ndarray, *, deterministic: bool
    ) -> tuple[np.ndarray, Tensor]:
        found, width = self._found, self._width
        if self._calls == 0:
            noise = torch.randn(len(core), width, generator=torch.Generator().manual_seed(0)) / 2
            core, first = torch.cat((noise, noise), -1), np.zeros_like(first)
        elif self._calls == STEPS // 2:
            first = np.ones_like(first)
        self._calls += 1
        tensors = {name: torch.from_numpy(array) for name, array in obs.items()}
        state, begins = core[:, :width], torch.from_numpy(first)
        rows, after, parameters = act(self._policy.algorithm, self._policy.model, tensors, state, begins)
        try:
            outputs = self._exported.run(obs, core[:, width:].contiguous(), first)
        except Exception as error:  # the library's own exceptions have no common class
            raise ExportError(f"onnxruntime fails with a batch of {len(first)}: {error!s:.300}") from error
        ours = {name: tensor.numpy() for name, tensor in parameters.items() if name in outputs}
        if width:
            ours["next_core"] = after.numpy()
            after = torch.cat((after, torch.from_numpy(outputs["next_core"])), -1)
        for name, array in ours.items():
            found.note(name, array, outputs[name])
        self._compare_actions(rows.numpy(), self._exported.rows(outputs), ours)
        found.observations += len(first)
        found.resets += int(first.sum())
        found.batches.append(len(first))
        return rows.numpy(), after

    def _taken(self, rows: np.ndarray) -> np.ndarray:
        """The rows of the actions that the environment gets: rounded and within the bounds of their spaces."""
        return self._exported.rows({name: decode(rows[:, columns]) for name, columns, decode in self._decoders})

    def _compare_actions(self, rows: np.ndarray, theirs: np.ndarray, outputs: dict[str, np.ndarray]) -> None:
        """What the environment gets: numbers within the tolerance; choices the same, unless the policy finds both equally good,
        and integers, unless its number is half way between them."""
        values = outputs.get("logits", outputs.get("q"))
        margin = self._found.tolerance * self._scale
        ours, below, above = (self._taken(rows + add) for add in (0, -margin, margin))
        column = start = 0
        for part in self.spec.action.parts:
            here = slice(column, column := column + part.width)
            mine, its, scale = ours[:, here], theirs[:, here], self._scale[here]
            if isinstance(part, Categorical):
                if values is not None and (mine != its).any() and ((its >= 0) & (its < part.n)).all():
                    own = values[:, start : start + part.n]
                    a, b = (np.take_along_axis(own, rows.astype(int), 1) for rows in (mine, its))
                    equal = np.abs(a - b) <= 2 * self._found.tolerance * np.maximum(1.0, np.abs(a))
                    its = self._other(mine, its, equal)
                self._found.note("action", mine, np.where(mine == its, mine, np.inf))
                start += part.n
            else:
                if part.integer:
                    its = self._other(mine, its, (its == below[:, here]) | (its == above[:, here]))
                self._found.note("action", mine / scale, its / scale)

    def _other(self, mine: np.ndarray, its: np.ndarray, equal: np.ndarray) -> np.ndarray:
        """The exported policy's choices, with those that are as good as the policy's own made the same and counted."""
        self._found.other_choices += int((equal & (mine != its)).sum())
        return np.where(equal, mine, its)


def _scale(part: Categorical | Continuous) -> np.ndarray:
    """Half the range of each number of an action; 1 without bounds, 0 for a choice."""
    if isinstance(part, Categorical):
        return np.zeros(1)
    low, high = np.array(part.low), np.array(part.high)
    return np.where(np.isfinite(high - low), np.maximum((high - low) / 2, 1e-12), 1.0)
