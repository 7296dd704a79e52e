"""The fork server imports this once, so that rollout workers start quickly and share its memory. It does not import torch, which
those that learn or act add (`ProcessPlacement`)."""

from headrace.processes.start import become_fork_server

become_fork_server()  # first: importing the rest takes a while

import headrace.envs.make  # noqa: E402
import headrace.sampling.rollout_worker  # noqa: E402, F401
