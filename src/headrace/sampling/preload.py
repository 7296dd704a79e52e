"""Imported once by the fork server, so that rollout workers start at once and share these modules' memory. No torch."""

from headrace.runs.processes import become_fork_server

become_fork_server()  # first: importing the rest takes a while

import headrace.envs.registry  # noqa: E402
import headrace.sampling.rollout_worker  # noqa: E402, F401
