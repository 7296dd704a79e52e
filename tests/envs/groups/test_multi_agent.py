"""Groups of multi-agent environments: who acts, what belongs to which row, how episodes and matches end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from headrace.config import ConfigError, EnvConfig
from headrace.envs.core import registry
from headrace.envs.core.contract import LaneRow, ObsRow, StepRow
from headrace.envs.core.description import spec_from_json, spec_to_json
from headrace.envs.core.errors import EnvironmentFault, UnknownEnvironment
from headrace.envs.core.last_step import PREVIOUS_ACTION, PREVIOUS_REWARD, remember_last_step
from headrace.envs.core.settings import defaults
from headrace.envs.groups.multi_agent import MultiAgentGroup, multi_agent_group
from headrace.envs.make import make_env, make_group

Step = dict[str, Any]


class Scripted:
    """A match whose course is given: `ticks` says what each step returns; the first entry is the reset's."""

    possible_agents = ("a", "b")

    def __init__(self, ticks: list[Step], space: Callable[[str], Any] | None = None) -> None:
        self.possible_agents = list(type(self).possible_agents)
        self.ticks, self.agents, self.actions, self.seeds = ticks, [], [], []
        self._space = space or (lambda agent: spaces.Box(0, 100, (1,), np.float32))

    def observation_space(self, agent: str) -> Any:
        return self._space(agent)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(5)

    def _now(self) -> Step:
        tick = self.ticks[self.t]
        self.agents = list(tick["agents"])
        return tick

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.t = 0
        self.seeds.append(seed)
        tick = self._now()
        return _obs(tick), tick.get("infos", {})

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        self.actions.append(dict(actions))
        self.t += 1
        tick = self._now()
        rewards = tick["only_rewards"] if "only_rewards" in tick else dict.fromkeys(actions, 0) | tick.get("rewards", {})
        return _obs(tick), rewards, tick.get("terminated", {}), tick.get("truncated", {}), tick.get("infos", {})

    def close(self) -> None:
        pass


def _obs(tick: Step) -> dict[str, Any]:
    return {agent: np.array([x], np.float32) for agent, x in tick["obs"].items()}


class Lanes:
    """Rows for a group's lanes, moved on as a rollout worker moves them."""

    def __init__(self, group: MultiAgentGroup) -> None:
        self.group, self.T = group, 50
        spec = group.spec

        def obs() -> ObsRow:
            arrays = {name: np.full((1, *a.shape), 77, a.dtype) for name, a in spec.observation.items()}
            return ObsRow(arrays, np.ones(1, bool), np.ones(1, bool))

        self.obs = [[obs() for _ in range(self.T + 1)] for _ in range(group.lanes)]
        self.rows = [
            [LaneRow(np.zeros((1, 1), np.int32), StepRow.zeros(1), lane[t + 1]) for t in range(self.T)] for lane in self.obs
        ]
        self.t = [-1] * group.lanes
        group.reset(100, [lane[0] for lane in self.obs])
        self._advance()

    def _advance(self) -> None:
        assert self.group.recv()
        assert self.group.advanced is not None
        for lane in self.group.advanced:
            self.t[lane] += 1

    def step(self, *actions: int) -> list[int]:
        for lane, action in enumerate(actions):
            if self.t[lane] >= 0:
                self.rows[lane][self.t[lane]].actions[0, 0] = action
        before = [LaneRow(None, StepRow.zeros(1), lane[0]) for lane in self.obs]
        self.group.send([self.rows[i][t] if t >= 0 else before[i] for i, t in enumerate(self.t)])
        self._advance()
        return list(self.group.advanced or ())

    def flags(self, lane: int) -> list[tuple[float, bool, bool]]:
        """(observation, first, valid) of the rows so far."""
        return [(float(o.obs["obs"][0, 0]), bool(o.first[0]), bool(o.valid[0])) for o in self.obs[lane][: self.t[lane] + 1]]

    def steps(self, lane: int) -> list[tuple[float, bool, bool]]:
        """(reward, terminated, truncated) of the rows before the last."""
        rows = self.rows[lane][: max(self.t[lane], 0)]
        return [(float(r.step.reward[0]), bool(r.step.terminated[0]), bool(r.step.truncated[0])) for r in rows]

    def episodes(self, lane: int) -> list[tuple[float, int]]:
        rows = [row.step for row in self.rows[lane][: max(self.t[lane], 0)]]
        return [(float(s.episode_return[0]), int(s.episode_length[0])) for s in rows if not np.isnan(s.episode_return[0])]


def group_of(ticks: list[Step], **options: Any) -> tuple[Lanes, Scripted]:
    env = Scripted(ticks)
    return Lanes(multi_agent_group(lambda: env, EnvConfig(**options), 1, "test")), env


BOTH = ["a", "b"]


def test_turns_the_reward_until_the_next_observation_belongs_to_the_last_action() -> None:
    lanes, env = group_of([
        {"agents": BOTH, "obs": {"a": 1}},
        {"agents": BOTH, "obs": {"b": 2}, "rewards": {"a": 1, "b": 100}},
        {"agents": BOTH, "obs": {"a": 3}, "rewards": {"a": 10, "b": 5}},
        {"agents": [], "obs": {"a": 4, "b": 5}, "rewards": {"a": 2, "b": -2}, "terminated": {"a": True, "b": True}},
    ])  # fmt: skip
    assert lanes.step(3, 0) == [1]
    assert lanes.step(0, 4) == [0]
    assert lanes.step(2, 0) == [0, 1]
    assert env.actions == [{"a": 3}, {"b": 4}, {"a": 2}]
    assert lanes.flags(0) == [(1, True, True), (3, False, True), (4, False, False)]
    assert lanes.steps(0) == [(11, False, False), (2, True, False)]
    assert lanes.flags(1) == [(2, True, True), (5, False, False)]
    assert lanes.steps(1) == [(3, True, False)]  # not what came before its first action
    assert lanes.episodes(0) == [(13, 2)]
    assert lanes.group.matches[0].outcomes.tolist() == [13, 103]
    assert lanes.group.ended == [0]


def test_the_last_step_of_agents_that_take_turns() -> None:
    """The last action of an agent is its own, and its reward is all it was given since."""
    env = Scripted([
        {"agents": BOTH, "obs": {"a": 1}},
        {"agents": BOTH, "obs": {"b": 2}, "rewards": {"a": 1, "b": 100}},
        {"agents": BOTH, "obs": {"a": 3}, "rewards": {"a": 10, "b": 5}},
        {"agents": [], "obs": {"a": 4, "b": 5}, "rewards": {"a": 2, "b": -2}, "terminated": {"a": True, "b": True}},
    ])  # fmt: skip
    group: Any = remember_last_step(multi_agent_group(lambda: env, EnvConfig(), 1, "test"), (PREVIOUS_ACTION, PREVIOUS_REWARD))
    lanes = Lanes(group)
    for actions in ((3, 0), (3, 4), (2, 4)):
        lanes.step(*actions)
    found = [[(int(o.obs[PREVIOUS_ACTION][0, 0]), float(o.obs[PREVIOUS_REWARD][0])) for o in lane] for lane in lanes.obs]
    assert found[0][:3] == [(0, 0), (3, 11), (2, 2)]
    assert found[1][:2] == [(0, 0), (4, 3)]


def test_an_agent_leaves_and_comes_back_with_a_new_episode() -> None:
    lanes, env = group_of([
        {"agents": BOTH, "obs": {"a": 1, "b": 1}},
        {"agents": ["a"], "obs": {"a": 2, "b": 2}, "terminated": {"b": True}, "rewards": {"b": -1}},
        {"agents": ["a"], "obs": {"a": 3}},
        {"agents": BOTH, "obs": {"a": 4, "b": 40}},
        {"agents": [], "obs": {"a": 5, "b": 50}, "truncated": {"a": True, "b": True}, "rewards": {"b": 1}},
    ])  # fmt: skip
    assert [lanes.step(1, 1) for _ in range(4)] == [[0, 1], [0], [0, 1], [0, 1]]
    assert env.actions == [{"a": 1, "b": 1}, {"a": 1}, {"a": 1}, {"a": 1, "b": 1}]
    assert lanes.flags(1) == [(1, True, True), (2, False, False), (40, True, True), (50, False, False)]
    assert lanes.steps(1) == [(-1, True, False), (0, False, False), (1, False, True)]
    assert lanes.episodes(1) == [(-1, 1), (1, 1)]
    assert lanes.flags(0)[-1] == (5, False, False)


def test_all_agents_truncated_is_the_end_of_the_match_also_where_the_environment_still_lists_them() -> None:
    ticks = [
        {"agents": BOTH, "obs": {"a": 1, "b": 1}},
        {"agents": BOTH, "obs": {"a": 2, "b": 2}, "truncated": {"a": True, "b": True}},
    ]
    lanes, env = group_of(ticks)
    lanes.step(0, 0)
    assert lanes.group.ended == [0]
    assert lanes.steps(0) == [(0, False, True)]
    assert lanes.step(0, 0) == [0, 1]  # the next match
    assert lanes.flags(0)[-1] == (1, True, True)
    assert env.seeds == [100, 100 + 1_000_003]


def test_the_step_limit_truncates_everybody_with_the_true_last_observation() -> None:
    tick = {"agents": BOTH, "obs": {"a": 1, "b": 1}}
    lanes, _ = group_of([tick, tick, {"agents": BOTH, "obs": {"a": 9, "b": 8}}], max_episode_steps=2)
    lanes.step(0, 0)
    assert lanes.group.ended == []
    lanes.step(0, 0)
    assert lanes.group.ended == [0]
    assert lanes.flags(1)[-1] == (8, False, False)
    assert lanes.steps(1)[-1] == (0, False, True)


class Observed(Scripted):
    """Tells anybody what it sees at any time: 50 and the number of the step."""

    def observe(self, agent: str) -> np.ndarray:
        return np.array([50 + self.t], np.float32)


def test_the_step_limit_truncates_an_agent_whose_turn_it_is_not_with_what_it_sees_then() -> None:
    turns: list[Step] = [{"agents": BOTH, "obs": {"a": 1}}, {"agents": BOTH, "obs": {"b": 2}}, {"agents": BOTH, "obs": {"a": 3}}]
    lanes = Lanes(multi_agent_group(lambda: Observed(turns), EnvConfig(max_episode_steps=2), 1, "test"))
    lanes.step(0, 0)
    assert lanes.step(0, 0) == [0, 1]
    assert lanes.group.ended == [0]
    assert [lanes.flags(lane)[-1] for lane in (0, 1)] == [(3, False, False), (52, False, False)]
    assert [lanes.steps(lane)[-1] for lane in (0, 1)] == [(0, False, True)] * 2
    lanes, _ = group_of(turns, max_episode_steps=2)
    lanes.step(0, 0)
    with pytest.raises(EnvironmentFault, match=r"b was truncated without its last observation.* a method observe\(agent\)"):
        lanes.step(0, 0)


def test_inactive_agents_do_not_act_and_cost_no_row() -> None:
    lanes, env = group_of([
        {"agents": BOTH, "obs": {"a": 1, "b": 1}, "infos": {"b": {"is_active": False}}},
        {"agents": BOTH, "obs": {"a": 2, "b": 2}, "infos": {"a": {"is_active": False}}},
        {"agents": BOTH, "obs": {"a": 3, "b": 3}},
    ])  # fmt: skip
    assert lanes.t == [0, -1]
    assert lanes.step(1, 1) == [1]
    assert lanes.step(1, 1) == [0, 1]
    assert env.actions == [{"a": 1}, {"b": 1}]
    assert lanes.flags(0) == [(1, True, True), (3, False, True)]


def test_outcomes_of_infos_go_before_rewards() -> None:
    lanes, _ = group_of([
        {"agents": BOTH, "obs": {"a": 1, "b": 1}},
        {"agents": [], "obs": {"a": 1, "b": 1}, "rewards": {"a": 5, "b": 1}, "terminated": {"a": True, "b": True},
         "infos": {"b": {"outcome": 7.0}}},
    ])  # fmt: skip
    lanes.step(0, 0)
    assert lanes.group.matches[0].outcomes.tolist() == [5, 7]
    assert (lanes.episodes(0), lanes.episodes(1)) == ([(5, 1)], [(1, 1)])


def test_a_match_without_an_outcome_was_lost_and_its_episodes_are_not_reported() -> None:
    ends = {"agents": [], "obs": {"a": 1, "b": 1}, "rewards": {"a": 5, "b": 1}, "truncated": {"a": True, "b": True}}
    lanes, _ = group_of([{"agents": BOTH, "obs": {"a": 1, "b": 1}}, {**ends, "infos": {a: {"outcome": np.nan} for a in BOTH}}])
    lanes.step(0, 0)
    assert lanes.steps(0)[-1] == (5, False, True)
    assert (lanes.episodes(0), lanes.episodes(1)) == ([], [])


@pytest.mark.parametrize(
    ("tick", "message"),
    [
        ({"agents": [], "obs": {"b": 1}, "truncated": {"a": True, "b": True}}, "a was truncated without its last observation"),
        ({"agents": BOTH, "obs": {"a": 1, "b": 1}, "rewards": {"b": float("nan")}}, "the reward of b is nan"),
        ({"agents": BOTH, "obs": {"a": float("inf"), "b": 1}}, r"observation 'obs' of a is inf at index \[0\]"),
        ({"agents": BOTH, "obs": {"a": 1, "b": -1e30}}, r"observation 'obs' of b is -1e.30 at index .0., too large to learn"),
        ({"agents": BOTH, "obs": {"a": 1, "b": 1}, "rewards": {"a": -1e30}}, r"the reward of a is -1e.30, too large to learn"),
        ({"agents": BOTH, "obs": {"a": 1, "b": 1}, "only_rewards": {"a": 1}}, "there is no reward for b, which acted"),
        ({"agents": BOTH, "obs": {"a": 1, "b": 1}, "rewards": {"b": None}}, "there is no reward for b, which acted"),
    ],
)
def test_faults_name_the_agent_and_the_match(tick: Step, message: str) -> None:
    lanes, _ = group_of([{"agents": BOTH, "obs": {"a": 1, "b": 1}}, tick])
    with pytest.raises(EnvironmentFault, match=f"test, environment 0 .seed 100., match 1, step 1: .*{message}"):
        lanes.step(0, 0)


class Weighed(Scripted):
    """Rewards are the weight of the part `x`."""

    given: tuple[dict[str, dict[str, float]], ...] = ()

    def set_reward_weights(self, weights: dict[str, dict[str, float]]) -> None:
        self.given = (*self.given, weights)


def test_every_agent_has_its_own_weights_of_the_reward_and_a_match_that_goes_on_has_them_again() -> None:
    env, again = Weighed([{"agents": BOTH, "obs": {"a": 1}}] * 3), Weighed([{"agents": BOTH, "obs": {"a": 1}}] * 3)
    options = EnvConfig(reward_weights={"x": 0.5})
    lanes = Lanes(multi_agent_group(lambda: env, options, 1, "test"))
    assert env.given == ({"a": {"x": 0.5}, "b": {"x": 0.5}},)
    lanes.group.remember()
    lanes.group.set_reward_weights(0, [{"x": 1.0}, {"x": 2.0}])
    lanes.group.set_reward_weights(0, [{"x": 1.0}, {"x": 2.0}])  # nothing new
    assert env.given[1:] == ({"a": {"x": 1.0}, "b": {"x": 2.0}},)
    state = lanes.group.get_state()
    assert state is not None
    other = multi_agent_group(lambda: again, options, 1, "test")
    other.remember()
    other.set_state(state)
    assert again.given[-1] == {"a": {"x": 1.0}, "b": {"x": 2.0}}
    then = other.get_state()
    assert then is not None
    assert then["matches"][0]["weights"] == [{"x": 1.0}, {"x": 2.0}]


def test_what_an_environment_raises_when_its_match_is_played_again_is_its_fault() -> None:
    lanes, _ = group_of([{"agents": BOTH, "obs": {"a": 1, "b": 1}}] * 2)
    lanes.group.remember()
    lanes.step(0, 0)
    state = lanes.group.get_state()
    assert state is not None
    shorter, _ = group_of([{"agents": BOTH, "obs": {"a": 1, "b": 1}}])
    with pytest.raises(EnvironmentFault, match=r"environment 0 .seed 100., match 1, .* could not be brought back: IndexError"):
        shorter.group.set_state(state)


def test_an_environment_without_weights_is_a_fault() -> None:
    with pytest.raises(EnvironmentFault, match="set_reward_weights failed: AttributeError"):
        group_of([{"agents": BOTH, "obs": {"a": 1}}], reward_weights={"x": 1.0})


def test_the_objective_of_an_episode_comes_with_its_end() -> None:
    group = multi_agent_group(
        lambda: Scripted([{"agents": BOTH, "obs": {"a": 1, "b": 2}}, {
            "agents": [], "obs": {"a": 3, "b": 4}, "terminated": {"a": True, "b": True}, "infos": {
                "a": {"true_objective": 7.0}, "b": {"true_objective": 8.0},
            },
        }]),
        EnvConfig(info_metrics=("true_objective",)), 1, "test",
    )  # fmt: skip
    lanes = Lanes(group)
    for lane in (0, 1):
        lanes.rows[lane][0].step.episode_info = np.zeros((1, 1), np.float32)
    lanes.step(0, 0)
    assert [float(lanes.rows[lane][0].step.episode_info[0, 0]) for lane in (0, 1)] == [7.0, 8.0]


def test_an_objective_that_is_missing_is_asked_for() -> None:
    ends = {"agents": [], "obs": {"a": 3}, "terminated": {"a": True}, "infos": {"a": {"kills": 7}}}
    lanes, _ = group_of([{"agents": ["a"], "obs": {"a": 1}}, ends], info_metrics=("true_objective",))
    lanes.rows[0][0].step.episode_info = np.zeros((1, 1), np.float32)
    with pytest.raises(EnvironmentFault, match=r"pbt.objective true_objective: .* has no such key, only \['kills'\]"):
        lanes.step(0)


def test_image_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="frame_stack is for environments of one agent"):
        multi_agent_group(lambda: Scripted([]), EnvConfig(frame_stack=4), 1, "test")


def test_masks_of_infos_and_the_last_observation_allows_everything() -> None:
    mask = np.array([0, 1, 0, 0, 1], np.int8)
    lanes, _ = group_of([
        {"agents": BOTH, "obs": {"a": 1, "b": 1}, "infos": {"a": {"action_mask": mask}}},
        {"agents": [], "obs": {"a": 1, "b": 1}, "terminated": {"a": True, "b": True}, "infos": {"a": {"action_mask": mask * 0}}},
    ], info_action_mask=True)  # fmt: skip
    lanes.step(1, 0)
    masks = [o.obs["action_mask"][0].tolist() for o in lanes.obs[0][:2]]
    assert masks == [[0, 1, 0, 0, 1], [1, 1, 1, 1, 1]]


def test_specification_survives_being_told_by_another_process() -> None:
    spec = multi_agent_group(lambda: Scripted([]), EnvConfig(), 1, "test").spec
    assert spec.agents == ("a", "b")
    assert spec_from_json(spec_to_json(spec)) == spec


class TestPettingZoo:
    @pytest.fixture(autouse=True)
    def _needs(self) -> None:
        pytest.importorskip("pettingzoo")

    def test_connect_four_by_turns(self) -> None:
        group = make_group("pettingzoo/connect_four_v3", EnvConfig(), 1)
        assert isinstance(group, MultiAgentGroup)
        assert group.spec.agents == ("player_0", "player_1")
        assert group.spec.observation["action_mask"].shape == (7,)
        lanes = Lanes(group)
        assert lanes.t == [0, -1]
        # four in column 0 for the first player, column 1 for the second
        moved = [lanes.step(0, 1) for _ in range(7)]
        assert moved == [[1], [0], [1], [0], [1], [0], [0, 1]]
        assert lanes.steps(0)[-1] == (1, True, False)
        assert lanes.steps(1)[-1] == (-1, True, False)
        assert group.matches[0].outcomes.tolist() == [1, -1]
        assert lanes.step(0, 0) == [0]
        group.close()

    def test_a_game_of_turns_is_cut_off_at_the_limit(self) -> None:
        group = make_group("pettingzoo/connect_four_v3", EnvConfig(max_episode_steps=3), 1)
        lanes = Lanes(group)
        assert [lanes.step(0, 1) for _ in range(3)] == [[1], [0], [0, 1]]
        assert group.ended == [0]
        assert [lanes.steps(lane)[-1] for lane in (0, 1)] == [(0, False, True)] * 2
        group.close()

    def test_parallel_games_are_used_as_they_are(self) -> None:
        group = make_group("pettingzoo/rps_v2", EnvConfig(kwargs={"num_actions": 3, "max_cycles": 4}), 2)
        lanes = Lanes(group)
        assert [lanes.step(0, 1, 1, 0) for _ in range(4)] == [[0, 1, 2, 3]] * 4
        assert [lanes.steps(lane)[-1] for lane in range(4)] == [(r, False, True) for r in (-1, 1, 1, -1)]
        assert group.ended == [0, 1]
        group.close()

    def test_games_that_say_so_are_converted_by_pettingzoo_itself(self) -> None:
        """Each agent of rock, paper, scissors chooses in its turn, and none sees the other's choice before: both act at once."""
        from pettingzoo.classic.rps.rps import raw_env

        registry.register_parallel("own/rps", agents=2)(lambda options, render_mode=None: raw_env(num_actions=3, max_cycles=4))
        group = make_group("own/rps", EnvConfig(), 2)
        lanes = Lanes(group)
        assert [lanes.step(0, 1, 1, 0) for _ in range(4)] == [[0, 1, 2, 3]] * 4
        assert [lanes.steps(lane)[-1] for lane in range(4)] == [(r, False, True) for r in (-1, 1, 1, -1)]
        assert group.ended == [0, 1]
        group.close()

    def test_a_users_own_game_of_turns(self) -> None:
        from pettingzoo.classic.tictactoe.tictactoe import raw_env

        class Plain(raw_env):  # type: ignore[misc]
            metadata: dict[str, Any]

            def __getattribute__(self, name: str) -> Any:
                if name == "metadata":  # PettingZoo only declares it
                    raise AttributeError(name)
                return super().__getattribute__(name)

        registry.register_parallel("own/turns", agents=2)(lambda options, render_mode=None: Plain(render_mode))
        lanes = Lanes(make_group("own/turns", EnvConfig(), 1))
        assert lanes.t == [0, -1]
        assert [lanes.step(lanes.t[0], 3 + lanes.t[1]) for _ in range(5)] == [[1], [0], [1], [0], [0, 1]]
        assert (lanes.steps(0)[-1], lanes.steps(1)[-1]) == ((1, True, False), (-1, True, False))

    @pytest.mark.parametrize("agents", [1, 3])
    def test_another_number_of_agents_than_registered_is_refused(self, agents: int) -> None:
        registry.register_parallel("own/two", agents=agents)(lambda options, render_mode=None: Scripted([]))
        with pytest.raises(ConfigError, match=rf"own/two was registered with agents={agents}; .* possible_agents \['a', 'b'\]"):
            make_group("own/two", EnvConfig(), 1)

    def test_a_game_at_once_that_says_whose_turn_it_is_stays_what_it_is(self) -> None:
        class Together(Scripted):
            agent_selection = "a"

        registry.register_parallel("own/together", agents=2)(lambda options, render_mode=None: Together([{"agents": ["a", "b"]}]))
        assert make_group("own/together", EnvConfig(), 1).lanes == 2

    def test_names(self) -> None:
        assert defaults("pettingzoo/connect_four_v3")["envs.num_agents"] == 2
        assert "pettingzoo/tictactoe_v3" in registry.list_ids("pettingzoo")
        with pytest.raises(UnknownEnvironment):
            registry.check_id("pettingzoo/connect_five_v1")
        with pytest.raises(ConfigError, match="is a multi-agent environment; there is no single environment"):
            make_env("pettingzoo/connect_four_v3", EnvConfig())

    def test_a_frame_skip_that_nothing_applies_is_refused(self) -> None:
        make: Any = lambda options, render_mode=None: Scripted([{"agents": BOTH, "obs": {"a": 1}}])  # noqa: E731
        registry.register_parallel("own/none", agents=2)(make)
        registry.register_parallel("own/skips", agents=2, applies=["frameskip"])(make)
        for env in ("own/none", "pettingzoo/connect_four_v3"):
            with pytest.raises(ConfigError, match=f"{env}: envs.frameskip: not applied"):
                make_group(env, EnvConfig(frameskip=4), 1)
        assert make_group("own/skips", EnvConfig(frameskip=4), 1).spec.frameskip == 4

    def test_a_match_is_played_again_from_its_seed(self) -> None:
        groups = [make_group("pettingzoo/connect_four_v3", EnvConfig(), 2) for _ in range(2)]
        for group in groups:
            group.remember()
        first, second = Lanes(groups[0]), Lanes(groups[1])
        for move in range(19):
            first.step(*[move % 7] * 4)
        state = groups[0].get_state()
        assert state is not None
        groups[1].set_state(state)
        second.t, second.rows, second.obs = first.t[:], first.rows, first.obs
        before = [match.env.game.unwrapped.board for match in groups[0].matches]  # type: ignore[attr-defined]
        assert [match.env.game.unwrapped.board for match in groups[1].matches] == before  # type: ignore[attr-defined]
        assert second.step(*[3] * 4)
        for group in groups:
            group.close()
