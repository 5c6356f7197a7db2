"""Side-by-side measurements, one file per claim.

Python keeps what it compiles, also where it is told to keep nothing: who installs flodl has
compiled files, and a run without them measures the compiler.
"""

import os
import sys

if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    sys.dont_write_bytecode = False
