"""`python -m lmrep`: the command line."""

import sys

from lmrep.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
