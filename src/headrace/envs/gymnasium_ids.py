"""The ids that `import headrace` registers with Gymnasium.

Gymnasium 1.x does not search for plugins: either `import headrace` comes first, or the id names the package, as in
`gymnasium.make_vec("headrace:headrace/Pong-v5")`.
"""

from __future__ import annotations

import gymnasium

import headrace._native.atari as native


def register_games() -> None:
    """Register every Atari game as `headrace/<Name>-v5`, with the settings of `ALE/<Name>-v5`."""
    for facts in native.games():
        env_id = f"headrace/{''.join(part.capitalize() for part in facts['name'].split('_'))}-v5"
        if env_id not in gymnasium.registry:
            gymnasium.register(
                env_id,
                vector_entry_point="headrace.envs.atari_vector:AtariVector",
                kwargs={"game": facts["name"], "repeat_action_probability": 0.25},
            )


register_games()
