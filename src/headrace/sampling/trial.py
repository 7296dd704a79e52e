"""A trial of the user's own network, core and `act` before anything is started: steps from observations of zeros."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, cast

import torch
from torch import Tensor, nn

from headrace.accelerator.staging import torch_dtype
from headrace.arrays import ArraySpec
from headrace.config import Config
from headrace.envs.core.contract import MASK_KEY, EnvSpec
from headrace.policies.encoders import NETWORKS, TwoNetworks, out_features
from headrace.policies.errors import AgentFault, failed, is_own, named, shown
from headrace.policies.policy import Policy, Trunk
from headrace.sampling.trajectory_fields import trajectory_fields

SIZES = (2, 1, 3)  # of batches: with one observation alone, a result without a batch dimension could look right


def try_agent(algorithm: Any, model: nn.Module, config: Config, spec: EnvSpec) -> None:
    """Let an agent with code of the user's own act on batches of some sizes, on the CPU. The model must not be used afterwards.

    Raises `AgentFault` for errors of this code, for results of other shapes, and for results that are not finite, also for other
    observations than zeros. Where the run is on another device, errors are left for the run to show: the code may need that
    device.
    """
    if not _has_own_network(config) and not is_own(type(algorithm)):
        return
    trial = _Trial(config)
    for part in model.modules():
        if isinstance(part, Trunk):
            trial.watch_parts(part)
        elif isinstance(part, Policy) and part.returns is not None:
            trial.check_value_head(part, named(type(algorithm), "make_model", "learning.algorithm", trial.algorithm))
    for trial.n in SIZES:
        try:
            trial.act(algorithm, model.eval(), spec)
        except AgentFault:
            raise
        except Exception as error:
            if config.device == "cpu":
                raise failed(*trial.calls[-1], error) from error
        if trial.not_finite:  # zeros may lead to it where no real observation does, by a division or a logarithm
            trial.not_finite.clear()
            with suppress(Exception):
                trial.act(algorithm, model, spec, drawn=True)
            if trial.not_finite:
                raise AgentFault(trial.not_finite[0])


def _has_own_network(config: Config) -> bool:
    make = NETWORKS.get(config.policy.encoder)  # None: chosen by what the environment observes
    return make is not None and is_own(make)


class _Trial:
    n: int  # observations in the batch

    def __init__(self, config: Config):
        self.config, self.algorithm = config, config.learning.algorithm
        self.calls: list[tuple[str, str]] = []  # that have not returned, the innermost last: whose, and with what
        self.not_finite: list[str] = []  # messages, the first call's first

    def watch_parts(self, trunk: Trunk) -> None:
        """Compare what the user's own network and core return with what their attributes say."""
        core, encoder, size = trunk.core, self.config.policy.encoder, trunk.out_features
        network = trunk.network.actor if isinstance(trunk.network, TwoNetworks) else trunk.network
        if _has_own_network(self.config):
            who = named(type(network), "forward", "policy.encoder", encoder)
            self._watch(network, who, "[N, out_features]", lambda given: torch.empty(self.n, out_features(network)))
        if core is not None and is_own(type(core)):
            who = named(type(core), "forward", "the core of learning.algorithm", self.algorithm)
            shapes = "[T, B, policy.core_size] and, after the last row, [B, width]"
            self._watch(core, who, shapes, lambda given: (torch.empty(1, self.n, size), given[1]))

    @staticmethod
    def check_value_head(policy: Policy, who: str) -> None:
        """Raise `AgentFault` for a value head of the user's own that cannot be rescaled (`Policy.update_returns`)."""
        linear = getattr(policy.value_head, "linear", None)
        if not isinstance(linear, nn.Linear) or linear.bias is None:
            raise AgentFault(
                f"{who} made a policy with the value_head {shown(policy.value_head)}, which policy.normalize_returns cannot "
                "rescale: its last layer must be its attribute linear, a torch.nn.Linear with a bias. Or turn that setting off"
            )

    @torch.inference_mode()
    def act(self, algorithm: Any, model: nn.Module, spec: EnvSpec, drawn: bool = False) -> None:
        rows, n = _drawn if drawn else _rows, self.n
        obs = {name: rows(array, n) + (name == MASK_KEY) for name, array in spec.observation.items()}
        core = torch.zeros(n, cast(int, model.core_width))
        given = obs, core, torch.ones(n, dtype=torch.bool), torch.arange(n)
        who = named(type(algorithm), "act", "learning.algorithm", self.algorithm)
        self.calls.append((named(type(algorithm), "extra_fields", "learning.algorithm", self.algorithm), "(spec)"))
        extra = algorithm.extra_fields(spec)
        known = trajectory_fields(spec, core.shape[1], extra)
        self._check_fields(extra)
        self.calls[-1] = (who, f"(model, {shown(given)[1:-1]}, generator)")
        returned = algorithm.act(model, *given, torch.Generator().manual_seed(0))
        there = returned[0] if isinstance(returned, tuple) and returned and isinstance(returned[0], dict) else {}
        fields = {name: _rows(array, n) for name, array in known.items() if name == "action" or name in there}
        self._expect(returned, (fields, core), "action, any of log_prob, value and extra_fields; and the core state")

    def _check_fields(self, extra: dict[str, ArraySpec]) -> None:
        """Raise `AgentFault` where a replay, which is written from trajectories, lacks a field; that of a device is not."""
        if not self.config.uses_replay or self.config.sampling.placement == "device":
            return
        for name, dtype in (("env_index", "int32"), ("q", "float32")):
            needed = name == "env_index" or self.config.policy.core != "none"
            if (name not in extra and needed) or (name in extra and (extra[name].dtype, extra[name].shape) != (dtype, ())):
                came = {field: f"{array.dtype} {list(array.shape)}" for field, array in extra.items()}
                raise AgentFault(f"{self.calls[-1][0]} returned {came}; a replay needs {name!r}, {dtype} []")

    def _watch(self, module: nn.Module, who: str, shapes: str, wanted: Callable[[Any], Any]) -> None:
        module.register_forward_pre_hook(lambda _, given: self.calls.append((who, shown(given))))
        module.register_forward_hook(lambda _, given, out: self._expect(out, wanted(given), shapes))

    def _expect(self, returned: Any, wanted: Any, shapes: str) -> None:
        """Compare what the innermost call returned with tensors of the right shapes, which `shapes` puts into words."""
        who, _ = self.calls.pop()
        if not self._fits(returned, wanted):
            many = f"{self.n} observation{'s' * (self.n > 1)}"
            raise AgentFault(f"{who} returned {shown(returned)} for {many}; expected {shown(wanted)}: {shapes}")
        if bad := ", ".join(self._not_finite(returned)):
            self.not_finite.append(f"{who} returned NaN or infinite numbers in {bad}, for every observation that was tried")

    def _fits(self, x: Any, wanted: Any) -> bool:
        if isinstance(wanted, dict):
            return isinstance(x, dict) and x.keys() == wanted.keys() and all(self._fits(x[n], wanted[n]) for n in wanted)
        if isinstance(wanted, tuple):
            return isinstance(x, tuple) and len(x) == len(wanted) and all(map(self._fits, x, wanted))
        here = isinstance(x, Tensor) and (x.device.type == "cpu" or self.config.device != "cpu")
        return here and x.shape == wanted.shape and (wanted.is_floating_point() or not x.is_floating_point())

    def _not_finite(self, x: Any, name: str = "") -> Iterator[str]:
        """The tensors in `x` that are not finite for any of the observations, in words. Fields of the user's own may be so."""
        if isinstance(x, dict):
            for key in ("action", "log_prob", "value"):
                yield from self._not_finite(x.get(key, ()), f"{key}, ")
        elif isinstance(x, tuple):
            for part in x:
                yield from self._not_finite(part)
        elif not x.isfinite().reshape(self.n, x.numel() // self.n).all(-1).any():
            yield f"{name}{shown(x)}"


def _drawn(array: ArraySpec, n: int) -> Tensor:
    """Observations near `_rows`, in turn above and below it; of images random pixels and black ones."""
    change = torch.rand(array.shape, generator=torch.Generator().manual_seed(0)) * (255 if array.is_image else 1)
    rows = _rows(array, n) + torch.stack([-change if i % 2 else change for i in range(n)])
    return rows.clamp(array.low, array.high).to(torch_dtype(array.dtype))


def _rows(array: ArraySpec, n: int) -> Tensor:
    """Zeros, or the bound next to 0."""
    return torch.full((n, *array.shape), min(max(0, array.low), array.high), dtype=torch_dtype(array.dtype))
