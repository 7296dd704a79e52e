"""What is found out about a policy of one's own before a run starts; more of it is in `learning/test_own_mistakes.py`."""

import numpy as np
import pytest
from torch import nn

from headrace.envs.core.contract import ActionSpec, ArraySpec, Categorical, EnvSpec
from headrace.learning.policy_gradient import PolicyGradient
from headrace.make_config import make_config
from headrace.policies.errors import AgentFault
from headrace.policies.policy import ValueHead
from headrace.sampling.trial import try_agent

SPEC = EnvSpec({"obs": ArraySpec((4,), np.dtype(np.float32))}, ActionSpec((Categorical(2),)))


class Deep(nn.Sequential):
    """A head of one's own."""

    def __init__(self, width, bias=True):
        super().__init__(nn.Linear(width, 8), nn.Tanh(), ValueHead(8))
        if bias is not None:
            self.add_module("linear", nn.Linear(8, 1, bias))

    def forward(self, x):
        return self[2](self[1](self[0](x)))


@pytest.mark.parametrize("bias", [None, False, True])
def test_returns_are_normalised_in_the_last_layer_of_the_value_head(bias):
    class Mine(PolicyGradient):
        def make_model(self, spec, config):
            policy = super().make_model(spec, config)
            policy.value_head = Deep(policy.value_head.linear.in_features, bias)
            return policy

    for normalized in (False, True):
        config = make_config("gym/CartPole-v1", "ppo", **{"policy.normalize_returns": normalized, "learning.device": "cpu"})
        algorithm = Mine()
        model = algorithm.make_model(SPEC, config)
        if bias or not normalized:
            try_agent(algorithm, model, config, SPEC)
            continue
        words = "made a policy with the value_head Deep.* policy.normalize_returns .* torch.nn.Linear with a bias"
        with pytest.raises(AgentFault, match=rf"Mine.make_model \(learning.algorithm ppo\) {words}"):
            try_agent(algorithm, model, config, SPEC)
