"""The media of a run, bounded: of each name the first, the newest and evenly spaced ones."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import final

from flodl.monitor.media.records import MediaRecord
from flodl.monitor.records import to_json

KEPT = 64
"""Records of one name that are kept unless the user sets another number."""

MOST_BYTES = 256 * 2**20
"""All records of a run; above, each name keeps half as many."""


@final
class MediaStore:
    """Records by kind and name. One thread may add while others read.

    Of each name it keeps the first record, the newest, and every ``2**n``-th between them: when a
    name has more than `kept` records, every second one is removed. So what is kept stays evenly
    spaced over the whole run.

    Args:
        kept: Most records of one name, at least 2.
        most_bytes: Most bytes of all records.
    """

    def __init__(self, kept: int = KEPT, most_bytes: int = MOST_BYTES) -> None:
        self._kept = max(2, kept)
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._rings: dict[tuple[str, str], _Ring] = {}
        self._bytes = 0

    def add(self, record: MediaRecord) -> list[MediaRecord]:
        """Keep a record; return those that are no longer kept.

        A record that does not come after the newest one of its name replaces those from its step
        on: a resumed run repeats steps.
        """
        with self._lock:
            ring = self._rings.get(record.key)
            if ring is None:
                ring = self._rings[record.key] = _Ring(self._kept)
            gone = ring.add(record)
            self._bytes += record.size - sum(one.size for one in gone)
            while self._bytes > self._most_bytes and self._kept > 2:
                self._kept //= 2
                further = [one for each in self._rings.values() for one in each.limit(self._kept)]
                self._bytes -= sum(one.size for one in further)
                gone += further
            return gone

    def names(self) -> list[tuple[str, str]]:
        """Return kind and name of everything, in the order of the first record."""
        with self._lock:
            return list(self._rings)

    def of(self, kind: str, name: str) -> list[MediaRecord]:
        """Return the records of one kind and name, by rising step; empty if there are none."""
        with self._lock:
            ring = self._rings.get((kind, name))
            return ring.records() if ring is not None else []

    def records(self) -> list[MediaRecord]:
        """Return everything, name by name."""
        return [record for key in self.names() for record in self.of(*key)]


class _Ring:
    """The records of one name, each with its number."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._stride = 1
        self._next = 0
        self._numbered: list[tuple[int, MediaRecord]] = []

    def records(self) -> list[MediaRecord]:
        return [record for _, record in self._numbered]

    def add(self, record: MediaRecord) -> list[MediaRecord]:
        gone = []
        while self._numbered and self._numbered[-1][1].step >= record.step:
            number, repeated = self._numbered.pop()
            self._next = number
            gone.append(repeated)
        if self._numbered and self._numbered[-1][0] % self._stride:
            gone.append(self._numbered.pop()[1])  # it was kept only because it was the newest
        self._numbered.append((self._next, record))
        self._next += 1
        return gone + self.limit(self._limit)

    def limit(self, most: int) -> list[MediaRecord]:
        """Remove every second record until at most `most` are left."""
        self._limit = most
        gone = []
        while len(self._numbered) > most:
            self._stride *= 2
            *older, newest = self._numbered
            gone += [record for number, record in older if number % self._stride]
            self._numbered = [one for one in older if not one[0] % self._stride] + [newest]
        return gone


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
