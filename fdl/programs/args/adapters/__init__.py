"""Schemas of programs that parse their arguments with something other than FdlArgs.

    parser = argparse.ArgumentParser()
    ...
    expose(parser)
    args = parser.parse_args()

One line; without ``--fdl-schema`` on the command line it does nothing.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from fdl.programs.args.adapters.draft import Draft


def expose(target: object, argv: Sequence[str] | None = None) -> None:
    """Make a program answer ``--fdl-schema``: print the schema of its arguments and exit 0.

    Without the flag the program continues unchanged. Call it before anything is parsed.

    Args:
        target: What declares the arguments: an ``argparse.ArgumentParser``, a click command or
            group, a ``typer.Typer`` or the function behind ``typer.run``, or a dataclass whose
            fields are flags.
        argv: The arguments; ``sys.argv`` when omitted.

    Raises:
        TypeError: The target is not one of these.
    """
    draw = _adapter(target)
    from fdl.programs.parameters.document import answer, is_asked

    if not is_asked(list(sys.argv[1:] if argv is None else argv)):
        return
    from fdl.programs.args.adapters.draft import Draft
    from fdl.programs.parameters.contract import parse

    draft = Draft()
    draw(draft)
    document = draft.document()
    # What fdl would refuse must not come out: its cache would remember a program without schema.
    parse(document)
    answer(document)


def _adapter(target: Any) -> Callable[[Draft], None]:
    """What draws the target, found by the names of its classes: nothing is imported for it."""
    if isinstance(target, type):
        if hasattr(target, "__dataclass_fields__"):
            from fdl.programs.args.adapters.dataclass import draw_dataclass

            return lambda draft: draw_dataclass(draft, target)
    elif _is_a(target, "argparse", "ArgumentParser"):
        from fdl.programs.args.adapters.argparse import draw_parser

        return lambda draft: draw_parser(draft, target)
    elif _is_a(target, "click", "Command") or _is_a(target, "typer", "Command"):
        from fdl.programs.args.adapters.click import draw_command

        return lambda draft: draw_command(draft, target)
    elif "typer" in sys.modules and (
        _is_a(target, "typer", "Typer") or hasattr(target, "__code__")
    ):
        from fdl.programs.args.adapters.click import draw_command, typer_command

        return lambda draft: draw_command(draft, typer_command(target))
    raise TypeError(
        f"expose({target!r}): pass an argparse parser, a click command, a typer app or function, "
        "or a dataclass"
    )


def _is_a(target: object, package: str, name: str) -> bool:
    """Whether one of an object's classes is ``name`` of a package."""
    return any(
        base.__name__ == name and base.__module__.partition(".")[0] == package
        for base in type(target).__mro__
    )
