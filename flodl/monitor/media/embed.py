"""The media that a page in one file holds, chosen to fit a budget."""

from __future__ import annotations

from collections.abc import Sequence

from flodl.monitor.media.records import MediaRecord
from flodl.monitor.media.store import MediaStore
from flodl.monitor.records import to_json

BUDGET = 8 * 2**20
"""Bytes of media in a report, unless another number is set."""


def embedded(store: MediaStore, budget: int = BUDGET) -> str:
    """Return the JSON of the media for a page: as many records as fit the budget.

    The newest record of every name comes first, then the first, then those that lie evenly between
    them. The JSON says how many records and bytes are left out.
    """
    rows = [store.of(*key) for key in store.names()]
    # Small names first in each turn: one large image does not displace many small histograms.
    turns = sorted(((_order(len(row)), row) for row in rows), key=lambda one: _size(one[1]))
    chosen: set[int] = set()
    left = budget
    for turn in range(max(map(len, rows), default=0)):
        for order, row in turns:
            if turn < len(order) and row[order[turn]].size <= left:
                left -= row[order[turn]].size
                chosen.add(id(row[order[turn]]))
    kept = [[record for record in row if id(record) in chosen] for row in rows]
    missing = [record for row in rows for record in row if id(record) not in chosen]
    out = {"records": len(missing), "bytes": _size(missing), "budget": budget}
    entries = ",".join(_entry(row) for row in kept if row)
    return f'{{"entries":[{entries}],"left_out":{to_json(out)}}}'


def _size(records: Sequence[MediaRecord]) -> int:
    return sum(record.size for record in records)


def _entry(records: Sequence[MediaRecord]) -> str:
    """Return the JSON of the records of one kind and name."""
    first = records[0]
    head = to_json({"kind": first.kind, "name": first.name})
    return f'{head[:-1]},"records":[{",".join(record.json for record in records)}]}}'


def _order(count: int) -> list[int]:
    """Return 0 to count - 1: the last, the first, then halves, quarters, and so on."""
    order = dict.fromkeys([count - 1, 0]) if count else {}
    parts = 2
    while len(order) < count:
        order.update(dict.fromkeys(round(at * (count - 1) / parts) for at in range(1, parts, 2)))
        parts *= 2
        if parts > 2 * count:
            order.update(dict.fromkeys(range(count)))
    return list(order)
