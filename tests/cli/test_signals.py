"""SIGTERM (service managers, `timeout`) and SIGHUP (a closed terminal) end every command as Ctrl-C does: what it has begun is
ended, such as environments and the programs that they have started."""

from __future__ import annotations

import signal

import pytest

from headrace import cli


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_end_a_command_as_ctrl_c_does(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []

    def command(arguments: list[str]) -> int:
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(number)  # `timeout` sends it to the process and to its group, and the kernel and the shell SIGHUP
            ended.append(arguments)
        return 0

    monkeypatch.setitem(cli.COMMANDS, "envs", command)
    before = signal.getsignal(number)
    assert cli.main(["envs", "doom"]) == 130
    assert ended == [["doom"]]
    assert signal.getsignal(number) is before


def test_a_signal_that_is_ignored_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        monkeypatch.setitem(cli.COMMANDS, "envs", lambda arguments: signal.raise_signal(signal.SIGHUP) or 0)
        assert cli.main(["envs"]) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
