"""The ids that `import headrace` registers with Gymnasium.

Gymnasium 1.x does not search for plugins: import headrace first, or name it in the id, as in
`gymnasium.make_vec("headrace:headrace/Pong-v5")`. As with ale-py, `make` gives one environment with plain pictures, `make_vec` a
batch with the usual preprocessing.
"""

from __future__ import annotations

import gymnasium

import headrace._native.atari as native


def register_games() -> None:
    """Register every Atari game as `headrace/<Name>-v5`, with the names and settings of `ALE/<Name>-v5`."""
    for facts in native.games():
        env_id = f"headrace/{facts['name'].title().replace('_', '')}-v5"  # ale-py's spelling, also of TicTacToe3D
        if env_id not in gymnasium.registry:
            gymnasium.register(
                env_id,
                entry_point="headrace.envs.atari.env:AtariEnv",
                vector_entry_point="headrace.envs.atari.vector:AtariVector",
                kwargs={
                    "game": facts["name"],
                    "repeat_action_probability": 0.25,
                    "full_action_space": False,
                    "frameskip": 4,
                    "max_num_frames_per_episode": 108_000,
                },
            )


register_games()
