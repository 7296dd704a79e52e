"""Atari 2600 games: what joins the consoles of the package `headrace_atari` to the engine.

`family` holds the settings, `training` the training episodes.
"""
