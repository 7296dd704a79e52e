"""Writes the pages of `docs/` that are lists of what is in the code, configuration.md and metrics.md, and the tables of published
settings in other pages, each between `<!-- published: ALGORITHM -->` and `<!-- end -->`.

python docs/generate.py            write them
python docs/generate.py --check    exit code 1 if they are not current
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import json
import re
import sys
import types
import typing
from pathlib import Path

from headrace import config
from headrace.config.ranges import Range
from headrace.learning import published
from headrace.make_config import make_config
from headrace.runs.metrics import KEYS

DOCS = Path(__file__).parent

CONFIGURATION_HEAD = """# Configuration

Every setting of a run is a field of a dataclass in [`headrace.config`](../src/headrace/config) and a flag of `headrace train`.

- A flag is `--group.name VALUE`, with dashes or underscores. The group may be omitted if only one group has the name:
  `--num-workers 4`.
- A switch is turned on by `--run.video` and off by `--run.no-video`.
- The values of a list are separated by spaces: `--policy.mlp 64 64`.
- The value None is written `None`.

A setting takes its value from the last of these sources that has one:

1. the default below;
2. the defaults of the environment;
3. the defaults of the algorithm and its preset ([`learning/builtin.py`](../src/headrace/learning/builtin.py));
4. what `headrace tune ENV` found for this machine;
5. `config.json` in the run folder, if the run is resumed;
6. the flags.

`headrace train --env ENV --help` shows the defaults for one environment. The resulting settings are saved as `config.json` in the
run folder. The file has a format number: a run folder whose settings do not fit this version is refused, with the reason.

A *step* is one decision of one agent. A *frame* is one frame of the simulator (steps x frameskip).
"""

METRICS_HEAD = """# Metrics

Every `--run.log-interval` seconds a run adds one line to `metrics.jsonl` in the run folder. The same values go to TensorBoard
(`tensorboard --logdir runs`) and, with `--run.track`, to Weights & Biases. The x axis is always `global_step`.

- A mean is taken over the updates of the interval; `lag/min` and `lag/max` are its extremes.
- A key is absent if its value is unknown, for instance a return before the first episode has ended.
- A share of time (`time/<part>/<phase>`) refers to all processes of that part. The shares of a part add up to 1.
- Keys under `env/` are defined by the environment.
- Every line also has `time`, the time at which it was written (seconds since 1970).
- An evaluation (`eval/...`) has a line of its own, at the step of the policy that was evaluated.

A resumed run repeats the steps after its checkpoint. The earlier lines of these steps are removed from `metrics.jsonl`, and their
points are hidden in TensorBoard.
"""


def field_docs(cls: type) -> dict[str, str]:
    """Field name -> the docstring under it, as one line."""
    body = ast.parse(inspect.getsource(cls)).body[0].body  # type: ignore[attr-defined]
    docs = {}
    for field, text in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            docs[ast.unparse(field.target)] = " ".join(str(text.value.value).split())
    return docs


def type_name(hint: typing.Any) -> str:
    """A field's type as a person would write it, with its range."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        ranges = [f" ({entry.describe()})" for entry in arguments[1:] if isinstance(entry, Range)]
        return type_name(arguments[0]) + "".join(ranges)
    if origin is dict:
        return "JSON"
    if origin is typing.Literal:
        return " \\| ".join(f"`{choice}`" for choice in arguments)
    if origin in (typing.Union, types.UnionType):
        return " \\| ".join("None" if option is types.NoneType else type_name(option) for option in arguments)
    if origin is tuple:
        each = type_name(arguments[0])
        return f"list of {each}" if arguments[-1] is Ellipsis else f"{len(arguments)} x {each}"
    return hint.__name__


def default(field: dataclasses.Field) -> str:
    """A field's default as it is typed on the command line."""
    value = field.default if field.default is not dataclasses.MISSING else field.default_factory()  # type: ignore[misc]
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return json.dumps(value) if isinstance(value, dict) else str(value)


def settings_table(cls: type, prefix: str) -> list[str]:
    """Markdown rows for the settings of one dataclass, groups left out."""
    rows = ["| flag | value | default | meaning |", "| --- | --- | --- | --- |"]
    docs, hints = field_docs(cls), typing.get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        if not dataclasses.is_dataclass(field.default_factory):
            flag = "import" if field.name == "imports" else field.name.replace("_", "-")
            shown = default(field)
            text = docs[field.name].replace("|", "\\|")
            rows.append(f"| `--{prefix}{flag}` | {type_name(hints[field.name])} | {f'`{shown}`' if shown else ''} | {text} |")
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
    return "\n".join([METRICS_HEAD, "| key | meaning |", "| --- | --- |", *rows, ""])


def published_table(table: published.Table) -> str:
    """Markdown: a paper's numbers beside ours."""
    ours = make_config(table.env, table.algorithm, **{"learning.preset": table.preset})
    columns = ["", table.source, *([table.other] if table.other else []), f"ours (`{table.env}`)", "setting", "remark"]
    rows = [columns, ["---"] * len(columns)]
    for number in table.numbers:
        other = [number.other or "the same"] if table.other else []
        value: typing.Any = ours
        for part in number.setting.split(".") if number.setting else ():
            value = getattr(value, part)
        shown = f"{value:,}" if type(value) is int else f"{value:g}" if isinstance(value, float) else str(value)
        setting = [shown, f"`{number.setting}`"] if number.setting else ["", ""]
        differs = "**differs:** " if number.setting and number.value is published.DIFFERS else ""
        rows.append([number.what, number.published, *other, *setting, differs + number.note])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def with_tables(text: str) -> str:
    """A page with its published tables as they are now."""
    for table in published.TABLES:
        mark = f"<!-- published: {table.algorithm} -->"
        made = f"{mark}\n{published_table(table)}\n<!-- end -->"
        text = re.sub(rf"{mark}\n.*?<!-- end -->", lambda _, made=made: made, text, flags=re.DOTALL)  # type: ignore[misc]
    return text


PAGES = {"configuration.md": configuration, "metrics.md": metrics}


def outdated() -> list[str]:
    """Names of pages that are not what would be written now."""
    whole = [name for name, make in PAGES.items() if not (DOCS / name).exists() or (DOCS / name).read_text() != make()]
    return whole + [page.name for page in sorted(DOCS.glob("*.md")) if page.read_text() != with_tables(page.read_text())]


def main() -> int:
    """Write the pages, or check them."""
    if "--check" in sys.argv[1:]:
        stale = outdated()
        print("\n".join(f"docs/{name} is not current: run python docs/generate.py" for name in stale), file=sys.stderr)
        return 1 if stale else 0
    for name, make in PAGES.items():
        (DOCS / name).write_text(make())
    for page in DOCS.glob("*.md"):
        page.write_text(with_tables(page.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
