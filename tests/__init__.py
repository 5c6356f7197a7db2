"""The tests: what they import is compiled once, also where Python is told to keep nothing."""

import os
import sys

# To compile the tests takes twice as long as to collect them, and thousands start programs.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    sys.dont_write_bytecode = False
