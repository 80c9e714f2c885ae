"""`python -m dnnclient`: the same as the command `dnnclient`."""

import sys

from dnnclient.cli import main

if __name__ == "__main__":
    sys.exit(main())
