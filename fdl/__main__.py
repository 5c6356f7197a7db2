"""``python -m fdl``, and the console script: :func:`fdl.cli.entry.main`."""

import sys

from fdl.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
