"""Games of turns as environments in which agents act at the same time."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pettingzoo")

from headrace.envs.families.pettingzoo import TurnBased


class Leaves:
    """Three players take turns; each is out after its second move, and is taken out of the game when its turn comes again."""

    possible_agents = ("a", "b", "c")

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.agents, self.agent_selection = list(self.possible_agents), "a"
        self.moves, self.rewards = dict.fromkeys(self.agents, 0), dict.fromkeys(self.agents, 0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.infos: dict[str, Any] = {agent: {} for agent in self.agents}

    def observe(self, agent: str) -> int:
        return self.moves[agent]

    def step(self, action: Any) -> None:
        mover = self.agent_selection
        after = self.agents[self.agents.index(mover) + 1 :] + self.agents
        self.agent_selection = after[0]
        assert (action is None) == self.terminations[mover]
        self.rewards = dict.fromkeys(self.agents, 0)
        if action is None:
            self.agents.remove(mover)
            return
        self.moves[mover] += 1
        self.rewards[mover] = 1
        self.terminations[mover] = self.moves[mover] == 2


def test_a_player_who_is_out_sees_its_end_once_and_is_no_longer_there() -> None:
    game = TurnBased(Leaves())
    game.reset()
    seen = []
    while game.agents:
        (mover,) = game._turn()
        observations, rewards, terminations, _, _ = game.step({mover: 0})
        assert rewards[mover] == 1
        ended = [agent for agent in observations if terminations[agent]]
        assert not set(ended) & set(game.agents)
        seen.append((mover, ended))
    assert seen == [("a", []), ("b", []), ("c", []), ("a", ["a"]), ("b", ["b"]), ("c", ["c"])]
