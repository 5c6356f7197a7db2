"""Real gradients on a virtual clock: every way of sharing a training on 2 to 32 unequal ranks.

    python -m benchmarks.virtual_ranks --output docs/benchmarks/virtual_ranks.md
    python -m benchmarks.virtual_ranks --tasks "ResNet-20, generated" --output ...
    python -m benchmarks.virtual_ranks --validate --output ...

Each batch is computed for real, in the order that the clock gives; the time of batches and
exchanges is given, not measured. A way whose arithmetic does not depend on the times is trained
once; at other speeds only its clock runs again. Rows are appended to a JSON lines file beside the
page. A program that is killed continues where it was. ``--minutes`` ends it earlier;
``--minutes 0`` only writes the page. One thread of torch is used.

``--validate`` trains on two real ranks instead, and compares times and losses with the predicted
ones. Do that on a machine that does nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import product

import torch

from benchmarks.measure import command_line, page, publish, read_options
from benchmarks.virtual_ranks_page import counted, sections
from benchmarks.virtual_ranks_real import validated
from benchmarks.virtual_ranks_rows import Rows
from benchmarks.virtual_ranks_tasks import TASKS
from benchmarks.virtual_ranks_ways import Cell, Place, grid, origin, repeat, train

MANY = (2, 4, 8, 16, 32)
RATIOS = (1.0, 2.0, 4.0, 10.0)
LENGTHS = (1 / 15, 1 / 5, 2 / 5, 4)


def _map() -> Iterator[Place]:
    """Return all places of the map of small networks, those that say most first."""
    first = [(2, 4.0), (8, 4.0), (32, 4.0), (32, 10.0)]
    middle = [(16, 4.0), (4, 4.0), (16, 2.0), (8, 2.0), (4, 2.0), (2, 2.0)]
    corners = [place for place in product((2, 8, 32), (1.0, 4.0, 10.0)) if place not in first]
    told = (*first, *middle, *corners)
    rest = [place for place in product(MANY, RATIOS) if place not in told]
    yield from (Place(*place) for place in first)
    yield from (Place(*place, length=length) for length in LENGTHS for place in first[:2])
    yield from (Place(8, 4.0, speeds=speeds) for speeds in ("drifting", "away"))
    yield from (Place(*place, exchange="dear") for place in first[:2])
    yield from (Place(*place, shards="by class") for place in first[:2])
    yield from (Place(*place) for place in (*middle, *corners, *rest))
    yield from (Place(*place, shards="by class") for place in (*first[2:], *middle, *corners))
    yield from (Place(*place, shards="by class") for place in rest)


LARGE = tuple(task for task in TASKS if task != "MLP")
PLACES = {
    "MLP": tuple(_map()),
    **dict.fromkeys(LARGE, (Place(2, 4.0), Place(8, 4.0), Place(2, 4.0, exchange="dear"))),
}
"""The places of each task, in the order in which they are trained."""


def cells(tasks: Sequence[str]) -> Iterator[Cell]:
    """Return all trainings of some tasks."""
    return (cell for task in tasks for place in PLACES[task] for cell in grid(task, place))


def main(argv: Sequence[str] | None = None) -> None:
    """Train what is missing, and write the page."""
    parser = command_line("virtual_ranks", __doc__)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=["MLP"])
    parser.add_argument("--minutes", type=float, help="start no training after so many minutes")
    parser.add_argument("--validate", action="store_true", help="compare with two real ranks")
    options = read_options(parser, argv, minutes=0.0)
    torch.set_num_threads(1)
    rows = Rows(options.output.with_suffix(".jsonl") if options.output else None)
    until = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    if options.validate:
        for row in validated():
            rows.add({**row, **origin()})
    else:
        for cell in cells(options.tasks):
            if until is not None and time.monotonic() >= until:
                break
            if cell not in rows:
                alike = rows.alike(cell)
                rows.add(train(cell) if alike is None else repeat(cell, alike))
    options.command = "python -m benchmarks.virtual_ranks" + (" --quick" if options.quick else "")
    title = "Unequal ranks: real gradients on a simulated clock"
    publish(page(options, title, counted(rows), *sections(rows, PLACES)), options.output)


if __name__ == "__main__":
    main()
