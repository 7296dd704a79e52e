"""Experience where environments, policy and learner share one device. Nothing is done before it is asked for: `next` steps the
environments until there is something to learn from, and nothing but what the host counts leaves the device."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from headrace.accelerator.graphs import Marker
from headrace.accelerator.staging import to_device, to_host
from headrace.config import Config
from headrace.config.file_reading import read_json
from headrace.config.seeds import Use, random_seed
from headrace.envs.core.contract import EnvSpec
from headrace.experience.batch import Arrivals, Batch, Experience, Filling
from headrace.experience.replay.experience import REPLAY_FOLDER, replay_metrics
from headrace.experience.replay.layout import observation_fields
from headrace.experience.transition_ring import TransitionRing
from headrace.runs.files import read_synced, write_synced

COUNTED = ("valid", "version", "episode_return", "episode_length", "episode_info", "task")
"""Fields that the host counts, where they are there."""
_RING, _STATE = "ring.safetensors", "ring.json"

Collect = Callable[[], tuple[dict[str, Tensor], range]]
"""Steps the environments T times; gives the fields of their trajectories, [T+1, B, ...], [T, B, ...] or `core` [B, S], and the
indices of the B environments."""


def counted(fields: dict[str, Tensor], envs: range, reported: range) -> tuple[dict[str, Tensor], Arrivals]:
    """Copies of the fields `COUNTED` in host memory, and the steps and episodes in them; waits for the device once. `fields` and
    `envs`: what `Collect` gave. `reported`: the environments whose episodes are reported."""
    host = {name: to_host(fields[name]) for name in COUNTED if name in fields}
    Marker(str(fields["valid"].device)).catch_up()
    index = np.arange(envs.start, envs.stop)
    of_reported = (index >= reported.start) & (index < reported.stop)
    return host, Arrivals.of({name: x.numpy() for name, x in host.items()}, of_reported)


class DeviceExperience(Experience):
    """Trajectories, consumed once: batches are views of the sampler's memory; what is not on `device` is copied there."""

    def __init__(self, collect: Collect, device: str, reported_envs: range):
        self._collect, self._device, self._reported = collect, device, reported_envs

    def next(self, timeout: float | None = None) -> Batch:
        """The next batch; takes as long as that takes. The next call overwrites it."""
        fields, envs = self._collect()
        host, arrivals = counted(fields, envs, self._reported)
        data = {name: to_device(x, self._device) for name, x in fields.items()}
        return Batch(data, host["version"].clone(), host["valid"], None, arrivals)


class DeviceReplayExperience(Experience):
    """Replay: writes what `collect` gives into a ring on the device, and draws batches from it. See `Experience`."""

    def __init__(self, config: Config, spec: EnvSpec, collect: Collect, reported_envs: range):
        self._config, self._collect, self._reported = config, collect, reported_envs
        self._settings, self._size = config.replay, config.learning.batch_size
        self._observations = observation_fields(config, spec)
        self._ring: TransitionRing | None = None  # made of what is collected first
        self._generator = torch.Generator(config.device).manual_seed(random_seed(Use.REPLAY, config.seed))
        self._credit = 0.0  # samples that may be drawn before more is collected
        self._inserts = self._samples = 0
        self._before = (perf_counter(), 0, 0)

    def next(self, timeout: float | None = None) -> Batch | Filling:
        """The next batch, a copy. Where no more samples are allowed of what is there (`replay.samples_per_insert`; without that
        limit, one batch for each trajectory), T steps of all environments are made first; `Filling` if that is not enough."""
        arrivals = Arrivals.sum([])
        if self._credit < self._size:
            fields, envs = self._collect()
            host, arrivals = counted(fields, envs, self._reported)
            self._add(fields, int(host["valid"][: self._config.sampling.rollout].sum()))
            if self._credit < self._size:
                return Filling(arrivals)
        assert self._ring is not None
        self._credit -= self._size
        self._samples += self._size
        keys = self._ring.draw(self._size, self._generator)
        data = self._ring.transitions(keys, self._settings.beta)
        return Batch(data, data["version"], None, keys, arrivals)

    def _add(self, fields: dict[str, Tensor], steps: int) -> None:
        if self._ring is None:
            self._ring = self._make_ring(fields)
        self._ring.add(fields)
        self._inserts += steps
        if self.size < self._settings.minimum or not self._ring.drawable:
            return
        ratio = self._settings.samples_per_insert
        self._credit = float(self._size) if ratio is None else self._credit + ratio * steps

    def _make_ring(self, fields: dict[str, Tensor]) -> TransitionRing:
        c, r, T = self._config, self._settings, self._config.sampling.rollout
        depth = max((field.stack for field in self._observations.values()), default=1)
        rows = max(math.ceil(r.capacity / c.num_envs), 2 * T) + r.n_step + depth
        rows = -(-rows // T) * T
        return TransitionRing(fields, self._observations, rows, r.n_step, c.learning.gamma, r.alpha, c.device, c.env)

    @property
    def size(self) -> int:
        """Transitions that are there, a few more than can be drawn."""
        return 0 if self._ring is None else min(self._inserts, self._ring.rows * self._ring.envs)

    def update_priorities(self, keys: Tensor, priorities: Tensor) -> None:
        """See `Experience.update_priorities`. The priorities stay on the device and are not checked here: a priority that is not
        finite comes with a gradient that is not finite, which the learner reports."""
        assert self._ring is not None
        self._ring.set_priorities(keys, priorities.float())

    def metrics(self) -> dict[str, float]:
        """The replay's own numbers; rates since the last call."""
        (since, inserts, samples), now, ring = self._before, perf_counter(), self._ring
        self._before = (now, self._inserts, self._samples)
        nbytes = sum(x.nbytes for x in ring.columns.values()) / (ring.rows * ring.envs) if ring else math.nan
        return replay_metrics(self.size, self._inserts - inserts, self._samples - samples, now - since, nbytes)

    # -- going on after a stop ------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write the transitions into `folder`, if asked for."""
        if not self._settings.checkpoint_contents or self._ring is None:
            return
        used = min(self._ring.head, self._ring.rows)
        tensors = {name: x[:used].to("cpu", copy=True) for name, x in self._ring.columns.items()}
        tensors["table"] = self._ring.table.numbers[: used * self._ring.envs].to("cpu", copy=True)
        tensors["top"] = self._ring.top.cpu()
        (folder / REPLAY_FOLDER).mkdir()
        digest = write_synced(folder / REPLAY_FOLDER / _RING, save(tensors))
        (folder / REPLAY_FOLDER / _STATE).write_text(json.dumps({"sha256": digest}))

    def get_state(self) -> dict[str, Any] | None:
        """What goes with the contents. None: the replay is filled again."""
        if not self._settings.checkpoint_contents or self._ring is None:
            return None
        numbers = {"head": self._ring.head, "credit": self._credit, "inserts": self._inserts, "samples": self._samples}
        return numbers | {"alpha": self._settings.alpha, "generator": self._generator.get_state()}

    def restore(self, folder: Path, state: Any) -> list[str]:
        """Go on from what `save` and `get_state` gave, before the first batch; returns what the user should know."""
        folder /= REPLAY_FOLDER
        if state is None or not folder.exists():
            return []
        try:
            tensors = load(read_synced(folder / _RING, read_json(folder / _STATE).get("sha256")))
            self._refill(tensors, state["head"], state.get("alpha", self._settings.alpha))  # older checkpoints do not have it
        except (ValueError, OSError) as error:
            self._ring = None
            return [f"{error}: the replay is filled again"]
        self._credit, self._inserts, self._samples = state["credit"], state["inserts"], state["samples"]
        self._generator.set_state(state["generator"])
        self._before = (perf_counter(), self._inserts, self._samples)
        return [f"The replay goes on with {self.size:,} transitions"]

    def _refill(self, tensors: dict[str, Tensor], head: int, alpha: float) -> None:
        """Fill a new ring with what was saved, priorities^`alpha` among it. Raises `ValueError` where it does not fit."""
        envs, T = self._config.num_envs, self._config.sampling.rollout
        names = {name: tuple(field.shape) for name, field in self._observations.items()}
        found = {name: tuple(tensors[name].shape[2:]) for name in names if name in tensors}
        if found != names or tensors["valid"].shape[1] != envs or head % T:
            raise ValueError("the saved replay has other observations, another number of environments or other trajectories")
        self._ring = ring = self._make_ring(tensors)
        if len(tensors["valid"]) != (used := min(head, ring.rows)):
            raise ValueError("the saved replay has another capacity")
        for name, column in ring.columns.items():
            column[:used] = tensors[name]
        if alpha not in (0, ring.alpha):  # of those to the power of 0 nothing is known: they stay equal
            table, top = tensors["table"], tensors["top"]
            tensors |= {"table": torch.where(table > 0, table ** (ring.alpha / alpha), 0.0), "top": top ** (ring.alpha / alpha)}
        ring.table.fill(0, tensors["table"].to(ring.device))
        ring.top, ring.head = tensors["top"].to(ring.device), head
        ring.hold_back()
