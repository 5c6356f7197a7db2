"""A list of a preset ends before the arguments that follow it."""

from __future__ import annotations

import pytest

FILES = """
import argparse
p = argparse.ArgumentParser()
p.add_argument("--gpus", type=int, nargs="+", default=[0])
p.add_argument("--tags", nargs="*", default=[])
p.add_argument("--log", nargs="?", const="log.txt")
p.add_argument("--lr", type=float, default=0.1)
p.add_argument("--amp", action="store_true")
p.add_argument("files", nargs="*")
a = p.parse_args()
print(a.gpus, a.tags, a.log, a.lr, a.amp, a.files)
"""
PRESETS = """
two: {options: {gpus: [0, 1]}}
tagged: {options: {tags: [x, y]}}
one: {options: {tags: [x]}}
both: {options: {tags: [x, y], gpus: [0, 1]}}
closed: {options: {tags: [x, y], lr: 0.5}}
switched: {options: {tags: [x, y], amp: true}}
held: {options: {tags: [x, y], files: [a.txt]}}
bare: {options: {log: true}}
"""


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        (["two", "./images"], "[0, 1] [] None 0.1 False ['./images']"),
        (["tagged", "a.txt", "b.txt"], "[0] ['x', 'y'] None 0.1 False ['a.txt', 'b.txt']"),
        (["tagged", "--", "a.txt"], "[0] ['x', 'y'] None 0.1 False ['a.txt']"),
        (["one", "a.txt", "--lr", "1"], "[0] ['x'] None 1.0 False ['a.txt']"),
        (["both", "a.txt"], "[0, 1] ['x', 'y'] None 0.1 False ['a.txt']"),
        (["closed", "a.txt", "--amp"], "[0] ['x', 'y'] None 0.5 True ['a.txt']"),
        (["switched", "a.txt"], "[0] ['x', 'y'] None 0.1 True ['a.txt']"),
        (["held"], "[0] ['x', 'y'] None 0.1 False ['a.txt']"),
        (["held", "b.txt"], "[0] ['x', 'y'] None 0.1 False ['a.txt', 'b.txt']"),
        (["bare", "a.txt"], "[0] [] log.txt 0.1 False ['a.txt']"),
        (["tagged", "--lr", "1", "a.txt"], "[0] ['x', 'y'] None 1.0 False ['a.txt']"),
    ],
)
def test_a_list_leaves_the_arguments_behind_it_alone(driven, words, seen):
    assert driven(FILES, PRESETS)(*words) == seen


def test_a_list_that_cannot_end_is_refused_with_the_order_that_works(driven):
    told = driven(FILES, PRESETS)("tagged", "a.txt", "--lr", "1")
    assert "`--tags` (fdl.yml:4:28) takes every word that follows it, and so `a.txt` too" in told
    assert "hint: write the options first, then the arguments" in told


SUBCOMMANDS = """
import argparse
p = argparse.ArgumentParser()
p.add_argument("--gpus", type=int, nargs="+", default=[0])
p.add_argument("--seed", type=int, default=0)
s = p.add_subparsers(dest="what")
fit = s.add_parser("fit")
fit.add_argument("--lr", type=float, default=0.1)
print(p.parse_args())
"""


def test_a_list_before_a_subcommand_ends_before_its_name(driven):
    call = driven(
        SUBCOMMANDS,
        """
        seeded: {subcommand: fit, options: {gpus: [0, 1], seed: 3, lr: 0.5}}
        alone: {subcommand: fit, options: {gpus: [4]}}
        never: {subcommand: fit, options: {gpus: [0, 1]}}
        """,
    )
    assert call("seeded") == "Namespace(gpus=[0, 1], seed=3, what='fit', lr=0.5)"
    assert call("alone") == "Namespace(gpus=[4], seed=0, what='fit', lr=0.1)"
    told = call("never")
    assert "`--gpus` (fdl.yml:5:44) takes every word that follows it, and so `fit` too" in told
    assert "hint: set another option of one value before the subcommand" in told
