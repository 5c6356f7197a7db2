from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from flodl.errors import RunDirectoryError
from flodl.ranks.ledger_format import pack_append, pack_segment, unpack_append
from flodl.ranks.sample_ledger import (
    MAGIC,
    LedgerFacts,
    SampleLedger,
    SampleRecorder,
    _first_chain,
    _link,
)
from flodl.train.run.verify import main, verify_run
from tests import fork_server
from tests.rows import each_row

from .recorded_runs import (
    DEFAULT,
    RecordedRun,
    order_of,
    recorded_run,
    train_epoch,
    write_checkpoint,
    write_record,
)

Records = list[tuple[bytes, bytes, bytes]]
"""Head, content and chain of each record."""


def records_of(path: Path) -> Records:
    data, at, found = path.read_bytes(), len(MAGIC), []
    while at < len(data):
        size = struct.unpack("<I", data[at + 1 : at + 5])[0]
        end = at + 5 + size
        found.append((data[at : at + 5], data[at + 5 : end], data[end : end + 16]))
        at = end + 16
    return found


def write_records(path: Path, records: Records, *, chained: bool) -> None:
    """Write records; ``chained`` as a forger would who knows the form."""
    out, chain = MAGIC, _first_chain()
    for head, content, stored in records:
        sized = head[:1] + struct.pack("<I", len(content))
        chain = _link(chain, sized, content) if chained else stored
        out += sized + content + chain
    path.write_bytes(out)


def edit_content(records: Records, index: int, edit: Any) -> None:
    """Change what one append says: ``edit(segments)`` on its (rank, stretches)."""
    head, content, stored = records[index]
    position, segments = unpack_append(content)
    edit(segments)
    packed = [pack_segment(rank, 16, stretches) for rank, stretches in segments]
    records[index] = (head, pack_append(position, packed), stored)


def proven(run: RecordedRun) -> bool:
    try:
        return verify_run(run.path).proven
    except RunDirectoryError:
        return False


@each_row(
    "changes",
    [
        {},
        {"drop_last": True},
        {"samples": 993, "join_remainder": True},
        {"sampler": "sequential"},
        {"samples": 40, "batch_size": 64},
    ],
    ids=["random", "drop_last", "join_remainder", "sequential", "one batch"],
)
@each_row("ranks", [1, 3])
def test_an_honest_run_is_proven(tmp_path: Path, ranks: int, changes: dict[str, Any]) -> None:
    facts = replace(DEFAULT, **changes)
    found = verify_run(recorded_run(tmp_path, facts, ranks=ranks).path)
    assert found.proven, found
    assert found.complete_epochs == 3
    assert found.batches_once == 3 * facts.batches
    assert (found.samples_once, found.samples_doubled) == (3 * facts.used, 0)
    assert sum(found.rank_samples.values()) == 3 * facts.used
    assert found.vouchers == ("last.fdl", "run.json")
    assert found.notes == ()


def test_a_batch_that_ranks_share_is_one_batch(tmp_path: Path) -> None:
    facts = replace(DEFAULT, epochs=1)
    ledger = SampleLedger(tmp_path / "samples.ledger", facts)
    order = order_of(facts, 0)
    recorders = [SampleRecorder(rank, 16) for rank in range(2)]
    for at in range(0, 1003, 32):
        cut = at + (min(1003, at + 32) - at) * 5 // 7
        recorders[0].trained_samples(0, at, at // 16, order[at:cut])
        recorders[1].trained_samples(0, cut, at // 16, order[cut : at + 32])
    ledger.append(63, [recorder.take() for recorder in recorders])
    write_record(tmp_path, epochs=1)
    found = verify_run(tmp_path)
    assert found.proven, found
    assert (found.batches_once, found.samples_once) == (63, 1003)
    assert found.rank_samples[0] == pytest.approx(1003 * 5 / 7, abs=32)


def test_an_unfinished_epoch_is_no_fault(tmp_path: Path) -> None:
    ledger = SampleLedger(tmp_path / "samples.ledger", DEFAULT)
    train_epoch(ledger, DEFAULT, 0, 2)
    train_epoch(ledger, DEFAULT, 1, 2, stop=8)
    write_checkpoint(tmp_path, ledger.mark(), epochs=1)
    write_record(tmp_path, state="failed", epochs=0)
    found = verify_run(tmp_path)
    assert found.proven
    assert found.complete_epochs == 1
    (unfinished,) = found.unfinished_epochs
    assert unfinished.epoch == 1
    assert 0 < unfinished.trained < unfinished.samples == 1003


@pytest.mark.case("distributed", 43)
def test_work_that_was_rolled_back_is_not_counted_twice(tmp_path: Path) -> None:
    path = tmp_path / "samples.ledger"
    ledger = SampleLedger(path, DEFAULT)
    train_epoch(ledger, DEFAULT, 0, 2)
    mark = ledger.mark()
    train_epoch(ledger, DEFAULT, 1, 2, stop=5)
    again = SampleLedger.reopen(path, mark, facts=DEFAULT)
    for epoch in (1, 2):
        train_epoch(again, DEFAULT, epoch, 1)
    write_checkpoint(tmp_path, again.mark(), epochs=3)
    write_record(tmp_path, epochs=3)
    assert verify_run(tmp_path).proven

    # Without the roll-back the same record shows it.
    twice = SampleLedger(path, DEFAULT)
    train_epoch(twice, DEFAULT, 0, 2)
    train_epoch(twice, DEFAULT, 1, 2, stop=5)
    train_epoch(twice, DEFAULT, 1, 1)
    (tmp_path / "last.fdl").unlink()
    found = verify_run(tmp_path)
    assert found.samples_doubled > 0
    assert {(one.epoch, one.what) for one in found.exceptions} == {
        (1, "was trained more than once"),
        (2, "was not trained"),
    }
    assert any(one.ranks == (0, 1) for one in found.exceptions)


def test_the_order_of_a_sampler_of_ones_own_is_not_claimed(tmp_path: Path) -> None:
    facts = replace(DEFAULT, sampler="custom")
    found = verify_run(recorded_run(tmp_path, facts).path)
    assert found.proven
    assert "program's own" in found.order


def test_without_checkpoint_nothing_vouches_and_it_says_so(tmp_path: Path) -> None:
    found = verify_run(recorded_run(tmp_path, vouched=False).path)
    assert found.proven
    assert found.vouchers == ()
    assert found.notes == ("nothing outside of the record vouches for it",)


def test_another_version_of_torch_is_named_where_the_order_differs(tmp_path: Path) -> None:
    facts = replace(DEFAULT, torch="0.0.1", seed=3)
    run = recorded_run(tmp_path, replace(facts, seed=4), vouched=False)
    records = records_of(run.ledger)
    head, content, chain = records[0]
    records[0] = (head, content.replace(b'"seed":4', b'"seed":3'), chain)
    write_records(run.ledger, records, chained=True)
    found = verify_run(tmp_path)
    assert not found.proven
    assert any("0.0.1" in note and torch.__version__ in note for note in found.notes)


# --- Memory ----------------------------------------------------------------------------------


def in_another_process(*words: object) -> dict[str, Any]:
    program = Path(__file__).parent / "programs" / "verify_large.py"
    done = subprocess.run(
        [sys.executable, str(program), *map(str, words)], capture_output=True, text=True, check=True
    )
    form: dict[str, Any] = json.loads(done.stdout or "{}")
    return form


on_linux = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="Linux tells the most memory of a process"
)


@pytest.mark.slow
@on_linux
def test_memory_grows_by_four_bytes_a_sample(tmp_path: Path) -> None:
    used = []
    for samples in (500_000, 2_500_000):
        folder = tmp_path / str(samples)
        folder.mkdir()
        in_another_process("write", folder, samples)
        found = in_another_process("verify", folder, 1 << 18)
        assert (found["proven"], found["samples"]) == (True, samples)
        assert found["vouchers"] == ["run.json"]
        used.append(found["bytes"])
    # Two million samples more: four bytes each for the order, and 16 MB for the counters if all
    # were held.
    assert used[1] - used[0] < 4 * 2_000_000 + (2 << 20), used


@on_linux
@pytest.mark.slow
@pytest.mark.timeout(1800)  # sixteen million batches are written first, one by one
def test_a_billion_samples_take_four_bytes_each_and_no_more(tmp_path: Path) -> None:
    in_another_process("write", tmp_path, 10**9)
    found = in_another_process("verify", tmp_path)
    assert (found["proven"], found["samples"]) == (True, 10**9)
    assert found["bytes"] < 4.6e9, found


@pytest.mark.parametrize("piece", [1, 40, 100])
def test_the_size_of_the_pieces_changes_nothing(
    tmp_path: Path, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(piece)
    for turn in range(12):
        facts = replace(
            DEFAULT,
            samples=chance.choice([1, 17, 100, 1003]),
            batch_size=chance.choice([1, 7, 16]),
            sampler=chance.choice(["random", "sequential", "custom"]),
            join_remainder=chance.random() < 0.5,
            since=chance.choice([0, 3]),
            epochs=2,
        )
        folder = tmp_path / str(turn)
        run = recorded_run(folder, facts, ranks=2, vouched=False)
        ledger = SampleLedger(run.ledger, facts)
        for epoch in range(3):
            train_epoch(ledger, facts, epoch, 2, stop=chance.choice([None, 3]))
            recorder = SampleRecorder(3, facts.batch_size)
            for _ in range(chance.randrange(4)):
                # Of any length, across pieces and the end, right ones and wrong ones.
                start, size = chance.randrange(facts.samples + 3), chance.randrange(1, 300)
                numbers = order_of(facts, epoch)[start : start + size]
                wrong = chance.random() < 0.5 or not len(numbers)
                recorder.trained_samples(epoch, start, 0, torch.arange(size) if wrong else numbers)
            ledger.append(9, [recorder.take()])
        whole = verify_run(folder)
        monkeypatch.setattr("flodl.ranks.epoch_check.PIECE", piece)
        in_pieces = verify_run(folder)
        monkeypatch.undo()
        assert sorted(in_pieces.exceptions, key=repr) == sorted(whole.exceptions, key=repr)
        assert replace(in_pieces, exceptions=()) == replace(whole, exceptions=())


def test_of_very_many_findings_the_first_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    run = recorded_run(tmp_path, vouched=False)
    ledger = SampleLedger(run.ledger, DEFAULT)
    for epoch in range(3):
        train_epoch(ledger, replace(DEFAULT, seed=8), epoch, 3)
    monkeypatch.setattr("flodl.train.run.verify.MOST_FINDINGS", 50)
    found = verify_run(tmp_path)
    assert len(found.exceptions) == 50
    assert found.exceptions_left_out == 3 * DEFAULT.batches - 50
    assert main([str(run.path)]) == 1
    assert f"and {3 * DEFAULT.batches - 20} more" in capsys.readouterr().out


# --- Forgeries -------------------------------------------------------------------------------


def test_any_flipped_bit_is_noticed(tmp_path: Path) -> None:
    run = recorded_run(tmp_path, replace(DEFAULT, samples=40, epochs=2))
    data = run.ledger.read_bytes()
    chance = random.Random(1)
    for at in range(len(data)):
        forged = bytearray(data)
        forged[at] ^= 1 << chance.randrange(8)
        run.ledger.write_bytes(forged)
        assert not proven(run), at


@pytest.mark.parametrize("chained", [False, True], ids=["as it was", "chained anew"])
@pytest.mark.parametrize("vouched", [False, True], ids=["alone", "vouched"])
def test_a_deleted_append_is_noticed_and_its_batches_are_named(
    tmp_path: Path, chained: bool, vouched: bool
) -> None:
    run = recorded_run(tmp_path, vouched=vouched)
    records = records_of(run.ledger)
    for index in range(1, len(records)):
        write_records(run.ledger, records[:index] + records[index + 1 :], chained=chained)
        found = verify_run(tmp_path)
        assert not found.proven
        assert {one.what for one in found.exceptions} == {"was not trained"}
        assert bool(found.problems) == (vouched or (not chained and index < len(records) - 1))


@each_row("chained", [False, True], ids=["as it was", "chained anew"])
def test_a_duplicated_append_is_noticed(tmp_path: Path, chained: bool) -> None:
    run = recorded_run(tmp_path, vouched=False)
    records = records_of(run.ledger)
    write_records(run.ledger, [*records[:3], records[2], *records[3:]], chained=chained)
    found = verify_run(tmp_path)
    assert not found.proven
    assert {one.what for one in found.exceptions} == {"was trained more than once"}
    assert bool(found.problems) is not chained


@each_row("chained", [False, True], ids=["as it was", "chained anew"])
def test_appends_in_another_order_are_noticed(tmp_path: Path, chained: bool) -> None:
    run = recorded_run(tmp_path)
    records = records_of(run.ledger)
    records[2], records[3] = records[3], records[2]
    write_records(run.ledger, records, chained=chained)
    assert not proven(run)


@each_row("chained", [False, True], ids=["as it was", "chained anew"])
def test_a_moved_batch_is_noticed(tmp_path: Path, chained: bool) -> None:
    run = recorded_run(tmp_path, vouched=False)
    records = records_of(run.ledger)

    def swap_two(segments: Any) -> None:
        stretch = next(one for _, stretches in segments for one in stretches if one.count > 1)
        stretch.hashes[:16] = stretch.hashes[8:16] + stretch.hashes[:8]

    edit_content(records, 1, swap_two)
    write_records(run.ledger, records, chained=chained)
    found = verify_run(tmp_path)
    assert not found.proven
    assert [one.what for one in found.exceptions] == [
        "was made of other samples than belong there"
    ] * 2


@pytest.mark.parametrize("chained", [False, True], ids=["as it was", "chained anew"])
def test_swapped_ranks_are_noticed_by_those_who_vouch(tmp_path: Path, chained: bool) -> None:
    run = recorded_run(tmp_path)
    records = records_of(run.ledger)

    def swap_ranks(segments: Any) -> None:
        (first, mine), (second, theirs) = segments[:2]
        segments[:2] = [(second, mine), (first, theirs)]

    edit_content(records, 1, swap_ranks)
    write_records(run.ledger, records, chained=chained)
    found = verify_run(tmp_path)
    assert not found.proven
    assert found.exceptions == ()
    assert found.vouchers == ()


def test_a_record_written_anew_contradicts_checkpoint_and_run(tmp_path: Path) -> None:
    run = recorded_run(tmp_path)
    other = recorded_run(tmp_path / "other", ranks=2)
    run.ledger.write_bytes(other.ledger.read_bytes())
    found = verify_run(tmp_path)
    assert found.exceptions == ()
    assert [text.split()[0] for text in found.problems] == ["last.fdl", "run.json"]


def test_a_record_written_anew_with_other_samples_contradicts_the_order(tmp_path: Path) -> None:
    run = recorded_run(tmp_path, vouched=False)
    ledger = SampleLedger(run.ledger, DEFAULT)
    for epoch in range(3):
        train_epoch(ledger, replace(DEFAULT, seed=8), epoch, 3)
    found = verify_run(tmp_path)
    assert not found.proven
    assert len(found.exceptions) == 3 * DEFAULT.batches


@given(
    edits=st.lists(
        st.tuples(
            st.sampled_from(["flip", "cut", "insert", "repeat", "swap"]),
            st.floats(0, 1),
            st.floats(0, 1),
            st.binary(min_size=1, max_size=40),
        ),
        min_size=1,
        max_size=3,
    )
)
@settings(
    derandomize=True,
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_no_edit_of_the_file_goes_unnoticed(tmp_path: Path, edits: list[Any]) -> None:
    facts = LedgerFacts(
        samples=100, batch_size=8, seed=1, sampler="random", drop_last=False, epochs=2
    )
    run = recorded_run(tmp_path, facts) if not any(tmp_path.iterdir()) else None
    kept = tmp_path / "kept"
    if run is not None:
        kept.write_bytes(run.ledger.read_bytes())
    honest = kept.read_bytes()
    forged = honest
    for kind, where, extent, data in edits:
        at = int(where * len(forged))
        end = at + max(1, int(extent * (len(forged) - at) / 2))
        if kind == "flip":
            forged = (
                forged[:at] + bytes([forged[at] ^ data[0]]) + forged[at + 1 :]
                if at < len(forged)
                else forged
            )
        elif kind == "cut":
            forged = forged[:at] + forged[end:]
        elif kind == "insert":
            forged = forged[:at] + data + forged[at:]
        elif kind == "repeat":
            forged = forged[:end] + forged[at:end] + forged[end:]
        else:
            forged = forged[at:end] + forged[:at] + forged[end:]
    (tmp_path / "samples.ledger").write_bytes(forged)
    try:
        found = verify_run(tmp_path).proven
    except RunDirectoryError:
        found = False
    # What follows the mark of the checkpoint may be the beginning of a record that was torn.
    only_torn = forged.startswith(honest)
    assert not found or only_torn


def test_the_command_tells_by_its_exit_code(tmp_path: Path, capsys: Any) -> None:
    run = recorded_run(tmp_path / "run")
    assert main([str(run.path)]) == 0
    out = capsys.readouterr().out
    assert "run: proven (complete)" in out
    assert "3 of 3 complete" in out
    assert "as last.fdl and run.json say" in out

    records = records_of(run.ledger)
    write_records(run.ledger, records[:-1], chained=False)
    assert main([str(run.path)]) == 1
    out = capsys.readouterr().out
    assert "NOT PROVEN" in out
    assert "epoch 3, batch " in out

    assert main([str(tmp_path)]) == 2
    assert "cannot read the sample ledger" in capsys.readouterr().err


def test_the_module_can_be_run_and_gives_json(tmp_path: Path) -> None:
    run = recorded_run(tmp_path)
    words = ("-m", "flodl.train.run.verify", str(run.path), "--json")
    done = fork_server.python(*words, timeout=120, torch=True, abrupt=True)
    assert (done.returncode, done.stderr) == (0, "")
    form = json.loads(done.stdout)
    assert (form["proven"], form["complete_epochs"], form["samples_once"]) == (True, 3, 3009)
