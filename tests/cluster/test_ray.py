"""Runs on a Ray cluster: several raylets on this machine, with token authentication."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
from cluster_runs import TRIES, ClusterRun
from ray_machines import Machines

from headrace.cluster.engines.ray_cluster import RayCluster

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'headrace[ray]'")
pytestmark = [pytest.mark.process, pytest.mark.timeout(1800)]
DUEL = Path(__file__).parents[1] / "faults" / "duel.py"


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made = Machines(2, tmp_path)
    yield made
    made.close()


def ray_run(folder: Path, machines: Machines, nodes: int | str = 2, **settings: object) -> ClusterRun:
    run = ClusterRun(folder, nodes=nodes, **{"cluster.engine": "ray", **settings})
    run.environ |= machines.variables
    return run


def test_a_run_on_two_machines_of_ray(machines: Machines, tmp_path: Path) -> None:
    with ray_run(tmp_path / "run", machines, **{"learning.total_steps": 10_000}) as run:
        run.wait_for("both nodes", lambda: "2 of 2 are there" in run.output and len(machines.nodes()) == 2, 280)
        assert run.end(200) == 0, run.story
        run.assert_nothing_left()
    assert not machines.nodes()
    token = machines.variables["RAY_AUTH_TOKEN"].encode()
    assert not [path for path in run.folder.rglob("*") if path.is_file() and token in path.read_bytes()]
    # The same machines, and one node more than there are.
    with ray_run(tmp_path / "more", machines, nodes=3, **{"cluster.wait": 1.0}) as run:
        assert run.end(200) == 1, run.story
        assert "3 nodes need 3 machines with 1 CPUs each (sampling.num_workers); this Ray cluster has 2 machines" in run.output
        run.assert_nothing_left()
    assert not machines.nodes()


def test_no_ray_at_the_address_is_a_short_error(tmp_path: Path) -> None:
    run = ClusterRun(tmp_path / "run", **{"cluster.engine": "ray"})
    run.environ["RAY_ADDRESS"] = "127.0.0.1:9"
    with run:
        assert run.end(200) == 2, run.story
        assert "the Ray cluster at 127.0.0.1:9 (RAY_ADDRESS) cannot be joined" in run.output
        assert "Traceback" not in run.output
        run.assert_nothing_left()


@pytest.mark.parametrize("before", [True, False])
def test_a_session_of_ray_that_the_users_program_has_begun_goes_on(before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[bool] = []
    session = {
        "is_initialized": lambda: before or bool(begun),
        "init": lambda **how: begun.append(how),
        "nodes": lambda: [],
        "get_runtime_context": lambda: SimpleNamespace(gcs_address="127.0.0.1:9"),
        "shutdown": lambda: ended.append(True),
    }
    begun: list[dict[str, object]] = []
    for name, stands_for in session.items():
        monkeypatch.setattr(ray, name, stands_for)
    monkeypatch.setattr(os, "environ", {"RAY_AUTH_TOKEN": "a-token-of-tests"})  # it sets some for Ray
    RayCluster("cluster.engine ray", "1 sampling nodes", 1, "cluster.engine static").close()
    assert (len(begun), len(ended)) == ((0, 0) if before else (1, 1))


@pytest.mark.slow
def test_nodes_of_a_cluster_that_the_run_starts_have_its_priority(tmp_path: Path) -> None:
    run = ClusterRun(tmp_path / "run", nodes=1, **{"cluster.engine": "ray", "learning.total_steps": 10**9})
    run.environ["RAY_TMPDIR"] = str(tmp_path)  # no other cluster of this machine is found
    with run:
        (node,) = run.wait_for("the node", run.nodes, 280)
        assert os.getpriority(os.PRIO_PROCESS, node) == os.getpriority(os.PRIO_PROCESS, run.process.pid)
        run.wait_for("its part", lambda: "1 of 1 are there" in run.output, 280)
        run.interrupt(120)


@pytest.mark.slow
def test_a_machine_of_ray_that_dies_is_replaced_by_another(machines: Machines, tmp_path: Path) -> None:
    with ray_run(tmp_path / "run", machines, **{"learning.total_steps": 10**9}) as run:
        for lost in range(int(os.environ.get("HEADRACE_KILLS", 2))):
            run.wait_for("both nodes", lambda: run.output.count("2 of 2 are there") == lost + 1, 280)  # noqa: B023
            step = run.step()
            machines.ask("kill")
            run.wait_for("its loss", lambda: run.output.count("is gone") == lost + 1, 280)  # noqa: B023
            run.wait_for("progress", lambda: run.step() > step + 1000)  # noqa: B023
            began = time.monotonic()
            machines.ask("add")
            run.wait_for("both nodes", lambda: run.output.count("2 of 2 are there") == lost + 2, 280)  # noqa: B023
            print(f"both nodes again {time.monotonic() - began:.1f} s after another machine was there", flush=True)
        run.interrupt(120)
    assert not machines.nodes()


@pytest.mark.slow
def test_learner_ranks_are_on_machines_of_their_own_and_one_that_dies_is_replaced(machines: Machines, tmp_path: Path) -> None:
    settings = {"cluster.learners": 2, "learning.total_steps": 10**9, "run.checkpoint_interval": 2.0}
    with ray_run(tmp_path / "run", machines, **settings) as run:
        run.wait_for("all", lambda: "2 of 2 are there" in run.output and run.step() > 1000 and run.checkpoints(), 600)
        for lost in range(int(os.environ.get("HEADRACE_KILLS", 1))):
            machines.ask("kill")  # the machine of a rank and of a node
            run.wait_for("its loss", lambda: len(run.ranks_gone()) == lost + 1, 280)  # noqa: B023
            machines.ask("add")
            began = time.monotonic()
            run.wait_for("its return", lambda: run.output.count("Going on from") > lost, 280)  # noqa: B023
            step = run.step()
            run.wait_for("progress", lambda: run.step() > step + 1000, 280)  # noqa: B023
            print(f"learning on {time.monotonic() - began:.1f} s after another machine was there", flush=True)
        run.interrupt(120)
    assert not machines.nodes()


@pytest.mark.slow
def test_shards_of_a_replay_are_on_machines_of_ray(machines: Machines, tmp_path: Path) -> None:
    settings = {"learning.algorithm": "apex-dqn", "replay.shards": "node", "replay.minimum": 500, "learning.total_steps": 10**9}
    with ray_run(tmp_path / "run", machines, env="gym/CartPole-v1", imports=None, **settings) as run:

        def shards(count: int) -> bool:
            last = run.metrics()[-1] if run.metrics() else {}
            return last.get("replay/shards", 0) == count and last["charts/updates"] > 0

        def learns_on() -> None:
            before = run.metrics()[-1]["charts/updates"]
            run.wait_for("progress", lambda: run.metrics()[-1]["charts/updates"] > before + 50, 280)

        run.wait_for("both shards", lambda: shards(2), 280)
        learns_on()
        machines.ask("kill")
        run.wait_for("one shard", lambda: shards(1), 280)
        learns_on()
        machines.ask("add")
        run.wait_for("both shards", lambda: shards(2), 280)
        learns_on()
        run.interrupt(120)
    assert not machines.nodes()


@pytest.mark.slow
def test_matches_of_a_population_are_on_machines_of_ray(machines: Machines, tmp_path: Path) -> None:
    kwargs = {"envs.num_agents": 2, "envs.kwargs": json.dumps({"ledger": str(tmp_path / "ended"), "step_seconds": 0.002})}
    settings = {
        **kwargs, "learning.algorithm": "ppo", "learning.num_minibatches": 1, "population.size": 2, "matches.save_steps": 300,
        "matches.matchmaker": "league", "pbt.rule": "paper", "pbt.period": 1000, "pbt.objective": "elo",
        "learning.total_steps": 10**9, "run.checkpoint_interval": 5.0,
    }  # fmt: skip
    with ray_run(tmp_path / "run", machines, env="duel", imports=DUEL, **settings) as run:

        def games(policy: str) -> float:
            return max((line.get("matches/games", 0) for line in run.metrics(policy)), default=0)

        run.wait_for("both nodes", lambda: "2 of 2 are there" in run.output and len(machines.nodes()) == 2, 280)
        for lost in range(2):
            before = [games(f"policy-{p}") for p in range(2)]
            for p in range(2):
                run.wait_for("more games", lambda p=p: games(f"policy-{p}") > before[p] + 200, 280)  # noqa: B023
            if not lost:
                machines.ask("kill")
                run.wait_for("its loss", lambda: "is gone" in run.output, 280)
                machines.ask("add")
                run.wait_for("both nodes", lambda: run.output.count("2 of 2 are there") == 2, 280)
        run.wait_for("a decision", lambda: "Population: policy" in run.output, 280)
        run.interrupt(120)
    assert not machines.nodes()


def test_a_machine_that_is_added_is_used(machines: Machines, tmp_path: Path) -> None:
    """A range of nodes: the run begins with the two machines that there are, and has one node on each that comes."""
    with ray_run(tmp_path / "run", machines, nodes="2-4", **{"learning.total_steps": 10**9}) as run:
        run.wait_for("two nodes", lambda: "2 of 4 are there" in run.output and run.step() > 1000, 280)
        machines.ask("add")
        began = time.monotonic()
        run.wait_for("the third", lambda: "3 of 4 are there" in run.output, 100)
        print(f"used {time.monotonic() - began:.1f} s after it was there", flush=True)
        assert len(machines.nodes()) == 3
        machines.ask("kill")
        run.wait_for("its loss", lambda: "is gone" in run.output, 100)
        run.interrupt(120)
    assert not machines.nodes()


def test_code_of_the_user_reaches_the_machines(machines: Machines, tmp_path: Path) -> None:
    seen, code = tmp_path / "seen", tmp_path / "code"
    seen.mkdir()
    (code / "package").mkdir(parents=True)
    (code / "package" / "__init__.py").write_text("")
    (code / "package" / "name.txt").write_text("CartPole-v1")
    (code / "beside.py").write_text("import package\n")
    (code / "world.py").write_text(
        "import os, gymnasium\nfrom pathlib import Path\nimport beside\nfrom headrace.envs import register\n"
        "@register('mine')\ndef make(options, *, render_mode=None):\n"
        "    name = Path(beside.package.__file__).with_name('name.txt')\n"
        f"    Path({str(seen)!r}, str(os.getpid())).write_text(f'{{__file__}} {{name}}')\n"
        "    return gymnasium.make(name.read_text())\n"
    )
    settings = {"learning.num_minibatches": 1, "learning.total_steps": 5000}
    with ray_run(tmp_path / "run", machines, env="mine", imports=code / "world.py", **settings) as run:
        assert run.end(280) == 0, run.story
        assert "2 of 2 are there" in run.output
        run.assert_nothing_left()
    assert not machines.nodes()
    there = [path for path in seen.iterdir() if "headrace-code-" in path.read_text()]
    assert len(there) == 2  # a rollout worker of each node
    for path in there:
        file, name = map(Path, path.read_text().split())
        assert (file.name, name.parts[-2:]) == ("world.py", ("package", "name.txt"))
        assert "headrace-code-" in str(name)
        assert not file.exists()  # it went with its node


@pytest.mark.slow
def test_a_machine_without_headrace_is_named_with_pips_command(machines: Machines, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nclass Lacks:\n    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'headrace':\n            raise ModuleNotFoundError(\"No module named 'headrace'\", name=name)\n"
        "sys.meta_path.insert(0, Lacks())\n"
    )
    machines.ask(f"add PYTHONPATH={tmp_path}")
    with ray_run(tmp_path / "run", machines, nodes=3, **{"sampling.max_restarts": 2}) as run:
        assert run.end(280) == 1, run.story
        assert f"The module headrace is not installed there: pip install \"headrace=={version('headrace')}\"" in run.output
        run.assert_nothing_left()


@TRIES
@pytest.mark.slow
def test_without_rays_head_the_run_ends_with_a_checkpoint(attempt: int, machines: Machines, tmp_path: Path) -> None:
    settings = {"learning.total_steps": 10**9, "run.checkpoint_interval": 600}
    with ray_run(tmp_path / "run", machines, **settings) as run:
        run.wait_for("both nodes", lambda: "2 of 2 are there" in run.output and run.step() > 1000, 280)
        assert not run.checkpoints()
        machines.ask("behead")
        began, step = time.monotonic(), run.step()
        run.wait_for("notice", lambda: "does not answer" in run.output)
        run.wait_for("progress without the head", lambda: run.step() > step + 1000)
        assert run.end(120) == 1, run.story
        print(f"the run ended {time.monotonic() - began:.1f} s after the head", flush=True)
        assert "has not answered for 30 s" in run.output
        assert run.checkpoints()
        run.assert_nothing_left()


@TRIES
@pytest.mark.slow
def test_kill_9_of_the_command_ends_its_nodes(attempt: int, machines: Machines, tmp_path: Path) -> None:
    with ray_run(tmp_path / "run", machines, **{"learning.total_steps": 10**9}) as run:
        run.wait_for("both nodes", lambda: "2 of 2 are there" in run.output and run.step() > 1000, 200)
        run.process.kill()
        began = time.monotonic()
        while machines.nodes():
            assert time.monotonic() < began + 60
            time.sleep(0.2)
        print(f"the nodes ended {time.monotonic() - began:.1f} s later", flush=True)
        run.assert_nothing_left()
