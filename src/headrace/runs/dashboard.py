"""The dashboard of a training run: a live screen in a terminal, one plain line per interval elsewhere."""

from __future__ import annotations

import itertools
import math
import re
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headrace.config import Config
from headrace.processes.output import BackgroundOutput, discard, never_waiting, tolerantly
from headrace.runs import bottleneck
from headrace.runs.metrics import OF_NODE
from headrace.shm.phases import PARTS, PHASES

MOST_NODES = 8  # sampling nodes that have a line
MOST_POLICIES = 8  # whose return is shown
_BLOCKS = "▁▂▃▄▅▆▇█"
_CURVE = 60
_MOST_POINTS = 4096  # of the curve that are kept
_COLOURS = ("green", "cyan", "magenta", "blue", "yellow")

LAST_OUTPUT_TIMEOUT = 2.0  # seconds that the end of a run waits for a terminal that was stopped

_BEST = "best return"
_LOSSES = ("policy_loss", "value_loss", "td_error", "q_mean", "entropy", "approx_kl", "clipfrac", "epsilon", "grad_norm")
_FACTS = {
    "Speed": {
        "steps/s": "charts/SPS_interval", "frames/s": "charts/FPS", "overall": "charts/SPS", "faults": "sampling/faults",
    },
    "Returns": {
        "last 100": "charts/episodic_return_100", "best 100": _BEST, "length": "charts/episodic_length",
        "episodes": "charts/episodes",
    },
    "Losses": {name.replace("_", " "): f"losses/{name}" for name in _LOSSES},
    "Policy lag": {name: f"lag/{name}" for name in ("min", "mean", "max", "masked")},
}  # fmt: skip
"""The columns of numbers, with the metric of each line; a loss that was not logged has none."""


@dataclass(frozen=True)
class _Layout:
    """Which parts a screen has."""

    blank_lines: bool = True
    least_share: float = 0.005  # phases that take a smaller share of a part's time are not named
    times: bool = True
    advice: bool = True
    facts: bool = True


_LAYOUTS = (
    _Layout(),
    _Layout(blank_lines=False),
    _Layout(blank_lines=False, least_share=0.05),
    _Layout(blank_lines=False, least_share=0.05, advice=False),
    _Layout(blank_lines=False, times=False),
    _Layout(blank_lines=False, times=False, advice=False),
    _Layout(blank_lines=False, times=False, advice=False, facts=False),
)
"""From the fullest to the one for the lowest terminals."""


class _Screen(Console):
    """A console that survives a closed pipe; by default rich would end this process."""

    def on_broken_pipe(self) -> None:
        discard(self.file)


class Dashboard:
    """Shows the progress of a run: `update` takes the metrics of each interval, `message` a text for the user.

    It never waits for the terminal, which `close` restores.
    """

    def __init__(self, config: Config, console: Console | None = None) -> None:
        self.config = config
        self.console = console or _Screen(file=never_waiting(sys.stdout))
        self.metrics: dict[str, float] = {"sampling/faults": 0.0}
        self.curve((), anew=True)
        self._policies: dict[int, str] = {}  # by policy, its return and rating
        self._ends = math.inf  # when `run.max_minutes` are over (seconds, monotonic)
        self._live: Live | None = None
        if config.run.dashboard and self.console.is_terminal and not self.console.is_dumb_terminal:
            self._live = Live(console=self.console, auto_refresh=False, get_renderable=self._screen)
            self._live.start()

    def begun(self) -> None:
        """Learning has begun: the time limit counts from now on."""
        if self.config.run.max_minutes is not None:
            self._ends = time.monotonic() + 60 * self.config.run.max_minutes

    def update(self, metrics: dict[str, float]) -> None:
        """Show the metrics of one interval. Keys are those of `headrace.runs.metrics.KEYS`; a missing one is not shown."""
        self._take(metrics)
        if self._live is not None:
            tolerantly(self._live.refresh, self.console.file)
        else:
            self.message(self._line())

    def policy(self, policy: int, metrics: dict[str, float]) -> None:
        """Metrics of one of several policies. All else on the screen is of policy 0; the next `update` shows these."""
        elo = f" (Elo {number(metrics['matches/elo'])})" if "matches/elo" in metrics else ""
        self._policies[policy] = f"{number(metrics.get('charts/episodic_return_100', math.nan))}{elo}"

    def picture(self, metrics: dict[str, float]) -> None:
        self._take(metrics)
        tolerantly(lambda: self.console.print(self._screen()), self.console.file)

    def _take(self, metrics: dict[str, float]) -> None:
        self.metrics = {"sampling/faults": 0.0, **metrics, _BEST: self._best}

    def curve(self, returns: Iterable[float], anew: bool = False) -> None:
        """Further points of the curve of mean returns, or with `anew` all so far. The next `update` shows them."""
        if anew:
            self._returns: list[float] = []  # every `_each`th of `_count` points
            self._best, self._count, self._each = math.nan, 0, 1
        for value in returns:
            self._best = value if math.isnan(self._best) else max(self._best, value)
            self._count += 1
            if self._count % self._each == 0:
                self._returns.append(value)
            if len(self._returns) > _MOST_POINTS:
                del self._returns[::2]
                self._each *= 2

    def message(self, text: str) -> None:
        """Show a message; it stays on the terminal, above the live screen."""
        # rich would apply soft wrapping to the live screen as well.
        wrap = self._live is None
        tolerantly(lambda: self.console.print(text, soft_wrap=wrap, markup=False, highlight=False), self.console.file)

    def close(self) -> None:
        """Leave the last screen on the terminal and stop drawing."""
        if self._live is not None:
            tolerantly(self._live.stop, self.console.file)
            self._live = None
        if isinstance(self.console.file, BackgroundOutput):
            self.console.file.drain(LAST_OUTPUT_TIMEOUT)

    # -- what is shown ---------------------------------------------------------------------------------------------

    def _value(self, key: str) -> float:
        return self.metrics.get(key, math.nan)

    @property
    def _step(self) -> int:
        return int(self.metrics.get("global_step", 0))

    @property
    def _seconds_left(self) -> float:
        """Until all steps are done or the time limit is reached, whichever is first. NaN: not known."""
        speed = self._value("charts/SPS_interval")
        steps = (self.config.learning.total_steps - self._step) / speed if speed > 0 else math.inf
        left = max(0.0, min(steps, self._ends - time.monotonic()))
        return left if left < math.inf else math.nan

    def _line(self) -> str:
        parts = [
            time.strftime("%H:%M:%S"),
            f"step {number(self._step)}/{number(self.config.learning.total_steps)}",
            f"{number(self._value('charts/SPS_interval'))} steps/s",
            f"{number(self._value('charts/FPS'))} frames/s",
            f"left {duration(self._seconds_left)}",
            f"return {number(self._value('charts/episodic_return_100'))}",
            "tasks " + ", ".join(f"{name} {value}" for name, value in tasks) if (tasks := self._tasks()) else "",
            "policies " + ", ".join(f"{name} {value}" for name, value in policies) if (policies := self._of_policies()) else "",
            f"lag {number(self._value('lag/mean'))}",
            f"Elo {number(self.metrics['matches/elo'])}" if "matches/elo" in self.metrics else "",
            f"nodes {number(self.metrics['cluster/nodes'])}" if "cluster/nodes" in self.metrics else "",
            f"faults {number(faults)}" if (faults := self.metrics["sampling/faults"]) else "",
            bottleneck.find(self.metrics, self.config).finding,
        ]
        return " | ".join(filter(None, parts))

    def _screen(self) -> RenderableType:
        """The fullest screen that the terminal has room for: rich would cut off the end of a higher one."""
        options = self.console.options
        for layout in _LAYOUTS:
            screen = self._panel(layout)
            if len(self.console.render_lines(screen, options)) <= options.size.height:
                break
        return screen

    def _panel(self, layout: _Layout) -> RenderableType:
        total = self.config.learning.total_steps
        head = Table.grid(padding=(0, 2), expand=True)
        head.add_column(ratio=1)
        head.add_column(justify="right")
        head.add_row(
            ProgressBar(total=total, completed=min(self._step, total)),
            f"{self._step / total:.1%}  {self._step:,} of {total:,} steps  left {duration(self._seconds_left)}",
        )
        parts: list[RenderableType] = [head]
        if layout.facts:
            columns = Table.grid(padding=(0, 4))
            columns.add_row(*map(self._facts, _FACTS))
            parts += [columns]
        parts += [Text.assemble(("return  ", "dim"), (sparkline(self._returns, _CURVE), "green"))]
        for head_of, named in (("tasks   ", self._tasks()), ("policies  ", self._of_policies())):
            if named:
                values = [Text.assemble((f"{name} ", "dim"), f"{value}  ") for name, value in named]
                parts += [Text.assemble((head_of, "dim"), *values)]
        if nodes := self._nodes():
            parts += [Group(*nodes)]
        if layout.times:
            parts += [self._times(layout.least_share)]
        found = bottleneck.find(self.metrics, self.config)
        colour, advice = "yellow" if found.advice else "white", found.advice if layout.advice else ""
        parts += [Text.assemble((found.finding, f"bold {colour}"), " " if advice else "", (advice, "dim"))]
        if layout.blank_lines:
            parts = [line for part in parts for line in (part, Text())][:-1]
        c = self.config
        env = c.env if len(c.tasks) == 1 else f"{len(c.tasks)} tasks"
        title = f"headrace  {env}  {c.learning.algorithm}  seed {c.seed}"
        title += f"  policy 0 of {c.population.size}" if c.population.size > 1 else ""
        return Panel(Group(*parts), title=title, title_align="left", border_style="blue")

    def _facts(self, title: str) -> Table:
        table = Table.grid(padding=(0, 1))
        table.add_row(Text(title, style="bold"))
        for name, key in _FACTS[title].items():
            value = self._value(key)
            if title != "Losses":
                table.add_row(Text(name, style="dim"), Text(number(value), justify="right"))
            elif not math.isnan(value):
                table.add_row(Text(name, style="dim"), Text(f"{value:.4g}", justify="right"))
        return table

    def _tasks(self) -> list[tuple[str, str]]:
        """Of several tasks, the mean return of each and the capped mean score of all; none before an episode has ended."""
        keys = [(task.rpartition("/")[2], f"tasks/{task}/episodic_return") for task in self.config.tasks]
        keys += [("capped mean score", "tasks/capped_mean_score")]
        return [(name, number(self.metrics[key])) for name, key in keys if key in self.metrics]

    def _of_policies(self) -> list[tuple[str, str]]:
        """Of several policies, the mean return of each and its rating; of many, the first."""
        return [(f"{policy}:", value) for policy, value in sorted(self._policies.items())[:MOST_POLICIES]]

    def _nodes(self) -> list[Text]:
        """Of a cluster, a line for each sampling node; of many, the slowest."""
        numbers = [re.fullmatch(r"cluster/node-(\d+)/SPS", key) for key in self.metrics]
        found = [int(number[1]) for number in numbers if number]
        lines = []
        for k in sorted(sorted(found, key=lambda k: self.metrics[f"cluster/node-{k}/SPS"])[:MOST_NODES]):
            of = {name: number(self.metrics.get(f"cluster/node-{k}/{name}", math.nan)) for name in OF_NODE}
            text = f"{of['SPS']} steps/s  {of['MB_per_second']} MB/s  lag {of['lag']}  faults {of['faults']}"
            lines.append(Text.assemble((f"node {k}".ljust(8), "dim"), text))
        return lines

    def _times(self, least_share: float) -> Table:
        """One bar per part: its phases as coloured pieces, with a legend beside the bar of those that take `least_share`."""
        table = Table.grid(padding=(0, 2))
        width = 30 if self.console.width >= 100 else 16
        for part, phases in PHASES.items():
            shares = [(phase, self.metrics.get(f"time/{part}/{name}", 0.0)) for name, phase in phases.items()]
            if not any(share for _, share in shares):
                continue
            bar, legend = Text(), Text()
            for (phase, share), colour in zip(shares, _COLOURS, strict=False):
                bar.append("█" * round(share * width), style="bright_black" if phase.waiting else colour)
                if share >= least_share:
                    legend.append(f"{phase.label} {share:.0%}  ", style="dim" if phase.waiting else colour)
            table.add_row(Text(PARTS[part], style="bold"), bar, legend)
        return table


def number(value: float) -> str:
    """A number for people: 1,234 for whole numbers, three digits or more for others, a dash for NaN."""
    if math.isnan(value):
        return "-"
    if abs(value) >= 1e6:
        return f"{value / 1e6:,.2f}M"
    if abs(value) >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def duration(seconds: float) -> str:
    """Seconds as 3:05 or 2:03:05; a dash for NaN."""
    if math.isnan(seconds):
        return "-"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def sparkline(values: Iterable[float], width: int) -> str:
    """The values as a curve of block characters, at most `width` wide; each character shows the mean of its section."""
    points = list(values)
    if len(points) > width:
        cuts = [round(i * len(points) / width) for i in range(width + 1)]
        points = [sum(points[a:b]) / (b - a) for a, b in itertools.pairwise(cuts)]
    low, high = min(points, default=0.0), max(points, default=0.0)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((p - low) * scale)] for p in points)
