"""The words of an entry -> the words that start it once per rank, through torchrun.

The options are those of ``torch.distributed.run``
(https://docs.pytorch.org/docs/stable/elastic/run.html).
"""

# pathlib would add to the start of a command.
# ruff: noqa: PTH118, PTH119, PTH120
from __future__ import annotations

import os

from fdl.base.light_record import Record
from fdl.base.slurm_task import is_one_of_several

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fdl.plan.value import Ranks


_MODULE = "torch.distributed.run"
LAUNCHER = os.path.join(os.path.dirname(__file__), "rank_launcher.py")

_VALUED = ("-W", "-X", "--check-hash-based-pycs")
# torchrun itself starts every rank with this flag.
_IMPLIED = "-u"


class Program(Record):
    """A Python program as an entry writes it: ``python -O main.py --fast``.

    Attributes:
        python: The interpreter.
        flags: The interpreter's own options.
        module: Whether ``target`` is the name of a module, not a file.
        target: The script or module.
        arguments: The arguments after it.
    """

    python: str
    flags: list[str]
    module: bool
    target: str
    arguments: list[str]

    def started(self, options: Sequence[str], *, contained: bool = False) -> list[str]:
        """The whole command line, with these options of torchrun.

        Without the ``--``, torchrun compares the program's own flags with the beginnings of its
        options: ``--rdzv`` and ``--log`` begin several of them, and that is an error.

        Args:
            options: The options.
            contained: Whether it runs in a container, where fdl has no files.
        """
        start = [self.python, *(["-m", _MODULE] if contained else [LAUNCHER]), *options]
        flags = [flag for flag in self.flags if flag != _IMPLIED]
        if flags:
            # torchrun would start the ranks without these flags. So it gets the whole command.
            named = ["-m", self.target] if self.module else [self.target]
            return [*start, "--no-python", "--", self.python, *flags, *named, *self.arguments]
        named = ["--module", "--", self.target] if self.module else ["--", self.target]
        return [*start, *named, *self.arguments]


def read(words: Sequence[str]) -> Program | None:
    """The program of ``python [flags] script.py …`` or ``python [flags] -m module …``.

    Returns:
        None for all other forms: another program, ``python -c``, several flags in one word.
    """
    if not words or not os.path.basename(words[0]).startswith("python"):
        return None
    flags: list[str] = []
    rest = list(words[1:])
    while rest:
        word = rest.pop(0)
        if word == "-m":
            return Program(words[0], flags, True, rest[0], rest[1:]) if rest else None
        if not word.startswith("-"):
            return Program(words[0], flags, False, word, rest)
        if word in ("-", "-c") or _holds_target(word):
            return None
        flags.append(word)
        if word in _VALUED and rest:
            flags.append(rest.pop(0))
    return None


def _holds_target(word: str) -> bool:
    """Whether a word of several short flags contains ``-c`` or ``-m``: ``-um``."""
    letters = word[1:].partition("W")[0].partition("X")[0]
    return not word.startswith("--") and len(word) > 2 and any(one in letters for one in "cm")


def options(ranks: Ranks, name: str) -> list[tuple[str, str]]:
    """The options of torchrun, each with the ``ddp`` setting it carries; empty for none.

    All machines of a run give the same ``name``.
    """
    said = [(f"--nproc-per-node={ranks.here}", "ranks")]
    if ranks.node is not None:
        # Ranks are numbered in the order of the machines, and one port is enough.
        address, _, port = ranks.rdzv.rpartition(":")
        said += [
            (f"--nnodes={ranks.nodes[1]}", "nodes"),
            (f"--node-rank={ranks.node}", ""),
            (f"--master-addr={address}", "rdzv"),
            (f"--master-port={port}", ""),
            (f"--rdzv-id={name}", ""),
        ]
    elif ranks.rdzv:
        least, most = ranks.nodes
        said += [
            (f"--nnodes={least}" if least == most else f"--nnodes={least}:{most}", "nodes"),
            ("--rdzv-backend=c10d", ""),
            (f"--rdzv-endpoint={ranks.rdzv}", "rdzv"),
            (f"--rdzv-id={name}", ""),
        ]
    else:
        # The name of this machine may not resolve to it, so ranks of one machine connect locally.
        said += [("--standalone", ""), ("--local-addr=127.0.0.1", "")]
    return [*said, (f"--max-restarts={ranks.max_restarts}", "max_restarts")]


_NEIGHBOURS = frozenset(("WORLD_SIZE", "MASTER_ADDR"))


def launcher(environ: Mapping[str, str]) -> str:
    """Which fact shows that another launcher starts the ranks, as subject and verb; else empty.

    torchrun or a PyTorchJob on Kubernetes sets ``RANK``. Pods of an indexed Job have numbers as
    well, and so have the tasks of ``srun``. A batch script, a shell opened by SLURM, or a job of
    one task is not a launch. The framework reads the same variables.
    """
    if "RANK" in environ:
        return f"RANK={environ['RANK']} is set"
    if "JOB_COMPLETION_INDEX" in environ and not _NEIGHBOURS.isdisjoint(environ):
        return f"JOB_COMPLETION_INDEX={environ['JOB_COMPLETION_INDEX']} is set"
    if is_one_of_several(environ):
        return f"this is task {environ['SLURM_PROCID']} of SLURM"
    return ""
