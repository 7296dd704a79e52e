"""Every seed of a run, from one `numpy.random.SeedSequence` with a key for each use.

An environment's seed is a number below 2^31, and environment i of a group has the group's seed + i. So that evaluation never sees
an episode of training, whatever the run's seed, these numbers are divided among the uses: two bits name the use, 29 are drawn.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from headrace.config.errors import ConfigError

RANGE = 2**29  # environment seeds of each use
MOST = 2**28  # environments of the largest run that the settings allow. Environment i has the first one's seed + i.


class Use(IntEnum):
    """What a seed is for. The first four seed environments, with seeds in [use * RANGE, (use + 1) * RANGE)."""

    TRAINING = 0
    EVALUATION = 1
    """`headrace eval`, `headrace.evaluate`."""
    BACKGROUND = 2
    """Evaluations during training. Their episodes are not those of `EVALUATION`, so a checkpoint chosen by them is evaluated on
    others."""
    VIDEO = 3
    ACTING = 4
    LEARNING = 5
    POLICY = 6
    """The seed of a policy of a population, for its weights."""
    MATCHES = 7
    """Who plays whom."""
    REPLAY = 8
    """What is drawn from a replay in the memory of a device."""


def environment_seed(use: Use, seed: int, *key: int) -> int:
    """Seed of the first of up to `MOST` environments, below 2^31 - `MOST`.

    Args:
        use: one that has environments.
        seed: the run's, or what the user gave; at least 0.
        key: numbers of at least 0 that distinguish seeds of the same use and run.

    Raises `ConfigError` for a negative seed.
    """
    drawn = random_seed(use, seed, *key) % (RANGE - MOST)
    return int(use) * RANGE + drawn


def next_seed(seed: int, number: int) -> int:
    """Seed for the `number`-th restart of environments that were first seeded with `seed`; `seed` itself for 0."""
    return environment_seed(Use(seed // RANGE), seed, number) if number else seed


def random_seed(use: Use, seed: int, *key: int) -> int:
    """Seed of a random generator, below 2^63. Arguments and errors as for `environment_seed`."""
    if seed < 0:
        raise ConfigError(f"the seed is {seed}; it must be at least 0")
    (word,) = np.random.SeedSequence(seed, spawn_key=(int(use), *key)).generate_state(1, np.uint64)
    return int(word) >> 1
