"""The bottleneck is named rightly when one is planted."""

import pytest

from headrace.runs.bottleneck import find


def shares(rollout, policy, learner):
    return {
        "time/rollout/step": rollout[0], "time/rollout/wait_actions": rollout[1], "time/rollout/wait_slots": rollout[2],
        "time/policy/forward": policy[0], "time/policy/wait": policy[1],
        "time/learner/train": learner[0], "time/learner/wait": learner[1],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("metrics", "part", "words"),
    [
        (shares((0.97, 0.02, 0.01), (0.2, 0.8), (0.3, 0.7)), "environments", "num-workers"),
        (shares((0.3, 0.69, 0.01), (0.95, 0.05), (0.4, 0.6)), "policy", "rollout workers wait for actions 69%"),
        (shares((0.3, 0.1, 0.6), (0.2, 0.8), (0.98, 0.02)), "learner", "free slots 60%"),
        (shares((0.2, 0.8, 0.0), (0.3, 0.7), (0.1, 0.9)), "handover", "envs-per-worker"),
        (shares((0.95, 0.05, 0.0), (0.95, 0.05), (0.99, 0.01)), "balanced", "hardware"),
        ({"time/rollout/step": 0.2, "time/rollout/forward": 0.75, "time/learner/wait": 0.5}, "policy", "compute actions 75%"),
        (
            {"time/rollout/step": 0.8, "time/rollout/forward": 0.15, "time/learner/wait": 0.5},
            "environments",
            "waits for data 50%",
        ),
        ({"charts/SPS": 1.0}, "unknown", "No timings"),
    ],
)
def test_planted(metrics, part, words):
    found = find(metrics)
    assert found.part == part
    assert words in str(found)
