"""Prioritized replay."""
