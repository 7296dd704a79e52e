"""What learns: the mathematics (V-trace, GAE, losses) and the learner that runs it."""
