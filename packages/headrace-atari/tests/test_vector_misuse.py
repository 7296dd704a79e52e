"""`AtariVector` used in ways that peers' test suites and an audit have tried: each is right, or refused with the reason."""

import gc
import multiprocessing
import os
import re
import signal
import threading
import time

import ale_py
import ale_py.roms
import gymnasium
import numpy as np
import pytest
from ale_py import AtariVectorEnv
from gymnasium.vector import AutoresetMode

from headrace_atari import AtariVector, games

ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
IMAGE = (4, 84, 84)


# -- memory of the caller ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["send", "reset"])
@pytest.mark.parametrize(
    "out",
    [
        np.zeros((2, *IMAGE), np.float32),
        np.zeros((2, *IMAGE), np.int64),
        np.zeros((2, *IMAGE), np.int8),
        np.zeros((2, *IMAGE), bool),
        np.frombuffer(bytes(2 * 4 * 84 * 84), np.uint8).reshape(2, *IMAGE),  # cannot be written to
        bytearray(2 * 4 * 84 * 84),
        [[0]],
    ],
    ids=["float32", "int64", "int8", "bool", "read-only", "bytearray", "list"],
)
def test_only_writable_uint8_arrays_are_written_to(method, out):
    """Anything else would be converted to an array that is freed before the results are written to it."""
    env = AtariVector("pong", 2)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="out must be a writable uint8 array"):
        env.send(np.array([0, 0]), out=out) if method == "send" else env.reset(out=out)
    # nothing was started, and the environments go on
    assert env.step(np.array([0, 0]))[0].shape == (2, *IMAGE)


@pytest.mark.parametrize(
    "rows", [np.array([0.0, 1.0]), np.array([0]), np.array([[0, 1]]), np.array([0, 2]), np.array([-1, 0]), np.array([1, 1])]
)
def test_rows_are_checked(rows):
    env = AtariVector("pong", 2)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="row"):
        env.send(np.array([0, 0]), out=np.zeros((2, *IMAGE), np.uint8), rows=rows)
    with pytest.raises(ValueError, match="rows needs out"):
        env.send(np.array([0, 0]), rows=np.array([0, 1]))


def test_rows_may_be_any_integers():
    env, plain = AtariVector("pong", 2), AtariVector("pong", 2)
    env.reset(seed=0), plain.reset(seed=0)
    out = np.zeros((2, *IMAGE), np.uint8)
    env.send(np.array([0, 3]), out=out, rows=[1, 0])
    np.testing.assert_array_equal(env.recv()[0][::-1], plain.step(np.array([0, 3]))[0])


def test_a_partial_reset_writes_every_row_of_out():
    env, plain = AtariVector("breakout", 3), AtariVector("breakout", 3)
    env.reset(seed=0), plain.reset(seed=0)
    env.step(np.array([1, 2, 3])), plain.step(np.array([1, 2, 3]))
    mask = {"reset_mask": np.array([False, True, False])}
    out = np.full((3, *IMAGE), 77, np.uint8)
    observations, _ = env.reset(options=mask, out=out)
    assert observations is out
    np.testing.assert_array_equal(out, plain.reset(options=mask)[0])


def play_in_small_batches(num_envs, batch_size, steps, out_of):
    """The same play as whole batches make, with `out_of(step)` as `out`. Checks what is received and what `out` holds."""
    actions = np.random.default_rng(0).integers(6, size=(200, num_envs))
    whole = AtariVector("pong", num_envs, num_threads=1)
    expected = [whole.reset(seed=4)[0]] + [whole.step(a)[0] for a in actions[:steps]]
    env = AtariVector("pong", num_envs, batch_size=batch_size, num_threads=2)
    observations, infos = env.reset(seed=4)
    taken = np.zeros(num_envs, int)
    sent = [None] * num_envs
    for step in range(steps):
        ids = infos["env_id"]
        assert observations.shape == (batch_size, *IMAGE)
        for row, i in enumerate(ids):
            np.testing.assert_array_equal(observations[row], expected[taken[i]][i])
            if sent[i] is not None:
                np.testing.assert_array_equal(sent[i][i], expected[taken[i]][i])
        out = out_of(step)
        env.send(np.array([actions[taken[i], i] for i in ids]), out=out)
        for i in ids:
            sent[i] = out
        taken[ids] += 1
        observations, *_, infos = env.recv()


def test_small_batches_give_the_rows_that_they_are_made_of():
    """Also those of a reset without `out`, when a later send has one."""
    arrays = [np.zeros((5, *IMAGE), np.uint8) for _ in range(60)]
    play_in_small_batches(5, 2, 60, lambda step: arrays[step] if step % 3 else None)


def test_out_is_kept_alive_until_its_results_are_received():
    """A new array for every send, to which nothing else refers: 1 MB, so that freed memory goes back to the system."""
    env = AtariVector("pong", 40, batch_size=2, num_threads=2)
    _, infos = env.reset(seed=0)
    for _ in range(150):
        env.send(np.zeros(2, int), out=np.zeros((40, *IMAGE), np.uint8))
        gc.collect(0)
        *_, infos = env.recv()
    assert infos["env_id"].shape == (2,)


# -- resets, waiting, threads -----------------------------------------------------------------------------------------


def test_a_reset_of_nothing_returns_at_once():
    theirs, ours = AtariVectorEnv("pong", 2, num_threads=1), AtariVector("pong", 2)
    theirs.reset(seed=0), ours.reset(seed=0)
    theirs.step(np.array([2, 3])), ours.step(np.array([2, 3]))
    nothing = {"reset_mask": np.zeros(2, bool)}
    (mine, my_infos), (other, infos) = ours.reset(options=nothing), theirs.reset(options=nothing)
    np.testing.assert_array_equal(mine, other)
    for key in infos:
        np.testing.assert_array_equal(my_infos[key], infos[key])
    np.testing.assert_array_equal(ours.step(np.array([0, 1]))[0], theirs.step(np.array([0, 1]))[0])


def test_the_first_reset_is_of_all_environments():
    env = AtariVector("pong", 2)
    with pytest.raises(RuntimeError, match="first reset"):
        env.reset(options={"reset_mask": np.array([True, False])})


@pytest.fixture
def ctrl_c():
    """Raises `KeyboardInterrupt`, also where a shell has started the tests in the background, with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("num_threads", [None, 1])
def test_ctrl_c_ends_waiting(num_threads, ctrl_c):
    """A step of many consoles takes long, and waiting for it ends at a Ctrl-C; its results are received afterwards."""
    env = AtariVector("pong", 1024, num_threads=num_threads, frameskip=255, maxpool=False)
    env.reset(seed=0)
    env.send(np.zeros(1024, int))
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))

    def interrupted() -> None:  # with the timer in it: on a busy machine that may end before `recv` begins
        timer.start()
        env.recv()

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert env.recv()[0].shape == (1024, *IMAGE)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("num_threads", [None, 1, 2])
def test_a_reset_after_an_interrupted_step(num_threads, ctrl_c):
    """The calling thread steps in the place of one of the pool, and the reset does what it has left."""
    env = AtariVector("pong", 1024, num_threads=num_threads, frameskip=255, maxpool=False)
    first = env.reset(seed=0)[0].copy()
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))

    def interrupted() -> None:
        timer.start()
        env.step(np.zeros(1024, int))

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    np.testing.assert_array_equal(env.reset(seed=0)[0], first)


def test_use_by_two_threads_is_an_error():
    env = AtariVector("pong", 16, num_threads=1, frameskip=200)
    env.reset(seed=0)
    errors = []

    def play():
        try:
            for _ in range(20):
                env.step(np.zeros(16, int))
        except RuntimeError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=play, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert errors
    assert all("two threads" in error for error in errors)
    env.reset(seed=0)  # one after the other is allowed


def test_a_closed_environment_says_so():
    env = AtariVector("pong", 1)
    env.reset(seed=0)
    env.close()
    env.close()
    for use in (env.reset, env.recv, lambda: env.step(np.array([0])), lambda: env.save_state(0)):
        with pytest.raises(gymnasium.error.ClosedEnvironmentError, match="closed"):
            use()


@pytest.mark.filterwarnings("ignore:.*fork")
@pytest.mark.parametrize(("num_threads", "said"), [(1, "its threads"), (None, "played")])
def test_a_forked_process_has_no_threads_and_says_so(num_threads, said):
    env = AtariVector("pong", 2, num_threads=num_threads)
    env.reset(seed=0)

    def play(answers):
        try:
            env.reset(seed=0)
            answers.send("played")
        except RuntimeError as error:
            answers.send(str(error))

    answer, answers = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=play, args=(answers,), daemon=True)
    child.start()
    try:
        assert answer.poll(20), "it waits for threads that are not there"
        assert said in answer.recv()
    finally:
        child.kill()
        child.join()
    env.step(np.zeros(2, int))


def test_threads_are_bound_to_processors_in_turn():
    """Beyond the last processor it begins with the first one again, as in ale-py."""
    cpus = sorted(os.sched_getaffinity(0))
    before = set(os.listdir("/proc/self/task"))
    env = AtariVector("pong", 3, num_threads=3, thread_affinity_offset=len(cpus) - 1)
    time.sleep(0.05)
    threads = sorted(map(int, set(os.listdir("/proc/self/task")) - before))
    bound = [os.sched_getaffinity(thread) for thread in threads]
    assert bound == [{cpus[(len(cpus) - 1 + i) % len(cpus)]} for i in range(3)]
    env.close()
    with pytest.raises(ValueError, match="thread_affinity_offset"):
        AtariVector("pong", 1, thread_affinity_offset=-2)


# -- actions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "actions",
    [
        np.array([2**32 + 1, 0]),
        np.array([-(2**32), 0]),
        np.array([2**63, 0], np.uint64),
        np.array([2**31, 0], np.uint32),
    ],
)
def test_actions_beyond_32_bits_are_refused(actions):
    env = AtariVector("pong", 2)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=rf"action {actions[0]} .*is not in 0\.\.5"):
        env.step(actions)
    assert env.step(np.array([1, 0], np.uint64))[0].shape == (2, *IMAGE)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_continuous_actions_are_finite(bad):
    env = AtariVector("kaboom", 2, continuous=True)
    env.reset(seed=0)
    for column in range(3):
        actions = np.zeros((2, 3), np.float32)
        actions[1, column] = bad
        with pytest.raises(ValueError, match="finite"):
            env.step(actions)


@pytest.mark.parametrize("game", sorted(games()))
def test_the_full_action_space_is_that_of_ale(game):
    theirs = AtariVectorEnv(game, 1, num_threads=1, full_action_space=True)
    ours = AtariVector(game, 1, full_action_space=True)
    assert ours.single_action_space == theirs.single_action_space
    ale = ale_py.ALEInterface()
    ale.loadROM(ale_py.roms.get_rom_path(game))
    assert ours.action_set == tuple(action.value for action in ale.getLegalActionSet())


@pytest.mark.parametrize("game", ["skiing", "lost_luggage"])
def test_nine_legal_actions_play_as_in_ale(game):
    theirs = AtariVectorEnv(game, 1, num_threads=1, full_action_space=True)
    ours = AtariVector(game, 1, full_action_space=True)
    theirs.reset(seed=0), ours.reset(seed=0)
    for action in [*range(9), *range(8, -1, -1)]:
        np.testing.assert_array_equal(ours.step(np.array([action]))[0], theirs.step(np.array([action]))[0])
    with pytest.raises(ValueError, match=r"is not in 0\.\.8"):
        ours.step(np.array([9]))
    mixed = AtariVector([game, "pong"], 2, full_action_space=True)
    assert mixed.action_set == tuple(range(18))


# -- saved states -----------------------------------------------------------------------------------------------------

OTHER_OPTIONS = {
    "mode": 1,
    "difficulty": 1,
    "repeat_action_probability": 0.5,
    "full_action_space": True,
    "noop_max": 5,
    "episodic_life": True,
    "life_loss_info": True,
    "reward_clipping": False,
    "use_fire_reset": False,
    "max_num_frames_per_episode": 500,
    "autoreset_mode": AutoresetMode.SAME_STEP,
    "obs_type": "ram",
    "stack_num": 3,
    "img_height": 42,
    "maxpool": False,
    "frameskip": 3,
    "sticky_stream": "counter",
}


@pytest.mark.parametrize("option", OTHER_OPTIONS)
def test_states_of_other_options_are_refused(option):
    base = {"repeat_action_probability": 0.25}
    env = AtariVector("pong", 1, **base)
    env.reset(seed=0)
    other = AtariVector("pong", 1, **(base | {option: OTHER_OPTIONS[option]}))
    other.reset(seed=0)
    with pytest.raises(ValueError, match=f"made with other options: {option}|other options: .*{option}"):
        other.load_state(0, env.save_state(0))
    default_mode = AtariVector("pong", 1, mode=games()["pong"]["default_mode"], **base)
    default_mode.reset(seed=0)
    default_mode.load_state(0, env.save_state(0))


# -- what Gymnasium's and ALE's own checks look at --------------------------------------------------------------------


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("options", [{}, {"grayscale": False}, {"obs_type": "ram"}, {"continuous": True}], ids=str)
def test_results_lie_in_their_spaces(mode, options):
    env = AtariVector("breakout", 3, autoreset_mode=mode, **options)
    env.action_space.seed(0)
    observations, infos = env.reset(seed=0)
    assert observations in env.observation_space
    for _ in range(30):
        observations, rewards, terminated, truncated, infos = env.step(env.action_space.sample())
        assert observations in env.observation_space
        for array, dtype in ((rewards, np.int32), (terminated, np.bool_), (truncated, np.bool_)):
            assert (array.shape, array.dtype) == ((3,), dtype)
        for key in ("env_id", "lives", "frame_number", "episode_frame_number"):
            assert (infos[key].shape, infos[key].dtype) == ((3,), np.int32)


@pytest.mark.parametrize(
    ("frameskip", "stack", "size", "gray"),
    [(4, 4, (84, 84), True), (1, 6, (84, 84), True), (4, 6, (210, 160), False), (4, 4, (84, 84), False)],
)
def test_equals_what_gymnasiums_wrappers_make_of_single_environments(frameskip, stack, size, gray):
    """The usual preprocessing by code that is neither ours nor that of ALE's vector environment."""
    pytest.importorskip("cv2")

    def one():
        env = gymnasium.make("ALE/Breakout-v5", frameskip=1, repeat_action_probability=0.0)
        env = gymnasium.wrappers.AtariPreprocessing(
            env, noop_max=0, frame_skip=frameskip, screen_size=size[::-1], grayscale_obs=gray
        )
        return gymnasium.wrappers.FrameStackObservation(env, stack, padding_type="zero")

    theirs = gymnasium.vector.SyncVectorEnv([one] * 2)
    ours = AtariVector(
        "breakout", 2, frameskip=frameskip, stack_num=stack, img_height=size[0], img_width=size[1], grayscale=gray,
        noop_max=0, use_fire_reset=False, maxpool=frameskip > 1,
    )  # fmt: skip
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    ours.action_space.seed(5)
    (mine, my_infos), (other, infos) = ours.reset(seed=123), theirs.reset(seed=123)
    for _ in range(40):
        np.testing.assert_array_equal(mine, other)
        for key in ("lives", "frame_number", "episode_frame_number"):
            np.testing.assert_array_equal(my_infos[key], infos[key])
        actions = ours.action_space.sample()
        (mine, *mine_ended, my_infos), (other, *ended, infos) = ours.step(actions), theirs.step(actions)
        for a, b in zip(mine_ended, ended, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("seed", [0, 2**31 - 2, np.int64(5), np.array([3, 3]), [7, 1]])
def test_equal_seeds_give_equal_episodes(seed):
    env = AtariVector("seaquest", 2, repeat_action_probability=0.25)
    runs = []
    for _ in range(2):
        env.reset(seed=seed)
        runs.append(np.stack([env.step(np.array([1, 1]))[0] for _ in range(40)]))
    np.testing.assert_array_equal(*runs)


@pytest.mark.parametrize(
    ("seed", "error"),
    [(2**31, ValueError), (2**31 - 1, ValueError), (1.5, TypeError), (np.array([0.5, 1.5]), TypeError), ("7", TypeError),
     (np.array([1, 2, 3]), ValueError)],
    ids=str,
)  # fmt: skip
def test_seeds_are_checked(seed, error):
    env = AtariVector("pong", 2)
    with pytest.raises(error, match="seed"):
        env.reset(seed=seed)


def test_a_reset_throws_away_what_is_under_way():
    env, plain = AtariVector("pong", 3), AtariVector("pong", 3)
    env.reset(seed=0)
    env.send(np.zeros(3, int))
    np.testing.assert_array_equal(env.reset(seed=9)[0], plain.reset(seed=9)[0])
    np.testing.assert_array_equal(env.step(np.array([0, 1, 2]))[0], plain.step(np.array([0, 1, 2]))[0])


def test_num_threads_change_nothing():
    runs = []
    for num_threads in (None, 1, 2, 7):
        env = AtariVector("ms_pacman", 7, num_threads=num_threads, repeat_action_probability=0.25)
        env.reset(seed=3)
        rng = np.random.default_rng(0)
        runs.append(np.stack([env.step(rng.integers(9, size=7))[0] for _ in range(20)]))
    for run in runs[1:]:
        np.testing.assert_array_equal(run, runs[0])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"num_envs": "2"}, "num_envs is '2', must be int"),
        ({"num_envs": 2.0}, "num_envs is 2.0, must be int"),
        ({"batch_size": None}, "batch_size is None, must be int"),
        ({"num_threads": 1.5}, "num_threads is 1.5, must be int | None"),
        ({"game": 3}, "game is 3, must be str"),
        ({"frameskip": (2, 5)}, "frameskip is (2, 5), must be int"),
        ({"img_height": "84"}, "img_height is '84', must be int | None"),
        ({"maxpool": "no"}, "maxpool is 'no', must be bool"),
        ({"grayscale": "no"}, "grayscale is 'no', must be bool"),
        ({"repeat_action_probability": "0.1"}, "repeat_action_probability is '0.1', must be float"),
        ({"full_action_space": "some"}, "full_action_space is 'some', must be"),
        ({"stack_num": True}, "stack_num is True, must be int"),
        ({"kernels": {}}, "kernels is {}, must be"),
    ],
)
def test_arguments_of_another_type_are_named(wrong, words):
    with pytest.raises(TypeError, match=re.escape(words)):
        AtariVector(**({"game": "pong", "num_envs": 2} | wrong))


def test_arguments_of_numpys_types_are_taken():
    env = AtariVector("pong", np.int64(2), num_threads=np.int32(1), frameskip=np.uint8(2), stack_num=np.int64(1))
    assert env.reset(seed=0)[0].shape == (2, 1, 84, 84)
    with pytest.raises(ValueError, match="autoreset_mode must be NEXT_STEP or SAME_STEP"):
        AtariVector("pong", 2, autoreset_mode="sometimes")
    for name, value in (("max_num_frames_per_episode", 2**31), ("max_num_frames_per_episode", 0), ("noop_max", 2**31)):
        with pytest.raises(ValueError, match=rf"{name} is {value}, must be in [01]\.\.2147483647"):
            AtariVector("pong", 2, **{name: value})
