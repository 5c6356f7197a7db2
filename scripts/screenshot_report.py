#!/usr/bin/env python3
"""Take a picture of a report page: ``screenshot_report.py report.html out.png``.

Uses the browser of the page tests, so it needs Chromium or Chrome on PATH.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.browser.chromium import NAMES, Browser, find


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description="Take a picture of a report page.")
    parser.add_argument("report", type=Path, help="report.html of a run")
    parser.add_argument("picture", type=Path, help="PNG file to write")
    parser.add_argument("--width", type=int, default=1400, help="pixels (default 1400)")
    parser.add_argument("--height", type=int, default=1240, help="pixels (default 1240)")
    parser.add_argument("--dark", action="store_true", help="dark colours instead of light ones")
    wanted = parser.parse_args()
    binary = find()
    if binary is None:
        sys.exit(f"error: no browser on PATH; install one of {', '.join(NAMES)}")
    if not wanted.report.is_file():
        sys.exit(f"error: {wanted.report} does not exist; pass the report.html of a run")
    wanted.picture.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(binary, Path(profile))
        try:
            browser.open(
                wanted.report.absolute(),
                width=wanted.width,
                height=wanted.height,
                dark=wanted.dark,
            )
            browser.screenshot(wanted.picture)
        finally:
            browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
