"""Sampling: shared memory of a run, actors, rollout and policy workers, placements, supervision of processes."""
