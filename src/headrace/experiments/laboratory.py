"""The laboratory's section of a report: how old experience was, how far off-policy it was learned from, and what that cost.

The control is the dose-response curve: runs in the serial placement with `sampling.policy_lag`, whose lag is what the setting
says. Other ways of gathering experience are drawn into it at the lag that was measured. Where they lie on the curve, lag is all
there is to them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from headrace import config as configs
from headrace.config import Config, ConfigError
from headrace.experiments import charts, statistics
from headrace.experiments.charts import Rows, rounded
from headrace.experiments.page import Chart, Section, Table
from headrace.experiments.records import Group, Run, envs_of, mean_of, same_learner, without_lag
from headrace.runs import lag_bins

OFF_POLICY = {
    "effective sample size": "off_policy/effective_sample_size", "total variation": "off_policy/total_variation",
    "KL": "off_policy/kl", "above rho": "off_policy/rho_clipped", "above c": "off_policy/c_clipped",
    "outside PPO's clip": "off_policy/ppo_clipped", "cosine of gradients": "losses/grad_cosine",
    "gradient norm": "losses/grad_norm",
}  # fmt: skip
"""The columns of the table, with their metrics."""
LAG = {"mean": "lag/mean", "median": "lag/p50", "95 %": "lag/p95", "when chosen": "lag/when_chosen", "since": "lag/since_chosen"}


def sections(groups: Sequence[Group]) -> Iterator[Section]:
    """Nothing where no run has measured its lag."""
    known = [group for group in groups if not math.isnan(mean_of(group.runs, "lag/when_chosen"))]
    if known:
        dose = [item for env in envs_of(known) for item in _dose_response(env, known)]
        yield Section("Laboratory: lag, off-policyness and what they cost", [
            ABOUT, _lag_table(known), *_histogram(known), _off_policy_table(known), _cost(known), *dose,
        ])  # fmt: skip


ABOUT = (
    "The policy lag of a sample is the number of updates between the weights that chose its action and those that learn from it. "
    "Part of it was there when the action was chosen: the actor's weights were not the newest. The rest came since: updates made "
    "while the trajectory was filled and waited. Means over the intervals of a run, and over the seeds."
)


def _lag_table(groups: Sequence[Group]) -> Table:
    rows = []
    for group in groups:
        largest = max((line["lag/max"] for run in group.runs for line in run.lines if "lag/max" in line), default=math.nan)
        numbers = [_number(mean_of(group.runs, key)) for key in LAG.values()]
        rows.append((group.label, *numbers, _number(largest), _predicted(group.runs[0])))
    heads = ("configuration", *LAG, "largest", "predicted mean")
    caption = "Policy lag (updates). Predicted: by Little's law, from where samplers are the bottleneck to where the learner is."
    return Table(heads, rows, caption)


def _predicted(run: Run) -> str:
    """The mean lag expected of a run's settings, for the table; empty where they are of another version."""
    try:
        low, high = predicted_lag(configs.load(run.path / "config.json"))
    except (ConfigError, OSError):
        return ""
    return _number(low) if low == high else f"{low:.3g} to {high:.3g}"


def predicted_lag(config: Config) -> tuple[float, float]:
    """Least and largest mean lag to expect.

    By Little's law a sample stays in the system for N / batch updates, where N is the number of steps made and not yet learned
    from. Half an update is subtracted for the one that learns from the sample. Groups are on average half through their
    trajectories. If the learner is the bottleneck, all other slots are full and wait (largest mean); if samplers are, none are
    (least).
    """
    s = config.sampling
    if s.placement == "device":
        return ((config.parts - 1) / 2,) * 2
    slot = s.rollout * config.lane_size / config.learning.batch_size
    low = max(0.0, config.most_lanes / 2 * slot - 0.5) + s.policy_lag
    return low, low if s.placement == "serial" else low + (config.num_slots - config.most_lanes) * slot


def _histogram(groups: Sequence[Group]) -> list[Chart]:
    rows: Rows = []
    for group in groups:
        for order, name in enumerate(lag_bins.NAMES):
            share = mean_of(group.runs, f"lag/share/{name}")
            if 0 < share <= 1:
                rows.append({"g": group.label, "p": name, "o": order, "x": rounded(share)})
    if not rows:
        return []
    used = {row["p"] for row in rows}
    return [Chart(charts.shares("Policy lag of the samples, updates", rows, [name for name in lag_bins.NAMES if name in used]))]


def _off_policy_table(groups: Sequence[Group]) -> Table:
    rows = [(group.label, *(_number(mean_of(group.runs, key)) for key in OFF_POLICY.values())) for group in groups]
    caption = (
        "How far batches were from the policy that learned from them, before each measured update (1 and 0: not at all). Above "
        "rho, above c, outside PPO's clip: shares of the samples whose probability ratio these limits would clip."
    )
    return Table(("configuration", *OFF_POLICY), rows, caption)


def _cost(groups: Sequence[Group]) -> Table:
    rows = []
    for group in groups:
        for env in envs_of([group]):
            runs = group.of(env)
            minutes = [run.minutes or math.nan for run in runs]  # 0 where only one moment is known
            seconds = [60 * m * _cores(run) for m, run in zip(minutes, runs, strict=True)]
            per_core = [run.steps / s for run, s in zip(runs, seconds, strict=True) if s > 0]
            waiting = mean_of(runs, "time/learner/wait")
            rows.append((
                group.label, env, f"{group.scores(env).mean():.4g}", *(_number(x) for x in (
                    1e6 * fmean(run.score / run.steps for run in runs),
                    fmean(run.score / m for run, m in zip(runs, minutes, strict=True)),
                    1e3 * fmean(run.score / s for run, s in zip(runs, seconds, strict=True)),
                )), f"{fmean(per_core):,.0f}" if per_core else "", "" if math.isnan(waiting) else f"{waiting:.0%}",
            ))  # fmt: skip
    heads = ("configuration", "environment", "final score", "per million steps", "per minute", "per 1000 core-seconds",
             "steps per core-second", "learner waits")  # fmt: skip
    return Table(heads, rows, "What a score cost. Cores: those that a run might use. Minutes of a busy machine say little.")


def _cores(run: Run) -> float:
    return next((float(fact["cores"]) for fact in reversed(run.system) if isinstance(fact.get("cores"), int)), math.nan)


# -- the dose-response curve ---------------------------------------------------------------------------------------------


def _dose_response(env: str, groups: Sequence[Group]) -> list[Chart | Table]:
    """The curves of the lag knob and the other strategies at their lags; nothing where the knob was not turned."""
    groups = [group for group in groups if not math.isnan(mean_of(group.of(env), "lag/mean"))]
    curves: dict[str, list[Group]] = {}
    for group in groups:
        if all(run.settings.get("sampling.placement") == "serial" for run in group.of(env)):
            curves.setdefault(without_lag(group.label), []).append(group)
    curves = {label: sorted(own, key=lambda g: mean_of(g.of(env), "lag/mean")) for label, own in curves.items() if len(own) > 1}
    if not curves:
        return []
    swept = {id(group) for own in curves.values() for group in own}
    others = [group for group in groups if id(group) not in swept]
    rows = [_point(label, env, group) for label, own in curves.items() for group in own]
    strategies = [_point(group.label, env, group) for group in others]
    title, names = f"{env}: final score against policy lag", [*curves, *(group.label for group in others)]
    chart = charts.dose_response(title, "policy lag, mean (updates)", "final score", names, rows, strategies)
    caption = (
        "Lines: runs whose lag is set exactly (`sampling.policy_lag`). Diamonds: other strategies, at the lag that was measured. "
        "Bars: 95 % bootstrap intervals over seeds."
    )
    items: list[Chart | Table] = [Chart(chart, caption)]
    table = []
    for group, point in zip(others, strategies, strict=True):
        for label, own in curves.items():
            if not same_learner(group.of(env)[0], own[0].of(env)[0]):
                continue
            lags = [mean_of(g.of(env), "lag/mean") for g in own]
            expected = float(np.interp(point["x"], lags, [g.scores(env).mean() for g in own]))
            low, high = point["low"], point["high"]
            apart = "unknown: one seed" if low is None else "yes" if low <= expected <= high else "no"
            table.append((group.label, f"{point['x']:.3g}", f"{point['y']:.4g}", label, f"{expected:.4g}", apart))
    if table:
        heads = ("strategy", "its lag", "its score", "curve", "the curve at that lag", "within the strategy's interval")
        items.append(Table(heads, table, "Is lag all there is? The curve between its points is interpolated."))
    return items


def _point(label: str, env: str, group: Group) -> dict[str, Any]:
    scores = group.scores(env)
    ends = charts.ends(*statistics.interval(statistics.mean, [scores]))
    return {"g": label, "x": rounded(mean_of(group.of(env), "lag/mean")), "y": rounded(float(scores.mean())), **ends}


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3g}"
