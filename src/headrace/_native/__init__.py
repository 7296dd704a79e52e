"""The C++ parts: `ipc` (queues in shared memory), `replay` (prioritized replay), `elu`, `pixels`, `layers` (of models that act),
`ppo` (small policies), and a library for Doom engines.

A wheel has them once for each level of processors. Their results are the same bits (`elu` apart, where a fused multiply-add
rounds once less).
"""

from headrace_atari import use_processor_level

LEVEL = use_processor_level(__path__)  # the level in use. None: built from source.
