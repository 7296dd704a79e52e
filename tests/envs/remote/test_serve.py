"""Ways to serve: the example, dialling in, tokens, TLS, and who is not let in."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from remote_servers import (
    NAME,
    ServerProcess,
    Stepper,
    counting,
    finish,
    free_port,
    fuzz,
    messages_of,
    offer,
    remote_group,
    serving,
    wait_until,
)

from headrace import cli
from headrace.config import ConfigError, EnvConfig
from headrace.envs.remote import connect, server
from headrace.envs.remote.group import RemoteGroup
from headrace.envs.remote.protocol import GroupLayout, Welcome
from headrace.envs.remote.server import Dialler, EnvServer
from headrace.transport.credentials import Credentials, credentials, is_local
from headrace.transport.listeners import Acceptor
from headrace.transport.messages import ProtocolError, Refused

EXAMPLE = Path(__file__).parents[3] / "examples" / "serve_my_env.py"
TOKEN = "a-token-for-tests"
pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]


HANGING = """
import threading, gymnasium, numpy, headrace

@headrace.envs.register("my/hanging")
class Hanging(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(0, 1, (1,)), gymnasium.spaces.Discrete(5)

    def __init__(self, options, *, render_mode=None):
        pass

    def reset(self, *, seed=None, options=None):
        return numpy.zeros(1, numpy.float32), {}

    def step(self, action):
        print("hangs", flush=True)
        threading.Event().wait()
"""


def test_ctrl_c_ends_a_server_whose_environments_hang(tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    served, log = ServerProcess("--import", str(tmp_path / "hanging.py"), env="my/hanging"), tmp_path / "log"
    served.start(log)
    assert served.process is not None
    group = RemoteGroup(served.address, "my/hanging", EnvConfig(), 2)
    try:
        stepper = Stepper(group, group)
        stepper.reset()
        stepper.begin_step()
        wait_until(lambda: "hangs" in log.read_text())
        before = len(log.read_text())
        served.signal(signal.SIGINT)
        assert served.process.wait(15) == 130
        assert log.read_text()[before:] == "The environment server has stopped; 2 of its environments gave no answer any more\n"
    finally:
        group.close()
        served.kill()


@pytest.mark.parametrize(("number", "dials"), [(signal.SIGINT, False), (signal.SIGTERM, False), (signal.SIGTERM, True)])
def test_who_ends_a_server_ends_its_environments(number: signal.Signals, dials: bool, tmp_path: Path) -> None:
    """Also those of a trainer that is there. Closing them takes a moment, as with a simulator of its own."""
    world = HANGING.replace("threading.Event().wait()", "") + "\n    def close(self):\n        import time\n"
    (tmp_path / "closing.py").write_text(world + "        time.sleep(0.3)\n        print('closed', flush=True)\n")
    port, log = free_port(), tmp_path / "log"
    dial = ["--dial", f"127.0.0.1:{port}"] if dials else []
    served = ServerProcess("--import", str(tmp_path / "closing.py"), *dial, env="my/hanging", port=port)
    served.start(log)
    assert served.process is not None
    address = f"listen:{served.address}" if dials else served.address
    with contextlib.closing(RemoteGroup(address, "my/hanging", EnvConfig(), 2)) as group:
        Stepper(group, group).reset()
        before = log.read_text()
        served.signal(number)
        assert served.process.wait(15) == 130
        assert log.read_text() == before + "closed\n" * 2 + "The environment server has stopped\n"


def test_the_example_serves_in_five_lines_and_without_torch() -> None:
    code = [line for line in EXAMPLE.read_text().split('"""')[2].splitlines() if line.strip()]
    assert len(code) == 5
    port = free_port()
    watch = "import runpy, sys, threading\n"
    watch += "sys.argv = sys.argv[1:]\n"
    watch += "asked = lambda: sys.stdin.readline() and print('torch' in sys.modules, flush=True)\n"
    watch += "threading.Thread(target=asked, daemon=True).start()\n"
    watch += "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    command = [sys.executable, "-c", watch, str(EXAMPLE), f"127.0.0.1:{port}"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, **pipes, text=True)  # type: ignore[call-overload]
    try:
        welcome = connect.ask("my/pendulum", EnvConfig(remote=f"127.0.0.1:{port}"))
        assert welcome.spec.observation["obs"].shape == (3,)
        group = RemoteGroup(f"127.0.0.1:{port}", "my/pendulum", EnvConfig(), 2)
        assert group.spec == welcome.spec
        group.close()
        process.stdin.write("now\n")
        process.stdin.flush()
        assert process.stdout.readline() == "False\n"
    finally:
        process.kill()
        process.wait()


# -- dialling in ------------------------------------------------------------------------------------------------------


def test_a_simulator_dials_in_and_comes_back() -> None:
    address = f"127.0.0.1:{free_port()}"
    said: list[str] = []
    dialler = Dialler(offer(num_envs=10), address, Credentials(), said.append)
    thread = threading.Thread(target=dialler.wait, daemon=True)
    thread.start()
    wait_until(lambda: any("Connection refused" in text for text in said))
    here = counting(1)
    groups = [RemoteGroup(f"listen:{address}", NAME, EnvConfig(), 5) for _ in range(2)]
    for group in groups:
        stepper = Stepper(group, here)
        stepper.reset()
        for _ in range(20):
            stepper.step()
    assert dialler.offer.used == 10
    for group in groups:
        group.close()
    wait_until(lambda: dialler.offer.used == 0)
    again = RemoteGroup(f"listen:{address}", NAME, EnvConfig(), 5)
    Stepper(again, here).reset()
    again.close()
    dialler.stop()
    thread.join(60)
    assert not thread.is_alive()
    assert not Acceptor._at


def test_a_simulator_does_not_wait_for_ever_for_a_hello(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener that accepts the call and says nothing, as one did that was closing."""
    monkeypatch.setattr(server, "ANSWER_TIMEOUT", 0.3)
    address, said, silence = f"127.0.0.1:{free_port()}", [], threading.Event()

    class Silent(grpc.GenericRpcHandler):
        def service(self, details: object) -> object:
            return grpc.stream_stream_rpc_method_handler(lambda requests, context: silence.wait(60) or iter(()))

    silent = grpc.server(ThreadPoolExecutor(4), handlers=(Silent(),))
    silent.add_insecure_port(address)
    silent.start()
    dialler = Dialler(offer(), address, Credentials(), said.append)
    threading.Thread(target=dialler.wait, daemon=True).start()
    wait_until(lambda: any("no hello within 0.3 seconds" in text for text in said))
    monkeypatch.setattr(server, "ANSWER_TIMEOUT", 60.0)  # the hello of a busy machine is one
    silence.set()
    silent.stop(0).wait()
    group = RemoteGroup(f"listen:{address}", NAME, EnvConfig(), 5)
    Stepper(group, counting(1)).reset()
    dialler.stop()
    group.close()


def test_a_simulator_with_a_wrong_token_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("HEADRACE_TOKEN", TOKEN)
    group = RemoteGroup(f"listen:{address}", NAME, EnvConfig(), 5)
    stepper = Stepper(group, counting(1))
    stepper.begin_reset()
    said: list[str] = []
    wrong = Dialler(offer(), address, Credentials("another-token"), said.append)
    threading.Thread(target=wrong.wait, daemon=True).start()
    wait_until(lambda: any("token" in text for text in said))
    assert not group.recv()
    wrong.stop()
    right = Dialler(offer(), address, Credentials(TOKEN), said.append)
    threading.Thread(target=right.wait, daemon=True).start()
    finish(group)
    right.stop()
    group.close()


def test_training_with_a_simulator_that_dials_in(tmp_path: Path) -> None:
    """Two workers listen at one port; each gets the streams of its own groups."""
    address = f"127.0.0.1:{free_port()}"
    server = ServerProcess("--dial", address, "--num-envs", "16")
    try:
        server.start(tmp_path / "server.log")
        flags = ["train", "--env", "gym/CartPole-v1", "--envs.remote", f"listen:{address}", "--run.folder", str(tmp_path / "run")]
        flags += ["--learning.total-steps", "3000", "--run.no-video", "--run.no-dashboard", "--learning.device", "cpu"]
        flags += ["--sampling.rollout", "16", "--learning.batch-size", "256", "--envs-per-worker", "8", "--num-workers", "2"]
        assert cli.main(flags) == 0
    finally:
        server.kill()


# -- who may listen where ---------------------------------------------------------------------------------------------


def test_addresses_of_this_machine() -> None:
    assert all(map(is_local, ["127.0.0.1:1", "localhost:1", "[::1]:1", "unix:/tmp/x", "127.8.9.1:1"]))
    assert not any(map(is_local, ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.org:1", "*:1"]))


def test_other_addresses_need_a_token() -> None:
    for address in ("0.0.0.0:0", "[::]:0"):
        with pytest.raises(ConfigError, match="can be reached from other machines: give a token"):
            EnvServer(offer(), address, Credentials())
    server = EnvServer(offer(), "0.0.0.0:0", Credentials(TOKEN))
    server.stop(0)
    assert cli.main(["serve-envs", "--env", "gym/CartPole-v1", "--listen", "0.0.0.0:0"]) == 2


def test_a_server_uses_no_servers(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["serve-envs", "--env", "gym/CartPole-v1", "--listen", "0.0.0.0:0", "--envs.remote", "listen:0.0.0.0:7777"]
    assert cli.main(command) == 2
    assert "envs.remote is for runs: a server has --listen or --dial" in capsys.readouterr().err


def test_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert credentials(str(file)).token == TOKEN
    assert TOKEN not in repr(credentials(str(file)))
    monkeypatch.setenv("HEADRACE_TOKEN", "from-the-environment")
    assert credentials(None).token == "from-the-environment"
    for text in ("", "short", "with space in it", "ünïcödé-token"):
        file.write_text(text)
        with pytest.raises(ConfigError, match="token"):
            credentials(str(file))
    with pytest.raises(ConfigError, match="cannot be read"):
        credentials(str(tmp_path / "none"))
    own = Credentials(TOKEN)
    assert own.admits([("authorization", f"Bearer {TOKEN}")])
    for metadata in ([], [("authorization", TOKEN)], [("authorization", f"Bearer {TOKEN}x")], [("authorization", "Bearer ")],
                     [("authorization", f"Bearer {TOKEN}"), ("authorization", f"Bearer {TOKEN}")], None):  # fmt: skip
        assert not own.admits(metadata)


def make_certificate(folder: Path, names: str) -> tuple[str, str]:
    """A certificate that signs itself, and its key."""
    cert, key = (str(folder / f"{abs(hash(names))}-{file}.pem") for file in ("cert", "key"))
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", f"subjectAltName={names}", "-keyout", key, "-out", cert]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"openssl makes no certificate here: {error}")
    return cert, key


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return make_certificate(tmp_path_factory.mktemp("tls"), "DNS:localhost,IP:127.0.0.1")


def test_tls(certificate: tuple[str, str]) -> None:
    cert, key = certificate
    with serving(own=Credentials(cert=cert, key=key)) as address:
        group = remote_group(address, remote_ca=cert)
        stepper = Stepper(group, counting(1))
        stepper.reset()
        stepper.step()
        group.close()


DISAGREE = "the TLS settings do not agree: "


def said_by_a_run(own: Credentials, ca: str | None) -> str:
    """What a run, which has this certificate or none, says of a server with these credentials."""
    with serving(own=own) as address:
        group = remote_group(address, **({} if ca is None else {"remote_ca": ca}))
        Stepper(group, counting(1)).begin_reset()
        text = messages_of(group, "no connection")[-1]
        assert not group.recv()
        group.close()
    return text


def test_tls_on_one_side_only_is_named(certificate: tuple[str, str]) -> None:
    """A run without TLS cannot know why the connection was closed, so it goes on trying."""
    cert, key = certificate
    text = said_by_a_run(Credentials(cert=cert, key=key), None)
    assert ": if it uses TLS, give the certificate that signed its own here, too (--envs.remote-ca)" in text
    text = said_by_a_run(Credentials(), cert)
    assert f"{DISAGREE}it does not use TLS; start it with --tls-cert and --tls-key, or leave out --envs.remote-ca" in text


def test_a_wrong_certificate_is_named(certificate: tuple[str, str], tmp_path: Path) -> None:
    cert, key = certificate
    other = make_certificate(tmp_path, "DNS:localhost,IP:127.0.0.1")
    text = said_by_a_run(Credentials(cert=cert, key=key), other[0])
    assert f"{DISAGREE}its certificate was not signed by that of --envs.remote-ca" in text
    far = make_certificate(tmp_path, "DNS:far,IP:10.0.0.7")
    text = said_by_a_run(Credentials(cert=far[0], key=far[1]), far[0])
    assert f"{DISAGREE}its certificate is not for the name or address by which it is called" in text


def test_files_that_are_no_certificates_are_named(certificate: tuple[str, str], tmp_path: Path) -> None:
    cert, key = certificate
    text, other = tmp_path / "text.pem", make_certificate(tmp_path, "DNS:other")
    text.write_text("hello")
    locked = str(tmp_path / "locked.pem")
    subprocess.run(["openssl", "pkey", "-in", key, "-aes256", "-passout", "pass:secret", "-out", locked], check=True)
    with pytest.raises(ConfigError, match=r"text\.pem holds no TLS certificate"):
        credentials(None, ca=str(text))
    for its_cert, its_key in ((str(text), key), (cert, str(text)), (cert, other[1]), (cert, locked)):
        with pytest.raises(ConfigError, match=f"{its_cert} and {its_key} are not a TLS certificate and its private key"):
            credentials(None, cert=its_cert, key=its_key)
    assert credentials(None, ca=cert, cert=cert, key=key).cert == cert


def test_a_run_does_not_start_where_tls_does_not_agree(certificate: tuple[str, str]) -> None:
    cert, key = certificate
    with serving() as address, pytest.raises(ConfigError, match=rf"{address}: no connection .*{DISAGREE}it does not use TLS"):
        connect.ask(NAME, EnvConfig(remote=address, remote_ca=cert))
    with serving(own=Credentials(cert=cert, key=key)) as address, pytest.raises(ConfigError, match="if it uses TLS, give"):
        connect.ask(NAME, EnvConfig(remote=address), patience=0.5)


def test_a_simulator_is_told_its_own_flags(certificate: tuple[str, str]) -> None:
    cert, key = certificate
    address, said = f"127.0.0.1:{free_port()}", list[str]()
    group = RemoteGroup(f"listen:{address}", NAME, EnvConfig(remote_tls_cert=cert, remote_tls_key=key), 5)
    dialler = Dialler(offer(), address, Credentials(), said.append)
    threading.Thread(target=dialler.wait, daemon=True).start()
    advice = "if it uses TLS, give the certificate that signed its own here, too (--tls-ca)"
    wait_until(lambda: any(advice in text for text in said))
    dialler.stop()
    group.close()
    group = RemoteGroup(f"listen:{address}", NAME, EnvConfig(), 5)
    dialler = Dialler(offer(), address, Credentials(ca=cert), said.append)
    threading.Thread(target=dialler.wait, daemon=True).start()
    advice = "start it with --envs.remote-tls-cert and --envs.remote-tls-key, or leave out --tls-ca here"
    wait_until(lambda: any(advice in text for text in said))
    dialler.stop()
    group.close()


def test_a_server_that_is_stopped_is_not_taken_for_one_with_tls() -> None:
    """Once it has answered, a closed connection says nothing of TLS."""
    port = free_port()
    with serving(port=port) as address:
        group = remote_group(address)
        stepper = Stepper(group, counting(1))
        stepper.reset()
    stepper.begin_step()
    assert not any("TLS" in text for text in messages_of(group, "Connection refused"))
    group.close()


def test_tls_of_a_run_that_listens(certificate: tuple[str, str]) -> None:
    cert, key = certificate
    address = f"127.0.0.1:{free_port()}"
    group = RemoteGroup(f"listen:{address}", NAME, EnvConfig(remote_tls_cert=cert, remote_tls_key=key), 5)
    dialler = Dialler(offer(), address, Credentials(ca=cert), lambda text: None)
    threading.Thread(target=dialler.wait, daemon=True).start()
    Stepper(group, counting(1)).reset()
    dialler.stop()
    group.close()


def test_the_token_is_not_in_the_run_folder(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    server = ServerProcess("--num-envs", "16", "--token-file", str(token))
    try:
        server.start(tmp_path / "server.log")
        flags = ["train", "--env", "gym/CartPole-v1", "--envs.remote", server.address, "--run.folder", str(tmp_path / "run")]
        flags += ["--learning.total-steps", "1000", "--run.no-video", "--run.no-dashboard", "--learning.device", "cpu"]
        flags += ["--placement", "serial", "--num-threads", "1"]
        flags += ["--sampling.rollout", "16", "--learning.batch-size", "256", "--envs-per-worker", "8", "--num-workers", "2"]
        assert cli.main([*flags, "--envs.remote-token-file", str(token)]) == 0
        for file in filter(Path.is_file, (tmp_path / "run").rglob("*")):
            assert TOKEN.encode() not in file.read_bytes(), file
        assert TOKEN not in (tmp_path / "server.log").read_text()
    finally:
        server.kill()


# -- whoever is no trainer --------------------------------------------------------------------------------------------


@pytest.fixture
def fuzzed() -> Iterator[tuple[str, EnvServer]]:
    server = EnvServer(offer(), "127.0.0.1:0", Credentials(TOKEN))
    yield f"127.0.0.1:{server.port}", server
    server.stop(0)


@pytest.mark.parametrize("seconds", [4, pytest.param(60, marks=pytest.mark.slow)])
def test_garbage_harms_nobody_and_lets_nobody_in(
    seconds: float, fuzzed: tuple[str, EnvServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, server = fuzzed
    monkeypatch.setenv("HEADRACE_TOKEN", TOKEN)
    answers: list[bytes] = []
    fuzzer = threading.Thread(target=fuzz, args=(address, seconds, answers, TOKEN))
    group = remote_group(address)
    stepper = Stepper(group, counting(1))
    stepper.reset()
    fuzzer.start()
    steps = 0
    while fuzzer.is_alive():  # meanwhile a run goes on
        row = stepper.step()
        assert row.after.obs["obs"].shape == (5, 4)
        steps += 1
    fuzzer.join()
    assert steps > 20
    assert not answers, "without the token nothing is answered"
    group.close()
    wait_until(lambda: server.offer.used == 0)


@pytest.mark.parametrize("seconds", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_garbage_at_a_run_that_listens(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_TOKEN", TOKEN)
    address = f"127.0.0.1:{free_port()}"
    group = RemoteGroup(f"listen:{address}", NAME, EnvConfig(remote_timeout=5.0), 5)
    stepper = Stepper(group, counting(1))
    stepper.begin_reset()
    answers: list[bytes] = []
    fuzz(address, seconds, answers, TOKEN)
    assert not answers
    assert not group.recv(), "nobody's garbage is an observation"
    dialler = Dialler(offer(), address, Credentials(TOKEN), lambda text: None)
    threading.Thread(target=dialler.wait, daemon=True).start()
    finish(group)
    stepper.step()
    dialler.stop()
    group.close()


def test_a_welcome_of_garbage_is_refused() -> None:
    """A server that lies: whatever it sends, it is a reason and never another error."""
    made = offer()
    layout = GroupLayout(made.spec, 1, 5)
    good = Welcome(NAME, made.options, made.spec, 1, 5, layout.schema(), {}, "vectors").to_bytes()
    assert Welcome.from_bytes(good).spec == made.spec
    rng = random.Random(3)
    for _ in range(3000):
        bad = bytearray(good)
        for _ in range(rng.randrange(1, 6)):
            at = rng.randrange(len(bad))
            bad[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3)) if rng.random() < 0.5 else b"9]"
        with contextlib.suppress(ProtocolError, Refused):
            Welcome.from_bytes(bytes(bad))
    for dtype in ("object", "float64", "U9"):
        with pytest.raises(ProtocolError):
            Welcome.from_bytes(good.replace(b"float32", dtype.encode()))


def test_a_process_with_a_server_starts_other_programs() -> None:
    """Those with a `preexec_fn` fork, and gRPC's handlers of fork, which are on by default, let some of such children crash."""
    code = """
import os, subprocess
import headrace.envs.remote
from remote_servers import finish, remote_group, serving
with serving() as address:
    group = remote_group(address)
    for _ in range(200):
        done = subprocess.run(["true"], preexec_fn=os.setpgrp, close_fds=True)
        assert done.returncode == 0, done
    group.close()
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    environment["PYTHONPATH"] = str(Path(__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "epoll" not in done.stderr
