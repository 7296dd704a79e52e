"""The laboratory's section of a report: how old experience was, how far off-policy it was learned from, and what that cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from headrace.experiments.page import Section

if TYPE_CHECKING:
    from headrace.experiments.report import Group


def sections(groups: Sequence[Group]) -> Iterator[Section]:
    """Nothing where no run has lag."""
    yield from ()
