"""Where nobody can listen."""

from __future__ import annotations

import re
import socket

import pytest

from headrace.config import ConfigError
from headrace.transport.credentials import Credentials
from headrace.transport.listeners import Listener
from headrace.transport.streams import Endpoint, Service

SERVICE = Service("/test/Streams", "listener of a test")


def test_an_address_that_cannot_be_used_is_refused_with_what_it_may_be() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        wanted = f"cannot listen at {address}: another program listens there, or it is no address of this machine"
        with pytest.raises(ConfigError, match=f"^{re.escape(wanted)}$"):
            Listener(Endpoint(SERVICE, address, Credentials(), 1 << 10), lambda stream: iter(()), streams=1)
