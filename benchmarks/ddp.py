"""ddp-bench on unequal ranks, beside the published figures of flodl for Rust.

Run with ``python -m benchmarks.ddp [--output docs/benchmarks/ddp.md]``. Two processes over Gloo, of
which one is declared 2.5 times as slow: every batch of it is padded. Data that ships with flodl.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import (
    command_line,
    page,
    publish,
    read_options,
    table,
)
from flodl.ddp_bench.cell import MODES
from flodl.ddp_bench.report import report
from flodl.ddp_bench.request import Request, cells_of
from flodl.ddp_bench.summary import read_folder
from flodl.ddp_bench.sweep import sweep
from flodl.ranks.settings import DdpRunConfig

MODELS = ("logistic", "mlp", "lenet", "conv-ae")
"""Those whose batches take this machine less than the fast rank's 40 ms."""

EARLIER_LONG = """\
solo-0       | 91.62 / 2994 | 91.66 / 3127
solo-1       | 91.87 / 3680 | 91.69 / 3702
sync         | –            | 91.43 / 6376
nccl-sync    | 92.19 / 2491 | 92.38 / 2605
nccl-cadence | 92.00 / 2574 | 92.42 / 2650
nccl-async   | 92.10 / 2522 | 92.44 / 2697
cpu-sync     | 92.44 / 4356 | 92.53 / 4418
cpu-cadence  | 91.75 / 2467 | 92.04 / 2670
cpu-async    | 91.92 / 2534 | 92.43 / 2614"""
"""Accuracy in percent / seconds after 200 epochs: resnet, resnet-graph."""

EARLIER_SHORT = """\
solo-0       | .9237/5.5 | .9700/6.5  | .9857/12.7 | 1.571/20.4 | 2.474/11.7 | .0007/9.8
solo-1       | .9240/4.0 | .9735/5.7  | .9878/11.0 | 1.567/25.8 | 2.472/29.2 | .0006/8.4
sync         | .9248/9.7 | .9732/12.7 | .9837/29.7 | 1.584/49.7 | –          | .0006/18.6
nccl-sync    | .9240/4.6 | .9692/5.3  | .9740/9.2  | 1.640/24.9 | 2.462/15.6 | .0006/6.8
nccl-cadence | .9251/4.0 | .9738/6.8  | .9875/9.0  | 1.594/23.9 | 2.455/9.3  | .0007/6.3
nccl-async   | .9242/3.9 | .9780/5.3  | .9835/8.8  | 1.709/23.1 | 2.468/10.0 | .0007/6.4
cpu-sync     | .9245/5.3 | .9789/15.5 | .9871/14.3 | 1.690/26.0 | 2.464/18.5 | .0006/10.0
cpu-cadence  | .9230/3.2 | .9785/3.8  | .9852/7.1  | 1.608/21.5 | 2.432/7.3  | .0007/5.3
cpu-async    | .9244/3.1 | .9779/3.3  | .9896/7.0  | 1.622/22.0 | 2.440/7.0  | .0008/5.2"""
"""Evaluation / seconds after five epochs: logistic, mlp, lenet, char-rnn, gpt-nano, conv-ae."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line("ddp", __doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    options = read_options(parser, argv, epochs=1, models=["logistic"], modes=["solo-0"])
    with tempfile.TemporaryDirectory() as folder:
        request = Request(
            models=tuple(options.models),
            modes=tuple(options.modes),
            output=Path(folder),
            source="packaged",
            epochs=options.epochs,
            batch_size=16,
            ranks=2,
            ddp=DdpRunConfig(simulate_ms=(40.0, 100.0)),
        )
        sweep(cells_of(request))
        text = page(options, "ddp-bench", INTRO, PADDED, _measured(Path(folder)), _earlier())
    publish(text, options.output)


INTRO = "`fdl ddp-bench` measures any other selection. This page:"
PADDED = (
    "Rank 0 takes 40 ms per batch and rank 1 100 ms: each waits until its batch has lasted so "
    "long, and computes on one thread. *Ideal* is the time in which both together would train "
    "an epoch if none ever waited; *efficiency* is ideal ÷ actual. Evaluation is not counted, "
    "and every epoch ends with an average for it. `sync` is a plain loop around "
    "`Trainer.setup`, whose batches of 16 both ranks share; it pads each batch of a rank "
    "by the same rule, so its figure says little about real computation."
)


def _measured(folder: Path) -> str:
    """The report of the runs, one level below the page's own headline."""
    runs, unread = read_folder(folder)
    lines = report(runs, unread).splitlines()
    return "\n".join(f"#{line}" if line.startswith("#") else line for line in lines)


def _earlier() -> str:
    long = ["mode", "resnet", "resnet-graph"]
    short = ["mode", "logistic", "mlp", "lenet", "char-rnn", "gpt-nano", "conv-ae"]
    return "\n\n".join(
        [
            "## Published figures of flodl for Rust",
            "The package flodl for Rust has the same modes. Its figures are from an RTX 5060 Ti "
            "and a GTX 1060, with real data sets. Hardware, data and protocol differ from those "
            "above (its single-device runs do not shuffle), so the figures cannot be compared with "
            "them. Accuracy in percent / seconds, 200 epochs:",
            table(long, _rows(EARLIER_LONG)),
            "Evaluation / seconds, five epochs:",
            table(short, _rows(EARLIER_SHORT)),
            "Its two GPUs differ by a factor of 1.2 in speed on the residual network. So the ideal "
            "is 1.8 times one GPU; the 1.2 that was reached is 63–67 % of that.",
        ]
    )


def _rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")] for line in text.splitlines()]


if __name__ == "__main__":
    main()
