"""Groups of environments that are stepped together."""
