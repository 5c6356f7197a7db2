#!/usr/bin/env python3
"""Write fdl/cli/builtin_table.py: what the built-in commands take, read from Typer functions.

``commands.py`` writes the file, ``commands.py --check`` fails when it is out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

FILE = Path(__file__).resolve().parent.parent / "fdl/cli/builtin_table.py"

HEAD = '''\
"""What each built-in command takes, in the form of ``--fdl-schema``.

Made by `python scripts/commands.py` from the Typer functions; do not edit.
Completion, help, the reference and ``--fdl-schema`` read it, so that they need not load Typer.
"""

from __future__ import annotations

# fmt: off
# ruff: noqa: E501

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

'''


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    """The words of every built-in command, and its document; groups before their commands."""
    from typer.main import get_command

    from fdl.app import app
    from fdl.manifest.builtins import BUILTINS
    from scripts.typer_schema import schema

    def below(command: Any, names: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
        yield " ".join(names), schema(command)
        for name, child in getattr(command, "commands", {}).items():
            yield from below(child, (*names, name))

    root: Any = get_command(app)
    for name in BUILTINS:
        yield from below(root.get_command(None, name), (name,))


def table() -> str:
    """The text of the file: one line per command."""
    rows = "".join(f"    {name!r}: {document!r},\n" for name, document in documents())
    return f"{HEAD}TABLE: dict[str, dict[str, Any]] = {{\n{rows}}}\n"


def main() -> int:
    """Write or check the file; the exit code is 1 when a check finds it out of date."""
    text = table()
    if "--check" not in sys.argv[1:]:
        FILE.write_text(text, encoding="utf-8")
    elif FILE.read_text(encoding="utf-8") != text:
        sys.stderr.write(
            "error: fdl/cli/builtin_table.py is out of date\nrun: python scripts/commands.py\n"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
