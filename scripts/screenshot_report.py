"""Take a picture of a report page: ``python scripts/screenshot_report.py report.html out.png``.

Needs Chromium or Chrome on PATH.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description="Take a picture of a report page.")
    parser.add_argument("report", type=Path, help="report.html of a run")
    parser.add_argument("picture", type=Path, help="PNG file to write")
    parser.add_argument("--width", type=int, default=1400, help="pixels (default 1400)")
    parser.add_argument("--height", type=int, default=1240, help="pixels (default 1240)")
    parser.add_argument("--dark", action="store_true", help="dark colours instead of light ones")
    wanted = parser.parse_args()
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        sys.exit(f"error: no browser on PATH; install one of {', '.join(BROWSERS)}")
    if not wanted.report.is_file():
        sys.exit(f"error: {wanted.report} does not exist; pass the report.html of a run")
    wanted.picture.parent.mkdir(parents=True, exist_ok=True)
    picture = wanted.picture.absolute()
    with tempfile.TemporaryDirectory() as profile:
        command = [
            browser,
            *FLAGS,
            f"--user-data-dir={profile}",
            # Chromium numbers the schemes: 0 is dark, 1 is light.
            f"--blink-settings=preferredColorScheme={0 if wanted.dark else 1}",
            f"--window-size={wanted.width},{wanted.height}",
            f"--screenshot={picture}",
            wanted.report.absolute().as_uri(),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not picture.is_file():
        sys.exit(f"error: {browser} took no picture:\n{done.stderr}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
