"""Registers every Atari game with Gymnasium as `headrace/<Name>-v5`, with the names and settings of `ALE/<Name>-v5`.

Gymnasium 1.x does not search for plugins: import headrace_atari first, or name it in the id, as in
`gymnasium.make_vec("headrace_atari:headrace/Pong-v5")`. As with ale-py, `make` gives one environment with plain pictures,
`make_vec` a batch with the usual preprocessing.
"""

from __future__ import annotations

import gymnasium

import headrace_atari._native.atari as native

for _facts in native.games():
    _id = f"headrace/{_facts['name'].title().replace('_', '')}-v5"  # ale-py's spelling, also of TicTacToe3D
    if _id not in gymnasium.registry:
        gymnasium.register(
            _id,
            entry_point="headrace_atari.env:AtariEnv",
            vector_entry_point="headrace_atari.vector:AtariVector",
            kwargs={
                "game": _facts["name"],
                "repeat_action_probability": 0.25,
                "full_action_space": False,
                "frameskip": 4,
                "max_num_frames_per_episode": 108_000,
            },
        )
