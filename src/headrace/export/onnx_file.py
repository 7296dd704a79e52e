"""`export_policy`: a run's policy as an ONNX file with its contract, verified before either is in its place."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headrace.accelerator.torch_defaults import torch_defaults
from headrace.config.errors import ConfigError, package
from headrace.evaluation.evaluate import evaluate
from headrace.evaluation.interface import interface
from headrace.evaluation.onnx_policy import CONTRACT_KEY, CONTRACT_VERSION, OnnxPolicy, check_contract, session
from headrace.evaluation.policy import TrainedPolicy, Which, load_policy
from headrace.export import contract as contracts
from headrace.export.graph import EXPORTERS, OPSET, ExportError, Graph, exported
from headrace.export.verification import verify
from headrace.runs.files import replaceable, sha256, write_together

Exporter = Literal["auto", "dynamo", "torchscript"]


@dataclass(frozen=True)
class Exported:
    """A policy that was exported."""

    path: Path  # the ONNX file; the contract is beside it, with the suffix .json
    contract: dict[str, Any]

    def __str__(self) -> str:
        v, model, result = self.contract["verification"], self.contract["file"], self.contract["evaluation"]
        output, largest = max(v["differences"].items(), key=lambda item: item[1])
        played = "" if result is None else f"\nmean return {result['mean']:.2f} over {result['episodes']} episodes, from the file"
        return (
            f"{self.path}: {model['bytes'] / 1e6:.2f} MB, opset {model['opset']}, exporter {model['exporter']}\n"
            f"verified on onnxruntime {self.contract['versions']['onnxruntime']}: {v['observations']} observations in batches of "
            f"{', '.join(map(str, v['batches']))}, {v['resets']} resets; largest difference {largest:.1e} ({output})" + played
        )


@torch_defaults()
def export_policy(
    run: os.PathLike[str] | str,
    to: os.PathLike[str] | str | None = None,
    *,
    which: Which = "newest",
    policy: int | None = None,
    exporter: Exporter = "auto",
    episodes: int = 20,
    deterministic: bool = True,
    seed: int = 0,
    licence: str | None = None,
    imports: Iterable[os.PathLike[str] | str] = (),
) -> Exported:
    """Write the policy of a run folder as an ONNX file, always in float32, and beside it its contract, a JSON description.

    The file maps the environment's observations to its actions; see docs/export.md. Before it is moved to `to` it is compared
    with the checkpoint on onnxruntime (`headrace.export.verification`).

    Args:
        to: the file; None: policy.onnx in the run folder.
        which: the checkpoint.
        policy: its number; needed only where the run trained several.
        exporter: "auto": the first of PyTorch's two whose file acts like the checkpoint.
        episodes: games that are played with the file, for the contract's `evaluation`; 0: none.
        deterministic: play them with the most probable actions instead of sampled ones.
        seed: of those games.
        licence: of the weights, such as "apache-2.0", for the contract.
        imports: see `headrace.load_policy`.

    Raises `ExportError` for a network that has no form in ONNX (which operator) and for outputs that differ (which),
    `ConfigError` for a population without `policy` and for missing packages, and what `load_policy` raises.
    """
    for name in ("onnx", "onnxscript", "onnxruntime", "jsonschema"):
        package(name)
    loaded = chosen_policy(run, which, policy, imports)
    name = "policy.onnx" if policy is None or loaded.config.population.size == 1 else f"policy-{policy}.onnx"
    path = Path(to or Path(run) / name)
    _check_place(path)
    data, contract, player = verified(loaded, run, exporter)
    contract["licence"] = licence
    if episodes:
        result = evaluate(player, episodes, deterministic=deterministic, seed=seed)
        contract["evaluation"] = contracts.evaluation(result, seed)
    data = _with_contract(data, contract)
    contract["file"] |= {"bytes": len(data), "sha256": sha256(data)}
    check_contract(contract, str(path))
    write_together({path: data, path.with_suffix(".json"): contracts.to_json(contract)})
    return Exported(path, contract)


def chosen_policy(
    run: os.PathLike[str] | str, which: Which, policy: int | None, imports: Iterable[os.PathLike[str] | str]
) -> TrainedPolicy:
    """The policy of a run on the CPU. Raises `ConfigError` where there are several and none is chosen, and as `load_policy`."""
    loaded = load_policy(run, which=which, device="cpu", policy=0 if policy is None else policy, imports=imports)
    if policy is None and loaded.config.population.size > 1:
        raise ConfigError(f"{run} has {loaded.config.population.size} policies: choose one with --policy, counted from 0")
    return loaded


def _check_place(path: Path) -> None:
    """Raise `ConfigError` where a file and its contract cannot be, or something else would be lost."""
    if path.suffix != ".onnx":
        raise ConfigError(f"{path} must end in .onnx; the contract is written beside it as .json")
    if not path.parent.is_dir():
        raise ConfigError(f"there is no folder {path.parent}")
    beside = path.with_suffix(".json")
    try:
        replaceable(path), replaceable(beside)
        known = not beside.exists() or json.loads(beside.read_text())["contract"] >= CONTRACT_VERSION
    except OSError as error:
        raise ConfigError(f"{error.filename or path} cannot be written: {error.strerror}") from error
    except (ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise ConfigError(f"{beside}, where the contract would be written, is another file: choose another name with --to")


def verified(policy: TrainedPolicy, run: os.PathLike[str] | str, exporter: Exporter) -> tuple[bytes, dict[str, Any], OnnxPolicy]:
    """The file's bytes, the contract and the policy that plays from them, of the first exporter that passes the comparison."""
    module = policy.module()
    policy.model = module.model  # compared in float32, too
    observations, actions, env = interface(policy.config, policy.spec, policy.number)
    try:
        graph = Graph(policy.module())
        contract = contracts.contract(policy, observations, actions, graph.sampled_from, env)
    finally:
        env.close()
    problems = []
    for name in EXPORTERS if exporter == "auto" else (exporter,):
        try:
            data = exported(graph, name)
            player = OnnxPolicy(session(data), contract, policy.config, policy.spec)
            player.number, player.team = policy.number, [player if each is policy else each for each in policy.team]
            checked = verify(policy, player, actions)
        except (ExportError, ConfigError) as error:  # the latter: onnxruntime does not load it
            problems.append(f"  {name}: {error}")
            continue
        contract["file"] = {"opset": OPSET, "exporter": name}
        contract["verification"] = dataclasses.asdict(checked)
        return data, contract, player
    raise ExportError(f"{run} cannot be exported, and nothing was written:\n" + "\n".join(problems))


def _with_contract(data: bytes, contract: dict[str, Any]) -> bytes:
    onnx = package("onnx")
    model = onnx.load_from_string(data)
    onnx.helper.set_model_props(model, {CONTRACT_KEY: contracts.to_json(contract)})
    model.producer_name, model.doc_string = "headrace", f"{contract['training']['algorithm']} on {contract['environment']['id']}"
    return model.SerializeToString()
