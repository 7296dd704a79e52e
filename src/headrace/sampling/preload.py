"""Imported once by the fork server, so that rollout workers start at once and share these modules' memory. No torch."""

import headrace.envs.registry
import headrace.sampling.rollout_worker  # noqa: F401
