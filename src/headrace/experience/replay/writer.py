"""From trajectories to the replay: the steps of a finished slot become rows of its environments' histories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

import headrace._native.replay as native
from headrace.config import Config
from headrace.experience.replay.buffer import Replay
from headrace.experience.replay.layout import Sequences, sequences_of
from headrace.shm.trajectory_store import TrajectoryStore


class TrajectoryWriter(native.TrajectoryWriter):
    """Writes trajectories to the replay, and the first priorities of what they hold. One per replay at a time.

    A first priority is the n-step error of the values that acting computed (`q` and `value`). A row's error is known when the n
    rows behind it are there, so the newest rows of a history wait here for the environment's next trajectory. Sequences start at
    row 0 of every trajectory, where the core state is stored; their priority is the mixture of their rows' errors. Without a
    field `q` there is no error: then transitions have the priority that `write` is given with the rows behind them.

    What is stored of a stack is its newest frame. Where an episode's first stack cannot be rebuilt from that (it holds neither
    copies of its newest frame, nor zeros, nor the frames before), its older frames are stored as rows without an action. A row
    without an action also holds an episode's true last observation, where environments reset in the same step.

    Args:
        replay: with fields named as in `arrays`.
        arrays: of a trajectory store, `[slots, rows, C, ...]` each, with the field `env_index`, and for errors `q`,
            besides the common ones.
        gamma: what the value after a step is multiplied with, if the episode did not terminate with it.
        envs: the numbers of the environments that the replay has histories for; None: from 0 on. `envs[i]` is written to the
            histories `i * copies` to `i * copies + copies - 1`.

    Raises `ValueError` where `arrays` do not fit the replay.
    """

    def __init__(
        self,
        replay: Replay,
        arrays: Mapping[str, np.ndarray],
        gamma: float,
        copies: int = 1,
        sequences: Sequences | None = None,
        envs: Sequence[int] | None = None,
    ):
        rescaled = sequences is not None and sequences.rescaled
        parts = (sequences.burn_in, sequences.length) if sequences else None
        numbers = list(range(replay.config.histories // copies) if envs is None else envs)
        super().__init__(replay.native, dict(arrays), list(replay.fields), gamma, copies, parts, rescaled, numbers)

    def write(self, slot: int, otherwise: float = 1.0) -> None:
        """Write one slot. Other threads run meanwhile. `otherwise`: first priority of transitions without `q`.

        Raises `ValueError` for rewards or values that are not finite, and for sequences with stacks that cannot be stored, as
        said above; `IndexError` for an environment that the replay has no history for.
        """
        super().write(slot, otherwise)

    def get_state(self) -> np.ndarray:
        """The writer's state of all histories, as bytes (uint8), with which it can continue with the same replay."""
        return np.frombuffer(super().get_state(), np.uint8).copy()

    def set_state(self, state: np.ndarray) -> None:
        """Go on from what `get_state` gave; the replay is restored before. Raises `ValueError` for anything else."""
        super().set_state(np.asarray(state, np.uint8).tobytes())


class SlotWriter:
    """Writes finished slots of a trajectory store to a replay. One per replay at a time. `envs`: see `TrajectoryWriter`."""

    def __init__(self, replay: Replay, store: TrajectoryStore, config: Config, envs: Sequence[int] | None = None):
        self._replay, self._store, self._config, self._envs = replay, store, config, envs
        self._order: dict[int, int] = {}  # by the first environment of a lane, the number of its newest trajectory
        self._begin_anew()

    def write(self, slot: int, otherwise: float) -> None:
        """Write one slot, see `TrajectoryWriter.write`."""
        self._keep_order(slot)
        self._writer.write(slot, otherwise)

    def _begin_anew(self) -> None:
        """In every history."""
        c = self._config
        arrays = self._store.arrays
        self._writer = TrajectoryWriter(self._replay, arrays, c.learning.gamma, c.replay.copies, sequences_of(c), self._envs)

    def _keep_order(self, slot: int) -> None:
        """Rows that do not follow each other must not make one return. A trajectory is not the next of its lane when the ticket
        of the one before was lost with a learner, and when that ticket is found and comes late."""
        lane, order = int(self._store.arrays["env_index"][slot].flat[0]), int(self._store.order[slot])
        last = self._order.get(lane)
        self._order[lane] = order
        if last is not None and order != last + 1 and not self._store.arrays["first"][slot, 0].all():
            self._begin_anew()

    def get_state(self) -> np.ndarray:
        return self._writer.get_state()

    def set_state(self, state: np.ndarray) -> None:
        self._writer.set_state(state)
