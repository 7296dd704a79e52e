"""`TrainedPolicy.module`: the policy as a plain `torch.nn.Module`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from exported_runs import REPLAY, WORLDS, trained
from torch.nn import functional

import headrace
from headrace.config import ConfigError

CORE = {"policy.core": "gru", "policy.normalize_observations": True}


def test_a_few_gradient_steps_outside_the_engine(tmp_path):
    """Distil a policy into its opposite: plain PyTorch, then the engine plays with the new weights."""
    policy = headrace.load_policy(trained("gym/CartPole-v1", tmp_path / "run", **CORE), device="cpu")
    module = policy.module()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    obs = {"obs": torch.randn(64, 4)}
    wanted = (obs["obs"][:, 2] > 0).long()
    optimizer = torch.optim.Adam(module.parameters(), 0.01)
    losses = []
    for _ in range(30):
        outputs = module(obs, torch.zeros(64, module.core_width), torch.ones(64, dtype=torch.bool))
        loss = functional.cross_entropy(outputs["logits"], wanted) + outputs["value"].square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    statistics = {name for name in before if "normalizers" in name}
    assert statistics
    assert all(torch.equal(module.state_dict()[name], before[name]) for name in statistics)
    policy.model.load_state_dict(module.model.state_dict())
    policy.reset()
    policy.module()
    assert policy.act(np.array([0, 0, 1.5, 0], np.float32)) == 1
    assert headrace.evaluate(policy, 2).returns


@pytest.mark.parametrize("settings", [{}, CORE, {"learning.algorithm": "dqn", "q.noisy": True, **REPLAY}])
def test_it_acts_like_the_policy(settings, tmp_path):
    policy = headrace.load_policy(trained("gym/CartPole-v1", tmp_path / "run", **settings), device="cpu")
    module, core, env = policy.module(), None, policy.make_env()
    observation, _ = env.reset(seed=0)
    for step in range(40):
        given = {"obs": torch.from_numpy(observation)[None]}
        outputs = module(given, core, torch.tensor([step == 0]))
        core = outputs.get("next_core")
        action = policy.act(observation)
        assert outputs["action"].item() == action
        observation, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            break


def test_the_module_of_a_bf16_policy_computes_in_float32(tmp_path):
    wide = {"policy.mlp": [600], "learning.precision": "bf16"}  # narrow ones are float32 anyway
    policy = headrace.load_policy(trained("gym/CartPole-v1", tmp_path / "run", **wide), device="cpu")
    obs, first = {"obs": torch.randn(5, 4)}, torch.ones(5, dtype=torch.bool)
    value = policy.model.value_head(policy.model.trunk.network(obs))  # without autocast
    torch.testing.assert_close(policy.module()(obs, None, first)["value"], value)
    assert (policy.model.act(obs, torch.zeros(5, 0), first).value - value).abs().max() > 1e-5  # the policy itself


def test_compound_observations_and_actions(tmp_path):
    policy = headrace.load_policy(trained("odd/all", tmp_path / "run", imports=[WORLDS]), device="cpu")
    module, env = policy.module(), policy.make_env()
    observation, _ = env.reset(seed=3)
    batch = {leaf.name: torch.as_tensor(np.array(leaf.find(observation)))[None] for leaf in module.leaves}
    outputs = module(batch)
    ours = policy.act(observation)
    assert all(np.allclose(ours[name], outputs[f"action/{name}"][0].numpy()) for name in ours)
    sum(tensor.sum() for name, tensor in outputs.items() if not name.startswith("action")).backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_an_onnx_file_has_none(tmp_path):
    run = trained("gym/CartPole-v1", tmp_path / "run")
    path = headrace.export_policy(run, exporter="torchscript", episodes=0).path
    with pytest.raises(ConfigError, match=r"no torch\.nn\.Module"):
        headrace.load_policy(path).module()
