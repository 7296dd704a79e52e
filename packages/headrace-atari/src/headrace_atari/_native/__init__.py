"""The C++ parts: `atari`, the consoles; `atari_kernels`, for tests only, the kernels of a GPU on the CPU."""

from headrace_atari.processor_levels import use_processor_level

LEVEL = use_processor_level(__path__)
