"""The laboratory: plans of runs, how they are run, what is read back from run folders, statistics, and reports of them."""
