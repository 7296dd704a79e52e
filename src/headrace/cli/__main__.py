"""python -m headrace.cli"""

import sys

from headrace.cli import main

if __name__ == "__main__":
    sys.exit(main())
