"""The tests' processes share few cores."""

import torch

# Threads of one process that wait for each other at every barrier lose far more than they gain when cores are busy.
torch.set_num_threads(1)
