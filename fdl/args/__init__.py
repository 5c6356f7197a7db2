"""Typed command-line arguments for any Python program.

    class Args(FdlArgs):
        \"\"\"Train a classifier.\"\"\"

        epochs: int = option(default=10, help="Passes over the data")
        data: Path = arg(help="Folder with the images")

    args = Args.parse_or_schema()

One class gives parsing, ``--help``, environment fall-back, suggestions for typos, and the
``--fdl-schema`` JSON that ``fdl`` reads for its own help and completion.
"""

from fdl.args._base import FdlArgs as FdlArgs
from fdl.args._base import FdlArgsError as FdlArgsError
from fdl.args._fields import arg as arg
from fdl.args._fields import option as option

__all__ = ["FdlArgs", "FdlArgsError", "arg", "option"]
