"""Shared policies on the Hugging Face hub: `hf://NAME` in the place of a run folder."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.config.errors import ConfigError, package

FILES = ("config.json", "model.safetensors")
"""All that is fetched: settings and weights. Nothing that is fetched is executed or unpickled."""


def local_folder(run: os.PathLike[str] | str) -> Path:
    """The folder of a run; of `hf://NAME` or `hf://NAME@REVISION` the copy in huggingface_hub's cache.

    Raises `ConfigError` for what the hub does not have or does not give.
    """
    scheme, colon, rest = os.fspath(run).partition(":")
    if (scheme, colon) != ("hf", ":"):
        return Path(run)
    name, _, revision = rest.strip("/").partition("@")
    library = package("huggingface_hub", "hub")
    try:
        folder = Path(library.snapshot_download(name, revision=revision or None, allow_patterns=list(FILES)))
    except (library.errors.HfHubHTTPError, library.errors.HFValidationError, OSError) as error:
        raise ConfigError(f"hf://{name} cannot be fetched: {type(error).__name__}: {error!s:.300}") from error
    if missing := [file for file in FILES if not (folder / file).is_file()]:
        raise ConfigError(f"hf://{name} was not written by headrace share: it has no {' and no '.join(missing)}")
    return folder
