"""Streams of messages between machines: gRPC with tokens, TLS, deadlines and reconnection; named arrays in messages.

This package knows no particular messages and does not import torch. `headrace.envs.remote` steps environments over it.
"""

import os

# gRPC's fork handlers restart its threads in the child. With `subprocess` and a `preexec_fn` the child has already closed their
# file descriptors, and dies before it executes its program, such as a video encoder or an environment's helper
# (github.com/grpc/grpc/pull/43157). Nothing here uses gRPC on both sides of a fork.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
# Its lines about connections that end are not for users, who are told the reason.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
