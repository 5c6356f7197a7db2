#!/usr/bin/env python3
"""Record a terminal for the README: ``terminal_picture.py docs/images/terminal.svg``.

Types the commands of a newcomer on a pseudo-terminal of 80 columns, in a folder of its own, and
writes what appears as an SVG file. Long pages are cut after some lines.
"""

from __future__ import annotations

import argparse
import getpass
import io
import re
import sys
import tempfile
from pathlib import Path

from rich.console import CONSOLE_SVG_FORMAT, Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.session import Answer, Session

COMMANDS = {
    "fdl init demo": 4,
    "cd demo": 0,
    "fdl --help": 16,
    "fdl --dry-run train quick": 18,
    "fdl config show train quick": 24,
    "fdl why training.lr train quick": 10,
}
"""What is typed, and the lines that are shown of each."""

WIDTH = 80
# The page of a README may not load fonts.
FORMAT = re.sub(r"@font-face {{.*?}}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


def picture() -> str:
    """The session as SVG."""
    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), color_system="truecolor", no_color=False
    )
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        home = Path(folder, "home")
        home.mkdir()
        session = Session(Path(folder), home)
        for line, most in COMMANDS.items():
            output = public(session.type(line), folder)
            console.print(Text.assemble(("$ ", "green"), (line, "bold")))
            shown = Text.from_ansi(output).split("\n")
            for text in shown[:most] if output else ():
                console.print(text, overflow="fold")
            if len(shown) > most > 0:
                console.print("⋮", style="dim")
            if most:
                console.print()
    return console.export_svg(title="fdl", theme=MONOKAI, code_format=FORMAT, unique_id="terminal")


def public(answer: Answer, folder: str) -> str:
    """What a command printed, with its folder as that of a reader; stops if it failed."""
    if answer.exit:
        sys.exit(f"error: `{answer.line}` ended with exit code {answer.exit}\n{answer.raw}")
    user = getpass.getuser()
    # Every machine has a root.
    output = answer.raw.replace(folder, "/home/me").replace("\r\n", "\n").rstrip()
    for private in (str(Path.home()), *((user,) if user != "root" else ())):
        if re.search(rf"(?<!\w){re.escape(private)}(?!\w)", output):
            sys.exit(f"error: the output of `{answer.line}` contains {private}\n{output}")
    return output


def main() -> int:
    """Write the picture; the exit code is 0."""
    parser = argparse.ArgumentParser(description="Record a terminal for the README.")
    parser.add_argument("picture", type=Path, help="SVG file to write")
    wanted = parser.parse_args()
    svg = picture()
    wanted.picture.parent.mkdir(parents=True, exist_ok=True)
    wanted.picture.write_text(svg, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
