"""``verify-export``: check an exported directory."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Self

from pydantic import model_validator

from fdl.base import output
from fdl.programs.args import FdlArgs, arg, option
from flodl.hf.commands.typed import anchored, plain, source
from flodl.hf.errors import MissingDependencyError


class Args(FdlArgs):
    """Check an exported directory: keys and shapes, transformers, its source, its outputs."""

    directory: Path = arg(help="Directory that export has written")
    hub_source: str | None = option(
        help="Source of the export: repository or directory (default: from its configuration)"
    )
    no_hub_source: bool = option(help="Leave out the comparison with a source")
    prompt: str = option(default="fab2s writes Rust", help="Text to compare the outputs on")
    structural: bool = option(help="Check without transformers: only keys, shapes and loading")
    json: bool = option(help="Print one JSON document")  # type: ignore[assignment]

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.hub_source is not None and self.no_hub_source:
            raise ValueError("--hub-source and --no-hub-source exclude each other")
        return self


def main(args: Args) -> int:
    """Run the checks, and print which passed and which failed.

    Args:
        args: The arguments.

    Returns:
        0 if all checks pass, 1 if one fails.

    Raises:
        FlodlError: The directory or its source cannot be read.
    """
    from flodl.hf.verify import verify_export

    try:
        report = verify_export(
            anchored(args.directory),
            source=None if args.hub_source is None else source(args.hub_source),
            compare_source=not args.no_hub_source,
            prompt=args.prompt,
            structural=args.structural,
        )
    except MissingDependencyError as missing:
        if args.structural:
            raise
        raise MissingDependencyError(f"{missing}, or check without it: --structural") from None
    text = json.dumps(report.as_json(), indent=2) + "\n" if args.json else plain(report.as_text())
    output.write(sys.stdout, text)
    return 0 if report.passed else 1
