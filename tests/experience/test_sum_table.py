"""Draws in proportion, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from headrace.experience.sum_table import SumTable


@pytest.mark.parametrize("size", [1, 31, 32, 33, 1000, 5000])
def test_sums_are_those_of_the_numbers_after_any_writes(size: int) -> None:
    rng, table, plain = np.random.default_rng(size), SumTable(size, "cpu"), np.zeros(size, np.float32)
    for _ in range(50):
        start = int(rng.integers(size))
        values = rng.random(int(rng.integers(1, size - start + 1))).astype(np.float32)
        table.fill(start, torch.from_numpy(values))
        plain[start : start + len(values)] = values
        index = rng.permutation(size)[: int(rng.integers(1, size + 1))]
        values = rng.random(len(index)).astype(np.float32)
        table.update(torch.from_numpy(index), torch.from_numpy(values))
        plain[index] = values
    np.testing.assert_array_equal(table.numbers.numpy(), plain)
    padded = np.zeros(table._blocks.numel(), np.float32)
    padded[:size] = plain
    np.testing.assert_allclose(table._sums.numpy(), padded.reshape(table._blocks.shape).sum(1, dtype=np.float64), rtol=1e-12)


@pytest.mark.parametrize("size", [3, 100, 3000])
def test_draws_are_in_proportion_and_never_of_zeros(size: int) -> None:
    rng, table = np.random.default_rng(size), SumTable(size, "cpu")
    weights = (rng.random(size) ** 3 * (rng.random(size) < 0.6)).astype(np.float32)
    weights[0] = 1.0
    table.fill(0, torch.from_numpy(weights))
    generator, batch, rounds = torch.Generator().manual_seed(1), 64, 3000
    counts = np.zeros(size)
    for _ in range(rounds):
        np.add.at(counts, table.draw(batch, generator).numpy(), 1)
    assert not counts[weights == 0].any()
    expected = weights.astype(np.float64) / weights.sum(dtype=np.float64) * counts.sum()
    # Classes of enough draws each: rare entries together.
    order = np.argsort(expected)
    group = (np.cumsum(expected[order]) // 200).astype(int)
    found, wanted = np.bincount(group, counts[order]), np.bincount(group, expected[order])
    keep = wanted > 50
    # Stratified draws vary less than independent ones, so that only the upper end of the distribution says anything.
    assert stats.chi2.sf(((found - wanted)[keep] ** 2 / wanted[keep]).sum(), keep.sum()) > 1e-4


def test_each_part_of_the_sum_gives_one_draw() -> None:
    table = SumTable(64, "cpu")
    table.fill(0, torch.ones(64))
    for seed in range(20):
        assert table.draw(64, torch.Generator().manual_seed(seed)).tolist() == list(range(64))


def test_numbers_of_very_different_sizes() -> None:
    table = SumTable(4096, "cpu")
    numbers = torch.zeros(4096)
    numbers[5], numbers[2000], numbers[4095] = 1e-6, 1e6, 1e-6
    table.fill(0, numbers)
    drawn = torch.cat([table.draw(512, torch.Generator().manual_seed(seed)) for seed in range(50)])
    assert set(drawn.tolist()) <= {5, 2000, 4095}
    numbers[2000] = 0
    table.fill(0, numbers)
    drawn = table.draw(1000, torch.Generator().manual_seed(0))
    assert torch.bincount(drawn)[[5, 4095]].tolist() == [500, 500]
