"""A program that forks after it has begun to stream."""

from __future__ import annotations

import os

import pytest

from tests import fork_server

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

PROGRAM = """
import gc, os, signal, sys, warnings
from flodl.data import DataLoader
from flodl.errors import StateError
from tests.flodl.data.sources import Numbers, orders

warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of fork beside threads
loader = DataLoader(Numbers(20), 5, shuffle=False, **{way})
epoch = loader.epoch(0)
next(epoch)

def in_child(work):
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        try:
            work()
            sys.stdout.flush()
        finally:
            os._exit(0)
    os.waitpid(child, 0)

def go_on():
    try:
        next(epoch)
    except StateError as refusal:
        print(refusal)

def let_go():
    global loader, epoch
    del loader, epoch
    gc.collect()
    print("let go")

in_child(lambda: print(orders(loader, 0)[1:3]))
in_child(go_on)
in_child(let_go)
print([batch[0].tolist() for batch in epoch][-1], len(orders(loader, 1)))
"""


@pytest.fixture(scope="module", params=["dict(streaming=True)", "dict(workers=1)"])
def told(request: pytest.FixtureRequest) -> list[str]:
    """The lines of the program: three children, then the parent."""
    program = PROGRAM.replace("{way}", request.param)
    done = fork_server.python("-c", program, timeout=120, torch=True)
    # Errors that interpreters only print, as those of finalizers, are errors here.
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_forked_process_streams_with_a_thread_and_processes_of_its_own(told: list[str]) -> None:
    assert told[0] == "[[5, 6, 7, 8, 9], [10, 11, 12, 13, 14]]"


def test_an_epoch_of_the_parent_cannot_go_on_in_a_forked_process(told: list[str]) -> None:
    assert told[1].startswith("this epoch was begun before the process was forked")


def test_a_forked_process_that_lets_go_of_the_loader_does_not_end_that_of_the_parent(
    told: list[str],
) -> None:
    assert told[2:] == ["let go", "[15, 16, 17, 18, 19] 4"]
