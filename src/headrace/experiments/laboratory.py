"""The laboratory's section of a report: how old experience was, how far off-policy it was learned from, and what that cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.experiments.page import Section
from headrace.experiments.records import Group


def sections(groups: Sequence[Group]) -> Iterator[Section]:
    """Nothing where no run has lag."""
    yield from ()
