"""Devices: CUDA graphs, staging memory, allocators, threads and ranks."""
