"""Images of bytes for convolutions, against PyTorch's two passes."""

from __future__ import annotations

import pytest
import torch

from headrace.policies import pixels

pytestmark = pytest.mark.usefixtures("one_thread")

EVERY_BYTE = torch.arange(256, dtype=torch.uint8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(3, 1, 16, 16), (2, 2, 7, 5), (5, 3, 20, 21), (3, 4, 84, 84), (2, 5, 8, 8), (0, 4, 8, 8)])
def test_the_same_numbers_and_the_same_layout(shape, dtype):
    image = EVERY_BYTE.repeat(1 + torch.Size(shape).numel() // 256)[: torch.Size(shape).numel()].view(shape)
    expected = image.to(dtype).contiguous(memory_format=torch.channels_last)
    actual = pixels.channels_last(image, dtype)
    assert actual.dtype == dtype
    assert actual.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(3, 1, 16, 8), (2, 2, 12, 20), (5, 3, 72, 128), (3, 4, 84, 84), (2, 5, 8, 8)])
@pytest.mark.parametrize("factor", [2, 4])
def test_unshuffled_as_by_pytorch(shape, dtype, factor):
    image = torch.randint(0, 256, shape, dtype=torch.uint8)
    expected = torch.nn.functional.pixel_unshuffle(image.to(dtype), factor)
    actual = pixels.channels_last(image, dtype, factor)
    assert actual.dtype == dtype
    assert actual.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("image", [
    torch.randint(0, 256, (4, 8, 8, 4), dtype=torch.uint8).permute(0, 3, 1, 2),
    torch.randint(0, 256, (8, 4, 8, 8), dtype=torch.uint8)[::2],
    torch.rand(2, 4, 8, 8),
], ids=["channels last", "with gaps", "float"])  # fmt: skip
def test_what_the_native_part_does_not_take(image):
    assert torch.equal(pixels.channels_last(image, torch.float32), image.to(torch.float32))


def test_the_native_part_is_used_for_stacks_of_frames(monkeypatch):
    asked = []
    monkeypatch.setattr(pixels, "native", type("Counted", (), {"channels_last": lambda *given: asked.append(given[2:]) or False}))
    pixels.channels_last(torch.zeros(6, 4, 84, 84, dtype=torch.uint8), torch.bfloat16)
    torch.set_num_threads(8)
    pixels.channels_last(torch.zeros(6, 4, 84, 84, dtype=torch.uint8), torch.bfloat16)
    assert asked == [(6, 4, 84, 84, 1, True)]


def test_a_trace_has_the_conversion():
    traced = torch.jit.trace(lambda x: pixels.channels_last(x, torch.float32), torch.zeros(1, 4, 8, 8, dtype=torch.uint8))
    image = torch.randint(0, 256, (3, 4, 8, 8), dtype=torch.uint8)
    assert torch.equal(traced(image), image.float())
