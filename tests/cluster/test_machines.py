"""Runs on machines with addresses, links and processes of their own, which are namespaces of this one."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cluster_runs import PATIENCE
from machine_runs import KILLS, MachineRun, assert_no_trace, table
from namespaces import Cut, Network

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(3600)]
ENDLESS = {"learning.total_steps": 10**9, "run.checkpoint_interval": 60}


@pytest.mark.parametrize("placement", ["inline", "served"])
def test_nodes_train_by_real_addresses_and_leave_nothing(placement: str, network: Network, tmp_path: Path) -> None:
    with MachineRun(network, tmp_path, **{"sampling.placement": placement, "learning.total_steps": 20_000}) as run:
        machines = [network.add(), network.add()]
        nodes = [run.node(machine, k) for k, machine in enumerate(machines, 1)]
        assert run.end(280) == 0, run.story
        for node, machine in zip(nodes, machines, strict=True):
            assert node.wait(60) == 0, run.printed(machine).read_text()
            assert f"({machine.name}) takes part" in run.output
            assert machine.traffic()["sent"] > 100_000
        assert "2 of 2 are there" in run.output
        run.assert_nothing_on(*machines)


@pytest.mark.parametrize("how", ["silent", "down"])
def test_a_link_that_is_cut_and_mended(how: Cut, network: Network, tmp_path: Path) -> None:
    with MachineRun(network, tmp_path, **ENDLESS) as run:
        machines = [network.add(), network.add()]
        nodes = [run.node(machine, k) for k, machine in enumerate(machines, 1)]
        run.wait_for("both nodes", lambda: "2 of 2 are there" in run.output, 280)
        out, back = [], []
        for cuts in range(1, KILLS + 1):
            run.learns_on()
            machine, began = machines[cuts % 2], time.monotonic()
            machine.cut(how)
            run.wait_for("its loss", lambda: run.output.count("is gone") == cuts, 60)  # noqa: B023
            out.append(time.monotonic() - began)
            run.learns_on()
            began = time.monotonic()
            machine.mend()
            run.wait_for("both nodes", lambda: run.output.count("2 of 2 are there") == cuts + 1, 280)  # noqa: B023
            back.append(time.monotonic() - began)
            print(f"{how}: out after {out[-1]:.1f} s, back {back[-1]:.1f} s after the link", flush=True)
        table(f"link {how}: out", out)
        table(f"link {how}: back", back)
        assert max(out) < 25 * PATIENCE
        run.learns_on()
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130, run.story
        assert [node.wait(60) for node in nodes] == [0, 0]
        run.assert_nothing_on(*machines)


@pytest.mark.parametrize("address", ["same", "other"])
def test_a_machine_that_vanishes_is_replaced(address: str, network: Network, tmp_path: Path) -> None:
    """By one of the same rank, which is there before anybody has noticed if it has the same address."""
    with MachineRun(network, tmp_path, **ENDLESS) as run:
        machines = {k: network.add() for k in (1, 2)}
        nodes = {k: run.node(machine, k) for k, machine in machines.items()}
        run.wait_for("both nodes", lambda: "2 of 2 are there" in run.output, 280)
        out, back = [], []
        for kills in range(1, KILLS + 1):
            run.learns_on()
            rank, began = 1 + kills % 2, time.monotonic()
            old = machines[rank]
            old.lose_power()
            assert nodes[rank].wait(60) != 0
            if address == "same":
                machines[rank] = network.add(number=int(old.address.rpartition(".")[2]))
                nodes[rank] = run.node(machines[rank], rank)
            run.wait_for("its loss", lambda: run.output.count("is gone") == kills, 60)  # noqa: B023
            out.append(time.monotonic() - began)
            run.learns_on()
            if address == "other":
                began = time.monotonic()
                machines[rank] = network.add()
                nodes[rank] = run.node(machines[rank], rank)
            run.wait_for("both nodes", lambda: run.output.count("2 of 2 are there") == kills + 1, 280)  # noqa: B023
            back.append(time.monotonic() - began)
            print(f"{address} address: out after {out[-1]:.1f} s, another machine's node after {back[-1]:.1f} s", flush=True)
        table(f"{address} address: out", out)
        table(f"{address} address: replaced", back)
        assert max(out) < 25 * PATIENCE
        run.learns_on()
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130, run.story
        assert [node.wait(60) for node in nodes.values()] == [0, 0]
        run.assert_nothing_on(*machines.values())


def test_the_first_machine_vanishes_and_is_there_again_or_is_not(network: Network, tmp_path: Path) -> None:
    settings = {**ENDLESS, "run.checkpoint_interval": 2.0, "cluster.wait": 40 * PATIENCE}
    with MachineRun(network, tmp_path, **settings) as run:
        machines = [network.add(), network.add()]
        nodes = [run.node(machine, k) for k, machine in enumerate(machines, 1)]
        run.wait_for("both nodes", lambda: "2 of 2 are there" in run.output and run.checkpoints(), 280)
        run.learns_on()
        run.first.lose_power()
        run.process.wait(60)
        began = time.monotonic()
        run.first = network.add(tmp_path, number=1)
        run.launch = run.first.popen
        run.start()
        run.wait_for("both nodes", lambda: run.output.count("2 of 2 are there") == 2, 280)
        print(f"both nodes joined {time.monotonic() - began:.1f} s after the first machine was there again", flush=True)
        run.wait_for("the checkpoint taken up", lambda: "Going on from" in run.output, 280)
        run.learns_on()
        run.first.lose_power()
        began = time.monotonic()
        for node, machine in zip(nodes, machines, strict=True):
            assert node.wait(120 * PATIENCE) == 75
            assert "cannot be reached" in run.printed(machine).read_text()
            print(f"a node ended {time.monotonic() - began:.1f} s after the first machine", flush=True)
            assert_no_trace(machine)


def test_learner_ranks_on_two_machines_and_one_vanishes(network: Network, tmp_path: Path) -> None:
    """The machines' names are at loopback addresses, by which they do not find each other."""
    settings = {**ENDLESS, "cluster.learners": 2, "run.checkpoint_interval": 2.0, "learning.update_timeout": 60 * PATIENCE}
    with MachineRun(network, tmp_path, **settings) as run:
        machines = {k: network.add() for k in (1, 2, 3)}  # a learner rank and two nodes
        members = {k: run.node(machine, k) for k, machine in machines.items()}
        run.wait_for("all", lambda: "2 of 2 are there" in run.output and run.step() > 1000 and run.checkpoints(), 280)
        began = time.monotonic()
        machines[1].lose_power()
        run.wait_for("its loss", run.ranks_gone, 60)
        print(f"rank out after {time.monotonic() - began:.1f} s", flush=True)
        began = time.monotonic()
        machines[1] = network.add()
        members[1] = run.node(machines[1], 1)
        run.wait_for("its return", lambda: "Going on from" in run.output, 280)
        run.learns_on()
        assert "learner hangs" not in run.output  # until learning.update_timeout
        print(f"learning on {time.monotonic() - began:.1f} s after another machine was there", flush=True)
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130, run.story
        assert [member.wait(60) for member in members.values()] == [0, 0, 0]
        run.assert_nothing_on(*machines.values())


def certificate(folder: Path, address: str) -> tuple[str, str]:
    """Files with a certificate for this address, and with its key."""
    cert, key = str(folder / f"{address}.pem"), str(folder / f"{address}.key")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=learner", "-addext", f"subjectAltName=IP:{address}", "-keyout", key, "-out", cert]
    try:
        subprocess.run([*command, *names], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"openssl makes no certificate here: {error}")
    return cert, key


def test_tls_for_a_real_address_and_strangers(network: Network, tmp_path: Path) -> None:
    run = MachineRun(network, tmp_path, nodes=1, **{"learning.total_steps": 20_000})
    (certificates := tmp_path / "certificates").mkdir()
    cert, key = certificate(certificates, run.first.address)
    other, _ = certificate(certificates, "10.78.0.1")
    flags = run.command
    run.command = [*flags, "--cluster.ca", cert, "--cluster.tls-cert", cert, "--cluster.tls-key", key]
    with run:
        strangers: list[tuple[list[str], dict[str, str], str]] = [
            (["--cluster.ca", cert], {"HEADRACE_TOKEN": "the-token-of-others"}, "refuses the token"),
            (["--cluster.ca", other], {}, "was not signed by that of --cluster.ca"),
            ([], {}, "if it uses TLS, give the certificate"),
        ]
        for given, variables, why in strangers:
            machine = network.add(certificates)
            run.command = [*flags, *given]
            node = run.node(machine, 1, **variables)
            run.wait_for("refusal", lambda: why in run.printed(machine).read_text(), 200)  # noqa: B023
            node.kill()
            node.wait(20)
        run.command = [*flags, "--cluster.ca", cert]
        machine = network.add(certificates)
        node = run.node(machine, 1)
        assert run.end(280) == 0, run.story
        assert node.wait(60) == 0, run.printed(machine).read_text()
        run.assert_nothing_left()


@pytest.mark.parametrize("port", [7780, 7781])
def test_a_port_that_is_taken_is_named(port: int, network: Network, tmp_path: Path) -> None:
    """That of the membership streams, or the one of the node's receiver."""
    run = MachineRun(network, tmp_path, nodes=1)
    listen = f"import socket; s = socket.create_server(('', {port})); print(flush=True); s.accept()"
    other = run.first.popen([sys.executable, "-c", listen], stdout=subprocess.PIPE)
    assert other.stdout.readline()
    with run:
        assert run.end(200) != 0, run.story
        assert f"cannot listen at 0.0.0.0:{port}" in run.output
        assert "Traceback" not in run.output
        other.kill()
        other.wait(20)
        run.assert_nothing_on()
