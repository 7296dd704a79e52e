"""Populations: policies of one run that learn from each other. Population-based training: its rules (`pbt`), and what each
learner does of it (`member`)."""
