"""The small environment families, one file each.

To add a family, write such a file with a `FAMILY` (`headrace.envs.core.family_interface` says what it declares; `dm_control` is a
short example), and name it in one line of `FAMILIES` in `headrace.envs.core.registry`.
"""
