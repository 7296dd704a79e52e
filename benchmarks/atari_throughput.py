"""Frames per second of the built-in Atari emulator against ale_py.AtariVectorEnv and envpool, interleaved in one run.

    python benchmarks/atari_throughput.py --envpool PYTHON --json benchmarks/results/atari_throughput.json

What is measured and all options: `headrace.envs.atari_bench`.
"""

from headrace.envs.atari_bench import main

if __name__ == "__main__":
    main()
