"""Writes the pages of `docs/` that are lists of what is in the code, configuration.md and metrics.md, and the tables of published
settings in other pages, each between `<!-- published: ALGORITHM -->` and `<!-- end -->`.

"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
import typing
from pathlib import Path

import published

from headrace import config
from headrace.cli import help
from headrace.make_config import make_config
from headrace.runs.metrics import KEYS

DOCS = Path(__file__).parent

CONFIGURATION_HEAD = """# Configuration

Every setting of a run is a flag of `headrace train`, and a field of a dataclass in [`headrace.config`](../src/headrace/config/__init__.py).
`headrace train --env ENV --help` shows the settings that people change most, with the defaults for one environment; `--help learning` shows a group,
`--help-all` everything.

- A flag is `--group.name VALUE`, with dashes or underscores. The group may be omitted if only one group has the name:
  `--num-workers 4`.
- A switch is turned on by `--run.video` and off by `--run.no-video`.
- The values of a list are separated by spaces: `--policy.mlp 64 64`.
- The value None is written `None`.

A setting takes its value from the last of these sources that has one:

1. the default below;
2. the defaults of the environment;
3. the defaults of the algorithm and its preset ([`learning/presets/`](../src/headrace/learning/presets));
4. what `headrace tune ENV` found for this machine;
5. `config.json` in the run folder, if the run is resumed;
6. the flags.

In Python the arguments of `headrace.make_config`, and changes of its result, count as flags; source 4 is for the command
line only. `headrace.train` resumes the run in the folder with its saved settings; only settings that are given now replace them. Settings
that the saved weights depend on, such as the network's, cannot change any more once there is a checkpoint. A folder whose `config.json` does not fit this
version of Headrace is refused, with the reason.

A *step* is one decision of one agent. A *frame* is one frame of the simulator (steps x frameskip).
"""

METRICS_HEAD = """# Metrics

Every `--run.log-interval` seconds a run adds one line to `metrics.jsonl` in the run folder. The same values go to TensorBoard
(`tensorboard --logdir runs`) and, with `--run.track`, to Weights & Biases. The x axis is always `global_step`.

- A mean is taken over the updates of the interval; `lag/min` and `lag/max` are the smallest and the largest lag of the interval.
- A key is absent if its value is unknown, for instance a return before the first episode has ended.
- A share of time (`time/<part>/<phase>`) refers to all processes of that part. The shares of a part add up to 1.
- Every line also has `time`, the time at which it was measured (seconds since 1970).
- An evaluation (`eval/...`) has a line of its own, at the step of the policy that was evaluated.
- `curve.jsonl` is the learning curve, from which `curve.png` is drawn. It has up to 20 points per interval, one a line: `global_step` and, of the last
  100 episodes, the `mean` return and the returns that a tenth of them are below (`low`) and above (`high`).
- A resumed run repeats the steps after its checkpoint. The earlier lines of these steps are removed from `metrics.jsonl` and
  `curve.jsonl`, and their points are hidden in TensorBoard.

Special cases:

- Several policies: each has these files in its own folder, and a run of its own in Weights & Biases. `population/reward.NAME` is the weight NAME of a
  shaped reward.
- [Several tasks](multi-task.md#statistics): `tasks/ID/...` are of the task with this id, `eval/tasks/...` those of an evaluation.
  `charts/episodic_return_100` is the mean over the tasks; `low` and `high` of the curve are the smallest and the largest mean return of a task.
- Several agents: `agents/NAME/episodic_return` is the mean return of the episodes of this agent that have ended in
  the interval and that the policy acted in; `charts/...` are of all agents that it acted for.
- Weights & Biases: with `WANDB_MODE=offline` nothing is sent, and `wandb sync RUN/wandb/offline-run-*` sends it later; `WANDB_ENTITY` is the team. If it
  fails during training, a message says so, and training goes on without it.
"""


def settings_table(tree: typing.Any, prefix: str = "") -> list[str]:
    """Markdown rows for the settings of one group."""
    rows = ["| flag | value | default | meaning |", "| --- | --- | --- | --- |"]
    for setting in help.settings(tree, prefix):
        kind, text = (words.replace("|", "\\|") for words in (setting.type, setting.text))
        rows.append(f"| `{setting.flag}` | {kind} | {f'`{setting.value}`' if setting.value else ''} | {text} |")
    return rows


def configuration() -> str:
    """configuration.md."""
    whole = config.Config()
    groups = [field.name for field in dataclasses.fields(whole) if dataclasses.is_dataclass(getattr(whole, field.name))]
    rows = [row for row in settings_table(whole) if not row.startswith("| `--") or "." not in row.split("`")[1]]
    parts = [CONFIGURATION_HEAD, "## The run\n", "\n".join(rows), ""]
    for name in groups:
        group = getattr(whole, name)
        title = f"## `{name}`\n\n{' '.join((type(group).__doc__ or '').split())}\n"
        parts += [title, "\n".join(settings_table(group, f"{name}.")), ""]
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
        unlike = number.setting and number.value is published.DIFFERS
        differs = "**differs:** " if unlike else ""
        rows.append([number.what, number.published, *other, *setting, differs + number.note])
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |" for cells in rows)


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a page is not current")
    if parser.parse_args().check:
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
