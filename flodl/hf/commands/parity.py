"""``parity``: compare the outputs of flodl and transformers."""

from __future__ import annotations

import sys
from pathlib import Path

from pydantic import field_validator

from fdl.base import output
from fdl.programs.args import FdlArgs, arg, option
from flodl.hf.commands.typed import anchored
from flodl.hf.matrix import cells_named


class Args(FdlArgs):
    """Compare the outputs of flodl with those of transformers, and write them as fixtures."""

    cell: str = arg(help="bert, bert-seqcls, albert-mlm, ..., or all")
    synthetic: bool = option(help="Use small random models, and no network")
    out: Path | None = option(help="Folder that gets one fixture per cell")

    @field_validator("cell")
    @classmethod
    def _known_cell(cls, name: str) -> str:
        cells_named(name)
        return name


def main(args: Args) -> int:
    """Compare, and print the differences.

    Returns:
        0 if all differences are small enough, else 1.

    Raises:
        FlodlError: transformers is not installed, or a model cannot be obtained.
    """
    from flodl.hf.parity import parity

    report = parity(
        cells_named(args.cell),
        synthetic=args.synthetic,
        out=None if args.out is None else anchored(args.out),
    )
    output.write(sys.stdout, report.as_text())
    return 0 if report.passed else 1
