"""`python -m tarry` is the command `tarry`. Nothing else belongs here."""

import sys

from tarry.cli import main

if __name__ == "__main__":
    sys.exit(main())
