"""Policies of one run that play each other or learn from each other: matchmaking, past versions and ratings; population-based
training."""
