"""Typed command-line arguments for any Python program.

    class Args(FdlArgs):
        \"\"\"Train a classifier.\"\"\"

        epochs: int = option(default=10, help="Passes over the data")
        data: Path = arg(help="Folder with the images")

    args = Args.parse_or_schema()

One class gives parsing, ``--help``, environment fall-back, suggestions for typos, and the
``--fdl-schema`` JSON that ``fdl`` reads for its own help and completion. ``DdpArgs``
brings the flags of a training on several devices along. What programs with other parsers take is
read from their source.
"""

from importlib import import_module

__all__ = ["DdpArgs", "FdlArgs", "FdlArgsError", "arg", "option"]

# The parser below this package serves the command line itself, which must not pay for pydantic.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from fdl.programs.args._base import FdlArgs, FdlArgsError
    from fdl.programs.args._fields import arg, option
    from fdl.programs.args.ddp import DdpArgs

_HOMES = {
    "DdpArgs": "ddp", "FdlArgs": "_base", "FdlArgsError": "_base", "arg": "_fields",
    "option": "_fields",
}  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'fdl.programs.args' has no attribute {name!r}")
    return getattr(import_module(f"fdl.programs.args.{_HOMES[name]}"), name)
