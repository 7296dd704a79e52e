"""Environments of tensors: the group, and a CartPole in PyTorch that is Gymnasium's."""

from __future__ import annotations

import re
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from worlds import reset_group, rows_for, step_group

from headrace.config import ConfigError, EnvConfig
from headrace.envs.core import registry
from headrace.envs.core.contract import MASK_KEY
from headrace.envs.core.errors import EnvironmentFault, UnsupportedSpace
from headrace.envs.families.torch_cartpole import CartPole
from headrace.envs.groups.tensor import TensorGroup, TensorStep
from headrace.envs.make import describe, make_env, make_group

N = 5


class Counter:
    """Environment i of episode k ends after 2 + i + k steps; odd episodes are truncated. Observation: {env, [episode, step]}."""

    def __init__(self, num_envs: int, device: str = "cpu") -> None:
        self.num_envs = num_envs
        box = gymnasium.spaces.Box
        self.single_observation_space: gymnasium.Space = gymnasium.spaces.Dict({"env": box(0, 99, (1,)), "at": box(0, 999, (2,))})
        self.single_action_space: gymnasium.Space = gymnasium.spaces.Discrete(3, start=10)
        self.index = torch.arange(num_envs, dtype=torch.float32)
        self.episode = torch.zeros(num_envs)
        self.count = torch.zeros(num_envs)
        self.reward_of: Any = lambda actions: actions.float()

    def observe(self) -> dict[str, torch.Tensor]:
        return {"env": self.index[:, None], "at": torch.stack([self.episode, self.count], -1)}

    def reset(self, seed: int) -> dict[str, torch.Tensor]:
        self.episode.zero_()
        self.count.zero_()
        return self.observe()

    def step(self, actions: torch.Tensor) -> TensorStep:
        self.count += 1
        ended = self.count == 2 + self.index + self.episode
        final, odd = self.observe(), self.episode % 2 == 1
        self.episode += ended
        self.count = self.count * ~ended
        return TensorStep(self.observe(), self.reward_of(actions), ended & ~odd, ended & odd, final)


class Array:
    """An array of another library, of which no more is known than DLPack says."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor.clone()

    def __dlpack__(self, **arguments: Any) -> Any:
        return self._tensor.__dlpack__(**arguments)

    def __dlpack_device__(self) -> Any:
        return self._tensor.__dlpack_device__()


class CounterOfArrays(Counter):
    """The same in arrays of another library."""

    def reset(self, seed: int) -> Any:
        return {name: Array(x) for name, x in super().reset(seed).items()}

    def step(self, actions: torch.Tensor) -> Any:
        obs, reward, terminated, truncated, final = super().step(actions)
        arrays = ({name: Array(x) for name, x in each.items()} for each in (obs, final))
        ends = Array(terminated.to(torch.uint8)), Array(truncated.to(torch.uint8))
        return TensorStep(next(arrays), Array(reward), *ends, next(arrays))  # type: ignore[arg-type]


class CounterOfNumbers(Counter):
    """Flags are floats, as the `done` of Brax is."""

    def step(self, actions: torch.Tensor) -> Any:
        obs, reward, terminated, truncated, final = super().step(actions)
        return TensorStep(obs, reward, terminated.float(), truncated.float(), final)


@pytest.mark.parametrize("kind", [Counter, CounterOfArrays, CounterOfNumbers])
@pytest.mark.parametrize("place", [None, "cpu"])
def test_rows_are_those_of_a_group_that_resets_in_the_same_step(place: str | None, kind: type[Counter]) -> None:
    """NumPy rows (`place` None) and rows of tensors hold the same."""
    registry.register_tensor("test/counter")(lambda options, num_envs, device: kind(num_envs, device))
    group = make_group("test/counter", EnvConfig(reward_scale=0.5, reward_clip=5.75), N, device=place)
    assert isinstance(group, TensorGroup)
    assert group.tensors == (place is not None)
    assert group.spec.autoreset == "same-step"
    now, after = rows_for(group.spec, N)
    if place is not None:
        for row in (now, after):
            for name, x in vars(row).items():
                if x is None:  # what only population-based training asks for
                    continue
                value = {key: torch.from_numpy(y) for key, y in x.items()} if isinstance(x, dict) else torch.from_numpy(x)
                setattr(row, name, value)
    reset_group(group, 0, after)
    assert bool(np.asarray(after.first).all() and np.asarray(after.valid).all())
    count, episode, total = np.zeros(N), np.zeros(N), np.zeros(N)
    for t in range(30):
        actions = (np.arange(N) + t)[:, None].astype(np.int32) % 3
        step_group(group, actions if place is None else torch.from_numpy(actions), now, after)
        raw = actions[:, 0] + 10.0
        total, count = total + raw, count + 1
        ended = count == 2 + np.arange(N) + episode
        np.testing.assert_array_equal(now.reward, np.minimum(raw * 0.5, 5.75))
        np.testing.assert_array_equal(now.terminated, ended & (episode % 2 == 0))
        np.testing.assert_array_equal(now.truncated, ended & (episode % 2 == 1))
        np.testing.assert_array_equal(now.episode_return, np.where(ended, total, np.nan))
        np.testing.assert_array_equal(now.episode_length, np.where(ended, count, 0))
        np.testing.assert_array_equal(np.asarray(now.final_obs["at"])[ended], np.stack([episode, count], -1)[ended])
        episode, count, total = episode + ended, count * ~ended, total * ~ended
        np.testing.assert_array_equal(after.obs["at"], np.stack([episode, count], -1))
        np.testing.assert_array_equal(after.obs["env"][:, 0], np.arange(N))
        np.testing.assert_array_equal(after.first, ended)
        assert bool(np.asarray(after.valid).all())
    group.close()


def as_tensors(row: Any) -> Any:
    for name, x in vars(row).items():
        if x is not None:
            setattr(row, name, {k: torch.from_numpy(y) for k, y in x.items()} if isinstance(x, dict) else torch.from_numpy(x))
    return row


def test_tasks_of_tensors_stand_side_by_side() -> None:
    """Two tasks, one of which squashes rewards; the environments' tensors are written in place."""

    def made(options: EnvConfig, num_envs: int, device: str) -> Counter:
        counter = Counter(num_envs, device)
        counter.reward_of = lambda actions: actions.float() - 11
        return counter

    for name in ("test/one", "test/two"):
        registry.register_tensor(name)(made)
    options = EnvConfig(task_options={"test/two": {"reward_soft_clip": 5.0}})
    group = make_group("test/one,test/two", options, 6, device="cpu")
    assert (group.tensors, group.spec.tasks) == (True, ("test/one", "test/two"))
    now, after = rows_for(group.spec, 6)
    now.task = np.zeros(6, np.int32)
    now, after = as_tensors(now), as_tensors(after)
    reset_group(group, 0, after)
    for t in range(12):
        actions = (torch.arange(6, dtype=torch.int32)[:, None] // 2 + t) % 3
        step_group(group, actions, now, after)
        raw = actions[:, 0].numpy() - 1.0
        squashed = 5 * np.tanh(raw / 5) * np.where(raw < 0, 0.3, 1.0)
        np.testing.assert_allclose(now.reward, np.where(np.arange(6) % 2, squashed, raw), rtol=1e-6)
        assert now.task.tolist() == [0, 1] * 3
        np.testing.assert_array_equal(after.obs["env"][:, 0], [0, 0, 1, 1, 2, 2])
        np.testing.assert_array_equal(now.truncated[::2], now.truncated[1::2])


def test_numbers_that_nothing_can_learn_from_are_stopped_and_errors_name_the_environment() -> None:
    def group_of(envs: Any) -> TensorGroup:
        return TensorGroup(envs, EnvConfig(), "test/bad", device="cpu", tensors=False)

    where = r"test/bad, 5 environments \(seed 7\), step 1 of each: "
    for reward, message in (
        (lambda a: torch.where(a == 11, torch.nan, 1.0), where + "the reward of environment 2 is nan$"),
        (lambda a: torch.where(a == 11, -1e30, 1.0), where + r"the reward of environment 2 is -1e\+30, too large to learn from"),
        (lambda a: a.no_such_method(), where + "step failed: AttributeError"),
        (lambda a: torch.ones(N, 1), where + r"step failed: ValueError: reward has shape \(5, 1\); one number .* is \(5,\)"),
    ):
        envs = Counter(N)
        envs.reward_of = reward
        group = group_of(envs)
        now, after = rows_for(group.spec, N)
        reset_group(group, 7, after)
        with pytest.raises(EnvironmentFault, match=message) as caught:
            step_group(group, np.array([[0], [0], [1], [0], [1]], np.int32), now, after)
        assert "envs/groups/tensor.py" not in caught.value.frames  # but what is the environment's own

    class Broken(Counter):
        """`observe` gives `value` in environment 3 from step `at` on."""

        def __init__(self, value: float, at: int) -> None:
            super().__init__(N)
            self.value, self.at, self.calls = value, at, 0

        def observe(self) -> dict[str, torch.Tensor]:
            obs = super().observe()
            self.calls += 1
            if self.calls > self.at:
                obs["at"] = obs["at"].clone()
                obs["at"][3, 1] = self.value
            return obs

    for value, text in ((torch.inf, "is inf at index [1]"), (1e30, "is 1e+30 at index [1], too large to learn from")):
        with pytest.raises(EnvironmentFault, match=re.escape(f"step 0 of each: observation 'at' of environment 3 {text}")):
            reset_group(group_of(Broken(value, 0)), 7, rows_for(group.spec, N)[1])
        bad = group_of(Broken(value, 1))
        now, after = rows_for(group.spec, N)
        reset_group(bad, 7, after)
        with pytest.raises(EnvironmentFault, match=re.escape(f"step 1 of each: observation 'at' of environment 3 {text}")):
            step_group(bad, np.zeros((N, 1), np.int32), now, after)

    class Gymnasiums(Counter):
        def step(self, actions: torch.Tensor) -> Any:
            return *super().step(actions)[:4], {}

    plain = group_of(Gymnasiums(N))
    reset_group(plain, 7, after)
    with pytest.raises(EnvironmentFault, match=where + "step failed: TypeError: step returned a tuple; return a .*TensorStep"):
        step_group(plain, np.zeros((N, 1), np.int32), now, after)

    class WrongShape(Counter):
        def observe(self) -> dict[str, torch.Tensor]:
            return super().observe() | {"at": torch.zeros(self.num_envs, 3)}

    with pytest.raises(EnvironmentFault, match=r"observation 'at' has shape \[5, 3\]; \[5, 2\] is declared"):
        reset_group(group_of(WrongShape(N)), 0, after)


class MaskedCounter(Counter):
    """In the last observation of an episode nothing is allowed, and `stuck` says where nothing is allowed to act on either."""

    def __init__(self, num_envs: int, device: str = "cpu") -> None:
        super().__init__(num_envs)
        mask = gymnasium.spaces.MultiBinary(5)
        self.single_observation_space = gymnasium.spaces.Dict({"at": gymnasium.spaces.Box(0, 999, (2,)), MASK_KEY: mask})
        self.single_action_space = gymnasium.spaces.MultiDiscrete([3, 2])
        self.stuck = torch.zeros(num_envs, dtype=torch.bool)
        self.reward_of = lambda actions: actions.float().sum(-1)

    def observe(self) -> dict[str, torch.Tensor]:
        mask = torch.tensor([0, 1, 0, 1, 1], dtype=torch.int8).repeat(self.num_envs, 1)
        mask[self.stuck, 3:] = 0
        return {"at": super().observe()["at"], MASK_KEY: mask}

    def step(self, actions: torch.Tensor) -> TensorStep:
        step = super().step(actions)
        assert isinstance(step.final_obs, dict)
        step.final_obs[MASK_KEY] = torch.zeros_like(step.final_obs[MASK_KEY])
        return step


def test_masks_that_allow_nothing_are_an_error_where_an_action_is_taken_and_are_repaired_elsewhere() -> None:
    worlds = MaskedCounter(N)
    registry.register_tensor("test/masked")(lambda options, num_envs, device: worlds)
    group = make_group("test/masked", EnvConfig(), N)
    now, after = rows_for(group.spec, N)
    reset_group(group, 3, after)
    actions = np.tile(np.array([[1, 0]], np.int32), (N, 1))
    for _ in range(4):
        step_group(group, actions, now, after)
        np.testing.assert_array_equal(after.obs[MASK_KEY], np.tile([0, 1, 0, 1, 1], (N, 1)))
        assert (now.final_obs[MASK_KEY] == 1).all()
    worlds.stuck[2] = True
    fault = r"step 5 of each: the action mask allows no choice in discrete part 1 of environment 2$"
    with pytest.raises(EnvironmentFault, match=fault):
        step_group(group, actions, now, after)


@pytest.mark.parametrize(
    ("space", "given", "seen"),
    [
        (gymnasium.spaces.Box(0, 10, (2,), np.int64), torch.tensor([3, 7]), [3, 7]),
        (gymnasium.spaces.Box(-(2**31), 2**31 - 1, (2,), np.int32), torch.tensor([3, -7], dtype=torch.int32), [3, -7]),
        (gymnasium.spaces.MultiBinary(2), torch.tensor([1, 0], dtype=torch.int8), [1, 0]),
        (gymnasium.spaces.MultiBinary(2), torch.tensor([True, False]), [1, 0]),
        (gymnasium.spaces.Box(0, 1, (1, 20, 20), np.uint8), torch.ones(1, 20, 20, dtype=torch.uint8), 255),
        (gymnasium.spaces.Box(0, 1, (1, 20, 20), np.float32), torch.full((1, 20, 20), 0.6), 153),
        (gymnasium.spaces.Box(0, 255, (1, 20, 20), np.uint8), torch.full((1, 20, 20), 200, dtype=torch.uint8), 200),
    ],
)
def test_observations_are_as_those_of_other_environments(space: gymnasium.Space, given: torch.Tensor, seen: Any) -> None:
    """Integers and bits are the numbers that they are; images end at 255."""
    envs = Counter(N)
    envs.single_observation_space = space
    envs.observe = lambda: given.repeat(N, *[1] * given.dim())  # type: ignore[method-assign, assignment, return-value]
    group = TensorGroup(envs, EnvConfig(), "my/t", device="cpu", tensors=False)
    _, after = rows_for(group.spec, N)
    reset_group(group, 0, after)
    assert (after.obs["obs"] == seen).all(), after.obs["obs"]


def test_spaces_without_plain_tensors_are_refused() -> None:
    envs = Counter(N)
    envs.single_observation_space = gymnasium.spaces.Box(0, 255, (84, 84, 3), np.uint8)
    with pytest.raises(UnsupportedSpace, match="images \\[C, H, W\\]"):
        TensorGroup(envs, EnvConfig(), "test/image", device="cpu", tensors=True)
    envs.single_observation_space = gymnasium.spaces.Discrete(4)
    with pytest.raises(UnsupportedSpace, match="Give a discrete observation one-hot"):
        TensorGroup(envs, EnvConfig(), "test/discrete", device="cpu", tensors=True)
    with pytest.raises(ConfigError, match="no single environment to make"):
        make_env("test/counter", EnvConfig())


def test_actions_arrive_as_their_space_says() -> None:
    taken = []
    envs = Counter(N)
    envs.reward_of = lambda actions: taken.append(actions.clone()) or torch.zeros(N)
    for space, rows, expected in (
        (gymnasium.spaces.Box(-1, 1, (2,)), np.full((N, 2), 3, np.float32), torch.ones(N, 2)),
        (gymnasium.spaces.MultiDiscrete([3, 4], start=[1, 2]), np.full((N, 2), 1, np.int32), torch.tensor([[2, 3]] * N)),
    ):
        envs.single_action_space = space
        group = TensorGroup(envs, EnvConfig(), "test/actions", device="cpu", tensors=False)
        now, after = rows_for(group.spec, N)
        reset_group(group, 0, after)
        step_group(group, rows, now, after)
        torch.testing.assert_close(taken[-1], expected)


# -- CartPole -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_cartpole_is_gymnasiums(seed: int) -> None:
    """The same starts and random actions give the same observations, rewards and ends, over whole episodes."""
    rng = np.random.default_rng(seed)
    many = CartPole(8)
    many.reset(seed)
    theirs = [gymnasium.make("CartPole-v1", max_episode_steps=-1).unwrapped for _ in range(8)]
    for env in theirs:
        env.reset(seed=seed)

    def copy_starts(which: Any) -> None:
        for i in which:
            theirs[i].state = many.state[:, i].numpy().copy()
            theirs[i].steps_beyond_terminated = None

    copy_starts(range(8))
    ends = 0
    for t in range(400):
        # Half of the environments are balanced, so that long episodes are compared, too.
        actions = rng.integers(0, 2, 8)
        actions[:4] = [int(3 * env.state[2] + env.state[3] > 0) for env in theirs[:4]]
        step = many.step(torch.from_numpy(actions))
        for i, env in enumerate(theirs):
            obs, reward, terminated, _, _ = env.step(int(actions[i]))
            np.testing.assert_allclose(step.final_obs[i].numpy(), obs, rtol=1e-6, atol=1e-9, err_msg=f"step {t}")
            assert step.reward[i] == reward
            assert step.terminated[i] == terminated
        ended = step.terminated | step.truncated
        assert torch.equal(step.obs[~ended], step.final_obs[~ended])
        assert (step.obs[ended].abs() <= 0.05).all()
        copy_starts(ended.nonzero()[:, 0].tolist())
        ends += int(ended.sum())
    assert ends > 40


def test_cartpole_is_truncated_at_its_limit_and_goes_on_from_its_state() -> None:
    envs, other = CartPole(3, step_limit=7), CartPole(3, step_limit=7)
    envs.reset(seed=4)
    push = torch.tensor([0, 1, 0])
    for t in range(1, 8):
        step = envs.step(push ^ (t % 2))
        assert (step.truncated == (t == 7)).all()
        assert not step.terminated.any()
    other.set_state(envs.get_state())
    for _ in range(20):
        one, two = envs.step(push), other.step(push)
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_it_is_listed_described_and_can_be_watched() -> None:
    assert "torch/CartPole-v1" in registry.list_ids()
    spec = describe("torch/CartPole-v1", EnvConfig())
    assert spec.autoreset == "same-step"
    assert spec.observation["obs"].shape == (4,)
    env = make_env("torch/CartPole-v1", EnvConfig())
    assert env.observation_space == CartPole(1).single_observation_space
    env.close()
