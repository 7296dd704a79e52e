"""Messages of named arrays, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.arrays import ArraySpec
from headrace.transport.messages import HEADER, LARGEST_JSON, MessageLayout, ProtocolError, header, read_json

ARRAYS = {
    "flag": ArraySpec((3,), np.dtype(bool)),
    "image": ArraySpec((2, 5, 7), np.dtype(np.uint8)),
    "nothing": ArraySpec((0, 4), np.dtype(np.float32)),
    "number": ArraySpec((), np.dtype(np.float64)),
    "seed": ArraySpec((2,), np.dtype(np.int64)),
}


def values() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.integers(0, 2, a.shape).astype(a.dtype) for name, a in ARRAYS.items()}


def test_arrays_arrive_as_they_were() -> None:
    layout, sent = MessageLayout(ARRAYS), values()
    message = layout.write(7, 2**32 - 1, sent)
    assert header(message) == (7, 2**32 - 1)
    found = layout.read(message)
    assert found.keys() == sent.keys()
    for name, array in sent.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


def test_every_array_is_aligned_and_a_part_of_a_table_is_the_beginning_of_its_layout() -> None:
    layout, sent = MessageLayout(ARRAYS), values()
    message = layout.write(1, 1, sent)
    first = MessageLayout({name: ARRAYS[name] for name in ("flag", "image")})
    assert message.startswith(first.write(1, 1, sent))
    memory = np.zeros(layout.nbytes, np.uint8)
    assert all((view.ctypes.data - memory.ctypes.data) % 8 == 0 for view in layout.views(memory).values())


def test_any_byte_may_come_for_a_bool() -> None:
    layout = MessageLayout({"flag": ArraySpec((4,), np.dtype(bool))})
    found = layout.read(HEADER.pack(1, 1) + bytes([0, 1, 7, 255]))["flag"]
    assert found.view(np.uint8).tolist() == [0, 1, 1, 1]


def test_the_schema_tells_layouts_apart() -> None:
    assert MessageLayout(ARRAYS).schema() == MessageLayout(dict(ARRAYS)).schema()
    assert MessageLayout(ARRAYS).schema()[1] == ["image", "|u1", [2, 5, 7]]
    for name, other in (("flag", ArraySpec((4,), np.dtype(bool))), ("seed", ArraySpec((2,), np.dtype(np.int32)))):
        assert MessageLayout(ARRAYS | {name: other}).schema() != MessageLayout(ARRAYS).schema()


def test_messages_of_another_size_are_refused() -> None:
    layout = MessageLayout(ARRAYS)
    message = layout.write(1, 1, values())
    for bad in (message[:-1], message + b"\0", b""):
        with pytest.raises(ProtocolError, match=f"a message of {len(bad)} bytes"):
            layout.read(bad)
    with pytest.raises(ProtocolError, match="a message of 7 bytes"):
        header(bytes(7))


@pytest.mark.parametrize("bad", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b"1", b" " * (LARGEST_JSON + 1)])
def test_handshakes_that_are_no_json_object_are_refused(bad: bytes) -> None:
    with pytest.raises(ProtocolError, match="a handshake"):
        read_json(bad)
