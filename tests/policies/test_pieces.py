"""Networks in pieces compute what the whole network computes, forward and backward."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from headrace.config import PolicyConfig
from headrace.envs.core.contract import ArraySpec
from headrace.policies import pieces
from headrace.policies.encoders import TwoNetworks, make_network
from headrace.policies.pieces import LEAST, in_pieces

UINT8, FLOAT32 = np.dtype(np.uint8), np.dtype(np.float32)
SMALL = {"obs": ArraySpec((2, 36, 36), UINT8), "measurements": ArraySpec((3,), FLOAT32)}
N = 3 * LEAST + 1


@pytest.fixture(autouse=True)
def three_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(pieces, "_wanted", False)
    pieces.divide()
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def observations(n: int = N) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (n, 2, 36, 36), dtype=torch.uint8, generator=generator)
    return {"obs": images, "measurements": torch.randn(n, 3, generator=generator)}


def network(encoder: str = "nature-cnn", activation: str = "elu") -> nn.Module:
    torch.manual_seed(0)
    return make_network(SMALL, PolicyConfig(encoder=encoder, activation=activation))


def threads_of_samples(module: nn.Module) -> list[tuple[int, str]]:
    """How many samples came to each call of the module, and in which thread; filled by its calls."""
    seen = list[tuple[int, str]]()
    module.register_forward_hook(lambda _, inputs, out: seen.append((len(out), threading.current_thread().name.split("_")[0])))
    return seen


def gradients(module: nn.Module, features: Tensor) -> list[Tensor | None]:
    weights = torch.randn(features.shape, generator=torch.Generator().manual_seed(2))
    (features.float() * weights).sum().backward()
    found = [parameter.grad for parameter in module.parameters()]
    module.zero_grad()
    return found


@pytest.mark.parametrize("encoder", ["nature-cnn", "impala-resnet", "two"])
def test_features_and_gradients_are_those_of_the_whole_network(encoder: str) -> None:
    whole = TwoNetworks(network(), network("impala-shallow")) if encoder == "two" else network(encoder)
    frozen = next(whole.parameters()).requires_grad_(False)
    expected = whole(observations())
    wanted = gradients(whole, expected)
    seen = threads_of_samples(whole)
    features = in_pieces(whole, observations())
    found = gradients(whole, features)
    assert sorted(seen) == [(LEAST, "pieces"), (LEAST, "pieces"), (LEAST + 1, "MainThread")]
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5)
    assert frozen.grad is None
    torch.testing.assert_close(found[1:], wanted[1:], rtol=1e-3, atol=1e-3)
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize("encoder", ["nature-cnn", "vizdoom-simple", "impala-resnet"])
def test_under_autocast_pieces_are_as_exact_as_the_whole(encoder: str) -> None:
    spec = {"obs": ArraySpec((2, 72, 72), UINT8), "measurements": ArraySpec((3,), FLOAT32)}
    torch.manual_seed(0)
    module = make_network(spec, PolicyConfig(encoder=encoder, activation="elu"))
    obs = {"obs": torch.randint(0, 256, (N, 2, 72, 72), dtype=torch.uint8), "measurements": torch.randn(N, 3)}
    exact = gradients(module, module(obs))
    with torch.autocast("cpu", torch.bfloat16):
        whole, features = module(obs), in_pieces(module, obs)
    assert features.dtype == whole.dtype == torch.bfloat16
    torch.testing.assert_close(features, whole, rtol=2e-2, atol=2e-2)
    one, several = (
        [float((a - b).norm()) for a, b in zip(gradients(module, x), exact, strict=True) if a is not None and b is not None]
        for x in (whole, features)
    )
    assert sum(several) <= 1.2 * sum(one)


def test_without_a_gradient_no_graph_is_kept() -> None:
    module = network()
    seen = threads_of_samples(module)
    with torch.inference_mode():
        features = in_pieces(module, observations())
    assert len(seen) == 3
    assert features.is_inference()
    assert not features.requires_grad
    with torch.no_grad():
        assert not in_pieces(module, observations()).requires_grad


def test_gradients_do_not_import_sympy() -> None:
    """Torch imports it for some of them, which made the first update up to a second longer."""
    script = (
        "import sys, torch; from test_pieces import *; pieces.divide(); torch.set_num_threads(2)\n"
        "in_pieces(network(), observations()).sum().backward(); print(threading.active_count(), 'sympy' in sys.modules)"
    )
    folder = Path(__file__).parent
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout == "2 False\n", "two threads computed pieces, without SymPy"


class Centred(nn.Module):
    """A layer that mixes the samples of a batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


def test_what_cannot_be_divided_is_computed_whole() -> None:
    mixing = network()
    mixing.last = nn.Sequential(Centred())
    few, vectors, wants_gradient = network(), network("mlp"), network()
    seen = {module: threads_of_samples(module) for module in (mixing, few, vectors, wants_gradient)}
    in_pieces(mixing, observations())
    in_pieces(few, observations(3 * LEAST - 1))
    in_pieces(vectors, observations())
    needed = observations()
    needed["measurements"].requires_grad_()
    in_pieces(wants_gradient, needed).sum().backward()
    assert needed["measurements"].grad is not None
    assert [[samples for samples, _ in calls] for calls in seen.values()] == [[N], [3 * LEAST - 1], [N], [N]]


def test_an_error_in_a_piece_is_raised_when_all_have_ended() -> None:
    module = network()
    ended = list[str]()

    def fail(_: nn.Module, inputs: tuple[dict[str, Tensor]], out: Tensor) -> None:
        ended.append(threading.current_thread().name)
        if len(out) == LEAST + 1:
            raise ArithmeticError("no")

    module.register_forward_hook(fail)
    with pytest.raises(ArithmeticError):
        in_pieces(module, observations())
    assert len(ended) == 3
    assert torch.get_num_threads() == 3
