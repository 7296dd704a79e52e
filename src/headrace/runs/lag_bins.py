"""Bins of the histogram of policy lag, in updates."""

from __future__ import annotations

from itertools import pairwise

LAGS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # the smallest lag of each bin; the last bin is open
NAMES = (*(str(low) if high == low + 1 else f"{low}-{high - 1}" for low, high in pairwise(LAGS)), f"{LAGS[-1]}+")
"""The names of the bins: "0", "4-5", "64+"."""
