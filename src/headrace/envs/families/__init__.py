"""The small environment families, one file each (DeepMind Lab and PyTorch: two)."""
