"""What `TrajectoryWriter` writes to the replay, against the same in NumPy, one environment after the other; what is sampled of
stacks and resets; and first priorities against a slow loop over whole episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy_writer import NumpyWriter
from trajectories import StackedEnv, arrays_of, arrays_of_slots, plain_rows, stacked_rows

from headrace.experience.replay.buffer import Replay, ReplayConfig, ReplayField
from headrace.experience.replay.layout import Sequences
from headrace.experience.replay.writer import TrajectoryWriter

STYLES = ("repeat", "zeros", "continue", "noise")
IMAGE = (StackedEnv.CHANNELS, *StackedEnv.SHAPE)
T, CORE = 7, 10
NUMBERS = {"action": ReplayField((1,), "int32"), "version": ReplayField((), "int32")}


def make(copies: int = 1, envs: int = 3, sequences: bool = False, codec: str = "none", **config: Any) -> Replay:
    fields = {
        "obs/image": ReplayField(IMAGE, "uint8", stack=StackedEnv.DEPTH, compressed=codec != "none"),
        "obs/vector": ReplayField((4,), "float32", stack=1),
        **NUMBERS,
    }
    if sequences:
        fields |= {"first": ReplayField((), "bool"), "core": ReplayField((-(-CORE // T),), "float32")}
    settings = {"histories": envs * copies, "capacity": 1000, "minimum": 1, "codec": codec, **config}
    return Replay(ReplayConfig(**settings), fields)


def contents(replay: Replay) -> dict[str, bytes | tuple[int, ...]]:
    """Everything that was written, to the last bit."""
    result: dict[str, Any] = {}
    for history in range(replay.config.histories):
        low, head, ready = result[f"{history} span"] = replay.native.span(history)
        count = head - low
        columns = {name: np.empty((count, *f.shape), f.dtype) for name, f in replay.fields.items()}
        reward, discount, flags = np.empty(count, np.float32), np.empty(count, np.float32), np.empty(count, np.uint32)
        intact, stamps, priorities = np.empty(1, np.uint8), np.empty(ready - low, np.uint64), np.empty(ready - low, np.float32)
        key = np.array([history << 40 | low], np.uint64)
        replay.native.windows(key, count, False, list(columns.values()), reward, discount, flags, intact)
        replay.native.read_priorities(history, low, stamps, priorities)
        assert intact[0]
        columns |= {"reward": reward, "discount": discount, "flags": flags, "stamps": stamps, "priorities": priorities}
        result |= {f"{history} {name}": array.tobytes() for name, array in columns.items()}
    return result


def assert_same(replay: Replay, expected: Replay) -> None:
    here, there = contents(replay), contents(expected)
    assert [name for name in there if here[name] != there[name]] == []
    assert replay.stats() == expected.stats()


def trajectories(seed: int, same_step: bool = False, styles: tuple[str, ...] = STYLES, deaths: float = 0.0, dull: bool = False,
                 slots: int = 40) -> dict[str, np.ndarray]:  # fmt: skip
    """Three environments whose columns come in another order than their numbers."""
    rng = np.random.default_rng(seed)
    envs = [StackedEnv(rng, number, styles, same_step, dull) for number in (1, 2, 0)]
    return arrays_of_slots([stacked_rows(env, slots, T, deaths) for env in envs], CORE, seed)


@pytest.mark.parametrize("same_step", [False, True], ids=["next-step", "same-step"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"deaths": 0.2}, {"dull": True}, *({"styles": (style,)} for style in STYLES)],
    ids=["mixed", "deaths", "dull", *STYLES],
)
@pytest.mark.parametrize(("n_step", "copies", "codec"), [(1, 1, "none"), (3, 2, "none"), (9, 1, "lz4")])
def test_rows_and_priorities_are_those_of_the_slow_writer(
    same_step: bool, settings: dict[str, Any], n_step: int, copies: int, codec: str
) -> None:
    arrays = trajectories(n_step, same_step, **settings)
    replay, expected = (make(copies, codec=codec, n_step=n_step) for _ in range(2))
    writer, slow = TrajectoryWriter(replay, arrays, 0.9, copies), NumpyWriter(expected, 0.9, copies)
    for slot in range(len(arrays["reward"])):
        writer.write(slot)
        slow.write({name: array[slot] for name, array in arrays.items()})
        if slot % 13 == 0:
            assert_same(replay, expected)
    assert_same(replay, expected)
    assert expected.stats().inserts > 600 * copies


@pytest.mark.parametrize("rescaled", [False, True])
@pytest.mark.parametrize(("burn_in", "length", "n_step"), [(0, 4, 1), (3, 9, 3), (2, 30, 3), (0, 150, 2)])
def test_sequences_are_those_of_the_slow_writer(rescaled: bool, burn_in: int, length: int, n_step: int) -> None:
    """Long sequences, since means are to be the same to the last bit."""
    dying: dict[str, Any] = {"styles": ("repeat", "zeros"), "deaths": 0.05}
    arrays = trajectories(length, **(dying if length < 100 else {"styles": ("repeat", "zeros", "continue")}), slots=60)
    sequences = Sequences(T, burn_in, length, n_step, rescaled)
    replay, expected = (make(sequences=True, n_step=n_step, period=T, capacity=150) for _ in range(2))
    writer, slow = TrajectoryWriter(replay, arrays, 0.9, 1, sequences), NumpyWriter(expected, 0.9, 1, sequences)
    for slot in range(60):
        writer.write(slot)
        slow.write({name: array[slot] for name, array in arrays.items()})
    assert_same(replay, expected)
    assert expected.stats().inserts > 60
    assert np.frombuffer(contents(expected)["0 core"], np.float32).any()  # type: ignore[arg-type]


def test_transitions_without_q_have_the_priority_that_is_given() -> None:
    """And everything else is as with it."""
    arrays = trajectories(5, same_step=True)
    without = {name: array for name, array in arrays.items() if name != "q"}
    replay, expected = make(n_step=3), make(n_step=3)
    writer, usual = TrajectoryWriter(replay, without, 0.9), TrajectoryWriter(expected, arrays, 0.9)
    for slot in range(len(arrays["reward"])):
        writer.write(slot, 2.5)
        usual.write(slot)
    here, there = contents(replay), contents(expected)
    for name in there:
        if name.endswith("priorities"):
            mine, theirs = (np.frombuffer(found[name], np.float32) for found in (here, there))  # type: ignore[arg-type]
            np.testing.assert_array_equal(mine, np.where(theirs < 0, theirs, np.float32(2.5)))
            assert (mine > 0).any()
        elif not name.endswith("stamps"):
            assert here[name] == there[name], name
    with pytest.raises(ValueError, match="sequences need the field 'q'"):
        TrajectoryWriter(make(sequences=True, period=T), without, 0.9, 1, Sequences(T, 0, 4, 1, False))


def test_sequences_go_on_when_a_new_writer_begins_in_the_middle_of_episodes() -> None:
    """As a learner does that was restarted: the stacks of its first rows hold frames that it never saw."""
    arrays, sequences = trajectories(3, styles=("repeat",), slots=60), Sequences(T, 2, 4, 1, False)
    replay = make(sequences=True, n_step=1, period=T, capacity=200)
    for part in (range(30), range(30, 60)):
        writer = TrajectoryWriter(replay, arrays, 0.9, 1, sequences)
        for slot in part:
            writer.write(slot)
    stats, windows = replay.stats(), replay.sample_sequences(300, T)  # as long as a trajectory: its core state tells which it is
    assert stats.inserts > 130
    assert windows is not None
    columns = dict(zip(arrays["env_index"][0, 0].tolist(), range(3), strict=True))
    found = set()
    for i, key in enumerate(windows.keys.tolist()):
        column, core = columns[key >> 40], windows.fields["core"][i].reshape(-1)[:CORE]
        slot = int(np.flatnonzero((arrays["core"][:, column] == core).all(-1))[0])
        found.add((slot, column))
        for name in ("obs/image", "obs/vector", "action", "first"):
            np.testing.assert_array_equal(windows.fields[name][i], arrays[name][slot, :T, column])
        np.testing.assert_array_equal(windows.final[i], ~arrays["valid"][slot, :T, column])
    assert {slot for slot, _ in found} > {30}


@pytest.mark.parametrize("sequences", [None, Sequences(T, 3, 9, 3, True)], ids=["transitions", "sequences"])
def test_another_writer_goes_on_from_the_state_of_the_first(sequences: Sequences | None) -> None:
    styles = ("repeat", "zeros", "continue")
    arrays = trajectories(0, styles=styles)
    replay, expected = (make(sequences=sequences is not None, period=T if sequences else 1) for _ in range(2))
    writer, slow = TrajectoryWriter(replay, arrays, 0.9, 1, sequences), NumpyWriter(expected, 0.9, 1, sequences)
    for slot in range(40):
        state = writer.get_state()
        writer = TrajectoryWriter(replay, arrays, 0.9, 1, sequences)
        writer.set_state(state)
        writer.write(slot)
        slow.write({name: array[slot] for name, array in arrays.items()})
    assert_same(replay, expected)
    for damaged in (state[:-1], state[:5], np.append(state, 0), np.zeros(0, np.uint8), np.full_like(state, 255)):
        with pytest.raises(ValueError, match="state is not that of a writer"):
            writer.set_state(damaged)


def test_a_writer_without_state_ends_the_episodes_of_the_one_before() -> None:
    """As a learner does that was restarted beside a living replay: rows that wait get no priority, stacks do not reach back."""
    arrays = trajectories(1, styles=("repeat",))
    replay, expected = make(), make()
    for part in (range(20), range(20, 40)):
        writer, slow = TrajectoryWriter(replay, arrays, 0.9), NumpyWriter(expected, 0.9)
        for slot in part:
            writer.write(slot)
            slow.write({name: array[slot] for name, array in arrays.items()})
    assert_same(replay, expected)


def write_all(writer: TrajectoryWriter, slots: int = 40) -> None:
    for slot in range(slots):
        writer.write(slot)


def test_bad_trajectories_are_refused_with_a_reason() -> None:
    arrays, replay = trajectories(0), make()
    for name, value, message in (
        ("reward", np.nan, "environment 2: the reward of row 4 is not finite"),
        ("reward", np.inf, "reward of row 4 is not finite"),
        ("q", np.nan, "priority of history 2, row .* is not finite"),
        ("value", np.nan, "priority of history 2, row .* is not finite"),
    ):
        bad = {n: a.copy() for n, a in arrays.items()}
        bad[name][:, 4, 1] = value
        writer = TrajectoryWriter(make(), bad, 0.9)
        with pytest.raises(ValueError, match=message):
            write_all(writer)
    for env in (3, -1):
        with pytest.raises(IndexError, match=f"environment {env}, for which the replay has no history"):
            TrajectoryWriter(replay, arrays | {"env_index": np.full_like(arrays["env_index"], env)}, 0.9).write(0)
    with pytest.raises(ValueError, match="no such slot"):
        TrajectoryWriter(replay, arrays, 0.9).write(40)
    with pytest.raises(ValueError, match="'env_index', which a replay needs"):
        TrajectoryWriter(replay, {name: x for name, x in arrays.items() if name != "env_index"}, 0.9)
    with pytest.raises(ValueError, match="field 'obs/image' has"):
        TrajectoryWriter(replay, arrays | {"obs/image": arrays["obs/image"][:, :, :, 1:].copy()}, 0.9)
    with pytest.raises(ValueError, match="more rows than a history holds"):
        TrajectoryWriter(make(capacity=1, slack=1.0, n_step=1), {n: np.repeat(x, 3, 1) for n, x in arrays.items()}, 0.9)
    writer = TrajectoryWriter(make(sequences=True, period=T), arrays, 0.9, 1, Sequences(T, 0, 4, 3, False))
    with pytest.raises(ValueError, match="stacks that begin with zeros or copies"):
        write_all(writer)


# -- what is sampled -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["repeat", "zeros", "continue", "noise", "mixed"])
def test_stacks_come_back_as_acting_saw_them_however_episodes_begin(style: str) -> None:
    """One environment, slots of 8 rows, episodes of 1 to 12 steps; frames are numbered, two channels each."""
    rng = np.random.default_rng(0)
    fields = {"obs/obs": ReplayField((2, 3, 3), "uint8", stack=3), **NUMBERS}
    replay = Replay(ReplayConfig(histories=1, capacity=600, slack=2.0, n_step=2, minimum=1), fields)
    stacks, rows = {}, []
    stack, age, length, ended = np.zeros((6, 3, 3), np.uint8), 0, 5, True
    for number in range(1, 402):
        final = not ended and age == length
        frame = np.full((2, 3, 3), 1 + number % 250, np.uint8)
        frame[1] = number // 250
        if ended:
            how = rng.choice(["repeat", "zeros", "continue", "noise"]) if style == "mixed" else style
            if how == "zeros" or (how == "continue" and number == 1):
                stack = np.zeros((6, 3, 3), np.uint8)
            elif how == "noise":  # what no rule can guess
                stack = rng.integers(0, 256, (6, 3, 3)).astype(np.uint8)
            elif how == "repeat":
                stack = np.tile(frame, (3, 1, 1))
            age, length = 0, int(rng.integers(1, 13))
        stack = np.concatenate([stack[2:], frame])
        stacks[number] = stack
        over = not final and age + 1 == length
        rows.append({"obs/obs": stack, "action": [number], "version": number, "first": ended, "env_index": 0,
                     "valid": not final, "reward": 0.0 if final else 1.0, "terminated": over and length % 2 == 0,
                     "truncated": over and length % 2 == 1, "q": 0.0, "value": 0.0})  # fmt: skip
        age, ended = age + 1, final
    writer = TrajectoryWriter(replay, arrays_of([rows], 8), 0.9)
    for slot in range(50):
        writer.write(slot)
    batch = replay.sample(500)
    assert batch is not None
    starts = batch.first["version"].tolist()
    assert len(set(starts)) > 200
    for i, t in enumerate(starts):
        np.testing.assert_array_equal(batch.first["obs/obs"][i], stacks[t])
        ends = [k for k in (0, 1) if rows[t - 1 + k]["terminated"] or rows[t - 1 + k]["truncated"]]
        n = ends[0] + 1 if ends else 2
        assert batch.reward[i] == pytest.approx(sum(0.9**k for k in range(n)))
        if batch.discount[i]:
            np.testing.assert_array_equal(batch.next["obs/obs"][i], stacks[t + n])
        assert (batch.discount[i] == 0) == bool(rows[t + n - 2]["terminated"])


@pytest.mark.parametrize("dull", [False, True], ids=["all-frames-differ", "dull"])
@pytest.mark.parametrize("styles", [("repeat",), ("zeros",), ("continue",), STYLES])
def test_stacks_of_environments_that_reset_in_the_same_step(styles: tuple[str, ...], dull: bool) -> None:
    """Between two episodes lies the last observation, which acting did not see: no stack of the next one has its frame, but of
    those that go on from it."""
    arrays = trajectories(7, same_step=True, styles=styles, dull=dull)
    arrays["version"] = np.arange(arrays["version"].size, dtype=np.int32).reshape(arrays["version"].shape)
    replay = make(n_step=1)
    write_all(TrajectoryWriter(replay, arrays, 0.9))
    batch = replay.sample(900)
    assert batch is not None
    images, finals = arrays["obs/image"], arrays["final_obs/image"]
    for i, version in enumerate(batch.first["version"].tolist()):
        slot, t, column = np.unravel_index(version, arrays["version"].shape)
        np.testing.assert_array_equal(batch.first["obs/image"][i], images[slot, t, column])
        ended = arrays["terminated"][slot, t, column] or arrays["truncated"][slot, t, column]
        after = finals[slot, t, column] if ended else images[slot, t + 1, column]
        np.testing.assert_array_equal(batch.next["obs/image"][i], after)


def test_same_step_environments_bootstrap_from_the_true_last_observation() -> None:
    """Episodes of four steps; observation t is t, the last one of an episode 100 + t."""
    rows = [{"obs/obs": np.float32([t]), "final_obs/obs": np.float32([100 + t]), "version": t, "action": [t], "env_index": 0,
             "first": t % 4 == 0, "valid": True, "reward": 1.0, "terminated": False, "truncated": t % 4 == 3,
             "q": 0.0, "value": 2.0} for t in range(11)]  # fmt: skip
    fields = {"obs/obs": ReplayField((1,), "float32", stack=1), **NUMBERS}
    replay = Replay(ReplayConfig(histories=1, capacity=100, n_step=2, minimum=1), fields)
    TrajectoryWriter(replay, arrays_of([rows], 10), 0.5).write(0)
    batch = replay.sample(200)
    assert batch is not None
    for t, after, discount in zip(batch.first["obs/obs"][:, 0].tolist(), batch.next["obs/obs"][:, 0].tolist(),
                                  batch.discount.tolist(), strict=True):  # fmt: skip
        last = t // 4 * 4 + 3
        assert (after, discount) == ((t + 2, 0.25) if t + 2 <= last else (100 + last, 0.5 ** (last - t + 1)))


# -- first priorities ----------------------------------------------------------------------------------------------------


def slow_priorities(rows: list[dict[str, Any]], n: int, gamma: float) -> list[float]:
    """The circular buffer of the paper, written as a loop per row; rows that are not known yet are left out."""
    result = []
    for t, row in enumerate(rows):
        if not row["valid"]:
            result.append(-1.0)
            continue
        total, product, u = 0.0, 1.0, t
        while True:
            if u == t + n:
                if u >= len(rows):
                    return result
                target = total + product * rows[u]["value"]
                break
            if u >= len(rows):
                return result
            total += product * rows[u]["reward"]
            product *= 0.0 if rows[u]["terminated"] else gamma
            if rows[u]["terminated"] or rows[u]["truncated"]:
                if product == 0.0:
                    target = total
                elif u + 1 < len(rows):
                    target = total + product * rows[u + 1]["value"]
                else:
                    return result
                break
            u += 1
        result.append(abs(target - row["q"]))
    return result


VECTOR = {"obs/obs": ReplayField((1,), "float32", stack=1)}


def priorities_of(rows: list[dict[str, Any]], T: int, n: int, gamma: float) -> list[np.ndarray]:
    """After every slot of T rows the priorities that are known."""
    arrays = arrays_of([[row | {"obs/obs": np.float32([0])} for row in rows]], T)
    replay = Replay(ReplayConfig(histories=1, capacity=1000, n_step=n, minimum=1), VECTOR)
    writer, result = TrajectoryWriter(replay, arrays, gamma), []
    for slot in range(len(arrays["reward"])):
        writer.write(slot)
        _, _, ready = replay.native.span(0)
        result.append(np.empty(ready, np.float32))
        replay.native.read_priorities(0, 0, np.empty(ready, np.uint64), result[-1])
    return result


@pytest.mark.parametrize("n", [1, 3, 5])
@pytest.mark.parametrize("T", [1, 2, 7, 50])
def test_priorities_equal_a_slow_loop_however_the_rows_arrive(n: int, T: int) -> None:
    rows = plain_rows(301, seed=T)
    found = priorities_of(rows, T, n, 0.9)
    for slot, priorities in enumerate(found):
        np.testing.assert_allclose(priorities, slow_priorities(rows[: (slot + 1) * T], n, 0.9), rtol=1e-5, atol=1e-6)
    assert len(found[-1]) > 280


def test_priority_of_a_truncated_start_uses_the_value_of_the_last_observation() -> None:
    names = ("first", "valid", "reward", "terminated", "truncated", "q", "value")
    rows = [dict(zip(names, row, strict=True)) | {"env_index": 0} for row in (
        (True, True, 1.0, False, True, 0.0, 7.0), (False, False, 0.0, False, False, 0.0, 10.0), (True, True, 0, 0, 0, 0, 0))]
    first, second = priorities_of(rows, 1, 3, 0.5)
    assert len(first) == 0  # the last observation is still to come
    np.testing.assert_allclose(second, [1.0 + 0.5 * 10.0, -1.0])
