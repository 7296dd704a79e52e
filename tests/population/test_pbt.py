"""The rules of population-based training against a slow oracle written from their texts (`oracle.py`)."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import oracle
import pytest

from headrace.config import ConfigError
from headrace.config.population import KINDS, PbtConfig
from headrace.make_config import check_config, make_config
from headrace.population.pbt import Mutable, decide, get, mutables, mutate, with_values

RULES = {"paper": oracle.paper, "sample-factory": oracle.published_code}


def population(**settings: Any) -> Any:
    given = {"population.size": 4, "sampling.num_workers": 4, "pbt.rule": "paper", **settings}
    return make_config("gym/CartPole-v1", **given)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("size", [2, 3, 4, 7, 8, 10, 20])
def test_who_is_replaced_by_whom_and_who_is_mutated(rule: Any, size: int) -> None:
    rng, pbt = np.random.default_rng(size), PbtConfig(rule=rule)
    for case in range(30):
        objectives = (rng.integers(-5, 6, size) if case % 2 else rng.normal(0, 10, size)).astype(float).tolist()
        allowed = RULES[rule](objectives)
        for p, (donors, mutated) in enumerate(allowed):
            seen = set()
            for draw in range(60):
                decision = decide(pbt, p, objectives, np.random.default_rng([case, p, draw]))
                assert decision is not None
                assert decision.rank == oracle.ranking(objectives).index(p)
                assert decision.mutate == mutated
                seen.add(decision.donor)
            # Where one of the best is not far enough ahead, it depends on the draw whether there is a copy at all.
            best = oracle.ranking(objectives)[: oracle.up("3/10", size)]
            keeps = {None} if set(best) - donors else set()
            assert seen <= donors | {None}
            if size <= 10:
                assert seen == donors | (keeps if donors else {None})


def test_donors_are_drawn_uniformly_from_the_best() -> None:
    objectives = [float(p) for p in range(10)]
    found = Counter(decide(PbtConfig(rule="paper"), 0, objectives, np.random.default_rng(n)).donor for n in range(3000))  # type: ignore[union-attr]
    assert set(found) == {7, 8, 9}
    assert all(abs(count - 1000) < 5 * math.sqrt(3000 * 2 / 9) for count in found.values())


def test_duels_need_a_gap_of_win_rates() -> None:
    pbt = PbtConfig(rule="paper", gap=0.35)
    for worst, copied in ((0.44, True), (0.46, False)):
        decision = decide(pbt, 0, [worst, 0.5, 0.6, 0.8], np.random.default_rng(0))
        assert decision is not None
        assert (decision.donor is not None) == (copied and oracle.paper([worst, 0.5, 0.6, 0.8], 0.35)[0][0] == {decision.donor})


def test_self_play_copies_the_best_below_half_of_its_win_rate() -> None:
    pbt = PbtConfig(rule="paper", below_best=0.5)
    objectives = [0.39, 0.8, 0.41, 0.2]
    donors = [decide(pbt, p, objectives, np.random.default_rng(0)).donor for p in range(4)]  # type: ignore[union-attr]
    assert donors == [1, None, None, 1]
    donors = [decide(pbt, p, [-100.0, -149.0, -151.0], np.random.default_rng(0)).donor for p in range(3)]  # type: ignore[union-attr]
    assert donors == [None, None, 0], "as far below it as 0.5 is below 1"
    decision = decide(pbt, 1, [-4.0, -1.0, -2.0], np.random.default_rng(0))
    assert decision is not None
    assert (decision.rank, decision.donor) == (0, None), "the best would become a copy of itself"


def test_nothing_is_decided_before_every_policy_has_ended_an_episode() -> None:
    assert decide(PbtConfig(rule="paper"), 0, [1.0, math.nan], np.random.default_rng(0)) is None


@pytest.mark.parametrize(("rule", "factors"), [("paper", (1.2, 1.2)), ("sample-factory", (1.1, 1.5))])
@pytest.mark.parametrize(("kind", "value"), [("scale", 0.003), ("complement", 0.9)])
def test_mutations(rule: Any, factors: tuple[float, float], kind: Any, value: float) -> None:
    pbt, how = PbtConfig(rule=rule), {"x": Mutable(kind, factors)}
    ranges = oracle.possible(value, kind, *factors)
    new = [mutate(pbt, {"x": value}, {"x": value}, how, np.random.default_rng(n))["x"] for n in range(4000)]
    changed = [x for x in new if x != value]
    assert abs(len(changed) / 4000 - 0.15) < 0.03
    which = [[low - 1e-12 <= x <= high + 1e-12 for low, high in ranges] for x in changed]
    assert all(any(one) for one in which)
    assert abs(np.mean([one[0] for one in which]) - 0.5) < 0.1
    if factors[0] == factors[1]:
        assert len({round(x, 12) for x in changed}) == 2


def test_a_hundredth_of_the_published_codes_mutations_goes_back_to_the_first_value() -> None:
    pbt, how = PbtConfig(rule="sample-factory", mutation_rate=1.0), {"x": Mutable("scale", (1.1, 1.5))}
    new = [mutate(pbt, {"x": 2.0}, {"x": 1.0}, how, np.random.default_rng(n))["x"] for n in range(5000)]
    assert abs(new.count(1.0) / 5000 - 0.01) < 0.006
    paper = PbtConfig(rule="paper", mutation_rate=1.0)
    assert 1.0 not in [mutate(paper, {"x": 2.0}, {"x": 1.0}, how, np.random.default_rng(n))["x"] for n in range(500)]


def test_switches_are_thrown_and_whole_numbers_stay_whole() -> None:
    pbt = PbtConfig(rule="paper", mutation_rate=1.0)
    how = {"on": Mutable("flip", (1.2, 1.2)), "n": Mutable("scale", (2.0, 2.0))}
    for n in range(20):
        new = mutate(pbt, {"on": True, "n": 1}, {"on": True, "n": 1}, how, np.random.default_rng(n))
        assert new["on"] is False
        assert new["n"] in (1, 2)
        assert isinstance(new["n"], int)


@pytest.mark.parametrize("value", [1, 2])
def test_small_whole_numbers_move(value: int) -> None:
    """Rounding put 1 and 2, times 1.2, back."""
    pbt, how = PbtConfig(rule="paper", mutation_rate=1.0), {"n": Mutable("scale", (1.2, 1.2))}
    new = {mutate(pbt, {"n": value}, {"n": value}, how, np.random.default_rng(n))["n"] for n in range(20)}
    assert new == {max(1, value - 1), value + 1}


def test_each_rule_has_its_hyperparameters() -> None:
    config = population(**{"envs.reward_weights": {"ammo": 0.1}, "learning.max_grad_norm": None})
    assert set(mutables(config, {"ammo": 0.1})) == {
        "learning.learning_rate", "learning.entropy_coef", "learning.adam_betas.0", "reward.ammo",
    }  # fmt: skip
    config.pbt.rule = "sample-factory"
    config.learning.value_clip = None
    assert set(mutables(config, {})) == {
        "learning.learning_rate", "learning.entropy_coef", "learning.value_coef", "learning.ppo_clip",
    }  # fmt: skip


def test_every_setting_that_can_be_mutated_exists_and_takes_values() -> None:
    config = population(**{"learning.value_clip": 0.2, "learning.ppo_clip": 0.2, "learning.max_grad_norm": 1.0})
    config.pbt.mutable = dict(KINDS)
    assert set(mutables(config, {})) == set(KINDS)
    wanted = {"learning.adam_betas.0": 0.5, "learning.gamma": 2.0, "reward.x": 3.0, "learning.num_epochs": 2}
    made, kept = with_values(config, wanted)
    assert made.learning.adam_betas == (0.5, config.learning.adam_betas[1])
    assert made.learning.gamma == config.learning.gamma
    assert kept == {**wanted, "learning.gamma": config.learning.gamma}
    made, _ = with_values(made, {"learning.gamma": 0.9})
    assert with_values(made, {"learning.gamma": 1.08})[1] == {"learning.gamma": 0.9}, "the value before, not the first"


def test_the_limits_of_vtrace_stay_in_their_order() -> None:
    """Each is in its range, but V-trace with rho below c raises an error, which would end the run."""
    rho, c = "learning.vtrace_rho", "learning.vtrace_c"
    config = population(**{rho: 1.0, c: 1.0})
    for refused in ({rho: 0.8}, {c: 1.2}, {rho: 0.8, c: 0.9}, {c: 1.3, rho: 1.2}):
        made, kept = with_values(config, {**refused, "learning.gamma": 0.9})
        assert (made.learning.vtrace_rho, made.learning.vtrace_c) == (1.0, 1.0)
        assert kept == dict.fromkeys(refused, 1.0) | {"learning.gamma": 0.9}
    for possible in ({rho: 0.8, c: 0.7}, {c: 0.5}, {c: 1.2, rho: 1.3}):
        made, kept = with_values(config, possible)
        assert kept == possible
        assert all(get(made, name) == value for name, value in possible.items())


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"population.size": 1}, "needs several policies"),
        ({"population.overrides": {"1": {"policy.mlp": [3]}}}, "policy 1 has another policy than policy 0"),
        ({"pbt.mutable": {"sampling.rollout": "scale"}}, "sampling.rollout cannot be mutated. What can: learning.learning_rate"),
        ({"pbt.mutable": {"learning.gamma": "up"}}, 'must be "scale", "complement" or "flip"'),
        ({"pbt.mutable": {"learning.gamma": {"rule": "scale", "factor": [3]}}}, "must be two numbers"),
        ({"pbt.mutable": {"learning.gamma": {"factor": [0.5, 2]}}}, "from 1 to 100"),
        ({"pbt.mutable": {"reward.ammo": "scale"}}, "reward.ammo cannot be mutated"),
        ({"pbt.factor": (1.5, 1.1)}, "the smaller number comes first"),
        ({"pbt.mutable": {"learning.value_clip": "scale"}, "learning.value_clip": None}, "is None in this run"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        check_config(population(**settings))
