"""Reinforcement learning where experience is the bottleneck."""
