"""`python -m headrace.cluster`: a sampling node that an engine starts."""

import sys

from headrace.cluster import check_transport
from headrace.config import ConfigError

if __name__ == "__main__":
    try:
        check_transport()
    except ConfigError as error:
        sys.exit(f"headrace: sampling node: {error}")
    from headrace.cluster.node import main

    sys.exit(main())
