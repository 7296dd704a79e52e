"""Between sampling and learning: trajectories consumed once, and prioritized replay."""
