"""``export``: write a directory that any Hugging Face tool loads."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal, Self

from pydantic import model_validator

from fdl.base import output
from fdl.programs.args import FdlArgs, option
from flodl.hf.commands.ready import announce
from flodl.hf.commands.typed import anchored, plain, source
from flodl.hf.head_kind import HeadKind


class Args(FdlArgs):
    """Write a model as a directory that any Hugging Face tool loads.

    The model comes from the Hub, or from a checkpoint of a training.
    """

    hub: str | None = option(help="Repository, or a directory like one")
    checkpoint: Path | None = option(help="Checkpoint written by save_checkpoint: model.fdl")
    out: Path | None = option(help="Directory to write (required)")
    head: Literal["auto", "base", "seqcls", "tokcls", "qa", "mlm"] | None = option(
        help="With --hub: head to build; auto (default) reads it from the configuration"
    )
    config: Path | None = option(
        help="With --checkpoint: configuration, if none is beside the file"
    )
    revision: str | None = option(help="With --hub: branch, tag or commit")
    dtype: Literal["float32", "float16", "bfloat16", "float64"] | None = option(
        help="Type of all tensors (default: unchanged)"
    )
    max_shard_size: str | None = option(
        help="Split the weights into files of at most this size: 5GB, 200MB"
    )
    preserve_source_config: bool = option(
        help="With --checkpoint: keep the configuration it was trained from as config.source.json"
    )
    force: bool = option(help="Replace the files of an earlier export")

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.hub is None and self.checkpoint is None:
            raise ValueError("--hub or --checkpoint is missing: where the model comes from")
        if self.hub is not None and self.checkpoint is not None:
            raise ValueError("--hub and --checkpoint exclude each other")
        if self.out is None:
            raise ValueError("--out is missing: the directory to write")
        if self.max_shard_size is not None:
            from flodl.hf.weights.writing import shard_bytes

            shard_bytes(self.max_shard_size)
        foreign = (
            {"--config": self.config, "--preserve-source-config": self.preserve_source_config}
            if self.checkpoint is None
            else {"--head": self.head, "--revision": self.revision}
        )
        given = [flag for flag, value in foreign.items() if value]
        if given:
            other = "--checkpoint" if self.checkpoint is None else "--hub"
            raise ValueError(f"{given[0]} belongs to {other}")
        return self


def main(args: Args) -> int:
    """Export, and print what was written.

    Raises:
        FlodlError: The model cannot be loaded, or the outputs exist already.
    """
    from flodl.hf.export import export_command
    from flodl.hf.source import Access

    hub = None if args.hub is None else source(args.hub, args.revision)
    if hub is not None:
        announce(hub, Access(revision=args.revision), companions=True)
    report = export_command(
        hub=hub,
        checkpoint=None if args.checkpoint is None else anchored(args.checkpoint),
        out=anchored(args.out or ""),
        head=None if args.head in (None, "auto") else HeadKind(args.head),
        config=None if args.config is None else anchored(args.config),
        revision=args.revision,
        dtype=args.dtype,
        max_shard_size=args.max_shard_size,
        preserve_source_config=args.preserve_source_config,
        force=args.force,
    )
    for line in report.notes:
        output.note(plain(line))
    output.write(sys.stdout, report.as_text())
    return 0
