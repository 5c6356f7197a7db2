"""A value of a sweep reaches a program as the value of a preset does."""

from __future__ import annotations

PROGRAM = """
import argparse
p = argparse.ArgumentParser()
p.add_argument("--amp", type=bool, default=True)
p.add_argument("--tags", nargs="+")
p.add_argument("--lr", type=float, default=0.1)
p.add_argument("files", nargs="*")
a = p.parse_args()
print("seen", a.amp, a.tags, a.files)
"""


def test_false_and_lists_of_a_sweep(driven):
    call = driven(PROGRAM, "p: {options: {lr: 0.5}}")
    told = call("p", "--each", "amp=true,false", "--each", "tags=x", "--", "a.txt")
    assert "seen True ['x'] ['a.txt']" in told
    assert "seen False ['x'] ['a.txt']" in told
