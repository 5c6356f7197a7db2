"""``example``: run one of the examples."""

from __future__ import annotations

import sys
from pathlib import Path

from fdl.base import output
from fdl.programs.args import FdlArgs, arg
from flodl.hf.commands.places import anchored
from flodl.hf.commands.ready import TINY, ready_source


class Args(FdlArgs):
    """Run an example with its default checkpoint or with yours.

    Without a name, the examples are listed with their checkpoints. Before a download begins, its
    size is printed.
    """

    name: str | None = arg(help="Example to run (default: list the examples)")
    src: str | None = arg(
        help="Repository or directory, instead of the default model; tiny: a tiny random model"
    )
    out: Path | None = arg(help="Folder for what a fine-tuning saves")


def main(args: Args) -> int:
    """Run an example, or list all.

    Returns:
        0, or 2 if there is no example of that name.

    Raises:
        FlodlError: The checkpoint cannot be loaded or does not suit the example.
    """
    from flodl.hf.examples import EXAMPLES, run_example, usual

    if args.name is None:
        width = max(map(len, EXAMPLES))
        lines = (f"{name:<{width}}  {usual(name).repo}\n" for name in EXAMPLES)
        output.write(sys.stdout, "".join(lines))
        return 0
    if args.name not in EXAMPLES:
        from fdl.base.suggest import nearest

        close = nearest(args.name, EXAMPLES)
        hint = f"did you mean `{close}`?" if close else f"examples: {', '.join(EXAMPLES)}"
        output.error(f"no example is called {args.name}", hint)
        return 2
    known = usual(args.name)
    again = f"fdl flodl-hf example {args.name} {TINY}"
    src = ready_source(args.src or known.repo, known.head, again=again, family=known.family)
    run_example(args.name, src, None if args.out is None else anchored(args.out))
    return 0
