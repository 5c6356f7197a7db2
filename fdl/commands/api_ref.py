"""``fdl api-ref``: the reference of flodl's classes and functions."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fdl import output
from fdl.api_ref import as_json, as_text, find, scan

if TYPE_CHECKING:
    from fdl.app import Call


def api_ref(call: Call) -> int:
    """Print the reference; a file that cannot be read costs its own entries alone.

    Raises:
        FdlError: There is no source to read.
    """
    package = find(call.args.path, Path.cwd(), os.environ)
    reference = scan(package)
    for problem in reference.problems:
        output.warning(problem)
    if call.args.json:
        text = as_json(reference)
    else:
        title = f"{package.name} {reference.version}, read from {package}"
        text = as_text(reference, title, output.palette(sys.stdout))
    output.write(sys.stdout, text)
    return 0
