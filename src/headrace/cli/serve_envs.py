"""headrace serve-envs."""

from __future__ import annotations

import argparse
import dataclasses

import tyro

from headrace.cli.options import Imports, NumEnvs, joined_imports, parse
from headrace.config import ConfigError, EnvConfig
from headrace.envs.core import registry
from headrace.envs.core.imports import import_files
from headrace.envs.core.settings import default_options


@dataclasses.dataclass
class ServeEnvs:
    """Step environments for training runs on other machines, until Ctrl-C.

    A run uses them with --envs.remote HOST:PORT, and then needs none of the environment's packages.
    """

    env: str
    """Environment, as family/name."""
    num_envs: NumEnvs = 32
    """Largest number of environments that are in use at a time."""
    listen: str = "127.0.0.1:7777"
    """Address at which to listen for runs, as HOST:PORT. An address that other machines can reach needs a token."""
    dial: str | None = None
    """Address of a run that listens for simulators (--envs.remote listen:HOST:PORT). This server connects to it instead of
    listening."""
    token_file: str | None = None
    """File with the secret token that runs and servers share. None: the environment variable HEADRACE_TOKEN, if it is set."""
    tls_cert: str | None = None
    """File with the TLS certificate of this server. None: no TLS."""
    tls_key: str | None = None
    """File with the private key of the TLS certificate."""
    tls_ca: str | None = None
    """File with the certificate that signed the TLS certificate of the run at `dial`. None: no TLS."""
    compression: bool = False
    """Compress what is sent (gzip). This takes far more processor time than it saves on a fast network."""
    imports: Imports = ()
    """Python files to import first. They may register environments."""
    envs: EnvConfig = dataclasses.field(default_factory=EnvConfig)


def run(arguments: list[str]) -> int:
    arguments = joined_imports(arguments)
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--env", default="")
    first.add_argument("--import", dest="imports", nargs="*", default=[])
    known, _ = first.parse_known_args(arguments)
    import_files(known.imports)
    default = ServeEnvs(env=tyro.MISSING)
    if known.env:
        registry.check_id(known.env)
        default = ServeEnvs(env=known.env, envs=default_options(known.env))
    asked: ServeEnvs = parse(ServeEnvs, "serve-envs", arguments, default=default)
    if asked.envs.remote is not None:
        raise ConfigError("envs.remote is for runs: a server has --listen or --dial")
    from headrace.envs.remote.server import make_offer, serve_offer  # imports gRPC
    from headrace.transport.credentials import credentials

    own = credentials(asked.token_file, asked.tls_ca, asked.tls_cert, asked.tls_key)
    offer = make_offer(asked.env, asked.num_envs, asked.envs)
    serve_offer(offer, listen=asked.listen, dial=asked.dial, own=own, compression=asked.compression)
    return 0
