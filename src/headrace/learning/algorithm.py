"""Algorithms: their interface, what an algorithm declares about itself, and the registry.

The command line checks a configuration by what its algorithm declares, so nothing here imports torch. The built-in algorithms
are declared by `headrace.learning.presets`, which `headrace.learning` imports.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from headrace.config import Config, ConfigError, LearningConfig
from headrace.envs.core.contract import ArraySpec, EnvSpec
from headrace.envs.core.imports import import_files
from headrace.policies.errors import AgentFault, failed, is_own, made, named, shown

if TYPE_CHECKING:  # torch takes seconds
    from torch import Generator, Tensor
    from torch.nn import Module

    from headrace.accelerator.graphs import Tensors

Mode = Literal["train", "evaluate", "deterministic"]
"""How to act. train: with exploration. evaluate: as a trained policy, which may still sample. deterministic: without sampling."""

ExperienceKind = Literal["trajectories", "replay"]
"""Trajectories are consumed once, in order; a replay is sampled from."""


class Algorithm(ABC):
    """One algorithm: its network, how it acts, what it minimises.

    On CUDA `act`, `prepare` and `loss` are recorded as graphs: they must not wait for the device (`.item()`, boolean indexing),
    and what they do in Python is done only while recording. `learning.graphs` turns that off.
    """

    @abstractmethod
    def make_model(self, spec: EnvSpec, config: Config) -> Module:
        """A freshly initialised model with the attribute `core_width`: S, the width of its core state (0 without one)."""

    @abstractmethod
    def act(
        self, model: Module, obs: Tensors, core: Tensor, first: Tensor, envs: Tensor, generator: Generator, mode: Mode = "train"
    ) -> tuple[Tensors, Tensor]:
        """Actions for the observations of N environments.

        Args:
            model: what `make_model` made, with newer weights.
            obs: by name, [N, ...].
            core: float32 [N, S] before these observations.
            first: bool [N]: an episode begins; the core state is to be zeroed before these observations.
            envs: int64 [N]: indices of the environments in the whole run; exploration may depend on them. Each policy's indices
                are spread evenly over the run's.
            generator: for all random numbers.
            mode: see `Mode`.

        Returns: the fields of the trajectory that acting writes, [N, ...] each: `action`, and in mode "train" what the learner
        needs to know of it (`value`, `log_prob`, or what `extra_fields` names); and the core state after these observations.
        """

    @abstractmethod
    def loss(self, model: Module, batch: Tensors, config: LearningConfig) -> tuple[Tensor, Tensors]:
        """The loss of one minibatch and its statistics (scalars by metric name). With replay it adds `priority`, float32 [B], to
        the batch: the new priorities of the samples. It may add tensors without gradient under `sample/NAME`, for `statistics`.

        The loss is a mean over the rows where `mask` is True (without one: over all samples), or with `learning.reduction sum`
        their sum. The gradients of several ranks are combined in the same way.
        """

    def backward(self, model: Module, batch: Tensors, config: LearningConfig) -> Tensors:
        """Put the gradient of `loss` into `grad` of the model's parameters, where there is none or 0 before, and return its
        statistics."""
        with self.naming("loss", batch, config):
            returned = self.loss(model, batch, config)
        try:
            loss, statistics = returned
            loss.backward()
        except Exception as error:
            loss, *others = returned if isinstance(returned, tuple | list) else (None,)
            differentiable = getattr(loss, "requires_grad", None)
            if differentiable and len(others) == 1 and loss.numel() == 1:
                raise  # an error of the backward pass
            came = shown(returned) + (", a loss without a gradient" if differentiable is False else "")
            who = named(type(self), "loss", "learning.algorithm", config.algorithm)
            raise AgentFault(
                f"{who} returned {came}; expected (loss, statistics): a tensor [] computed from what the model returns, without "
                "detach() or item(), and a dictionary of tensors []"
            ) from error
        return statistics

    @contextmanager
    def naming(self, method: str, given: Tensors | int, config: LearningConfig) -> Iterator[None]:
        """Within the context an error of `method`, if that is the user's, becomes an `AgentFault` that names it. `given`: its
        argument, after the model if it takes that: a batch or a count."""
        try:
            yield
        except Exception as error:
            from torch import cuda

            recording = cuda.is_initialized() and cuda.is_current_stream_capturing()  # if that fails, it runs unrecorded
            if recording or not is_own(getattr(type(self), method)):
                raise
            who = named(type(self), method, "learning.algorithm", config.algorithm)
            model = "" if method == "diagnostics" else "model, "
            words = f"{shown(given)}, config" if isinstance(given, dict) else given
            raise failed(who, f"({model}{words})", error) from error

    def extra_fields(self, spec: EnvSpec) -> dict[str, ArraySpec]:
        """Fields of the trajectory store, beyond the common ones, that `act` writes. A replay needs `env_index` (int32: the
        number in `envs`). With a field `q` (float32: value of the action taken), the priority of a new transition is its TD
        error; without it, the largest priority so far. Replay of sequences needs `q`."""
        return {}

    def whole_trajectories(self, config: LearningConfig) -> bool:
        """Whether minibatches hold whole trajectories, [T, part of B, ...] with row T behind them. If not, and the model has no
        core, they hold single rows [1, part of T B, ...] of all trajectories, without row T, which are less correlated: `prepare`
        has then computed everything that depends on later rows."""
        return True

    def prepare(self, model: Module, batch: Tensors, config: LearningConfig) -> None:  # noqa: B027 (optional)
        """Called once per batch, before its epochs and without gradient, to add to `batch` what `loss` needs."""

    def statistics(self, model: Module, samples: Tensors, config: LearningConfig) -> Tensors:
        """Called once per update, after its optimizer steps and without gradient: more statistics (scalars by metric name), where
        `loss` has none of the same names. What is computed here and not in every loss saves its operations, which on small
        batches cost more than their arithmetic.

        `samples`: what `loss` has added to its minibatches under `sample/NAME`, by NAME: all optimizer steps side by side, [N].
        """
        return {}

    def diagnostics(self, samples: Tensors, config: LearningConfig) -> Tensors:
        """Called once per report, without gradient: statistics that only few updates need (scalars by metric name). `samples`: as
        for `statistics`, of an update's first optimizer step, computed before it. It is never recorded as a CUDA graph."""
        return {}

    def after_update(self, model: Module, updates: int) -> None:  # noqa: B027 (optional)
        """Called after every update with the number of updates so far."""

    def schedule(self, model: Module, global_step: int) -> None:  # noqa: B027 (optional)
        """Called after every update with the number of steps so far, of all environments and ranks, to set what depends on it,
        such as an exploration rate. Actors receive that with the weights if it is a buffer of the model."""

    def state_dict(self, model: Module) -> dict[str, Any]:
        """What the algorithm remembers from update to update, such as target networks, for checkpoints."""
        return {}

    def load_state_dict(self, model: Module, state: dict[str, Any]) -> None:  # noqa: B027 (optional)
        """Go on from `state_dict`."""

    def reported_envs(self, num_envs: int) -> range:
        """Indices of the environments whose episodes count in `charts/episodic_return`. If environments explore differently,
        these should be the ones that explore least. Trajectories need `env_index` among `extra_fields` for it."""
        return range(num_envs)


# -- what an algorithm declares ----------------------------------------------------------------------------------------

Settings = dict[str, Any]
"""Dotted settings."""
ByObservations = Mapping[str, Settings]
"""Settings for environments that observe "images", and for those that observe "vectors"."""
Defaults = Mapping[str, Any] | Callable[[str, Mapping[str, Any], str], Mapping[str, Any]]
"""Dotted settings; or a function that computes them from what the environment observes ("images" or "vectors"), the environment's
own defaults (dotted settings) and `learning.preset`."""


def _accept(config: Config) -> None:
    """Accept every configuration."""


@dataclass(frozen=True)
class Declaration:
    """What an algorithm declares, so that it is known before the algorithm is made."""

    name: str
    make: Callable[[Config], Algorithm]
    """Makes the algorithm; called only where torch is needed anyway."""
    experience: ExperienceKind = "trajectories"
    """What it learns from."""
    defaults: Defaults = field(default_factory=dict)
    """Defaults of settings. They override the environment's defaults; the user's flags override them."""
    check: Callable[[Config], None] = _accept
    """Raises `ConfigError` for settings that the algorithm cannot work with."""
    unused: tuple[str, ...] = ()
    """Settings, and with a dot at the end groups of settings, that have no effect on it."""
    built_in: bool = False
    """Whether it is one of `headrace.learning.presets`, whose names are taken."""

    def defaults_for(self, observations: str, env_defaults: Mapping[str, Any], preset: str) -> dict[str, Any]:
        """The dotted settings that it starts with; see `Defaults`. Raises `AgentFault` if the user's own function makes none."""
        if not callable(own := self.defaults):
            return dict(own)
        return dict(
            made(
                own, named(own, "", "the defaults of learning.algorithm", self.name), "(observations, env_defaults, preset)",
                lambda: own(observations, env_defaults, preset), lambda settings: isinstance(settings, Mapping),
                "a dictionary of dotted settings",
            )
        )  # fmt: skip

    def without_effect(self, settings: Iterable[str]) -> list[str]:
        """Those of these dotted settings that have no effect on it."""
        groups = tuple(name for name in self.unused if name.endswith("."))
        return [name for name in settings if name in self.unused or name.startswith(groups)]


_declarations: dict[str, Declaration] = {}


def declare(declaration: Declaration) -> None:
    _declarations[declaration.name] = declaration


def register_algorithm(
    name: str,
    *,
    experience: ExperienceKind = "trajectories",
    defaults: Defaults | None = None,
    check: Callable[[Config], None] = _accept,
) -> Callable[[Callable[[Config], Algorithm]], Callable[[Config], Algorithm]]:
    """Decorator for a function that makes an algorithm for a configuration; `learning.algorithm` selects it by name.

    See `Declaration` for the arguments. Registering a name again replaces the algorithm. Raises `ConfigError` for the names of
    the built-in algorithms.
    """
    if name in _declarations and _declarations[name].built_in:
        raise ConfigError(f"{name!r} is a built-in algorithm; choose another name")

    def register(make: Callable[[Config], Algorithm]) -> Callable[[Config], Algorithm]:
        declare(Declaration(name, make, experience, defaults or {}, check))
        return make

    return register


def algorithm_names() -> list[str]:
    """All known names, the built-in ones first."""
    return list(_declarations)


def declaration(name: str) -> Declaration:
    """What the algorithm of this name declares. Raises `ConfigError` with the known names if there is none."""
    if name not in _declarations:
        raise ConfigError(f"learning.algorithm {name!r} is unknown; there are: {', '.join(_declarations)}")
    return _declarations[name]


def make_algorithm(config: Config) -> Algorithm:
    """The algorithm that the configuration names. Raises `ConfigError` if there is none, `AgentFault` if the user's own function
    makes none."""
    make, name = declaration(config.learning.algorithm).make, config.learning.algorithm
    return made(
        make, named(make, "", "learning.algorithm", name), "(config)", lambda: make(config),
        lambda algorithm: isinstance(algorithm, Algorithm), "an object of a class derived from headrace.learning.Algorithm",
    )  # fmt: skip


def make_agent(config: Config, spec: EnvSpec) -> tuple[Algorithm, Module]:
    """The algorithm and a freshly initialised model; the same seed gives the same weights in every process. Raises `AgentFault`
    for what the user's own code makes instead."""
    import torch  # seconds, which the command line's checks do not need

    import_files(config.imports)
    if (dtype := torch.get_default_dtype()) != torch.float32:
        raise ConfigError(f"an imported file has called torch.set_default_dtype({dtype}): give its own tensors a dtype instead")
    algorithm = make_algorithm(config)
    torch.manual_seed(config.seed)
    own, name = type(algorithm), config.learning.algorithm
    return algorithm, made(
        own, named(own, "make_model", "learning.algorithm", name), "(spec, config)", lambda: algorithm.make_model(spec, config),
        lambda model: isinstance(model, torch.nn.Module) and isinstance(getattr(model, "core_width", None), int),
        "a torch.nn.Module with the integer attribute core_width: numbers of its core state (`width` of its core), 0 without one",
    )  # fmt: skip
