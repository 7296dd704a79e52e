"""The run folder and all that is written to it: checkpoints, metrics, dashboard, curves, video."""
