"""``convert``: pickled weights -> safetensors."""

from __future__ import annotations

import sys
from pathlib import Path

from fdl.base import output
from fdl.programs.args import FdlArgs, arg, option
from flodl.hf.commands.ready import announce
from flodl.hf.commands.typed import anchored, plain, source


class Args(FdlArgs):
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


def main(args: Args) -> int:
    """Convert, and print where the result is.

    Raises:
        FlodlError: The weights cannot be downloaded or read.
    """
    from flodl.hf.conversion import convert
    from flodl.hf.source import Access

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
