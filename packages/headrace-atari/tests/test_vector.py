"""AtariVector against ale_py.AtariVectorEnv, bit for bit, and what only AtariVector does."""

import importlib.util
import subprocess
import sys

import ale_py
import gymnasium
import numpy as np
import pytest
from ale_py import AtariVectorEnv
from gymnasium.vector import AutoresetMode

from headrace_atari import AtariVector, games, rom_path

ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
SAME_STEP, NEXT_STEP = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP


def assert_same(ours, theirs, finals):
    """All arrays of a step or reset are equal, in values and types. `finals`: rows whose final_obs means something."""
    for mine, other in zip(ours[:-1], theirs[:-1], strict=True):
        assert mine.dtype == other.dtype
        np.testing.assert_array_equal(mine, other)
    mine, other = ours[-1], theirs[-1]
    assert sorted(mine) == sorted(other)
    for key in other:
        if key == "final_obs":
            np.testing.assert_array_equal(mine[key][finals], other[key][finals])
        else:
            np.testing.assert_array_equal(mine[key], other[key])


def play_both(game, steps, num_envs=2, seed=0, **options):
    """The same random play on both sides. Returns how many episodes ended."""
    theirs = AtariVectorEnv(game, num_envs, num_threads=1, **options)
    ours = AtariVector(game, num_envs, num_threads=1, **options)
    assert ours.single_observation_space == theirs.single_observation_space
    assert ours.single_action_space == theirs.single_action_space
    assert ours.observation_space == theirs.observation_space
    assert_same(ours.reset(seed=seed), theirs.reset(seed=seed), [])
    rng = np.random.default_rng(seed)
    ends = 0
    for _ in range(steps):
        actions = rng.integers(theirs.single_action_space.n, size=num_envs)
        mine, other = ours.step(actions), theirs.step(actions)
        done = other[2] | other[3]
        # a lost life that is only reported leaves no final observation behind in ale-py
        finals = done & (other[4]["episode_frame_number"] < 40) if options.get("life_loss_info") else done
        assert_same(mine, other, finals)
        ends += done.sum()
    # unseeded resets go on with the generators and the console as they are
    assert_same(ours.reset(), theirs.reset(), [])
    ours.close()
    return ends


# Every mapper, both TV formats, joysticks and paddles, unusual heights, and every option at least once.
CASES = [
    ("breakout", 160, {"autoreset_mode": SAME_STEP}),  # 2K, paddles
    ("pong", 60, {"repeat_action_probability": 0.25}),  # 2K, swapped paddles
    ("seaquest", 60, {"max_num_frames_per_episode": 44, "autoreset_mode": SAME_STEP}),  # 4K
    ("ms_pacman", 60, {"grayscale": False, "img_height": 64, "img_width": 100}),  # F8, no HMOVE blanks
    ("road_runner", 60, {"frameskip": 3, "full_action_space": True}),  # F6
    ("elevator_action", 40, {"maxpool": False, "noop_max": 0, "frameskip": 5}),  # F8SC
    ("klax", 40, {"max_num_frames_per_episode": 101}),  # F6SC, PAL
    ("montezuma_revenge", 60, {"life_loss_info": True, "autoreset_mode": SAME_STEP}),  # E0
    ("robotank", 40, {"use_fire_reset": False, "reward_clipping": False}),  # FE
    ("pitfall2", 40, {"stack_num": 1, "img_height": 210, "img_width": 160}),  # DPC, full size
    ("air_raid", 60, {"episodic_life": True, "frameskip": 2, "img_height": 125, "img_width": 80}),  # PAL, whole scales
    ("breakout", 120, {"episodic_life": True, "max_num_frames_per_episode": 301}),
    ("carnival", 40, {"stack_num": 2, "img_height": 107, "img_width": 80}),  # 214 rows, halved
    ("pooyan", 40, {"frameskip": 1, "max_num_frames_per_episode": 13}),  # 220 rows
    ("journey_escape", 40, {"img_height": 42, "img_width": 42}),  # 230 rows
    ("surround", 60, {"autoreset_mode": SAME_STEP}),  # swapped ports, RAM not cleared at resets
    ("double_dunk", 30, {"repeat_action_probability": 0.25}),  # mode menu walked under sticky actions
    ("tic_tac_toe_3d", 60, {"autoreset_mode": SAME_STEP}),  # missing rows, which show what the step before drew
]


@pytest.mark.parametrize(("game", "steps", "options"), CASES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)])
def test_equals_ale(game, steps, options):
    ends = play_both(game, steps, **options)
    if "max_num_frames_per_episode" in options:
        assert ends > 0


@pytest.mark.slow
@pytest.mark.parametrize("game", games())
def test_equals_ale_in_every_game(game):
    play_both(game, 300, seed=1, repeat_action_probability=0.25)
    play_both(game, 200, seed=2, autoreset_mode=SAME_STEP, max_num_frames_per_episode=400, grayscale=False)


@pytest.mark.parametrize("p", [0.0, 0.25])
def test_continuous_actions_equal_ale(p):
    """With sticky actions an action is repeated with its strength."""
    theirs = AtariVectorEnv("kaboom", 2, num_threads=1, continuous=True, repeat_action_probability=p)
    ours = AtariVector("kaboom", 2, num_threads=1, continuous=True, repeat_action_probability=p)
    assert ours.single_action_space == theirs.single_action_space
    assert_same(ours.reset(seed=3), theirs.reset(seed=3), [])
    rng = np.random.default_rng(0)
    for _ in range(60):
        actions = rng.uniform([0, -np.pi, 0], [1, np.pi, 1], (2, 3)).astype(np.float32)
        assert_same(ours.step(actions), theirs.step(actions), [])


def test_ram_observations_equal_ale():
    ale = ale_py.ALEInterface()
    ale.setInt("random_seed", 7)
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(rom_path("space_invaders"))
    ale.reset_game()
    env = AtariVector("space_invaders", 1, obs_type="ram", stack_num=2, noop_max=0, use_fire_reset=False)
    observations, _ = env.reset(seed=7)
    assert observations.shape == (1, 2, 128)
    previous = ale.getRAM()
    np.testing.assert_array_equal(observations[0], [np.zeros(128), previous])
    for step in range(20):
        for _ in range(4):
            ale.act(ale.getMinimalActionSet()[step % 6])
        observations, *_ = env.step(np.array([step % 6]))
        np.testing.assert_array_equal(observations[0], [previous, ale.getRAM()])
        previous = ale.getRAM()


def rollout(env, steps, seed=0, actions_of=None):
    """Observations, rewards and ends of random play, in the order of environments."""
    rng = np.random.default_rng(seed)
    trace = []
    for step in range(steps):
        actions = rng.integers(env.single_action_space.n, size=env.num_envs) if actions_of is None else actions_of(step)
        observations, rewards, terminated, truncated, infos = env.step(actions)
        trace.append((observations, rewards, terminated, truncated, infos["lives"]))
    return trace


def assert_same_trace(a, b):
    for x, y in zip(a, b, strict=True):
        for left, right in zip(x, y, strict=True):
            np.testing.assert_array_equal(left, right)


def test_mixed_games_play_as_they_do_alone():
    names = ["pong", "breakout", "air_raid"]
    mixed = AtariVector(names, 6, num_threads=2, repeat_action_probability=0.25)
    assert mixed.game_names == names * 2
    assert mixed.single_action_space.n == 18
    first, _ = mixed.reset(seed=10)
    trace = rollout(mixed, 30)
    for i in range(6):
        alone = AtariVector(names[i % 3], 1, full_action_space=True, repeat_action_probability=0.25)
        observations, _ = alone.reset(seed=10 + i)
        np.testing.assert_array_equal(observations[0], first[i])
        rng = np.random.default_rng(0)
        own = rollout(alone, 30, actions_of=lambda _, i=i, rng=rng: rng.integers(18, size=6)[i : i + 1])
        for joint, single in zip(trace, own, strict=True):
            for left, right in zip(joint, single, strict=True):
                np.testing.assert_array_equal(left[i], right[0])


@pytest.mark.parametrize("num_threads", [None, 1, 3])
def test_batches_in_order_of_completion(num_threads):
    """With smaller batches each environment sees what it sees in whole batches under the same actions."""
    num_envs, steps = 5, 25
    actions = np.random.default_rng(0).integers(6, size=(steps, num_envs))
    whole = AtariVector("pong", num_envs, num_threads=1)
    expected = [whole.reset(seed=4)[0]] + [whole.step(a)[0] for a in actions]
    env = AtariVector("pong", num_envs, batch_size=2, num_threads=num_threads)
    observations, infos = env.reset(seed=4)
    taken = np.zeros(num_envs, int)
    for _ in range(40):
        ids = infos["env_id"]
        for row, i in enumerate(ids):
            np.testing.assert_array_equal(observations[row], expected[taken[i]][i])
        if taken[ids].max() == steps:
            break
        env.send(np.array([actions[taken[i], i] for i in ids]))
        taken[ids] += 1
        observations, *_, infos = env.recv()
    assert taken.sum() > 40


def test_writes_into_memory_of_the_caller():
    plain, writing = AtariVector("breakout", 3), AtariVector("breakout", 3)
    memory = np.full((2, 5, *plain.single_observation_space.shape), 77, np.uint8)
    rows = np.array([9, 0, 4])
    flat = memory.reshape(10, *plain.single_observation_space.shape)
    plain.reset(seed=0)
    observations, _ = writing.reset(seed=0, out=flat, rows=rows)
    assert observations is flat
    for _ in range(5):
        expected = plain.step(np.array([1, 2, 3]))[0]
        writing.send(np.array([1, 2, 3]), out=flat, rows=rows)
        assert writing.recv()[0] is flat
        np.testing.assert_array_equal(flat[rows], expected)
    untouched = np.setdiff1d(np.arange(10), rows)
    assert (flat[untouched] == 77).all()
    strided = memory[:, 2]  # rows of one time step lie apart
    with pytest.raises(ValueError, match="outside out"):
        writing.send(np.zeros(3, int), out=strided)
    with pytest.raises(ValueError, match="contiguous"):
        writing.send(np.zeros(3, int), out=np.zeros((3, 4, 84, 168), np.uint8)[..., ::2])
    with pytest.raises(ValueError, match="bytes"):
        writing.send(np.zeros(3, int), out=np.zeros((3, 84, 84), np.uint8))


def test_arrays_stay_as_they_were_received():
    env = AtariVector("pong", 2)
    kept = [env.reset(seed=0)[0]] + [env.step(np.array([2, 3]))[0] for _ in range(8)]
    copies = [array.copy() for array in kept]
    for _ in range(8):
        env.step(np.array([3, 2]))
    for array, copy in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_reset_mask():
    theirs, ours = AtariVectorEnv("breakout", 3, num_threads=1), AtariVector("breakout", 3)
    theirs.reset(seed=0), ours.reset(seed=0)
    for _ in range(10):
        theirs.step(np.array([1, 2, 3])), ours.step(np.array([1, 2, 3]))
    mask = {"reset_mask": np.array([False, True, False])}
    assert_same(ours.reset(options=mask), theirs.reset(options=mask), [])
    assert_same(ours.reset(seed=np.array([8]), options=mask), theirs.reset(seed=np.array([8]), options=mask), [])
    assert_same(ours.step(np.array([0, 1, 2])), theirs.step(np.array([0, 1, 2])), [])
    with pytest.raises(TypeError, match="boolean"):
        ours.reset(options={"reset_mask": [True, False, True]})
    with pytest.raises(ValueError, match="seed has shape"):
        ours.reset(seed=np.arange(3), options=mask)


@pytest.mark.parametrize("game", ["pong", "tic_tac_toe_3d"])
def test_screens_do_not_depend_on_who_looks_at_them_when(game):
    options = {"repeat_action_probability": 0.25, "render_mode": "rgb_array", "num_threads": 1}
    watched, saved, unseen = (AtariVector(game, 2, **options) for _ in range(3))
    rng = np.random.default_rng(0)
    for env in (watched, saved, unseen):
        env.reset(seed=0)
    for step in range(80):
        actions = rng.integers(watched.single_action_space.n, size=2)
        for env in (watched, saved, unseen):
            env.step(actions)
        screens = watched.render()
        if step % 5 == 0:
            assert saved.save_state(0) == watched.save_state(0)
            assert saved.save_state(1) == watched.save_state(1)
    np.testing.assert_array_equal(unseen.render(), screens)
    assert [unseen.save_state(i) for i in range(2)] == [watched.save_state(i) for i in range(2)]


@pytest.mark.parametrize("stream", ["ale", "counter"])
def test_saved_state_goes_on_alike(stream):
    options = {"repeat_action_probability": 0.25, "sticky_stream": stream, "max_num_frames_per_episode": 200}
    env = AtariVector("seaquest", 2, **options)
    env.reset(seed=0)
    rollout(env, 20)
    states = [env.save_state(i) for i in range(2)]
    expected = rollout(env, 80, seed=1)
    other = AtariVector("seaquest", 2, **options)
    other.reset(seed=5)
    for i, state in enumerate(states):
        other.load_state(i, state)
    assert_same_trace(rollout(other, 80, seed=1), expected)


def test_foreign_and_damaged_states_are_refused():
    env = AtariVector("pong", 1)
    env.reset(seed=0)
    state = env.save_state(0)
    with pytest.raises(ValueError, match="of pong, not of breakout"):
        AtariVector("breakout", 1).load_state(0, state)
    with pytest.raises(ValueError, match="other options"):
        AtariVector("pong", 1, frameskip=3).load_state(0, state)
    with pytest.raises(ValueError, match="damaged"):
        env.load_state(0, state[:-1] + bytes([state[-1] ^ 1]))
    with pytest.raises(ValueError, match="not a saved state"):
        env.load_state(0, b"\0" * len(state))
    with pytest.raises(ValueError, match="damaged"):
        env.load_state(0, state[:200])
    with pytest.raises(IndexError):
        env.save_state(1)
    env.send(np.array([0]))
    with pytest.raises(RuntimeError, match="under way"):
        env.save_state(0)


def test_sticky_streams():
    """Seeds repeat; the counter stream repeats a share p of actions like the other one."""
    runs = {}
    for stream in ("ale", "counter"):
        for p in (0.0, 0.5):
            env = AtariVector("boxing", 2, repeat_action_probability=p, sticky_stream=stream, stack_num=1)
            env.reset(seed=1)
            runs[stream, p] = np.stack([step[0] for step in rollout(env, 40)])
    assert (runs["ale", 0.0] == runs["counter", 0.0]).all()
    assert (runs["ale", 0.5] != runs["counter", 0.5]).any()
    assert (runs["counter", 0.5] != runs["counter", 0.0]).any()


def test_bad_input_is_refused(tmp_path):
    with pytest.raises(ValueError, match="did you mean pong"):
        AtariVector("pomg", 1)
    with pytest.raises(ValueError, match="there is no Atari game"):
        AtariVector("combat", 1)
    with pytest.raises(FileNotFoundError):
        AtariVector("pong", 1, rom_dir=tmp_path)
    (tmp_path / "pong.bin").write_bytes(rom_path("breakout").read_bytes())
    with pytest.raises(ValueError, match="its MD5 is"):
        AtariVector("pong", 1, rom_dir=tmp_path)
    for options in (
        {"num_envs": 0},
        {"batch_size": 3},
        {"frameskip": 0},
        {"stack_num": 0},
        {"img_height": 300},
        {"img_width": 161},
        {"mode": 5},
        {"difficulty": 4},
        {"obs_type": "depth"},
        {"device": "tpu"},
        {"repeat_action_probability": 1.0},
        {"max_num_frames_per_episode": 0},
        {"autoreset_mode": AutoresetMode.DISABLED},
    ):
        with pytest.raises(ValueError):  # noqa: PT011 - the messages differ
            AtariVector("pong", **({"num_envs": 2} | options))
    with pytest.raises(ValueError, match="differ in height"):
        AtariVector(["pong", "air_raid"], 2, img_height=None, img_width=None)

    env = AtariVector("pong", 2)
    with pytest.raises(RuntimeError, match="call reset before the first step"):
        env.step(np.array([0, 0]))
    with pytest.raises(RuntimeError, match="follows a send"):
        env.recv()
    env.reset(seed=0)
    for actions in (np.array([0, 6]), np.array([-1, 0])):
        with pytest.raises(ValueError, match=r"is not in 0\.\.5"):
            env.step(actions)
    with pytest.raises(ValueError, match="have shape"):
        env.step(np.array([0]))
    with pytest.raises(ValueError, match="integers"):
        env.step(np.array([0.0, 1.0]))
    env.send(np.array([0, 1]))
    with pytest.raises(RuntimeError, match="follows a reset"):
        env.send(np.array([0, 1]))
    env.recv()


@pytest.mark.parametrize("package", ["headrace_atari", "headrace"])
@pytest.mark.parametrize(("first", "env_id"), [("{}", "headrace/Pong-v5"), ("gymnasium", "{}:headrace/Pong-v5")])
def test_gymnasium_finds_the_games(package, first, env_id):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"no {package} here")
    first, env_id = first.format(package), env_id.format(package)
    program = (
        f"import {first}, gymnasium, sys; env = gymnasium.make_vec({env_id!r}, num_envs=2, stack_num=3)\n"
        "print(env.reset(seed=0)[0].shape, 'torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "(2, 3, 84, 84) False"


def test_gymnasium_registration():
    env = gymnasium.make_vec("headrace/MsPacman-v5", num_envs=2)
    reference = gymnasium.make_vec("ALE/MsPacman-v5", num_envs=2)
    assert isinstance(env.unwrapped, AtariVector)
    assert_same(env.reset(seed=0), reference.reset(seed=0), [])
    for _ in range(20):
        assert_same(env.step(np.array([3, 4])), reference.step(np.array([3, 4])), [])
    assert env.metadata["autoreset_mode"] == NEXT_STEP


def test_sizes_of_threads_and_batches():
    env = AtariVector("pong", 4, batch_size=3, num_threads=16)
    assert env.num_threads == 4
    assert env.observation_space.shape == (3, 4, 84, 84)
    env.close()
    pinned = AtariVector("pong", 2, num_threads=1, thread_affinity_offset=0)
    assert pinned.reset(seed=0)[0].shape == (2, 4, 84, 84)
