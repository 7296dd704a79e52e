"""Initial priorities against a slow loop over whole episodes."""

import numpy as np
import pytest

from headrace.experience.replay.priorities import NStepPriorities


def slow_priorities(rows: list[dict[str, float]], n: int) -> list[float]:
    """The circular buffer of the paper, written as a loop per row; rows that are not known yet are left out."""
    result = []
    for t, row in enumerate(rows):
        if row["final"]:
            result.append(-1.0)
            continue
        total, product, u = 0.0, 1.0, t
        while True:
            if u == t + n:
                if u >= len(rows):
                    return result
                target = total + product * rows[u]["value"]
                break
            if u >= len(rows):
                return result
            total += product * rows[u]["reward"]
            product *= rows[u]["discount"]
            if rows[u]["last"]:
                if product == 0.0:
                    target = total
                elif u + 1 < len(rows):
                    target = total + product * rows[u + 1]["value"]
                else:
                    return result
                break
            u += 1
        result.append(abs(target - row["q"]))
    return result


@pytest.mark.parametrize("n", [1, 3, 5])
@pytest.mark.parametrize("seed", range(5))
def test_priorities_equal_a_slow_loop_however_the_rows_arrive(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows: list[dict[str, float]] = []
    while len(rows) < 300:
        length, end = int(rng.integers(1, 9)), rng.choice(["terminated", "truncated", "terminated, stored"])
        for i in range(length):
            last = i == length - 1
            rows.append({"reward": rng.normal(), "discount": 0.0 if last and end != "truncated" else 0.9, "last": last,
                         "final": 0, "q": rng.normal(), "value": rng.normal()})
        if end != "terminated":
            rows.append({"reward": 0, "discount": 0, "last": 0, "final": 1, "q": 0, "value": rng.normal()})
    priorities, got, start = NStepPriorities(n), np.empty(0, np.float32), 0
    while start < len(rows):
        part = rows[start:start + int(rng.integers(1, 12))]
        start += len(part)
        columns = [[row[name] for row in part] for name in ("reward", "discount", "last", "final", "q", "value")]
        got = np.concatenate([got, priorities.push(*columns)])
        np.testing.assert_allclose(got, slow_priorities(rows[:start], n), rtol=1e-6)
    assert len(got) > 280


def test_priority_of_a_truncated_start_uses_the_value_of_the_last_observation() -> None:
    priorities = NStepPriorities(3)
    assert len(priorities.push([1.0], [0.5], [1], [0], [0.0], [7.0])) == 0  # the last observation is still to come
    np.testing.assert_allclose(priorities.push([0.0], [0.0], [0], [1], [0.0], [10.0]), [1.0 + 0.5 * 10.0, -1.0])
