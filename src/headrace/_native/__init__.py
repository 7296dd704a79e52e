"""The C++ parts: `ipc` (queues in shared memory), `replay` (prioritized replay), `atari` (the console core)."""
