"""A policy that acts from an ONNX file on onnxruntime: what `headrace export` wrote, loaded again.

The file's metadata hold its contract (`headrace.export.contract`), which says what goes in and what comes out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headrace import config as configs
from headrace.config import Config, ConfigError
from headrace.config.envs import OF_ONE_MACHINE
from headrace.config.errors import package
from headrace.envs.core.contract import MASK_KEY, EnvSpec
from headrace.envs.core.imports import check_given, import_files, name_environments
from headrace.envs.make import describe_run
from headrace.evaluation.module import PolicyModule
from headrace.evaluation.trained_policy import TrainedPolicy
from headrace.learning import q_learning
from headrace.policies.distributions import ActionDistribution
from headrace.runs.files import sha256

CONTRACT_KEY = "headrace.contract"  # of the ONNX metadata: the contract as JSON
CONTRACT_VERSION = 1
SCHEMA = Path(__file__).with_name("contract.schema.json")

OBSERVES = ("core", "previous_action", "previous_reward")
"""Settings of the network that decide what a policy observes beside what the environment gives it."""


def session(model: os.PathLike[str] | str | bytes) -> Any:
    """An `onnxruntime.InferenceSession` of a file or its bytes, on one core. Raises `ConfigError` for what is no such file."""
    runtime = package("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    source = model if isinstance(model, bytes) else os.fspath(model)
    try:
        return runtime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the library's own exceptions have no common class
        name = "the exported model" if isinstance(model, bytes) else os.fspath(model)
        raise ConfigError(f"{name} cannot be loaded by onnxruntime: {error!s:.300}") from error


class OnnxPolicy(TrainedPolicy):
    """A `TrainedPolicy` without a network of torch: onnxruntime computes, on the CPU and in float32.

    `run`: an `onnxruntime.InferenceSession`; `contract`: what it takes and gives.
    """

    def __init__(self, run: Any, contract: dict[str, Any], config: Config, spec: EnvSpec, seed: int = 0) -> None:
        self.session, self.contract = run, contract
        state = nn.Module()
        state.core_width = contract["core"]["width"] if contract["core"] else 0  # type: ignore[assignment]
        none: Any = None  # the algorithm is in the file
        super().__init__(config, spec, none, state, contract["training"]["step"], seed)
        self._observations = [item for item in contract["inputs"] if "encoding" in item]
        self._outputs = [item["name"] for item in contract["outputs"]]

    def module(self) -> PolicyModule:
        """Raises `ConfigError`: the network is not one of torch."""
        raise ConfigError("an ONNX file is no torch.nn.Module; load_policy gives one from the run folder or the shared one")

    def run(self, obs: dict[str, np.ndarray], core: Tensor, first: np.ndarray) -> dict[str, np.ndarray]:
        """All outputs by name, [N, ...], for observations in the engine's form; arguments as for `act_rows`."""
        feeds = {item["name"]: raw(item, obs[item["name"]]) for item in self._observations}
        if self.contract["core"]:
            feeds |= {"core": core.numpy(), "first": first}
        return dict(zip(self._outputs, self.session.run(self._outputs, feeds), strict=True))

    def rows(self, outputs: dict[str, np.ndarray]) -> np.ndarray:
        """The action rows [N, A] (int32 or float32) that give the environment the actions in `outputs`."""
        items = [item for item in self.contract["outputs"] if item["role"] == "action"]
        columns = [outputs[item["name"]].reshape(-1, item["width"]) - np.array(item.get("start", 0)) for item in items]
        return np.concatenate(columns, -1).astype(self.spec.action.dtype)

    def act_rows(
        self, obs: dict[str, np.ndarray], core: Tensor, first: np.ndarray, *, deterministic: bool
    ) -> tuple[np.ndarray, Tensor]:
        """See `TrainedPolicy.act_rows`. Sampled actions are drawn as the contract's `sampling` says."""
        outputs = self.run(obs, core, first)
        after = torch.from_numpy(outputs["next_core"]) if self.contract["core"] else core
        if deterministic or self.contract["sampling"]["kind"] == "none":
            return self.rows(outputs), after
        return self._sample(obs, {name: torch.from_numpy(array) for name, array in outputs.items()}), after

    def _sample(self, obs: dict[str, np.ndarray], outputs: dict[str, Tensor]) -> np.ndarray:
        if self.contract["sampling"]["kind"] == "epsilon-greedy":
            q = outputs["q"]
            allowed = torch.from_numpy(obs[MASK_KEY]).bool() if MASK_KEY in obs else None
            epsilon = torch.full(q.shape[:1], self.contract["sampling"]["epsilon"])
            return q_learning.epsilon_greedy(q, allowed, epsilon, self.generator).int().unsqueeze(-1).numpy()
        parts = [outputs[name] for name in ("logits", "mean") if name in outputs]
        parts += [outputs["std"].log()] if "std" in outputs else []
        return ActionDistribution(self.spec.action, torch.cat(parts, -1)).sample(self.generator).numpy()


def raw(item: dict[str, Any], rows: np.ndarray) -> np.ndarray:
    """Observations as the environment gives them, for an input of the contract, from the engine's form [N, ...]."""
    encoding, shape, dtype = item["encoding"], tuple(item["shape"][1:]), np.dtype(item["dtype"])
    if encoding["kind"] == "one-hot":
        edges = np.cumsum(encoding["n"])[:-1]
        choices = np.stack([part.argmax(-1) for part in np.split(rows, edges, -1)], -1) + np.array(encoding["start"])
        return choices.reshape(-1, *shape).astype(dtype)
    if encoding["kind"] == "image":
        if encoding["channels_last"]:
            *stack, height, width, channels = shape
            rows = np.moveaxis(rows.reshape(-1, *stack, channels, height, width), -3, -1)
        if encoding["high"] != 255:
            rows = rows * (encoding["high"] / 255)
            rows = np.rint(rows) if np.issubdtype(dtype, np.integer) else rows
    return np.ascontiguousarray(rows.reshape(-1, *shape).astype(dtype))


def read_contract(run: Any, name: str) -> dict[str, Any]:
    """The contract in a session's metadata. Raises `ConfigError` if there is none, or one of another version."""
    text = run.get_modelmeta().custom_metadata_map.get(CONTRACT_KEY)
    if text is None:
        raise ConfigError(f"{name} was not written by headrace export: its metadata have no {CONTRACT_KEY}")
    try:
        contract = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"the contract in {name} is damaged: {error}") from error
    version = contract.get("contract") if isinstance(contract, dict) else None
    if version != CONTRACT_VERSION:
        raise ConfigError(f"{name} has contract version {version!r:.40}; this version reads {CONTRACT_VERSION}")
    check_contract(contract, name)
    for ours, its in (("inputs", run.get_inputs()), ("outputs", run.get_outputs())):
        said, there = ({(x["name"], len(x["shape"])) for x in contract[ours]}, {(x.name, len(x.shape)) for x in its})
        if said != there:
            raise ConfigError(f"the contract in {name} has other {ours} than the file: {sorted(said)}, not {sorted(there)}")
    return contract


def check_contract(contract: dict[str, Any], name: str) -> None:
    """Raise `ConfigError` where a contract is not as the schema says."""
    error = next(package("jsonschema").Draft202012Validator(json.loads(SCHEMA.read_text())).iter_errors(contract), None)
    if error is not None:
        raise ConfigError(f"the contract in {name} is damaged: {error.json_path}: {error.message:.200}")


def check_digest(path: Path) -> None:
    """Raise `ConfigError` where the contract beside a file is that of another file."""
    beside = path.with_suffix(".json")
    try:
        said = json.loads(beside.read_text())["file"]["sha256"]
    except (OSError, ValueError, KeyError, TypeError):  # none, or no contract
        return
    if said != sha256(path.read_bytes()):
        raise ConfigError(f"{path} is damaged, or {beside} is of another export: the SHA-256 there is not that of the file")


def load_onnx(
    path: os.PathLike[str] | str,
    *,
    env: str | None = None,
    seed: int = 0,
    imports: Iterable[os.PathLike[str] | str] = (),
) -> OnnxPolicy:
    """The policy of a file that `headrace export` wrote; `env`: play in this environment instead of the policy's own.

    Raises `ConfigError` for another file, an environment with other spaces and missing packages, `ImportsNotGiven` if the
    environment needs Python files that are not given.
    """
    if not Path(path).is_file():
        raise ConfigError(f"there is no file {path}")
    check_digest(Path(path))
    run = session(path)
    contract = read_contract(run, os.fspath(path))
    where = contract["environment"]
    network = {name: value for name, value in contract["training"]["network"].items() if name in OBSERVES}
    settings = where["settings"] | dict.fromkeys(OF_ONE_MACHINE)
    config = configs.from_dict({"env": env or where["id"], "envs": settings, "policy": network, "imports": where["imports"]})
    config.learning.device = "cpu"
    if env is not None:
        name_environments(config.tasks)
    config.imports = check_given(config, imports, path)
    import_files(config.imports)
    whole = describe_run(config)
    if whole.of_agents:
        raise ConfigError(f"{path}: the agents of {config.env} have different spaces, and the file has the policy of one of them")
    spec = whole.of_policy(where["policy"])
    check_spec(contract, spec, path)
    policy = OnnxPolicy(run, contract, config, spec, seed)
    policy.number = where["policy"]
    return policy


def check_spec(contract: dict[str, Any], spec: EnvSpec, path: os.PathLike[str] | str) -> None:
    """Raise `ConfigError` where an environment observes or acts in another form than the contract's."""
    observations = {item["name"]: item["encoding"] for item in contract["inputs"] if "encoding" in item}
    ours = {name: (encoding["rows"], encoding["dtype"]) for name, encoding in observations.items()}
    theirs = {name: (list(array.shape), array.dtype.name) for name, array in spec.observation.items()}
    widths = sum(item["width"] for item in contract["outputs"] if item["role"] == "action"), spec.action.width
    choices = sum(sum(item.get("n", ())) for item in contract["outputs"]), spec.action.mask_width
    if ours != theirs or widths[0] != widths[1] or choices[0] != choices[1]:
        raise ConfigError(
            f"{path} is for observations {ours} and actions of {widths[0]} numbers and {choices[0]} choices; {spec.name} has "
            f"{theirs} and {widths[1]} numbers and {choices[1]} choices"
        )
