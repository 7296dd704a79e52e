"""Playing whole games with a trained policy."""
