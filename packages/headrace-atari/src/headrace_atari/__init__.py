"""Atari 2600 games for reinforcement learning: many consoles in one batch, bit for bit those of the Arcade Learning Environment.

    from headrace_atari import AtariVector

    envs = AtariVector("pong", num_envs=64)
    observations, infos = envs.reset(seed=0)  # uint8 [64, 4, 84, 84]

After the import Gymnasium knows every game: `gymnasium.make_vec("headrace/Pong-v5", num_envs=64)`. torch is imported only for
consoles on a GPU, `AtariVector(..., device="cuda")`.
"""

from headrace_atari import gymnasium_ids  # noqa: F401 - registers the ids
from headrace_atari.env import AtariEnv
from headrace_atari.options import AtariOptions, KernelOptions
from headrace_atari.processor_levels import use_processor_level
from headrace_atari.roms import games, rom_path
from headrace_atari.starts import play_at_random, read_states, save_states
from headrace_atari.vector import AtariVector

__all__ = [
    "AtariEnv",
    "AtariOptions",
    "AtariVector",
    "KernelOptions",
    "games",
    "play_at_random",
    "read_states",
    "rom_path",
    "save_states",
    "use_processor_level",
]
