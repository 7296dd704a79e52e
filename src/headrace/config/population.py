"""Settings of a population: several policies in one run (`population`), who plays whom in multi-agent environments (`matches`),
and population-based training (`pbt`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from headrace.config.ranges import Count, Fraction, JsonObject, NonNegative, Range

Kind = Literal["scale", "complement", "flip"]


@dataclass
class PopulationConfig:
    """Several policies in one run: how many, and how they differ."""

    size: Annotated[int, Range(1, 256)] = 1
    """Number of policies trained in one run, each by its own learner. Policy g modulo this number acts in group g of
    environments; in a multi-agent environment `matches.matchmaker` decides who acts."""
    overrides: JsonObject = field(default_factory=dict)
    """Settings of single policies, as one JSON object: {"1": {"learning.learning_rate": 0.001, "policy.mlp": [32, 32]}} gives
    policy 1 its own learning rate and network. The settings of the groups `policy`, `learning`, `replay` and `q` may differ
    between policies; all others are those of the whole run."""


@dataclass
class MatchesConfig:
    """Multi-agent environments: who plays whom. Past versions are copies of a policy that do not learn any more."""

    matchmaker: str = "fixed"
    """Who acts for the agents of a match. `fixed`: policy a modulo the number of policies acts for agent a. `uniform`: a policy
    is drawn for each agent. `self-play`: the policy learns as one agent; its newest or a past version acts for the others.
    `league`: the same, with opponents drawn from all policies, their past versions and `opponents`, more often those that are
    hard to beat. Or a name that an imported file registers."""
    opponents: tuple[str, ...] = ()
    """Opponents that do not learn: run folders, and names of scripted opponents that an imported file registers (`random` is
    built in)."""
    opponent_share: Fraction = 0.0
    """`self-play`: share of the matches against `opponents`. `league` draws them like all other opponents."""
    save_steps: Count = 20_000
    """Number of steps of a policy between two copies of it, which become past versions."""
    team_change: Count = 100_000
    """`self-play`: number of steps of a policy after which it learns as another agent of the match."""
    swap_steps: Annotated[int, Range(0, 2**62)] = 2_000
    """`self-play`: number of steps of a policy for which it keeps its opponent; opponents change between matches only."""
    window: Annotated[int, Range(1, 256)] = 10
    """Number of past versions of a policy that may be opponents: the newest ones."""
    play_against_latest_model_ratio: Fraction = 0.5
    """`self-play`, `league`: share of the matches against the newest version instead of a past one."""
    initial_elo: Annotated[float, Range(-1e6, 1e6)] = 1200.0
    """Elo rating with which every policy starts."""
    hardness: Annotated[float, Range(0, 100)] = 2.0
    """`league`: an opponent against whom the win rate is w is drawn with a weight of (1 - w) to this power (prioritized
    fictitious self-play, Vinyals et al. 2019). 0: uniformly."""


KINDS: Mapping[str, Kind] = {
    "learning.learning_rate": "scale",
    "learning.entropy_coef": "scale",
    "learning.value_coef": "scale",
    "learning.max_grad_norm": "scale",
    "learning.ppo_clip": "scale",
    "learning.value_clip": "scale",
    "learning.vtrace_rho": "scale",
    "learning.vtrace_c": "scale",
    "learning.optimizer_eps": "scale",
    "learning.num_epochs": "scale",
    "learning.gamma": "complement",
    "learning.gae_lambda": "complement",
    "learning.adam_betas.0": "complement",
    "learning.adam_betas.1": "complement",
    "learning.rmsprop_alpha": "complement",
    "learning.normalize_advantages": "flip",
}
"""Settings that can be mutated (the learner reads them anew for every update), and how by default. `scale`: the value is
multiplied or divided by a factor; `complement`: its distance to 1 is; `flip`: a switch is toggled."""

REWARD = "reward."  # names of weights of a shaped reward begin so


@dataclass
class PbtConfig:
    """Population-based training: policies that do badly become copies of those that do well, and hyperparameters mutate."""

    rule: Literal["off", "paper", "sample-factory"] = "off"
    """The published rules from which settings of this group take their values where they are None. `paper`: Petrenko et al. 2020.
    `sample-factory`: the code that was published later (version 2). `off`: no population-based training."""
    period: Count = 5_000_000
    """Number of simulator frames of a policy between two decisions whether it is replaced and mutated."""
    warmup: Annotated[int, Range(0, 2**53)] | None = None
    """Number of simulator frames of a policy before the first decision whether it is replaced and mutated. None: 0 (`paper`) or
    20 million (`sample-factory`)."""
    mutation_rate: Fraction = 0.15
    """Probability with which each hyperparameter is mutated."""
    mutate_fraction: Fraction | None = None
    """Part of the population, from the worst on, that is mutated. None: 0.7 (`paper`), or all but the best `replace_fraction`
    (`sample-factory`)."""
    replace_fraction: Annotated[float, Range(0, 0.5)] = 0.3
    """Part of the population, rounded up, that is replaced by copies of equally many of the best."""
    factor: tuple[Annotated[float, Range(1, 100)], Annotated[float, Range(1, 100)]] | None = None
    """A mutated hyperparameter is multiplied or divided by a number drawn from this range. None: always 1.2 (`paper`), or 1.1 to
    1.5 (`sample-factory`)."""
    reset_rate: Fraction | None = None
    """Probability with which a mutation puts a hyperparameter back to its first value. None: 0 (`paper`) or 0.01
    (`sample-factory`)."""
    keep_first: bool | None = None
    """Policy 0 is never mutated (it may be replaced), and all others are mutated once at the start. None: no (`paper`), yes
    (`sample-factory`)."""
    gap: NonNegative | None = None
    """A policy is only replaced by one whose objective is higher by more than this. None: 0 (`paper`; with the objective
    `win_rate` 0.35) or 1e-6 (`sample-factory`)."""
    relative_gap: NonNegative | None = None
    """A policy is only replaced by one whose objective is higher by more than this part of that objective. None: 0 (`paper`) or
    0.1 (`sample-factory`)."""
    below_best: Fraction | None = None
    """Self-play: every policy whose objective is below this fraction of the best policy's (0.5 in the paper) is replaced by the
    best policy, instead of the worst `replace_fraction` by the best. Where the best objective is below 0, a policy is replaced
    that is as far below it. None: off."""
    objective: Literal["return", "true_objective", "win_rate", "elo"] = "return"
    """What policies are compared by. `return`: mean return of the last 100 episodes. `true_objective`: mean over the same
    episodes of `info["true_objective"]` in their last step, such as kills, or 1 for a match won. In matches only, `win_rate`:
    share of the last 100 games that were won (a draw is half a win); `elo`: Elo rating."""
    mutable: JsonObject = field(default_factory=dict)
    """What is mutated and how, as one JSON object: {"learning.learning_rate": "scale", "learning.gamma": {"rule": "complement",
    "factor": [1.01, 1.2]}, "reward.ammo": "scale"}. Empty: the rule's own choice."""

    @property
    def on(self) -> bool:
        return self.rule != "off"

    def number(self, name: str) -> Any:
        """A setting, or what the rule says where it is None."""
        value = getattr(self, name)
        if value is not None:
            return value
        if name == "gap" and self.rule == "paper" and self.objective == "win_rate":
            return DUEL_GAP
        return DEFAULTS[self.rule][name]

    @property
    def of_matches(self) -> bool:
        return self.on and self.objective in ("win_rate", "elo")


DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "paper": {
        "warmup": 0, "mutate_fraction": 0.7, "factor": (1.2, 1.2), "reset_rate": 0.0, "keep_first": False, "gap": 0.0,
        "relative_gap": 0.0,
    },
    "sample-factory": {
        "warmup": 20_000_000, "mutate_fraction": None, "factor": (1.1, 1.5), "reset_rate": 0.01, "keep_first": True, "gap": 1e-6,
        "relative_gap": 0.1,
    },
}  # fmt: skip
DUEL_GAP = 0.35
"""In duels, the difference of win rates above which the paper replaces a policy (Petrenko et al. 2020, appendix A.3.1)."""
CHOSEN: Mapping[str, tuple[str, ...]] = {
    "paper": ("learning.learning_rate", "learning.entropy_coef", "learning.adam_betas.0"),
    "sample-factory": (
        "learning.learning_rate", "learning.entropy_coef", "learning.value_coef", "learning.max_grad_norm", "learning.ppo_clip",
        "learning.value_clip",
    ),
}  # fmt: skip
"""What each rule mutates, beside the weights of a shaped reward."""
