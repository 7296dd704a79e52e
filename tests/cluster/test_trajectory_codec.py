"""Trajectories as messages: what arrives is what was there, bit for bit, and a frame is sent once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.cluster.trajectory_codec import TrajectoryCodec
from headrace.envs.core.contract import ActionSpec, ArraySpec, Categorical, EnvSpec
from headrace.sampling.trajectory_fields import trajectory_fields
from headrace.shm.trajectory_store import TrajectoryStore
from headrace.transport.messages import ProtocolError

T, C, S = 5, 3, 4


def make_store(size: int = 8, autoreset: Any = "next-step") -> TrajectoryStore:
    observation = {
        "image": ArraySpec((S, size, size), np.dtype(np.uint8)),
        "rgb": ArraySpec((2 * S, 3, 5), np.dtype(np.uint8)),
        "vector": ArraySpec((3,), np.dtype(np.float32)),
    }
    spec = EnvSpec(observation, ActionSpec((Categorical(4),)), autoreset=autoreset, frame_stack=S)
    return TrajectoryStore(trajectory_fields(spec, 7), num_slots=3, T=T, C=C)


def fill(store: TrajectoryStore, slot: int, rng: np.random.Generator, ends: float, empty: float = 0.5) -> None:
    """Random content, with stacks that move by one frame unless a row begins an episode, `empty` of them with empty frames."""
    for array in store.arrays.values():
        array[slot] = rng.integers(0, 2 if array.dtype == bool else 100, array.shape[1:])
    store.order[slot] = rng.integers(2**31)
    for name in ("obs/image", "obs/rgb"):
        rows = store.arrays[name][slot].reshape(T + 1, C, S, -1)
        for t in range(1, T + 1):
            for c in range(C):
                if rng.random() >= ends:
                    rows[t, c, :-1] = rows[t - 1, c, 1:]
                elif rng.random() < empty:
                    rows[t, c, :-1] = 0  # an episode begins with empty frames


def follow(store: TrajectoryStore, slot: int, before: int, rng: np.random.Generator) -> None:
    """Row 0 becomes the last row of the slot before, but of some agents."""
    for name in ("obs/image", "obs/rgb"):
        which = rng.random(C) < 0.8
        store.arrays[name][slot, 0, which] = store.arrays[name][before, T, which]


def equal(store: TrajectoryStore, one: int, other: int) -> bool:
    """Whether two slots hold the same, but for last observations that are none."""
    ended = store.arrays["terminated"][one] | store.arrays["truncated"][one]
    for name, array in store.arrays.items():
        rows = ended if name.startswith("final_obs/") else ...
        if not np.array_equal(array[one][rows], array[other][rows]):
            return False
    return True


@given(st.integers(0, 2**31), st.sampled_from([0.0, 0.2, 1.0]), st.sampled_from(["none", "lz4"]), st.booleans())
@settings(max_examples=40, deadline=None)
def test_what_arrives_is_what_was_there(seed: int, ends: float, compression: str, same_step: bool) -> None:
    store = make_store(autoreset="same-step" if same_step else "next-step")
    codec = TrajectoryCodec(store, S, compression)
    rng = np.random.default_rng(seed)
    fill(store, 0, rng, ends)
    fill(store, 1, rng, 0.5)
    message = codec.encode(0)
    assert len(message) <= codec.largest + 300
    codec.decode(message, 1)
    assert equal(store, 0, 1)


@given(st.integers(0, 2**31), st.lists(st.sampled_from([0, 1, 7]), min_size=2, max_size=12))
@settings(max_examples=40, deadline=None)
def test_what_arrives_of_a_stream_is_what_was_there(seed: int, lanes: list[int]) -> None:
    """Trajectories of several lanes; some follow the one before of their lane, and some do not."""
    store, rng = make_store(), np.random.default_rng(seed)
    codec, other, newest = TrajectoryCodec(store, S), TrajectoryCodec(store, S), dict.fromkeys(lanes, 0)
    source = make_store()
    for number, lane in enumerate(lanes):
        if number == 5:  # another stream
            codec.begin()
            other.begin()
        store.lane[0] = lane
        fill(store, 0, rng, 0.2)
        if newest[lane] and rng.random() < 0.8:
            for name in ("obs/image", "obs/rgb"):
                store.arrays[name][1, T] = source.arrays[name][lane % 3, T]
            follow(store, 0, 1, rng)
        other.decode(codec.encode(0), 2)
        assert equal(store, 0, 2)
        newest[lane] = 1
        for name, array in source.arrays.items():
            array[lane % 3] = store.arrays[name][0]


def test_a_row_that_both_sides_know_is_not_sent_again() -> None:
    store, frame, rng = make_store(size=84), 84 * 84, np.random.default_rng(0)
    codec, other = TrajectoryCodec(store, S), TrajectoryCodec(store, S)
    fill(store, 0, rng, 0.0)
    first = codec.encode(0)
    other.decode(first, 2)
    fill(store, 1, rng, 0.0)
    for name in ("obs/image", "obs/rgb"):
        store.arrays[name][1, 0] = store.arrays[name][0, T]
        for t in range(1, T + 1):
            rows = store.arrays[name][1].reshape(T + 1, C, S, -1)
            rows[t, :, :-1] = rows[t - 1, :, 1:]
    second = codec.encode(1)
    assert len(first) - len(second) == C * S * (frame + 2 * 3 * 5)
    other.decode(second, 2)
    assert equal(store, 1, 2)
    with pytest.raises(ProtocolError, match="do not follow"):  # another stream has not carried the one before
        TrajectoryCodec(store, S).decode(second, 2)
    codec.begin()
    assert len(codec.encode(1)) == len(first)


def test_where_an_episode_begins_empty_frames_are_not_sent() -> None:
    store = make_store(size=84)
    fill(store, 0, np.random.default_rng(0), 0.0)
    for name in ("obs/image", "obs/rgb"):
        rows = store.arrays[name][0].reshape(T + 1, C, S, -1)
        rows[:, :, :-1] = 0
    codec = TrajectoryCodec(store, S)
    message = codec.encode(0)
    assert len(message) < (T + 1) * C * (84 * 84 + 250)
    codec.decode(message, 1)
    assert equal(store, 0, 1)


def test_a_frame_is_sent_once() -> None:
    store, frame = make_store(size=84), 84 * 84
    codec = TrajectoryCodec(store, S)
    fill(store, 0, np.random.default_rng(0), 0.0)
    once = (T + 1 + S - 1) * C * frame  # every row's newest, and the rest of the first row
    rest = 3 * (T + 1) * C * 200  # generous, for the other fields
    assert once < len(codec.encode(0)) < once + rest
    fill(store, 0, np.random.default_rng(0), 1.0, empty=0)  # no row follows from another: nothing can be left out
    assert len(codec.encode(0)) > (T + 1) * C * S * frame


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_what_is_no_trajectory_is_refused(compression: str) -> None:
    store = make_store()
    codec = TrajectoryCodec(store, S, compression)
    fill(store, 0, np.random.default_rng(1), 0.2)
    message = codec.encode(0)
    for wrong in (b"", message[:8], message[:-1], message + b"\0" * 9, message[:8] + b"\xff" * 4 + message[12:]):
        if compression == "none" and wrong[:-9] != message and len(wrong) == len(message):
            continue  # other numbers in the place of those that were sent
        with pytest.raises(ProtocolError):
            codec.decode(wrong, 1)


def test_schemas_tell_codecs_apart() -> None:
    store = make_store()
    schemas = [TrajectoryCodec(store, S).schema(), TrajectoryCodec(store, 1).schema(), TrajectoryCodec(store, S, "lz4").schema()]
    assert len({str(schema) for schema in [*schemas, TrajectoryCodec(make_store(size=9), S).schema()]}) == 4
