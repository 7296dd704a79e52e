"""Atari 2600 games.

The consoles are `vector`, `env`, `options`, `actions`, `roms`, `starts`, `kernels`, `device`, `gymnasium_ids`. They need NumPy,
Gymnasium and ale-py's ROMs (on a GPU torch, too), and import nothing of the engine. The rest connects them to the engine:
`family` holds the settings, `training` the training episodes.
"""
