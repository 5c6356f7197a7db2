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
    rows = [store.of(*key) for key in store.keys()]
    rows.sort(key=lambda row: sum(record.size for record in row))
    orders = [_order(len(row)) for row in rows]
    chosen: list[list[int]] = [[] for _ in rows]
    left = budget
    for turn in range(max(map(len, rows), default=0)):
        for row, order, kept in zip(rows, orders, chosen, strict=True):
            if turn < len(order) and row[order[turn]].size <= left:
                left -= row[order[turn]].size
                kept.append(order[turn])
    entries = []
    for row, kept in zip(rows, chosen, strict=True):
        if kept:
            entries.append(entry([row[at] for at in sorted(kept)]))
    missing = [
        record
        for row, kept in zip(rows, chosen, strict=True)
        for at, record in enumerate(row)
        if at not in set(kept)
    ]
    out = {"records": len(missing), "bytes": sum(one.size for one in missing), "budget": budget}
    return f'{{"entries":[{",".join(entries)}],"left_out":{to_json(out)}}}'


def entry(records: Sequence[MediaRecord]) -> str:
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
