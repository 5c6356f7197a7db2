"""torchrun, whose exit code is that of the rank that failed first.

A program of its own: it runs in the interpreter of the entry, where fdl may not be installed.
torchrun itself ends with 1 whatever a rank ended with, and on a cluster nobody sees the rank.
"""

import runpy
import sys
import traceback

if __name__ == "__main__":
    # As with `python -m`: the folder of this file is not one of the program's.
    sys.path[0] = ""
    try:
        runpy.run_module("torch.distributed.run", run_name="__main__", alter_sys=True)
    except Exception as problem:
        first = getattr(problem, "get_first_failure", None)
        if first is None:
            raise
        traceback.print_exc()
        code = first()[1].exitcode
        sys.exit(code if code > 0 else 128 - code)
