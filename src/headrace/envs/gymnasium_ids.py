"""The ids that `import headrace` registers with Gymnasium.

Gymnasium 1.x does not search for plugins: either `import headrace` comes first, or the id names the package, as in
`gymnasium.make_vec("headrace:headrace/Pong-v5")`. `make` gives one environment with plain pictures, `make_vec` a batch with
the usual preprocessing, as with ale-py.
"""

from __future__ import annotations

import gymnasium

import headrace._native.atari as native


def register_games() -> None:
    """Register every Atari game as `headrace/<Name>-v5`, with the names and settings of `ALE/<Name>-v5`."""
    for facts in native.games():
        env_id = f"headrace/{facts['name'].title().replace('_', '')}-v5"  # as ale-py makes names, TicTacToe3D among them
        if env_id not in gymnasium.registry:
            gymnasium.register(
                env_id,
                entry_point="headrace.envs.atari_env:AtariEnv",
                vector_entry_point="headrace.envs.atari_vector:AtariVector",
                kwargs={
                    "game": facts["name"],
                    "repeat_action_probability": 0.25,
                    "full_action_space": False,
                    "frameskip": 4,
                    "max_num_frames_per_episode": 108_000,
                },
            )


register_games()
