"""Cores against torch's own cells, stepped one row and one environment at a time."""

import math

import pytest
import torch

from headrace.config import PolicyConfig
from headrace.envs.core.contract import ActionSpec, Categorical, Continuous
from headrace.envs.core.last_step import PREVIOUS_ACTION, PREVIOUS_REWARD
from headrace.policies.cores import LastStep, RecurrentCore

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


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_gradients_are_those_of_torchs_cell(kind, bf16):
    """Of all weights, of the inputs and of the state before, from the outputs and from the state after; with resets."""
    core = RecurrentCore(kind, F, H)
    cell = {"gru": torch.nn.GRUCell, "lstm": torch.nn.LSTMCell}[kind](F, H)
    cell.load_state_dict({name: getattr(core, name).detach() for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")})
    x, first = random_inputs()
    start = torch.randn(B, core.width)
    of_outputs, of_end = torch.randn(T, B, H), torch.randn(B, core.width)
    mine, theirs = ((x.clone().requires_grad_(), start.clone().requires_grad_()) for _ in range(2))
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        outputs, end = core(*mine, first)
    ((outputs * of_outputs).sum() + (end * of_end).sum()).backward()
    rows, state = [], theirs[1].split(H, -1)
    for t in range(T):
        state = [part * ~first[t, :, None] for part in state]
        state = (cell(theirs[0][t], state[0]),) if kind == "gru" else cell(theirs[0][t], tuple(state))
        rows.append(state[0])
    ((torch.stack(rows) * of_outputs).sum() + (torch.cat(state, -1) * of_end).sum()).backward()
    rtol, atol = (0.05, 0.15) if bf16 else (1e-4, 1e-5)
    for expected, got in zip((*theirs, *cell.parameters()), (*mine, *core.parameters()), strict=True):
        torch.testing.assert_close(got.grad, expected.grad, rtol=rtol, atol=atol)
        assert (expected.grad != 0).any()


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_outputs_are_the_same_without_a_gradient(kind):
    core = RecurrentCore(kind, F, H)
    x, first = random_inputs()
    with_gradient = core(x, torch.ones(B, core.width), first)
    with torch.no_grad():
        without = core(x, torch.ones(B, core.width), first)
    assert all(map(torch.equal, with_gradient, without))
    assert with_gradient[0].requires_grad


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


def test_the_last_step_is_one_hot_scaled_and_clipped_and_nothing_where_an_episode_begins():
    action = ActionSpec((Categorical(3), Continuous((-2.0, 0.0), (2.0, 1.0)), Categorical(2)))
    last = LastStep(action, PolicyConfig(core="lstm", previous_action=True, previous_reward=True))
    actions = torch.tensor([[[0.0, 1.0, 0.25, 1.0], [2.0, -2.0, 1.0, 0.0]]])
    obs = {PREVIOUS_ACTION: actions, PREVIOUS_REWARD: torch.tensor([[-7.0, 0.5]])}
    features = torch.tensor([[[9.0], [8.0]]])
    rows = last(features, obs, torch.tensor([[False, False]]))[0]
    assert rows.tolist() == [[9, 1, 0, 0, 0.5, -0.5, 0, 1, -1], [8, 0, 0, 1, -1, 1, 1, 0, 0.5]]
    assert last.out_features == 8
    assert last(features, obs, torch.tensor([[True, False]]))[0].tolist() == [[9, *[0] * 8], rows[1].tolist()]
    assert LastStep(action, PolicyConfig(core="lstm"))(features, obs, torch.tensor([[False, False]])) is features


def test_numbers_without_bounds_are_as_they_are():
    action = ActionSpec((Continuous((-2.0, -math.inf, 0.0, 1.0), (2.0, math.inf, math.inf, 1.0)),))
    last = LastStep(action, PolicyConfig(core="gru", previous_action=True))
    obs, first = {PREVIOUS_ACTION: torch.tensor([[[1.0, 3.0, 4.0, 1.0]]])}, torch.tensor([[False]])
    assert last(torch.zeros(1, 1, 0), obs, first).tolist() == [[[0.5, 3, 4, 1]]]
    obs[PREVIOUS_ACTION][..., 2] = -0.7  # as it was drawn; the environment got the bound
    assert last(torch.zeros(1, 1, 0), obs, first).tolist() == [[[0.5, 3, 0, 1]]]


def test_integers_are_those_that_the_environment_got():
    last = LastStep(ActionSpec((Continuous((0.0,), (10.0,), integer=True),)), PolicyConfig(core="gru", previous_action=True))
    obs = {PREVIOUS_ACTION: torch.tensor([[[7.4]]])}
    assert last(torch.zeros(1, 1, 0), obs, torch.tensor([[False]])).item() == pytest.approx(0.4)


def test_action_parts_alone_and_reward_alone():
    action, obs = ActionSpec((Categorical(2),)), {PREVIOUS_ACTION: torch.tensor([[[1]]]), PREVIOUS_REWARD: torch.tensor([[0.1]])}
    first, features = torch.tensor([[False]]), torch.zeros(1, 1, 0)
    assert LastStep(action, PolicyConfig(core="gru", previous_action=True))(features, obs, first).tolist() == [[[0, 1]]]
    assert LastStep(action, PolicyConfig(core="gru", previous_reward=True))(features, obs, first).item() == pytest.approx(0.1)
