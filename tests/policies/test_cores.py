"""Cores against torch's own cells, stepped one row and one environment at a time."""

import pytest
import torch

from headrace.policies.cores import RecurrentCore

T, B, F, H = 9, 4, 6, 5


def random_inputs(p_first=0.3):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(T, B, F, generator=generator)
    first = torch.rand(T, B, generator=generator) < p_first
    return x, first


@pytest.mark.parametrize("p_first", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_unrolling_is_stepping_torchs_cell_with_resets(kind, p_first):
    core = RecurrentCore(kind, F, H)
    cell = {"gru": torch.nn.GRUCell, "lstm": torch.nn.LSTMCell}[kind](F, H)
    cell.load_state_dict({name: getattr(core, name).detach() for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")})
    x, first = random_inputs(p_first)
    start = torch.randn(B, core.width)
    outputs, end = core(x, start, first)
    assert outputs.shape == (T, B, H)
    for b in range(B):
        state = start[b : b + 1]
        for t in range(T):
            if first[t, b]:
                state = torch.zeros_like(state)
            if kind == "gru":
                h = state = cell(x[t, b : b + 1], state)
            else:
                h, c = cell(x[t, b : b + 1], state.chunk(2, -1))
                state = torch.cat((h, c), -1)
            torch.testing.assert_close(outputs[t, b : b + 1], h, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(end[b : b + 1], state, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_cutting_a_sequence_anywhere_changes_nothing(kind):
    core = RecurrentCore(kind, F, H)
    x, first = random_inputs()
    state = torch.randn(B, core.width)
    whole, end = core(x, state, first)
    pieces = []
    for piece in (slice(0, 1), slice(1, 5), slice(5, T)):
        output, state = core(x[piece], state, first[piece])
        pieces.append(output)
    torch.testing.assert_close(torch.cat(pieces), whole)
    torch.testing.assert_close(state, end)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_no_gradient_and_no_value_crosses_a_reset(kind):
    core = RecurrentCore(kind, F, H)
    x = torch.randn(T, 1, F, requires_grad=True)
    first = torch.zeros(T, 1, dtype=torch.bool)
    first[4] = True
    start = torch.full((1, core.width), torch.nan)
    outputs, _ = core(x, start, first)
    assert outputs[:4].isnan().all()
    assert outputs[4:].isfinite().all()
    outputs[4:].sum().backward()
    assert (x.grad[4:] != 0).any()
    outputs, _ = core(x, torch.zeros(1, core.width), first)
    x.grad = None
    outputs[4:].sum().backward()
    assert (x.grad[:4] == 0).all()


def test_weights_start_orthogonal():
    core = RecurrentCore("gru", 8, 8)
    for gate in core.weight_hh.chunk(3):
        torch.testing.assert_close(gate @ gate.T, torch.eye(8), rtol=1e-4, atol=1e-5)
