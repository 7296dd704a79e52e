"""How many observations per second a policy acts on and learns from, by network, batch size, precision and memory format.

    python benchmarks/policy_speed.py [--networks nature-cnn] [--acting 16 64 256] [--learning 1056] [--threads 1] [--clock cpu]

Acting is `Policy.act` and sampling under inference mode. Learning is `Policy.unroll` with T = 32, the APPO loss and the backward
pass, without the optimizer. Variants are measured in turns, several times over, and the median of each is kept, so that what
else the machine does falls on all of them alike. `--clock cpu` counts processor time of this process (observations per
core-second), `--clock wall` the time that passes. With `--exported docs/export.md` the table of that page is made instead: every
architecture, fresh, exported by both of PyTorch's exporters, compared, and timed beside PyTorch. Prints a table; `--json PATH`
writes it with the machine's facts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import summary
import torch

from headrace.accelerator.cpu_allocator import keep_freed_memory
from headrace.config import PolicyConfig
from headrace.envs.core.contract import ActionSpec, ArraySpec, Categorical, EnvSpec
from headrace.learning import losses
from headrace.learning.vtrace import vtrace
from headrace.policies import Policy

T = 32
UINT8, FLOAT32 = np.dtype(np.uint8), np.dtype(np.float32)
VIZDOOM_ACTIONS = ActionSpec(tuple(Categorical(n) for n in (3, 3, 2, 2, 2, 8, 21)))
SPECS = {
    "nature-cnn": EnvSpec({"obs": ArraySpec((4, 84, 84), UINT8)}, ActionSpec((Categorical(6),))),
    "impala-resnet": EnvSpec({"obs": ArraySpec((4, 84, 84), UINT8)}, ActionSpec((Categorical(6),))),
    "vizdoom-simple": EnvSpec({"obs": ArraySpec((3, 72, 128), UINT8)}, VIZDOOM_ACTIONS),
    "mlp": EnvSpec({"obs": ArraySpec((17,), FLOAT32)}, ActionSpec((Categorical(6),))),
}
VARIANTS = {
    "float32": ("float32", False, False),
    "float32 channels-last": ("float32", True, False),
    "float32 compile": ("float32", False, True),
    "bf16": ("bf16", False, False),
    "bf16 channels-last": ("bf16", True, False),
    "bf16 compile": ("bf16", False, True),
}


def observations(spec: EnvSpec, *lead: int) -> dict[str, torch.Tensor]:
    """Random observations [*lead, ...]."""
    rng = np.random.default_rng(0)
    return {
        name: torch.as_tensor(rng.integers(0, 256, (*lead, *array.shape)).astype(array.dtype))
        for name, array in spec.observation.items()
    }


def acting(policy: Policy, spec: EnvSpec, n: int, compiled: bool) -> Callable[[], object]:
    """One batch of n observations to actions, log-probabilities and values."""
    obs, core, first = observations(spec, n), torch.zeros(n, policy.core_width), torch.zeros(n, dtype=torch.bool)
    act = torch.compile(policy.act) if compiled else policy.act

    def run() -> object:
        with torch.inference_mode():
            out = act(obs, core, first)
            actions = out.distribution.sample()
            return actions, out.distribution.log_prob(actions), out.value

    return run


def learning(policy: Policy, spec: EnvSpec, n: int, compiled: bool) -> Callable[[], object]:
    """Loss and gradients of one batch of n rows, [T + 1, n / (T + 1)]."""
    B = n // (T + 1)
    obs, core, first = observations(spec, T + 1, B), torch.zeros(B, policy.core_width), torch.zeros(T + 1, B, dtype=torch.bool)
    with torch.no_grad():
        actions = policy.unroll(obs, core, first).distribution.sample()[:T]
    never, always = torch.zeros(T, B, dtype=torch.bool), torch.ones(T, B, dtype=torch.bool)
    behaviour, rewards = torch.full((T, B), -1.8), torch.randn(T, B)

    def loss() -> torch.Tensor:
        out = policy.unroll(obs, core, first)
        rows = type(out.distribution)(spec.action, out.distribution.params[:T])
        log_prob = rows.log_prob(actions)
        targets = vtrace(log_prob - behaviour, rewards, out.value, never, never, always, 0.99)
        return (
            losses.policy_loss(log_prob, behaviour, targets.advantages, always, 0.1)
            + 0.5 * losses.value_loss(out.value[:T], targets.values, always)
            - 0.003 * losses.masked_mean(rows.entropy(), always)
        )

    function = torch.compile(loss) if compiled else loss

    def run() -> object:
        policy.zero_grad()
        value = function()
        value.backward()
        return value

    return run


def measure(runs: dict[str, Callable[[], object]], clock: Callable[[], float], rounds: int, seconds: float) -> dict[str, float]:
    """Median seconds of one call of each, in turns."""
    for run in runs.values():
        run()
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                start = clock()
                run()
                times[name].append(clock() - start)
    return {name: statistics.median(values) for name, values in times.items()}


ENCODERS = ("nature-cnn", "impala-shallow", "impala-resnet", "vizdoom-simple", "mlp")
CORES = ("none", "gru", "lstm")
ARCHITECTURES: list[tuple[str, str, dict[str, object]]] = [
    *(("gym/CartPole-v1", "ppo", {"policy.encoder": "mlp", "policy.core": core}) for core in CORES),
    *(("gym/Pendulum-v1", "ppo", {"policy.core": core, "policy.normalize_observations": True}) for core in CORES),
    ("gym/CartPole-v1", "impala", {"policy.core": "lstm", "policy.previous_action": True, "policy.previous_reward": True}),
    ("gym/Pendulum-v1", "ppo", {"policy.separate_critic": True}),
    ("gym/Taxi-v4", "ppo", {"envs.info_action_mask": True}),
    ("gym/CartPole-v1", "dqn", {}),
    ("gym/CartPole-v1", "rainbow", {}),
    ("gym/CartPole-v1", "pqn", {}),
    ("gym/CartPole-v1", "apex-dqn", {}),
    *(("gym/CartPole-v1", "r2d2", {"policy.core": core}) for core in CORES[1:]),
    ("gym/Pendulum-v1", "apex-dpg", {}),
    *(("atari/pong", "impala", {"policy.encoder": encoder}) for encoder in ENCODERS),
    *(("atari/pong", "appo", {"policy.encoder": encoder, "policy.core": "lstm"}) for encoder in ENCODERS[:3]),
    ("atari/pong", "rainbow", {}),
    ("atari/pong", "r2d2", {}),
]
"""Environment, algorithm, settings: what decides the graph."""
HEAD = """| environment | algorithm | network | core | exporter | largest difference | MB | onnxruntime µs | PyTorch µs | ratio |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"""


def exported_row(env: str, algorithm: str, settings: dict[str, object], rounds: int) -> str:
    """One architecture: both exporters' largest differences, and of the file that is kept size and time, batch 1."""
    from headrace.envs.make import describe_run
    from headrace.evaluation.trained_policy import TrainedPolicy
    from headrace.export.graph import EXPORTERS
    from headrace.export.onnx_file import verified
    from headrace.learning.algorithm import make_agent
    from headrace.make_config import make_config

    config = make_config(
        env, **{"learning.algorithm": algorithm, "learning.device": "cpu", "learning.precision": "float32"} | settings
    )
    spec = describe_run(config)
    policy = TrainedPolicy(config, spec, *make_agent(config, spec), 0)
    differences, kept = [], None
    for exporter in EXPORTERS:
        try:
            found = verified(policy, "this", exporter)
        except Exception as error:  # a table of what works says what does not
            print(error, file=sys.stderr)
            differences.append(f"{exporter} fails")
            continue
        differences.append(f"{exporter} {max(found[1]['verification']['differences'].values()):.0e}")
        kept = kept or found
    if kept is None:
        return f"| {env} | {algorithm} | | | none | {', '.join(differences)} | | | | |"
    data, contract, player = kept
    obs = {name: np.zeros((1, *array.shape), array.dtype) for name, array in spec.observation.items()}
    if "action_mask" in obs:
        obs["action_mask"][:] = 1
    first = np.zeros(1, bool)
    runs = {
        name: lambda one=one: one.act_rows(obs, one.initial_core(1), first, deterministic=True)
        for name, one in (("onnxruntime", player), ("PyTorch", policy))
    }
    times = {name: seconds * 1e6 for name, seconds in measure(runs, time.process_time, rounds, 0.2).items()}
    ours = config.policy
    return (
        f"| {env} | {algorithm} | {ours.encoder} | {ours.core} | {contract['file']['exporter']} | {', '.join(differences)} | "
        f"{len(data) / 1e6:.2f} | {times['onnxruntime']:.0f} | {times['PyTorch']:.0f} | "
        f"{times['PyTorch'] / times['onnxruntime']:.1f} |"
    )


def exported(page: Path, rounds: int) -> None:
    """Replace the table in the page, between its two comments."""
    torch.set_num_threads(1)
    rows = []
    for architecture in ARCHITECTURES:
        rows.append(exported_row(*architecture, rounds))
        print(rows[-1], flush=True)
    before, begin, rest = page.read_text().partition("<!-- architectures -->\n")
    _, end, after = rest.partition("<!-- end -->")
    page.write_text(before + begin + "\n".join([HEAD, *rows, ""]) + end + after)


def child(arguments: argparse.Namespace) -> list[dict[str, object]]:
    """The measurements of one setting of the allocator, which is a property of the process."""
    torch.set_num_threads(arguments.threads)
    if arguments.allocator == "keep":
        keep_freed_memory()
    clock = time.process_time if arguments.clock == "cpu" else time.perf_counter
    rows: list[dict[str, object]] = []
    for network in arguments.networks:
        spec = SPECS[network]
        for what, sizes, prepare in (("acting", arguments.acting, acting), ("learning", arguments.learning, learning)):
            for n in sizes:
                runs = {}
                for variant in arguments.variants:
                    precision, channels_last, compiled = VARIANTS[variant]
                    torch.manual_seed(0)
                    config = PolicyConfig(encoder=network, core=arguments.core)
                    policy = Policy(spec, config, precision)  # type: ignore[arg-type]
                    if channels_last:
                        policy = policy.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
                    runs[variant] = prepare(policy, spec, n, compiled)
                for variant, seconds in measure(runs, clock, arguments.rounds, arguments.seconds).items():
                    row = {"network": network, "core": arguments.core, "what": what, "batch": n, "variant": variant}
                    rows.append({**row, "allocator": arguments.allocator, "per_second": round(n / seconds)})
    return rows


def main() -> None:
    """Parse, measure each allocator setting in a process of its own, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=["nature-cnn", "vizdoom-simple"], choices=SPECS)
    parser.add_argument("--variants", nargs="+", default=[v for v in VARIANTS if "compile" not in v], choices=VARIANTS)
    parser.add_argument("--core", default="none", choices=["none", "gru", "lstm"])
    parser.add_argument("--acting", nargs="*", type=int, default=[16, 64, 256])
    parser.add_argument("--learning", nargs="*", type=int, default=[1056])
    parser.add_argument("--allocators", nargs="+", default=["default", "keep"], choices=["default", "keep"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", default="cpu", choices=["cpu", "wall"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.2, help="for each variant in each round")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--allocator", help=argparse.SUPPRESS)
    parser.add_argument("--exported", type=Path, metavar="PAGE", help="make the table of exported architectures in this page")
    arguments = parser.parse_args()
    if arguments.exported:
        exported(arguments.exported, arguments.rounds)
        return
    if arguments.allocator:
        print(json.dumps(child(arguments)))
        return
    rows = []
    for allocator in arguments.allocators:
        command = [sys.executable, __file__, *sys.argv[1:], "--allocator", allocator]
        rows += json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])
    print(f"observations per {'core-second' if arguments.clock == 'cpu' else 'second'}, {arguments.threads} thread(s)")
    for row in rows:
        print(
            f"{row['network']:15} {row['what']:9} batch {row['batch']:5}  {row['variant']:22} memory {row['allocator']:8}"
            f"{row['per_second']:8,}"
        )
    if arguments.json:
        machine = {"cpu": _cpu_name(), "cores": os.cpu_count(), "load": os.getloadavg()[0], "torch": torch.__version__}
        settings = {"threads": arguments.threads, "clock": arguments.clock, "rollout": T}
        summary.write(arguments.json, {"machine": machine, **settings, "rows": rows})


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


if __name__ == "__main__":
    main()
