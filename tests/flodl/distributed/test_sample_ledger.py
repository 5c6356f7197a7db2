from __future__ import annotations

import resource
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from flodl.errors import RunDirectoryError
from flodl.ranks.ledger_format import Stretch, rows_hash, unpack_segment
from flodl.ranks.sample_ledger import (
    LedgerContents,
    LedgerFacts,
    SampleLedger,
    SampleRecorder,
    read_ledger,
)
from tests.rows import each_row

from .recorded_runs import DEFAULT, recorded_run, train_epoch


def rows(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def told(segment: bytes) -> tuple[int, list[tuple[int, int, int, bytes]]]:
    """Rank and (epoch, start, size, hash) of each batch."""
    rank, stretches = unpack_segment(segment)
    return rank, [
        (one.epoch, start, one.size, digest) for one in stretches for start, digest in one.batches()
    ]


@given(
    rank=st.integers(0, 300),
    unit=st.integers(1, 300),
    batches=st.lists(
        st.tuples(
            st.integers(0, 400), st.integers(0, 10**7), st.integers(1, 40), st.integers(0, 10**8)
        ),
        max_size=30,
    ),
)
@settings(derandomize=True)
def test_a_segment_gives_back_what_was_recorded(
    rank: int, unit: int, batches: list[tuple[int, int, int, int]]
) -> None:
    recorder = SampleRecorder(rank, unit)
    expected = []
    for epoch, start, size, position in batches:
        numbers = torch.arange(start, start + size)
        recorder.trained_samples(epoch, start, position, numbers)
        expected.append((epoch, start, size, rows_hash(numbers.numpy().astype("<i8").tobytes())))
    segment = recorder.take()
    assert (told(segment) if segment else (rank, [])) == (rank, expected)
    assert recorder.take() == b""


@given(data=st.binary(max_size=80))
@settings(derandomize=True, max_examples=300)
def test_bytes_that_are_no_segment_are_refused_in_one_way(data: bytes) -> None:
    with suppress(ValueError):
        unpack_segment(data)


def test_batches_at_equal_distances_need_little_more_than_their_hashes() -> None:
    for stride in (1, 2, 5):
        recorder = SampleRecorder(1, 8)
        for number in range(0, 100 * stride, stride):
            recorder.trained_samples(4, 8 * number, number, rows(*range(8)))
        assert len(recorder.take()) < 100 * 8 + 12


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_sample_needs_two_bytes_at_most(tmp_path: Path, ranks: int) -> None:
    facts = replace(DEFAULT, samples=5000, batch_size=8, epochs=20)
    run = recorded_run(tmp_path, facts, ranks=ranks)
    assert run.ledger.stat().st_size <= 2 * 5000 * 20


def test_single_batches_at_odd_distances_need_two_bytes_per_sample_at_most() -> None:
    recorder = SampleRecorder(2, 8)
    numbers = [n * (n + 1) // 2 for n in range(200)]
    for number in numbers:
        recorder.trained_samples(150, 8 * number, 10**6 + number, rows(*range(8)))
    assert len(recorder.take()) <= 2 * 8 * 200


def test_facts_and_appends_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "samples.ledger"
    ledger = SampleLedger(path, DEFAULT)
    recorder = SampleRecorder(1, 16)
    recorder.trained_samples(0, 48, 9, rows(5, 1))
    ledger.append(12, [SampleRecorder(0, 16).take(), recorder.take()])
    ledger.append(12, [SampleRecorder(0, 16).take(), recorder.take()])
    mark = ledger.mark()
    contents = read_ledger(path)
    ((rank, stretch),) = contents.stretches(0, 0, None)
    assert (rank, stretch.first, stretch.size, stretch.position) == (1, 48, 2, 9)
    assert contents.facts == DEFAULT
    assert contents.digest_at(mark["length"]) == mark["digest"]
    assert (contents.problems, contents.torn, contents.size) == ([], 0, mark["length"])


def batches_of(contents: LedgerContents) -> list[tuple[int, Stretch]]:
    epochs = range(DEFAULT.epochs)
    return [one for epoch in epochs for one in contents.stretches(epoch, 0, None)]


def test_a_record_that_was_not_written_to_its_end_is_ignored(tmp_path: Path) -> None:
    run = recorded_run(tmp_path)
    data = run.ledger.read_bytes()
    whole = read_ledger(run.ledger)
    count, kept = len(batches_of(whole)), []
    last = max(end for end in range(len(data)) if whole.digest_at(end) is not None)
    for cut in (last + 1, last + 5, len(data) - 1):
        run.ledger.write_bytes(data[:cut])
        contents = read_ledger(run.ledger)
        assert contents.torn == cut - last
        assert contents.problems == []
        assert contents.digest_at(last) == whole.digest_at(last)
        kept.append(batches_of(contents))
    assert 0 < len(kept[0]) < count
    assert all(batches == kept[0] for batches in kept)


def test_reopening_cuts_back_to_the_checkpoint_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "samples.ledger"
    ledger = SampleLedger(path, DEFAULT)
    train_epoch(ledger, DEFAULT, 0, 2)
    mark = ledger.mark()
    train_epoch(ledger, DEFAULT, 1, 2)
    with path.open("ab") as file:
        file.write(b"T\xff")

    again = SampleLedger.reopen(path, mark, facts=DEFAULT)
    assert path.stat().st_size == mark["length"]
    train_epoch(again, DEFAULT, 1, 3)
    contents = read_ledger(path)
    assert (contents.problems, contents.torn, len(contents.stated)) == ([], 0, 1)

    straight = SampleLedger(tmp_path / "straight", DEFAULT)
    train_epoch(straight, DEFAULT, 0, 2)
    train_epoch(straight, DEFAULT, 1, 3)
    assert path.read_bytes() == (tmp_path / "straight").read_bytes()


@each_row("written", [0, 7, None])
def test_another_process_continues_a_ledger_that_it_has_followed(
    tmp_path: Path, written: int | None
) -> None:
    path = tmp_path / "samples.ledger"
    first = SampleLedger(path, DEFAULT)
    second = SampleLedger.follow(path, first.mark())
    for ledger in (first, second):
        train_epoch(ledger, DEFAULT, 0, 2)
    assert first.mark() == second.mark()
    for ledger in (first, second):
        train_epoch(ledger, DEFAULT, 1, 2)
    straight = path.read_bytes()
    if written is not None:  # the process was lost before or in its last record
        known = read_ledger(path)
        whole = max(at for at in range(len(straight)) if known.digest_at(at) is not None)
        path.write_bytes(straight[: whole + written])

    second.take_over()
    assert path.read_bytes() == straight
    train_epoch(second, DEFAULT, 2, 2)
    contents = read_ledger(path)
    assert (contents.problems, contents.torn) == ([], 0)


def test_a_run_that_continues_another_takes_its_record_along(tmp_path: Path) -> None:
    earlier, path = tmp_path / "earlier", tmp_path / "later"
    ledger = SampleLedger(earlier, DEFAULT)
    train_epoch(ledger, DEFAULT, 0, 2)
    mark = ledger.mark()
    train_epoch(ledger, DEFAULT, 1, 2)
    before = earlier.read_bytes()

    longer = replace(DEFAULT, epochs=9)
    SampleLedger.reopen(path, mark, facts=longer, source=earlier)
    assert earlier.read_bytes() == before
    assert path.read_bytes().startswith(before[: mark["length"]])
    assert read_ledger(path).facts == longer


@each_row("harm", ["cut", "changed", "other"])
def test_a_record_that_is_not_the_checkpoints_is_refused(tmp_path: Path, harm: str) -> None:
    run = recorded_run(tmp_path)
    data = bytearray(run.ledger.read_bytes())
    if harm == "cut":
        del data[-20:]
    elif harm == "changed":
        data[len(data) // 2] ^= 1
    else:
        data = bytearray(
            recorded_run(tmp_path / "other", replace(DEFAULT, seed=8)).ledger.read_bytes()
        )
    run.ledger.write_bytes(data)
    with pytest.raises(RunDirectoryError, match="not the sample ledger that the checkpoint"):
        SampleLedger.reopen(run.ledger, run.mark)
    assert run.ledger.read_bytes() == data


def test_a_full_disk_leaves_the_record_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "samples.ledger"
    ledger = SampleLedger(path, DEFAULT)
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, limits[1]))
    try:
        with pytest.raises(RunDirectoryError, match="cannot write the sample ledger"):
            train_epoch(ledger, DEFAULT, 0, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    train_epoch(ledger, DEFAULT, 0, 2)
    assert read_ledger(path).problems == []


@each_row("content", [b"", b"PK\x03\x04", b"flodl samples 1\n"])
def test_what_is_no_record_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "samples.ledger").write_bytes(content)
    with pytest.raises(RunDirectoryError, match=r"samples\.ledger"):
        read_ledger(tmp_path / "samples.ledger")


@each_row(
    ("changes", "batches", "used"),
    [
        ({"samples": 100, "drop_last": True}, 6, 96),
        ({"samples": 100}, 7, 100),
        ({"samples": 97, "join_remainder": True}, 6, 97),
        ({"samples": 98, "join_remainder": True}, 7, 98),
        ({"samples": 96}, 6, 96),
        ({"samples": 1, "join_remainder": True}, 1, 1),
    ],
)
def test_facts_tell_what_an_epoch_holds(changes: dict[str, Any], batches: int, used: int) -> None:
    facts: LedgerFacts = replace(DEFAULT, **changes)
    assert (facts.batches, facts.used) == (batches, used)
