"""``info``: describe a checkpoint."""

from __future__ import annotations

import json
import sys

from fdl.base import output
from fdl.programs.args import FdlArgs, arg, option
from flodl.hf.commands.typed import plain, source


class Args(FdlArgs):
    """Print the family, head, tensors and dtypes of a checkpoint, and whether its keys fit.

    Reads only the configuration and the headers of the weights.
    """

    src: str = arg(help="Repository or directory")
    revision: str | None = option(help="Branch, tag or commit of a repository")
    json: bool = option(help="Print one JSON document")  # type: ignore[assignment]


def main(args: Args) -> int:
    """Print the report.

    Raises:
        FlodlError: The checkpoint cannot be downloaded, or is broken.
    """
    from flodl.hf.info import inspect_checkpoint
    from flodl.hf.source import Access

    src = source(args.src, args.revision)
    found = inspect_checkpoint(src, Access(revision=args.revision))
    text = json.dumps(found.as_json(), indent=2) + "\n" if args.json else plain(found.as_text())
    output.write(sys.stdout, text)
    return 0
