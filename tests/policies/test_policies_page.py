"""The examples in the documentation of policies run as they stand."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from headrace.config import PolicyConfig
from headrace.envs.core.contract import ArraySpec
from headrace.policies.encoders import make_network
from headrace.policies.registry import NETWORKS

DOCS = Path(__file__).parents[2] / "docs"


def run_python(page, containing):
    (code,) = (c for c in re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S) if containing in c)
    names: dict = {}
    exec(compile(code, page, "exec"), names)
    return names


def test_acting():
    names = run_python("policies.md", "Policy")
    assert names["actions"].shape == (16, 2)
    assert names["actions"].dtype == torch.int32
    assert names["log_prob"].shape == (16,)


def test_the_page_names_every_built_in_network():
    page = (DOCS / "policies.md").read_text()
    built_in = [n for n in sorted(NETWORKS) if NETWORKS[n].__module__.startswith("headrace.")]
    assert len(built_in) >= 6
    for name in built_in:
        assert f"`{name}`" in page


def test_a_network_of_your_own():
    NETWORKS.pop("attention", None)  # another test executes the same page
    run_python("extending.md", "register_network")
    network = make_network({"obs": ArraySpec((5,), np.dtype(np.float32))}, PolicyConfig(encoder="attention", hidden=16))
    assert network({"obs": torch.randn(2, 5)}).shape == (2, 16)


@pytest.mark.parametrize("page", ["policies.md", "extending.md", "policy-lag.md"])
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", (DOCS / page).read_text()):
        assert target.startswith("http") or (DOCS / target).exists(), target
