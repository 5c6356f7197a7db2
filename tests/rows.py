"""Tables: one test with many rows, where ``pytest.mark.parametrize`` makes a test of each row."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from itertools import product
from typing import Any

import pytest

from fdl.base.masking import KNOWN
from tests import typed

Test = Callable[..., None]
Ids = Iterable[object] | Callable[[Any], object] | None

_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_PARAM = type(pytest.param())


@dataclass(frozen=True)
class _Row:
    """What a failure calls a row, the arguments of the row, and the cases that it proves."""

    name: str
    values: Mapping[str, Any]
    cases: tuple[tuple[str, int], ...]


def sampled(*columns: Sequence[Any]) -> list[Any]:
    """All combinations of columns, for ``pytest.mark.parametrize``; most of them are ``slow``.

    The tests of a merge run each value of each column. Use it where a value that does not work
    fails in whatever combination.
    """
    longest = max(map(len, columns))
    kept = {tuple(row % len(column) for column in columns) for row in range(longest)}
    return [
        pytest.param(
            *(column[at] for column, at in zip(columns, place, strict=True)),
            marks=() if place in kept else pytest.mark.slow,
        )
        for place in product(*(range(len(column)) for column in columns))
    ]


def each_row(
    names: str | Sequence[str],
    rows: Iterable[Any],
    ids: Ids = None,
) -> Callable[[Test], Test]:
    """As ``pytest.mark.parametrize``, but all rows are one test; each row that fails is named.

    A test of its own takes some milliseconds for fixtures and reports. Use this where a row takes
    no longer than that, and where all rows together take a second at most.

    A row has a ``tmp_path`` and a cache of its own, and what it changes by ``monkeypatch`` ends
    with it. The other fixtures belong to all rows.
    """
    words = [word.strip() for word in names.split(",")] if isinstance(names, str) else list(names)
    if ids is not None and not callable(ids):
        ids = list(ids)
    mine = [_row(words, row, ids, number) for number, row in enumerate(rows)]

    def decorate(function: Test) -> Test:
        body, others = getattr(function, "table", (function, [_Row("", {}, ())]))
        table = [_joined(other, row) for row, other in product(mine, others)]
        if not table:
            raise ValueError(f"{function.__name__} has no rows")
        parameters = inspect.signature(body).parameters
        shared = [name for name in parameters if name not in table[0].values]

        @wraps(function)
        def test(subtests: pytest.Subtests, **fixtures: Any) -> None:
            __tracebackhide__ = True
            for number, row in enumerate(table):
                try:
                    with _own(fixtures, number) as given:
                        body(**row.values, **given)
                except (Exception, pytest.fail.Exception, pytest.skip.Exception):
                    # Only here, because this takes as long as a test.
                    with subtests.test(row.name):
                        raise

        test.table = body, table  # type: ignore[attr-defined]
        wanted = [inspect.Parameter(name, _KEYWORD) for name in ("subtests", *shared)]
        test.__signature__ = inspect.Signature(wanted)  # type: ignore[attr-defined]
        for case in dict.fromkeys(case for row in mine for case in row.cases):
            test = pytest.mark.case(*case)(test)
        return test

    return decorate


def _row(names: Sequence[str], row: Any, ids: Ids, number: int) -> _Row:
    """One row of a table, as ``pytest.param`` or as plain values."""
    marked = isinstance(row, _PARAM)
    values = row.values if marked else (row,) if len(names) == 1 else tuple(row)
    own, marks = (row.id, row.marks) if marked else (None, ())
    if other := [mark.name for mark in marks if mark.name != "case"]:
        raise ValueError(f"a row cannot be {other[0]}; give it a test of its own")
    if own is None and ids is not None and not callable(ids):
        own = ids[number]
    if own is None:
        given = zip(names, values, strict=True)
        own = "-".join(_said(name, value, ids, number) for name, value in given)
    return _Row(str(own), dict(zip(names, values, strict=True)), tuple(mark.args for mark in marks))


def _said(name: str, value: object, ids: Ids, number: int) -> str:
    """What a failure calls a value."""
    said = ids(value) if callable(ids) else None
    if said is None:
        said = getattr(value, "__name__", value)
    text = str(said)
    return text if isinstance(said, str) or " at 0x" not in text else f"{name}{number}"


def _joined(first: _Row, second: _Row) -> _Row:
    """A row of two tables that stand above each other."""
    name = "-".join(filter(None, (first.name, second.name)))
    return _Row(name, {**first.values, **second.values}, ())


@contextmanager
def _own(fixtures: Mapping[str, Any], number: int) -> Iterator[dict[str, Any]]:
    """The fixtures for one row, as if no row had been before it."""
    KNOWN.forget()
    typed.forget()
    given = dict(fixtures)
    if "tmp_path" in given:
        given["tmp_path"] = given["tmp_path"] / f"row{number}"
        given["tmp_path"].mkdir()
    for name in ("capsys", "capfd"):
        if name in given:
            given[name].readouterr()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("FLODL_CACHE_DIR", f"{os.environ['FLODL_CACHE_DIR']}-{number}")
        if "monkeypatch" in given:
            given["monkeypatch"] = monkeypatch
        yield given
