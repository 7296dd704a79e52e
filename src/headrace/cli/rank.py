"""`python -m headrace.cli.rank`: a learner rank of a cluster, other than the first, that an engine starts."""

from __future__ import annotations

import sys

from headrace import cluster
from headrace.config.errors import UserError
from headrace.processes.start import start_fork_server


def main() -> int:
    """Learn until the run ends; returns the exit code."""
    cluster.check_transport()
    from headrace.cluster.engines.member_process import read_assignment
    from headrace.cluster.rank import joined

    link, imports, rank = read_assignment()
    start_fork_server()
    try:
        with joined(link, rank, imports) as config:
            from headrace.train import train

            train(config)
    except UserError as error:
        print(f"headrace: learner rank {rank}: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
