"""The commands of ``fdl flodl-hf``: each reads its arguments, calls a function and prints.

What computes is imported when a command runs, because help must not wait for torch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ValidationInfo, field_validator, model_validator

from fdl.base import output
from fdl.programs.args import FdlArgs, arg, option
from flodl.hf.errors import MissingDependencyError
from flodl.hf.head_kind import HeadKind
from flodl.hf.matrix import FAMILIES, HEADS
from flodl.hf.ready import anchored, announce, plain, source
from flodl.hf.source import Access


def _print(found: Any, *, as_json: bool) -> None:
    text = json.dumps(found.as_json(), indent=2) + "\n" if as_json else plain(found.as_text())
    output.write(sys.stdout, text)


class ConvertArgs(FdlArgs):
    """Turn the pickled weights of a checkpoint into one safetensors file.

    No code in the pickle is run. The result for a repository is kept beside the Hub's cache, where
    loading finds it. The result for a directory or file is model.safetensors beside it.
    """

    src: str = arg(help="Repository, directory, or .bin file")
    revision: str | None = option(help="Branch, tag or commit of a repository")
    out: Path | None = option(
        help="Folder for model.safetensors, configuration and tokenizer (default: as above)"
    )
    force: bool = option(help="Convert again, even if the result exists")


def convert_command(args: ConvertArgs) -> int:
    """Convert, and print where the result is.

    Raises:
        FlodlError: The weights cannot be downloaded or read.
    """
    from flodl.hf.conversion import convert

    out = None if args.out is None else anchored(args.out)
    access = Access(revision=args.revision)
    src = source(args.src, args.revision)
    announce(src, access, pickles=True, companions=out is not None)
    done = convert(src, out=out, force=args.force, access=access)
    for line in done.notes:
        output.note(plain(line))
    if done.written:
        sys.stdout.write(f"{done.path}: {done.tensors} tensors\n")
    else:
        sys.stdout.write(f"{done.path}: there already, --force converts again\n")
    return 0


class ExportArgs(FdlArgs):
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


def export_command(args: ExportArgs) -> int:
    """Export, and print what was written.

    Raises:
        FlodlError: The model cannot be loaded, or the outputs exist already.
    """
    from flodl.hf.export import export_command

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


class InfoArgs(FdlArgs):
    """Print the family, head, tensors and dtypes of a checkpoint, and whether its keys fit.

    Reads only the configuration and the headers of the weights.
    """

    src: str = arg(help="Repository or directory")
    revision: str | None = option(help="Branch, tag or commit of a repository")
    json: bool = option(help="Print one JSON document")  # type: ignore[assignment]


def info_command(args: InfoArgs) -> int:
    """Print the report.

    Raises:
        FlodlError: The checkpoint cannot be downloaded, or is broken.
    """
    from flodl.hf.info import inspect_checkpoint

    src = source(args.src, args.revision)
    found = inspect_checkpoint(src, args.revision)
    _print(found, as_json=args.json)
    return 0


class VerifyExportArgs(FdlArgs):
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


def verify_export_command(args: VerifyExportArgs) -> int:
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
    _print(report, as_json=args.json)
    return 0 if report.passed else 1


class VerifyMatrixArgs(FdlArgs):
    """Export and verify one model of every family with every head, and print the grid.

    A failed cell does not stop the others.
    """

    families: list[str] = option(help=f"Families by commas (default: all): {', '.join(FAMILIES)}")
    heads: list[str] = option(help=f"Heads by commas (default: all): {', '.join(HEADS)}")
    keep: bool = option(help="Keep the exported directories")
    staging_dir: Path | None = option(help="Folder for the exports (default: a temporary one)")
    synthetic: bool = option(help="Use small random models, and no network")
    json: bool = option(help="Print one JSON document")  # type: ignore[assignment]

    @field_validator("families", "heads")
    @classmethod
    def _known(cls, names: list[str], info: ValidationInfo) -> list[str]:
        allowed = FAMILIES if info.field_name == "families" else HEADS
        for name in names:
            if name not in allowed:
                raise ValueError(f"{name} is not one of {', '.join(allowed)}")
        return names


def verify_matrix_command(args: VerifyMatrixArgs) -> int:
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
        progress=output.note,
    )
    _print(grid, as_json=args.json)
    return 0 if grid.passed else 1


COMMANDS: Mapping[str, tuple[type[FdlArgs], Callable[[Any], int]]] = {
    "convert": (ConvertArgs, convert_command),
    "export": (ExportArgs, export_command),
    "info": (InfoArgs, info_command),
    "verify-export": (VerifyExportArgs, verify_export_command),
    "verify-matrix": (VerifyMatrixArgs, verify_matrix_command),
}
"""The arguments of each command, and the function that takes them."""
