"""Several processes that learn one policy."""
