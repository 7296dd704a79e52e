"""Multi-agent environments through the real engine (`counting_match.py`): three policies, agents that come and go, opponents that
change between matches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from counting_match import AGENTS, check_ledger
from onlooker import LEFT_OUT_AFTER
from test_serial import assert_same

from headrace import config as configs
from headrace.config import Config
from headrace.population import past_versions
from headrace.runs import checkpoint
from headrace.runs.metrics import read_jsonl
from headrace.train import train

pytestmark = pytest.mark.process

WORLD = str(Path(__file__).with_name("counting_match.py"))
T = 5


def matches_config(folder: Path, **settings: Any) -> Config:
    (folder / "ledger").mkdir(parents=True, exist_ok=True)
    return configs.override(
        Config(env="counting-match", imports=(WORLD,)),
        **{
            "envs.num_agents": 3,
            "envs.kwargs": {"ledger": str(folder / "ledger")},
            "matches.matchmaker": "by-formula",
            "population.size": 3,
            "run.folder": str(folder / "run"),
            "run.dashboard": False,
            "run.video": False,
            "run.log_interval": 0.2,
            "sampling.num_workers": 2,
            "sampling.envs_per_worker": 4,
            "sampling.num_groups": 2,
            "sampling.rollout": T,
            "learning.batch_size": T * 8,
            "learning.total_steps": 800,
            "learning.algorithm": "counting-matches",
            "learning.device": "cpu",
            "learning.num_threads": 1,
            **settings,
        },
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"sampling.placement": "serial"},
        {"sampling.placement": "inline"},
        {"sampling.placement": "served"},
        pytest.param(
            {"sampling.placement": "served", "sampling.num_policy_workers": 2, "sampling.num_groups": 4}, marks=pytest.mark.slow
        ),
        {"sampling.placement": "serial", "population.size": 1},
    ],
    ids=["serial", "inline", "served", "served-6-policy-workers-4-groups", "one-policy"],
)
def test_every_sample_is_learned_from_once_by_the_policy_that_acted(tmp_path: Path, settings: dict[str, Any]) -> None:
    config = matches_config(tmp_path, **settings)
    P = config.population.size
    result = train(config)
    assert result.reason == "total_steps"
    assert result.global_step >= P * 800
    assert check_ledger(tmp_path / "ledger", P) == result.global_step
    for p in range(P):
        folder = tmp_path / "run" if P == 1 else tmp_path / "run" / f"policy-{p}"
        rows = read_jsonl(folder / "metrics.jsonl")
        assert rows[-1].get("sampling/faults", 0) == 0
        own = [{name: row.get(f"agents/{name}/episodic_return") for name in AGENTS} for row in rows]
        assert all(any(means[name] is not None for means in own) for name in AGENTS)


@pytest.mark.parametrize("placement", ["serial", "inline"])
def test_a_policy_that_is_done_lets_the_others_go_on(tmp_path: Path, placement: str) -> None:
    """It still acts in their matches, though nobody takes its trajectories."""
    config = matches_config(tmp_path, **{
        "sampling.placement": placement, "population.overrides": {"0": {"learning.total_steps": 100}},
        "learning.total_steps": 1200,
    })  # fmt: skip
    assert train(config).global_step >= 2 * 1200 + 100
    check_ledger(tmp_path / "ledger", 3)


@pytest.mark.parametrize("placement", ["serial", pytest.param("served", marks=pytest.mark.slow)])
def test_a_policy_that_never_acts_ends_when_the_others_have_learned_enough(
    tmp_path: Path, placement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LEFT_OUT_AFTER, "0.5")
    monkeypatch.setattr(past_versions, "LEFT_OUT_AFTER", 0.5)
    world = str(Path(__file__).with_name("onlooker.py"))
    settings = {"env": "onlooker", "imports": [world], "envs.num_agents": 2, "envs.kwargs": {}, "matches.matchmaker": "fixed"}
    more = {"population.size": 2, "learning.algorithm": "ppo", "policy.mlp": [8], "run.max_minutes": 0.5}
    result = train(matches_config(tmp_path, **settings, **more, **{"sampling.placement": placement}))
    assert result.reason == "total_steps"
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "Policy 1 ends at step 0: in 0 minutes of matches it never acted for onlooker, and the other policies" in log
    assert "Policy 0 ends" not in log
    found = checkpoint.load_newest(tmp_path / "run" / "policy-0" / "checkpoints")
    assert found is not None
    assert found.unpack()["progress"]["global_step"] >= 800


def test_a_policy_that_acts_is_waited_for_however_long_its_batch_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others have learned enough, and its first batch needs longer than one that never acts is waited for."""
    monkeypatch.setattr(past_versions, "LEFT_OUT_AFTER", 0.2)
    config = matches_config(tmp_path, **{
        "sampling.placement": "serial", "learning.total_steps": 5, "envs.kwargs": {"step_seconds": 0.01},
        "population.overrides": {"1": {"learning.total_steps": 100}},
    })  # fmt: skip
    assert train(config).reason == "total_steps"
    assert "ends at step" not in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.parametrize("matchmaker", [pytest.param("fixed", marks=pytest.mark.slow), "self-play", "league"])
def test_a_serial_run_that_was_stopped_goes_on_bit_for_bit(tmp_path: Path, matchmaker: str) -> None:
    """With copies of the policy among the opponents: matches, records, ratings and random states are saved as well."""

    def run(name: str, steps: int) -> dict[str, Any]:
        config = matches_config(tmp_path / name, **{
            "sampling.placement": "serial", "population.size": 1, "matches.matchmaker": matchmaker, "envs.kwargs": {},
            "matches.save_steps": 150, "matches.window": 3, "matches.swap_steps": 60, "matches.team_change": 170,
            "learning.total_steps": steps,
        })  # fmt: skip
        train(config)
        found = checkpoint.load_newest(tmp_path / name / "run" / "checkpoints")
        assert found is not None
        return found.unpack()

    straight = run("straight", 1400)
    run("stopped", 400)
    run("stopped", 900)
    assert_same(straight, run("stopped", 1400))
    if matchmaker != "fixed":
        assert len(straight["past"]["copies"]) >= 3
