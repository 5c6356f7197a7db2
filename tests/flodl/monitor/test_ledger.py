"""The time ledger: every second of a run stands in one account."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
import time

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from flodl.monitor import ledger as module
from flodl.monitor.ledger import Account, TimeLedger
from tests.rows import each_row

NAMES = (
    "import setup data forward backward optimizer compile checkpoint evaluation logging sync idle "
    "shutdown"
)


def test_a_lap_books_the_time_since_the_last_one(clock):
    ledger = TimeLedger(clock)
    for account, seconds in [("setup", 2.0), ("data", 0.5), ("forward", 1.0), ("data", 0.25)]:
        clock.now += seconds
        ledger.lap(Account(account))
    clock.now += 9.0
    spent = {name: second for name, second in ledger.seconds().items() if second}
    assert spent == {"setup": 2.0, "data": 0.75, "forward": 1.0}
    assert ledger.total == 3.75
    assert " ".join(ledger.seconds()) == NAMES


@given(st.lists(st.tuples(st.sampled_from(Account), st.integers(0, 10**9).map(lambda n: n / 1024))))
def test_the_accounts_add_up_to_the_time_between_start_and_last_lap(laps):
    now = 1e6
    ledger = TimeLedger(lambda: now)
    for account, seconds in laps:
        now += seconds
        ledger.lap(account)
    assert math.isclose(ledger.total, now - 1e6, abs_tol=1e-6)
    for account in Account:
        own = math.fsum(seconds for name, seconds in laps if name is account)
        assert math.isclose(ledger.seconds()[account], own, abs_tol=1e-6)


def test_a_real_loop_closes_within_a_percent_of_another_clock():
    before = time.monotonic()
    ledger = TimeLedger()
    begun = time.monotonic()
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.randn(4096, 64)
    ledger.lap(Account.SETUP)
    for batch in data.split(128) * 4:
        ledger.lap(Account.DATA)
        loss = model(batch).square().mean()
        ledger.lap(Account.FORWARD)
        loss.backward()
        ledger.lap(Account.BACKWARD)
        optimizer.step()
        optimizer.zero_grad()
        ledger.lap(Account.OPTIMIZER)
    inside = time.monotonic() - begun
    ledger.lap(Account.LOGGING)
    outside = time.monotonic() - before
    assert 0.99 * inside <= sum(ledger.seconds().values()) <= 1.01 * outside
    assert all(ledger.seconds()[name] > 0 for name in ("setup", "forward", "backward", "optimizer"))
    assert ledger.seconds()["idle"] == 0


def test_time_since_process_start_holds_the_imports():
    program = (
        "import sys, time\n"
        "time.sleep(0.3)\n"
        "from flodl.monitor.ledger import Account, TimeLedger\n"
        "ledger = TimeLedger.since_process_start()\n"
        "ledger.lap(Account.SETUP)\n"
        "wall = time.clock_gettime(time.CLOCK_BOOTTIME) - float(sys.argv[1])\n"
        "again = TimeLedger.since_process_start()\n"
        "print(ledger.total, ledger.seconds()['import'], wall, again.total)\n"
    )
    # Not time.time(), which is set right now and then.
    command = [sys.executable, "-c", program, repr(time.clock_gettime(time.CLOCK_BOOTTIME))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    total, imports, wall, again = map(float, done.stdout.split())
    # The kernel counts in ticks of 10 ms.
    assert 0.3 <= imports <= total <= wall + 0.02
    assert total >= 0.7 * wall
    assert again == 0, "a second training is not charged for the life of the process"


def test_a_person_at_the_prompt_is_not_charged(monkeypatch):
    monkeypatch.setattr(module, "_start_is_booked", False)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert TimeLedger.since_process_start().seconds()["import"] == 0


def test_table_shows_the_largest_account_first_and_no_empty_one(clock):
    ledger = TimeLedger(clock)
    for account, seconds in [("data", 1.0), ("forward", 125.0), ("backward", 374.0)]:
        clock.now += seconds
        ledger.lap(Account(account))
    assert ledger.table().splitlines() == [
        "time",
        "backward    6m14s   74.8 %",
        "forward     2m05s   25.0 %",
        "data         1.0s    0.2 %",
        "total       8m20s  100.0 %",
    ]


def test_table_of_a_ledger_without_laps(clock):
    assert TimeLedger(clock).table().splitlines() == ["time", "total      0ms    0.0 %"]


def test_a_resumed_run_lists_earlier_sessions_apart(clock):
    first = TimeLedger(clock)
    clock.now += 60.0
    first.lap(Account.FORWARD)
    second = TimeLedger(clock)
    second.load(json.loads(json.dumps(first.state_dict())))
    clock.now += 3.0
    second.lap(Account.FORWARD)
    clock.now += 1.0
    second.lap(Account.COMPILE)
    assert second.seconds()["forward"] == 3.0
    assert second.total == 4.0
    assert second.earlier()["forward"] == 60.0
    third = TimeLedger(clock)
    third.load(second.state_dict())
    assert third.total == 0.0
    assert third.earlier()["forward"] == 63.0
    assert third.earlier()["compile"] == 1.0
    assert second.table().splitlines() == [
        "time         this session  1 earlier session",
        "forward     3.0s   75.0 %     1m00s  100.0 %",
        "compile     1.0s   25.0 %       0ms    0.0 %",
        "total       4.0s  100.0 %     1m00s  100.0 %",
    ]
    assert "2 earlier sessions" in third.table()


@each_row(
    "state",
    [
        {},
        {"sessions": 3},
        {"sessions": [3]},
        {"sessions": [{"data": -1}]},
        {"sessions": [{"data": True}]},
        {"sessions": [{"data": math.nan}]},
        {"sessions": [{1: 1.0}]},
    ],
)
def test_a_foreign_state_is_refused_and_changes_nothing(clock, state):
    ledger = TimeLedger(clock)
    ledger.load({"sessions": [{"data": 1.0}]})
    with pytest.raises(ValueError, match=r"TimeLedger\.state_dict"):
        ledger.load(state)
    assert ledger.earlier() == {"data": 1.0}


def test_another_thread_may_read_while_the_training_laps():
    ledger = TimeLedger()
    stop = threading.Event()

    def train():
        while not stop.is_set():
            ledger.lap(Account.FORWARD)

    thread = threading.Thread(target=train)
    thread.start()
    seen = [ledger.total for _ in range(300) if ledger.table() and ledger.seconds()]
    stop.set()
    thread.join()
    assert seen == sorted(seen)
