"""Groups: the row convention, statistics of whole games, and what happens to environments that misbehave."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.wrappers.vector import DictInfoToList
from worlds import (
    BadEnv,
    CountingEnv,
    DelayedGroup,
    LosingLives,
    episode_length,
    local_group,
    random_actions,
    reset_group,
    reward_of,
    rows_for,
    step_group,
)

from headrace.config import EnvConfig
from headrace.envs.core.contract import MASK_KEY, EnvGroup, LaneRow
from headrace.envs.core.errors import EnvironmentFault, OutOfBounds
from headrace.envs.groups.base import Completion
from headrace.envs.groups.checks import BOUNDS_PERIOD, flag
from headrace.envs.groups.rewards import reward_transform
from headrace.envs.groups.vector import VectorGroup
from headrace.sampling.worker_process import warnings_reported

SEED, E, STEPS = 20, 5, 60


def counting_vector(mode: AutoresetMode, kind: Callable[..., VectorEnv] = SyncVectorEnv) -> EnvGroup:
    return VectorGroup(kind([CountingEnv] * E, autoreset_mode=mode), EnvConfig(), "counting")


def listed(*args: Any, **kwargs: Any) -> VectorEnv:
    """A vector environment whose infos are a list of dictionaries."""
    return DictInfoToList(SyncVectorEnv(*args, **kwargs))


GROUPS: dict[str, Callable[[], EnvGroup]] = {
    "local": lambda: local_group([CountingEnv() for _ in range(E)]),
    "next-step": lambda: counting_vector(AutoresetMode.NEXT_STEP),
    "same-step": lambda: counting_vector(AutoresetMode.SAME_STEP),
    "disabled": lambda: counting_vector(AutoresetMode.DISABLED),
    "next-step, infos in a list": lambda: counting_vector(AutoresetMode.NEXT_STEP, listed),
    "same-step, infos in a list": lambda: counting_vector(AutoresetMode.SAME_STEP, listed),
    "disabled, infos in a list": lambda: counting_vector(AutoresetMode.DISABLED, listed),
    "delayed": lambda: DelayedGroup(local_group([CountingEnv() for _ in range(E)])),
}


@pytest.mark.parametrize("kind", GROUPS)
def test_every_row_of_the_counting_world(kind: str) -> None:
    """Follow each environment by its formulas; every number in every row has to be the expected one."""
    group = GROUPS[kind]()
    same_step = group.spec.autoreset == "same-step"
    assert same_step == kind.startswith(("same-step", "disabled"))
    now, after = rows_for(group.spec, E)
    reset_group(group, SEED, after)
    assert after.first.all()
    assert after.valid.all()
    here = [(SEED + i, 0, 0, -1) for i in range(E)]
    assert after.obs["obs"].tolist() == [list(h) for h in here]
    ended = [False] * E
    returns = [0.0] * E
    rng = np.random.default_rng(0)
    seen = {"terminated": 0, "truncated": 0}
    for _ in range(STEPS):
        actions = random_actions(group.spec, E, rng)
        now, after = rows_for(group.spec, E)
        step_group(group, actions, now, after)
        for i in range(E):
            seed, episode, step, _ = here[i]
            action = int(actions[i, 0])
            if ended[i]:  # this row was no transition
                here[i], ended[i] = (seed, episode + 1, 0, -1), False
                assert (now.reward[i], now.terminated[i], now.truncated[i], now.episode_length[i]) == (0, False, False, 0)
                assert np.isnan(now.episode_return[i])
                assert (after.first[i], after.valid[i]) == (True, True)
            else:
                reward = reward_of(episode, step, action)
                returns[i] += reward
                last = step + 1 == episode_length(seed, episode)
                even = (seed + episode) % 2 == 0
                assert now.reward[i] == reward
                assert (now.terminated[i], now.truncated[i]) == (last and even, last and not even)
                here[i] = (seed, episode, step + 1, action)
                assert after.first[i] == (last and same_step)
                assert after.valid[i] == (not last or same_step)
                if last:
                    seen["terminated" if even else "truncated"] += 1
                    assert (now.episode_return[i], now.episode_length[i]) == (returns[i], step + 1)
                    returns[i] = 0
                    if same_step:
                        assert now.final_obs["obs"][i].tolist() == list(here[i])
                        here[i] = (seed, episode + 1, 0, -1)
                    else:
                        ended[i] = True
                else:
                    assert np.isnan(now.episode_return[i])
                    assert now.episode_length[i] == 0
            assert after.obs["obs"][i].tolist() == list(here[i])
    assert min(seen.values()) > 10
    group.close()


def test_a_step_that_is_finished_later_wakes_who_waits() -> None:
    """As an environment server's group: `recv` never blocks and is False until the step is written; then `wake` is called."""
    go_on = threading.Semaphore(0)
    group = DelayedGroup(local_group([CountingEnv(), CountingEnv()]), lambda: go_on.acquire(timeout=60) and time.sleep(0.02))
    now, after = rows_for(group.spec, 2)
    changed = threading.Event()
    group.notify(changed.set)
    for begin in (lambda: group.reset(SEED, [after]), lambda: group.send([LaneRow(np.zeros((2, 1), np.int32), now, after)])):
        after.obs["obs"][:] = 77
        changed.clear()
        begin()
        assert not group.recv()
        assert (after.obs["obs"] == 77).all()
        for finished in (False, True):  # the first wake-up is for nothing
            go_on.release()
            assert changed.wait(60)
            changed.clear()
            assert group.recv() == finished
        assert after.obs["obs"][:, 0].tolist() == [SEED, SEED + 1]
        assert group.recv()
    asked = group.asked
    go_on.release(2)
    step_group(group, np.zeros((2, 1), np.int32), now, after)
    assert group.asked - asked <= 4  # the waiting thread sleeps between wake-ups


def test_a_fault_of_a_step_that_is_finished_later_is_raised_by_recv() -> None:
    group = DelayedGroup(local_group([BadEnv("raises")], name="my/far"))
    now, after = rows_for(group.spec, 1)
    reset_group(group, 0, after)
    for _ in range(2):
        step_group(group, np.zeros((1, 1), np.int32), now, after)
    group.send([LaneRow(np.zeros((1, 1), np.int32), now, after)])
    with pytest.raises(EnvironmentFault, match="my/far, environment 0"):
        Completion(group).wait()


@pytest.mark.parametrize("kind", [kind for kind in GROUPS if kind != "delayed"])
def test_groups_of_this_process_finish_in_send_and_have_one_lane(kind: str) -> None:
    group = GROUPS[kind]()
    now, after = rows_for(group.spec, E)
    assert (group.lanes, group.lane_size, group.num_envs) == (1, E, E)
    group.notify(lambda: pytest.fail("nobody has to wait for this group"))
    group.reset(SEED, [after])
    assert group.recv()
    group.send([LaneRow(np.zeros((E, 1), np.int32), now, after)])
    assert group.recv()
    assert (now.reward < 1e9).all()
    with pytest.raises(ValueError, match="unpack"):
        group.send([])
    group.close()


def test_same_step_with_processes_and_dictionaries() -> None:
    """`final_obs` comes in another form for Dict observations; the values are the same."""

    class InDict(gymnasium.ObservationWrapper):
        observation_space = spaces.Dict({"a": spaces.Dict({"b": spaces.Box(-1, 1e6, (4,), np.float32)}), "c": spaces.Discrete(9)})

        def observation(self, observation: np.ndarray) -> dict[str, Any]:
            return {"a": {"b": observation}, "c": int(observation[2])}

    for kind in (SyncVectorEnv, AsyncVectorEnv):
        envs = kind([lambda: InDict(CountingEnv())] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
        group = VectorGroup(envs, EnvConfig(), "counting")
        now, after = rows_for(group.spec, 3)
        reset_group(group, SEED, after)
        ends = 0
        for _ in range(12):
            step_group(group, np.zeros((3, 1), np.int32), now, after)
            for i in np.flatnonzero(now.terminated | now.truncated):
                ends += 1
                seed, episode, step, _ = now.final_obs["a/b"][i]
                assert step == episode_length(int(seed), int(episode))
                assert now.final_obs["c"][i].argmax() == step
                assert after.obs["a/b"][i].tolist() == [seed, episode + 1, 0, -1]
        assert ends >= 6
        group.close()


def test_infos_in_a_list_where_all_episodes_end_at_once() -> None:
    group = VectorGroup(listed([CountingEnv], autoreset_mode=AutoresetMode.SAME_STEP), EnvConfig(), "counting")
    now, after = rows_for(group.spec, 1)
    reset_group(group, 4, after)  # an episode of 6 steps
    for _ in range(6):
        step_group(group, np.zeros((1, 1), np.int32), now, after)
    assert now.final_obs["obs"].tolist() == [[4, 0, 6, 0]]


def test_autoreset_mode_must_be_said() -> None:
    envs = SyncVectorEnv([CountingEnv])
    envs.metadata = {}
    with pytest.raises(ValueError, match="autoreset_mode"):
        VectorGroup(envs, EnvConfig(), "counting")


def test_rewards_are_scaled_then_clipped_and_returns_are_raw() -> None:
    group = local_group([CountingEnv()], EnvConfig(reward_scale=0.5, reward_clip=2.0))
    now, after = rows_for(group.spec, 1)
    reset_group(group, 4, after)  # episode of 1 + 12 % 7 = 6 steps
    rewards = []
    for _ in range(6):
        step_group(group, np.array([[3]], np.int32), now, after)
        rewards.append(float(now.reward[0]))
    assert rewards == [1.5, 2.0, 2.0, 2.0, 2.0, 2.0]
    assert now.episode_return[0] == sum(8 * step + 3 for step in range(6))


@pytest.mark.parametrize("clip", [None, 2.0])
def test_rewards_are_squashed_and_negative_ones_count_less(clip: float | None) -> None:
    raw = np.array([-1000.0, -5.0, -0.5, 0.0, 0.5, 5.0, 1000.0])
    got = reward_transform(EnvConfig(reward_scale=2.0, reward_soft_clip=5.0, reward_clip=clip))(raw)
    expected = [5 * math.tanh(2 * r / 5) * (0.3 if r < 0 else 1.0) for r in raw]
    np.testing.assert_allclose(got, expected if clip is None else [max(-clip, min(clip, r)) for r in expected], rtol=1e-12)
    assert (got[0], got[-1]) == (-1.5, clip or 5.0)


@pytest.mark.parametrize("listed_infos", [False, True])
@pytest.mark.parametrize("mode", [None, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_lost_lives_end_episodes_but_not_games(mode: AutoresetMode | None, listed_infos: bool) -> None:
    kind = listed if listed_infos else SyncVectorEnv
    envs = [LosingLives]
    group = local_group([LosingLives()]) if mode is None else VectorGroup(kind(envs, autoreset_mode=mode), EnvConfig(), "lives")
    now, after = rows_for(group.spec, 1)
    reset_group(group, 0, after)
    games, ends, total, steps = [], 0, 0.0, 0
    resets_alone = group.spec.autoreset == "next-step"
    for _ in range(60):
        step_group(group, np.zeros((1, 1), np.int32), now, after)
        total += float(now.reward[0])
        steps += int(not (resets_alone and after.first[0]))
        ends += int(now.terminated[0])
        if not np.isnan(now.episode_return[0]):
            games.append((now.episode_return[0], now.episode_length[0]))
            assert games[-1] == (total, steps)
            total, steps = 0.0, 0
    assert len(games) == ends // 3 >= 3


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("nan observation", r"observation 'obs' is nan at index \[2\]"),
        ("infinite observation", r"observation 'obs' is inf at index \[1\]"),
        ("huge observation", r"observation 'obs' is 1e\+30 at index \[3\], too large to learn from"),
        ("huge reward", r"the reward is -1e\+30, too large to learn from"),
        ("shape", r"observation 'obs' has shape \(3,\); its space declares \(4,\)"),
        ("broadcastable shape", r"observation 'obs' has shape \(1,\)"),
        ("dtype", "has dtype complex64; its space declares float32"),
        ("nan reward", "the reward is nan"),
        ("no reward", "step failed: TypeError: the reward is None, but must be a number"),
        ("list as info", "step failed: .*the info is a list, but must be a dictionary"),
        ("four results", r"step failed: .*old Gym.*\(observation, reward, terminated, truncated, info\)"),
        ("raises", "step failed: ZeroDivisionError: from inside the environment"),
        ("exits", "step failed: SystemExit: 3"),
        ("info too early", "step failed: .*terminated and truncated must be True or False, and one is {'seen': 1}"),
    ],
)
def test_faults_name_environment_seed_and_step(way: str, message: str) -> None:
    group = local_group([CountingEnv(), CountingEnv(), BadEnv(way)], name="my/world")
    now, after = rows_for(group.spec, 3)
    reset_group(group, 1, after)
    actions = np.zeros((3, 1), np.int32)
    for _ in range(2):
        step_group(group, actions, now, after)
    with pytest.raises(EnvironmentFault, match=rf"my/world, environment 2 \(seed 3\), game 1, step 3: .*{message}") as caught:
        step_group(group, actions, now, after)
    if way == "raises":
        assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("value", [1, 1.0, np.bool_(True), np.array(True), np.array([True]), np.int64(1)])
def test_flags_of_several_types(value: Any) -> None:
    assert flag(value) is True
    assert flag(value * 0) is False


@pytest.mark.parametrize("value", ["no", None, {}, {"a": 1}, 7, np.nan, [True, False], np.array([])])
def test_what_is_no_flag(value: Any) -> None:
    with pytest.raises(TypeError, match="must be True or False"):
        flag(value)


def test_faults_of_reset_and_of_vector_environments() -> None:
    class NoStart(CountingEnv):
        def reset(self, **kwargs: Any) -> Any:
            raise OSError("no screen")

    group = local_group([CountingEnv(), NoStart()])
    with pytest.raises(EnvironmentFault, match=r"environment 1 \(seed 8\).*reset failed: OSError: no screen"):
        reset_group(group, 7, rows_for(group.spec, 2)[1])

    vector = VectorGroup(SyncVectorEnv([CountingEnv, lambda: BadEnv("raises")]), EnvConfig(), "my/vector")
    now, after = rows_for(vector.spec, 2)
    reset_group(vector, 7, after)
    actions = np.zeros((2, 1), np.int32)
    for _ in range(2):
        step_group(vector, actions, now, after)
    error = r"my/vector, group of 2 environments \(seeds 7 to 8\).*ZeroDivisionError"
    with pytest.raises(EnvironmentFault, match=error) as caught:
        step_group(vector, actions, now, after)
    files = re.findall(r'File "(.*?)"', caught.value.frames)
    assert [Path(file).name for file in files] == ["worlds.py"]  # the environment's own


def test_results_of_other_interfaces_are_refused() -> None:
    class OldReset(CountingEnv):
        def reset(self, **kwargs: Any) -> Any:
            return super().reset(**kwargs)[0]

    group = local_group([OldReset()])
    with pytest.raises(EnvironmentFault, match=r"reset failed: .*old Gym.*\(observation, info\)"):
        reset_group(group, 7, rows_for(group.spec, 1)[1])

    class NoInfos(VectorWrapper):
        def step(self, actions: Any) -> Any:
            return (*self.env.step(actions)[:4], None)

    envs = NoInfos(SyncVectorEnv([CountingEnv] * 2, autoreset_mode=AutoresetMode.SAME_STEP))
    vector = VectorGroup(envs, EnvConfig(), "my/vector")
    now, after = rows_for(vector.spec, 2)
    reset_group(vector, 7, after)
    with pytest.raises(EnvironmentFault, match=r"my/vector.*the infos are a NoneType, but must be a dictionary"):
        step_group(vector, np.zeros((2, 1), np.int32), now, after)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda o, r, e, c, i: (o, r, e or c, i), r"it returned 4 results \(the interface of old Gym\?\)"),
        (lambda o, r, e, c, i: (o, r, e, c, [i]), "the info is a list, but must be a dictionary"),
        (lambda o, r, e, c, i: (o, np.array([1.0, 2.0]), e, c, i), r"the reward is array\(\[1., 2.\]\), but must be a number"),
        (lambda o, r, e, c, i: (o, "1 point", e, c, i), "the reward is '1 point', but must be a number"),
        (lambda o, r, e, c, i: (o, None, e, c, i), "the reward is None, but must be a number"),
    ],
    ids=["4 results", "list of infos", "rewards", "text", "None"],
)
def test_what_is_no_step_of_gymnasium_is_refused_with_the_reason(answer: Any, words: str) -> None:
    class Odd(CountingEnv):
        def step(self, action: Any) -> Any:
            return answer(*super().step(action))

    group = local_group([Odd()])
    now, after = rows_for(group.spec, 1)
    reset_group(group, 7, after)
    with pytest.raises(EnvironmentFault, match=f"step 1: .*{words}"):
        step_group(group, np.zeros((1, 1), np.int32), now, after)


def test_old_environments_in_wrappers_and_without_a_seed_are_refused_with_the_interface() -> None:
    class OldStep(CountingEnv):
        def step(self, action: Any) -> Any:
            observation, reward, terminated, _, info = super().step(action)
            return observation, reward, terminated, info

    group = local_group([gymnasium.wrappers.TimeLimit(OldStep(), 9)])
    now, after = rows_for(group.spec, 1)
    reset_group(group, 7, after)
    with pytest.raises(EnvironmentFault, match=r"step failed: .*old Gym.*\(observation, reward, terminated, truncated, info\)"):
        step_group(group, np.zeros((1, 1), np.int32), now, after)

    class NoSeed(CountingEnv):
        def reset(self) -> Any:  # type: ignore[override]
            return super().reset()

    for env in (NoSeed(), gymnasium.wrappers.TimeLimit(NoSeed(), 9)):
        group = local_group([env])
        with pytest.raises(EnvironmentFault, match=r"old Gym.*reset\(\*, seed=None, options=None\)") as caught:
            reset_group(group, 7, rows_for(group.spec, 1)[1])
        assert caught.value.repeats, "no other process is started in the place of the one that met it"


def test_errors_of_an_environment_itself_are_not_taken_for_an_old_interface() -> None:
    class Unpacks(CountingEnv):
        def step(self, action: Any) -> Any:
            for a, b, c, d, e in [(1, 2, 3, 4)]:  # type: ignore[misc]
                return a, b, c, d, e

    group = local_group([Unpacks()])
    now, after = rows_for(group.spec, 1)
    reset_group(group, 7, after)
    with pytest.raises(EnvironmentFault, match=r"step failed: ValueError: [^;]*$"):
        step_group(group, np.zeros((1, 1), np.int32), now, after)


def test_old_observations_of_two_parts_are_no_result_of_reset() -> None:
    """A tuple of two observations has the length that Gymnasium's result has."""

    class OldPair(CountingEnv):
        def reset(self, **kwargs: Any) -> Any:
            observation, _ = super().reset(**kwargs)
            return observation, observation

    group = local_group([OldPair()])
    with pytest.raises(EnvironmentFault, match=r"reset failed: .*the info is a ndarray, but must be a dictionary \(the"):
        reset_group(group, 7, rows_for(group.spec, 1)[1])


def test_same_step_environments_must_give_their_last_observations() -> None:
    class NoFinal(VectorWrapper):
        def step(self, actions: Any) -> Any:
            return (*self.env.step(actions)[:4], {})

    envs = NoFinal(SyncVectorEnv([CountingEnv] * 2, autoreset_mode=AutoresetMode.SAME_STEP))
    group = VectorGroup(envs, EnvConfig(), "my/vector")
    now, after = rows_for(group.spec, 2)
    reset_group(group, 7, after)

    def play() -> None:
        for _ in range(50):
            step_group(group, np.zeros((2, 1), np.int32), now, after)

    with pytest.raises(EnvironmentFault, match="episodes ended, but the infos have no 'final_obs'"):
        play()


def test_observations_outside_of_their_space_are_warned_of_once() -> None:
    class Wide(gymnasium.Env):
        bounded = spaces.Box(-1, 1, (2,))
        observation_space = spaces.Dict({"far": bounded, "near": bounded, "any": spaces.Box(-1, np.inf)})
        action_space = spaces.Discrete(2)
        far = 1.0

        def observe(self) -> dict[str, np.ndarray]:
            return {"far": np.float32([0, self.far]), "near": np.float32([-1.001, 0]), "any": np.float32([9])}

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
            return self.observe(), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return self.observe(), 0.0, False, False, {}

    group, said = local_group([env := Wide(), Wide()]), list[str]()
    now, after = rows_for(group.spec, 2)
    with warnings_reported(said.append):
        reset_group(group, 0, after)
        step_group(group, np.zeros((2, 1), np.int32), now, after)
        env.far = 7.0
        for _ in range(BOUNDS_PERIOD - 1):
            step_group(group, np.zeros((2, 1), np.int32), now, after)
        assert said == []
        for _ in range(BOUNDS_PERIOD + 1):
            step_group(group, np.zeros((2, 1), np.int32), now, after)
    assert ["observation 'far' has values from 0 to 7, but its space says -1 to 1" in text for text in said] == [True]
    env.far = -7.0
    with pytest.warns(OutOfBounds, match="from -7 to"):
        reset_group(local_group([Wide(), env]), 0, after)
    short = local_group([env := Wide(), Wide()])
    reset_group(short, 0, after)
    env.far = -7.0
    with pytest.warns(OutOfBounds, match="from -7 to"):  # in the first step, since a short run has no thousandth
        step_group(short, np.zeros((2, 1), np.int32), now, after)


def test_masks_that_allow_nothing() -> None:
    class Masked(CountingEnv):
        def __init__(self, forget: int) -> None:
            super().__init__()
            self.forget = forget
            self.observation_space = spaces.Dict({"obs": self.observation_space, MASK_KEY: spaces.MultiBinary(5)})

        def observation(self) -> Any:
            over = self.count == episode_length(self.seed, self.episode)
            mask = np.full(5, not over and self.count != self.forget, np.int8)
            return {"obs": super().observation(), MASK_KEY: mask}

    group = local_group([Masked(forget=-1)])
    now, after = rows_for(group.spec, 1)
    reset_group(group, 3, after)
    for _ in range(30):  # an empty mask on a last observation is nothing to choose by
        step_group(group, np.zeros((1, 1), np.int32), now, after)
        assert after.obs[MASK_KEY].all()
    group = local_group([Masked(forget=2)])
    reset_group(group, 3, after)
    step_group(group, np.zeros((1, 1), np.int32), now, after)
    with pytest.raises(EnvironmentFault, match="step 2: the action mask allows no choice in discrete part 0"):
        step_group(group, np.zeros((1, 1), np.int32), now, after)
