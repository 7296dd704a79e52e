"""What learns: the mathematics (V-trace, GAE, losses, Q-learning), the algorithms, and the learner that runs them.

`register_algorithm` makes a user's algorithm known; importing it does not import torch. Importing this package makes the
built-in algorithms known.
"""

from headrace.learning import presets as presets
from headrace.learning.algorithm import Algorithm, register_algorithm

__all__ = ["Algorithm", "register_algorithm"]
