"""Doom (``vizdoom/...``): `family` is for the registry; `env` and `match` are the environments of one player and of several, and
`player` is their common part."""
