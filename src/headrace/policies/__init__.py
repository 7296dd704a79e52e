"""What acts: encoders, recurrent cores, heads and action distributions, put together by `make_policy`."""

from headrace.policies.distributions import ActionDistribution
from headrace.policies.policy import Policy, PolicyOutput, make_policy
from headrace.policies.registry import register_network

__all__ = ["ActionDistribution", "Policy", "PolicyOutput", "make_policy", "register_network"]
