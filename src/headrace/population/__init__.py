"""Policies of one run that play each other or learn from each other: matchmaking, past versions and ratings; population-based
training. What a user's matchmakers and scripted opponents need is here."""

from headrace.envs.core.contract import Script
from headrace.population.matchmaking import Matchmaker, NextMatch, Population, register_matchmaker, register_opponent

__all__ = ["Matchmaker", "NextMatch", "Population", "Script", "register_matchmaker", "register_opponent"]
