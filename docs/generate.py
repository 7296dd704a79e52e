"""Writes the pages of `docs/` that are lists of what is in the code: configuration.md and metrics.md.

python docs/generate.py            write them
python docs/generate.py --check    exit code 1 if they are not current
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import json
import sys
import typing
from pathlib import Path

from headrace import config
from headrace.runs.metrics import KEYS

DOCS = Path(__file__).parent

CONFIGURATION_HEAD = """# Configuration

Every setting of a run is a field of the dataclasses in [`config/settings.py`](../src/headrace/config/settings.py) and a flag of
`headrace train`: `--group.name VALUE`, dashes and underscores alike. Where only one group has the name, the group may be left out
(`--num-workers 4`). Switches are `--run.video` and `--run.no-video`; lists are words (`--policy.mlp 64 64`); `None` is the word
`None`.

Settings come, weakest first, from the defaults below, the environment's own defaults, the algorithm's preset
([`presets.py`](../src/headrace/presets.py)), what `headrace tune ENV` found for this machine, the run found in the run folder,
and the flags. The result is `config.json` in the run folder; `headrace train --env ENV --help` shows the defaults for one
environment. A *step* is one decision of one agent; a *frame* is one frame of the simulator (steps x frameskip).
"""

METRICS_HEAD = """# Metrics

Each interval (`--run.log-interval` seconds) adds one line to `metrics.jsonl` in the run folder and the same scalars to
TensorBoard (`tensorboard --logdir runs`) and, with `--run.track`, to Weights & Biases. The x axis is always `global_step`. A key
whose value is not known in an interval (no episode has ended) is left out of it. Means are over the updates of the interval;
`lag/min` and `lag/max` are its extremes. Shares of time (`time/<part>/<phase>`) are of all processes of that part together and
add up to 1 for each part. Keys under `env/` are the environment's own.

A run that goes on from a checkpoint repeats the steps after it: their first lines are removed from `metrics.jsonl` and hidden in
TensorBoard. An evaluation (`eval/...`) has a line of its own, at the step of the policy that was evaluated. Every line also holds
`time`, the seconds since 1970 at which it was written.
"""


def field_docs(cls: type) -> dict[str, str]:
    """Field name -> the docstring under it, as one line."""
    body = ast.parse(inspect.getsource(cls)).body[0].body  # type: ignore[attr-defined]
    docs = {}
    for field, text in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            docs[ast.unparse(field.target)] = " ".join(str(text.value.value).split())
    return docs


def type_name(cls: type, name: str) -> str:
    """A field's type as a person would write it."""
    hint = typing.get_type_hints(cls)[name]
    if hint is dict or typing.get_origin(hint) is dict:
        return "JSON"
    choices = typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()
    if choices:
        return " \\| ".join(f"`{choice}`" for choice in choices)
    return str(getattr(hint, "__name__", hint) if not typing.get_args(hint) else hint).replace("|", "\\|")


def default(field: dataclasses.Field) -> str:
    """A field's default as it is typed on the command line."""
    value = field.default if field.default is not dataclasses.MISSING else field.default_factory()  # type: ignore[misc]
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return json.dumps(value) if isinstance(value, dict) else str(value)


def settings_table(cls: type, prefix: str) -> list[str]:
    """Markdown rows for the settings of one dataclass, groups left out."""
    rows = ["| flag | type | default | |", "| --- | --- | --- | --- |"]
    docs = field_docs(cls)
    for field in dataclasses.fields(cls):
        if not dataclasses.is_dataclass(field.default_factory):
            flag = "import" if field.name == "imports" else field.name.replace("_", "-")
            shown = default(field)
            text = docs[field.name].replace("|", "\\|")
            rows.append(f"| `--{prefix}{flag}` | {type_name(cls, field.name)} | {f'`{shown}`' if shown else ''} | {text} |")
    return rows


def configuration() -> str:
    """configuration.md."""
    parts = [CONFIGURATION_HEAD, "## The run\n", "\n".join(settings_table(config.Config, "")), ""]
    for field in dataclasses.fields(config.Config):
        cls = field.default_factory
        if isinstance(cls, type) and dataclasses.is_dataclass(cls):
            title = f"## `{field.name}`\n\n{' '.join((cls.__doc__ or '').split())}\n"
            parts += [title, "\n".join(settings_table(cls, f"{field.name}.")), ""]
    return "\n".join(parts)


def metrics() -> str:
    """metrics.md."""
    rows = [f"| `{key}` | {text.replace('|', chr(92) + '|')} |" for key, text in KEYS.items()]
    return "\n".join([METRICS_HEAD, "| key | |", "| --- | --- |", *rows, ""])


PAGES = {"configuration.md": configuration, "metrics.md": metrics}


def outdated() -> list[str]:
    """Names of pages that are not what would be written now."""
    return [name for name, make in PAGES.items() if not (DOCS / name).exists() or (DOCS / name).read_text() != make()]


def main() -> int:
    """Write the pages, or check them."""
    if "--check" in sys.argv[1:]:
        stale = outdated()
        print("\n".join(f"docs/{name} is not current: run python docs/generate.py" for name in stale), file=sys.stderr)
        return 1 if stale else 0
    for name, make in PAGES.items():
        (DOCS / name).write_text(make())
    return 0


if __name__ == "__main__":
    sys.exit(main())
