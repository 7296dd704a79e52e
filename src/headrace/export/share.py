"""`share`: a policy as the folder of a model repository of the Hugging Face hub, which `load_policy` takes like a run folder."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import safetensors.torch

from headrace import config as configs
from headrace.config import Config, ConfigError
from headrace.config.cluster import ClusterConfig
from headrace.config.envs import OF_ONE_MACHINE
from headrace.config.errors import package
from headrace.config.run import RunConfig
from headrace.evaluation.policy import SHARED, Which
from headrace.evaluation.video import record
from headrace.export.browser_page import check_world, page, runtime
from headrace.export.onnx_file import Exported, chosen_policy, export_policy
from headrace.runs.files import write_whole
from headrace.runs.plots import learning_curve

SETTINGS, CARD = "config.json", "README.md"
SHOWN = {
    "demo.html": "[The policy in your browser](demo.html): download the page and open it.",
    "replay.mp4": "[A game](replay.mp4)",
    "curve.png": "![Training returns](curve.png)",
}
"""What the card shows, by file; each is written only if it is wanted and can be made."""


def share(
    run: os.PathLike[str] | str,
    repo: str,
    to: os.PathLike[str] | str | None = None,
    *,
    which: Which = "newest",
    policy: int | None = None,
    episodes: int = 100,
    seed: int = 0,
    licence: str | None = None,
    video: bool = True,
    push: bool = False,
    private: bool = False,
    demo: bool = False,
    onnxruntime_web: os.PathLike[str] | str | None = None,
    imports: Iterable[os.PathLike[str] | str] = (),
) -> Path:
    """Write a run's policy as a model repository: weights, settings, ONNX file and contract, card, learning curve, video.

    Args:
        repo: name on the hub, as user/name.
        to: the folder; None: `share` in the run folder.
        push: upload it, by huggingface_hub and the token that it knows.
        private: create the repository as a private one.
        video: record one game, if the environment has pictures.
        demo: add demo.html, in which the policy plays in a browser (`headrace.export.browser_page`).
        onnxruntime_web: the folder of that npm package for it; None: npm fetches it once.
        others: see `export_policy`.

    Returns the folder. Raises what `export_policy` raises, `ConfigError` where a policy needs others of its run, and for what the
    hub refuses.
    """
    library = package("huggingface_hub", "hub")
    try:
        package("huggingface_hub.utils", "hub").validate_repo_id(repo)
    except library.errors.HFValidationError as error:
        raise ConfigError(f"{repo!r} is no name of a repository: {error!s:.300}") from error
    _check_place(folder := Path(to or Path(run) / "share"))
    loaded = chosen_policy(run, which, policy, imports)
    if loaded.team:
        raise ConfigError(f"{run}: the agents have different spaces, and each of its policies plays with the others only")
    files = None
    if demo:  # what is missing is said before the work
        check_world(loaded.config)
        files = runtime(None if onnxruntime_web is None else Path(onnxruntime_web))
    folder.mkdir(parents=True, exist_ok=True)
    found: Any = {"which": which, "policy": policy, "episodes": episodes, "seed": seed, "licence": licence, "imports": imports}
    done = export_policy(run, folder / "policy.onnx", **found)
    for name in SHOWN:  # of a policy that was shared here before
        (folder / name).unlink(missing_ok=True)
    # Before the settings: `_check_place` knows the folder by its weights.
    weights = {name: tensor.contiguous() for name, tensor in loaded.model.state_dict().items()}
    write_whole(folder / SHARED, safetensors.torch.save(weights, {"format": "pt", "step": str(loaded.step)}))
    write_whole(folder / SETTINGS, configs.to_json(_public(loaded.config)))
    with suppress(ConfigError):  # without matplotlib, or without a curve
        own = configs.override(loaded.config, **{"run.folder": str(run)}).policy_folder(loaded.number)
        learning_curve([own], folder / "curve.png", title=loaded.config.env)
    if video:
        with suppress(ConfigError):  # without the extra, or without pictures
            record(loaded, folder / "replay.mp4", deterministic=True, seed=seed)
    if files is not None:
        title = repo.rpartition("/")[2]
        write_whole(folder / "demo.html", page(title, done.path.read_bytes(), done.contract, files))
    write_whole(folder / CARD, _card(library, run, repo, done, folder))
    if push:
        _push(library, folder, repo, private)
    return folder


def _check_place(folder: Path) -> None:
    """Raise `ConfigError` where a file of a run or of another project would be replaced."""
    other = [name for name in (SETTINGS, CARD) if os.path.lexists(folder / name)]
    if other and not (folder / SHARED).is_file():
        advice = "choose another folder with --to, or remove it"
        raise ConfigError(f"{folder / other[0]}, which is there, is no file of a shared policy: {advice}")


def _public(config: Config) -> Config:
    """The settings without what is of one machine: folders, addresses, files."""
    none = {f"envs.{name}": None for name in OF_ONE_MACHINE}
    own = configs.override(config, **none, **{"population.size": 1, "population.overrides": {}, "learning.device": "auto"})
    own.run, own.cluster = RunConfig(), ClusterConfig()
    own.imports = tuple(Path(path).name for path in config.imports)
    own.matches.opponents = tuple(Path(run).name for run in config.matches.opponents)
    return own


def _push(library: Any, folder: Path, repo: str, private: bool) -> None:
    api = library.HfApi()
    try:
        api.create_repo(repo, exist_ok=True, private=private)
        api.upload_folder(repo_id=repo, folder_path=folder, commit_message="headrace share")
    except (library.errors.HfHubHTTPError, library.errors.HFValidationError, OSError) as error:
        raise ConfigError(f"the hub did not take {repo}: {type(error).__name__}: {error!s:.300}") from error


def _card(library: Any, run: os.PathLike[str] | str, repo: str, done: Exported, folder: Path) -> str:
    """README.md: metadata that the hub indexes, then words."""
    contract, name = done.contract, repo.rpartition("/")[2]
    env, result = contract["environment"]["id"], contract["evaluation"]
    algorithm, step = contract["training"]["algorithm"], contract["training"]["step"]
    score = None if result is None else f"{result['mean']:.2f}" + ("" if result["std"] is None else f" +/- {result['std']:.2f}")
    results = [] if score is None else [
        library.EvalResult(
            task_type="reinforcement-learning", task_name="reinforcement-learning", dataset_type=env, dataset_name=env,
            metric_type="mean_reward", metric_name="mean_reward", metric_value=score, verified=False,
        )
    ]  # fmt: skip
    data = library.ModelCardData(
        library_name="headrace", model_name=name, license=contract["licence"], eval_results=results,
        tags=[env.rpartition("/")[2], "reinforcement-learning", "deep-reinforcement-learning", algorithm, "onnx", "headrace"],
    )  # fmt: skip
    lines = ["---", data.to_yaml(), "---", "", f"# {name}", "", f"{algorithm} on `{env}`, trained for {step:,} steps.", ""]
    if result is not None:
        low, high = result["ci95"]
        lines += [
            f"Mean return **{score}** over {result['episodes']} games (95 % interval of the mean {low:.2f} to {high:.2f}; seed "
            f"{result['seed']}, the most probable actions, played by `policy.onnx`)."
            if low is not None
            else f"Return {score}.",
            "",
        ]
    lines += [f"{text}\n" for file, text in SHOWN.items() if (folder / file).exists()]
    lines += ["## Use", "", "```", f"headrace eval hf://{repo} --deterministic", "```", ""]
    lines += ["Without PyTorch: `policy.onnx` on onnxruntime, as its contract `policy.json` says.", ""]
    command, machine = _origin(Path(run))
    lines += ["## Training", "", "```", command or f"headrace train --env {env} --learning.algorithm {algorithm}", "```", ""]
    lines += [machine, ""] if machine else []
    versions = ", ".join(f"{package} {version}" for package, version in contract["versions"].items())
    return "\n".join([*lines, f"All settings are in `config.json`. {versions}.", ""])


ADDRESSES = ("listen", "token_file", "ca", "tls_cert", "tls_key")  # settings of a cluster that name files and addresses
_OWN = tuple(f"envs.{name}" for name in OF_ONE_MACHINE) + tuple(f"cluster.{name}" for name in ADDRESSES)
_OWN_SHORT = {name.partition(".")[2] for name in configs.NAMES if name.startswith("run.") or name in _OWN}


def _is_own(flag: str) -> bool:
    """Whether a flag, with or without its group, is of one machine: of its files and addresses."""
    name = flag.removeprefix("--").replace("-", "_")
    return name.startswith(("run.", *_OWN)) or name.removeprefix("no_") in _OWN_SHORT


def _repeatable(arguments: list[str]) -> list[str]:
    """Arguments of a command without what is of one machine: flags of its files and addresses, folders of paths."""
    kept, own = [], False
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        if argument.startswith("-") and not argument[1:2].isdigit():
            own = _is_own(flag)
        else:
            flag, equals, value = "", "", argument
        if not own:
            kept.append(flag + equals + (Path(value).name if value.startswith(("/", "~", ".")) else value))
    return kept


def _origin(run: Path) -> tuple[str, str]:
    """The command that trained the run, and its machine, where the run folder tells."""
    try:
        facts = json.loads((run / "system.json").read_text())[0]
        program, *arguments = facts["command"]
        name = Path(program).name
        command = shlex.join(["headrace" if name == "__main__.py" else name, *_repeatable(arguments)]) if arguments else ""
        where = f"{facts['processor']}, {facts['cores']} cores"
        return command, where + (f", {facts['accelerator']}" if facts["accelerator"] else "")
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return "", ""
