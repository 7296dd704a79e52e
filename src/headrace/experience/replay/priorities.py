"""Initial priorities computed by the actor from the action values it acted on (Ape-X, Horgan et al. 2018, appendix D)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class NStepPriorities:
    """|n-step TD error| of one history's rows, as soon as each is known.

    The error of row t is R + g v(S_{t+n}) - q(S_t, A_t), with R the discounted sum of the next n rewards and g the product
    of their discounts, both cut short at an episode's end. Acting computed q and v = max_a q anyway; no network runs here.
    `rescaled`: q and v are h(x), and so is the error (see `headrace.learning.q_learning.rescale`).
    """

    def __init__(self, n_step: int, rescaled: bool = False) -> None:
        self.n_step, self._rescaled = n_step, rescaled
        self.clear()

    def clear(self) -> None:
        """Forget the rows that wait (the history has a new writer)."""
        self.waiting = np.empty((6, 0))
        """Rows without a priority yet, oldest first: reward, discount, last, final, q, value."""

    def push(
        self,
        reward: npt.ArrayLike,
        discount: npt.ArrayLike,
        last: npt.ArrayLike,
        final: npt.ArrayLike,
        q: npt.ArrayLike,
        value: npt.ArrayLike,
    ) -> npt.NDArray[np.float32]:
        """Take T further rows; returns the priorities, float32 [m], of the m oldest rows that had none yet.

        Args:
            reward, discount, last, final: as in `HistoryWriter.append`, [T].
            q: q(S_t, A_t), [T]; ignored on final rows.
            value: max_a q(S_t, a), [T]; on final rows the value to bootstrap from.
        """
        new = np.stack([np.asarray(x, np.float64) for x in (reward, discount, last, final, q, value)])
        rows = np.concatenate([self.waiting, new], 1)
        r, d, is_last, is_final, q_taken, v = rows
        count = rows.shape[1]
        total, product = np.zeros(count), np.ones(count)
        running, known = np.ones(count, bool), np.ones(count, bool)  # the episode goes on; all that is needed is there
        bootstrap = np.zeros(count)
        padded_v, padded_final = np.append(v, np.nan), np.append(is_final, 0.0)
        for k in range(self.n_step):
            at = np.minimum(np.arange(count) + k, count - 1)
            known &= ~running | (np.arange(count) + k < count)
            total += np.where(running, product * r[at], 0.0)
            product = np.where(running, product * d[at], product)
            ends = running & (is_last[at] != 0)
            # The last observation is needed only where the episode was cut off; after termination its value is zero.
            truncated = ends & (d[at] != 0)
            bootstrap = np.where(truncated, padded_v[at + 1], bootstrap)
            known &= ~truncated | (padded_final[at + 1] != 0)
            running &= ~ends
        after = np.arange(count) + self.n_step
        known &= ~running | (after < count)
        bootstrap = np.where(running, v[np.minimum(after, count - 1)], bootstrap)
        known |= is_final != 0
        ready = count if known.all() else int(np.argmin(known))
        self.waiting = rows[:, ready:]
        bootstrap = np.nan_to_num(bootstrap)
        target = total + product * (_unscale(bootstrap) if self._rescaled else bootstrap)
        target = _rescale(target) if self._rescaled else target
        return np.where(is_final != 0, -1.0, np.abs(target - q_taken))[:ready].astype(np.float32)


def _rescale(x: npt.NDArray[np.float64], epsilon: float = 1e-3) -> npt.NDArray[np.float64]:
    return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + epsilon * x


def _unscale(x: npt.NDArray[np.float64], epsilon: float = 1e-3) -> npt.NDArray[np.float64]:
    root = np.sqrt(1 + 4 * epsilon * (np.abs(x) + 1 + epsilon))
    return np.sign(x) * (((root - 1) / (2 * epsilon)) ** 2 - 1)
