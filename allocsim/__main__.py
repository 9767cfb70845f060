"""Entry point of `python -m allocsim`."""

import sys

from allocsim.cli import main

if __name__ == "__main__":
    sys.exit(main())
