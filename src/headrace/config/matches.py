"""Settings of matches: which policy acts for which agent of a multi-agent environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from headrace.config.ranges import Count, Range

Share = Annotated[float, Range(0, 1)]


@dataclass
class MatchesConfig:
    """Multi-agent environments: who plays whom. Past versions are copies of a policy that do not learn any more."""

    matchmaker: str = "fixed"
    """Who acts for the agents of a match. `fixed`: agent a is policy a modulo the number of policies. `uniform`: a policy drawn
    for each agent. `self-play`: one agent learns, the others are a past version or the newest. `league`: opponents are drawn
    among all by how hard they are to beat. Or a name that an imported file registers."""
    opponents: tuple[str, ...] = ()
    """Opponents that do not learn: run folders, and names of scripted opponents that an imported file registers (`random` is
    built in)."""
    opponent_share: Share = 0.0
    """`self-play`: share of the matches against `opponents`. The league draws them like any other."""
    save_steps: Count = 20_000
    """Number of steps of a policy after which another copy of it becomes a past version."""
    team_change: Count = 100_000
    """`self-play`: steps of a policy after which another agent of the match is the one that learns."""
    swap_steps: Annotated[int, Range(0, 2**62)] = 2_000
    """`self-play`: steps of a policy for which a match keeps its opponent; it changes between matches only."""
    window: Annotated[int, Range(1, 256)] = 10
    """Number of past versions of a policy that may be opponents: the newest ones."""
    play_against_latest_model_ratio: Share = 0.5
    """`self-play`, `league`: share of the matches against the newest version instead of a past one."""
    initial_elo: Annotated[float, Range(-1e6, 1e6)] = 1200.0
    """Elo rating with which every policy starts."""
    hardness: Annotated[float, Range(0, 100)] = 2.0
    """`league`: an opponent against whom the win rate is w is drawn with a weight of (1 - w) to this power (prioritized
    fictitious self-play, Vinyals et al. 2019). 0: uniformly."""
