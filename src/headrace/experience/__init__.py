"""Experience: what the learner learns from, made of the trajectories that sampling has finished."""
