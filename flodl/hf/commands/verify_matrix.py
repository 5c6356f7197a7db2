"""``verify-matrix``: export and verify one model of every family with every head."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pydantic import ValidationInfo, field_validator

from fdl.base import output
from fdl.programs.args import FdlArgs, option
from flodl.hf.commands.typed import anchored
from flodl.hf.matrix import FAMILIES, HEADS


class Args(FdlArgs):
    """Export and verify one model of every family with every head, and print the grid.

    A failed cell does not stop the others.
    """

    families: list[str] = option(help=f"Families by commas (default: all): {', '.join(FAMILIES)}")
    heads: list[str] = option(help=f"Heads by commas (default: all): {', '.join(HEADS)}")
    keep: bool = option(help="Keep the exported directories")
    staging_dir: Path | None = option(help="Folder for the exports (default: a temporary one)")
    synthetic: bool = option(help="Use small random models, and no network")
    jobs: int = option(default=1, help="Cells to verify at the same time")
    json: bool = option(help="Print one JSON document")  # type: ignore[assignment]

    @field_validator("families", "heads")
    @classmethod
    def _known(cls, names: list[str], info: ValidationInfo) -> list[str]:
        allowed = FAMILIES if info.field_name == "families" else HEADS
        for name in names:
            if name not in allowed:
                raise ValueError(f"{name} is not one of {', '.join(allowed)}")
        return names

    @field_validator("jobs")
    @classmethod
    def _at_least_one(cls, jobs: int) -> int:
        if jobs < 1:
            raise ValueError("it must be at least 1")
        return jobs


def main(args: Args) -> int:
    """Run the cells and print the grid.

    Returns:
        0 if every cell passed, else 1.

    Raises:
        FlodlError: transformers is not installed.
    """
    from flodl.hf.matrix import verify_matrix

    grid = verify_matrix(
        families=tuple(args.families) or FAMILIES,
        heads=tuple(args.heads) or HEADS,
        synthetic=args.synthetic,
        staging=None if args.staging_dir is None else anchored(args.staging_dir),
        keep=args.keep,
        jobs=args.jobs,
        progress=output.note,
    )
    text = json.dumps(grid.as_json(), indent=2) + "\n" if args.json else grid.as_text()
    output.write(sys.stdout, text)
    return 0 if grid.passed else 1
