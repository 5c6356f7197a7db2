"""How true, false, null and choices are written is the program's own affair."""

from __future__ import annotations

BOOLS = """
import argparse
p = argparse.ArgumentParser()
p.add_argument("--debug", type=bool, default=False)
p.add_argument("--amp", type=bool, default=True)
p.add_argument("--wd", type=float, nargs="?", const=0.1, default=0.0)
p.add_argument("--log", type=bool, nargs="?", const=True, default=False)
p.add_argument("--maybe", type=bool, nargs="?")
a = p.parse_args()
print(a.debug, a.amp, a.wd, a.log, a.maybe)
"""


def test_false_is_the_empty_word_of_type_bool(driven):
    call = driven(
        BOOLS,
        """
        off: {options: {debug: false, amp: false, log: false}}
        on: {options: {debug: true, amp: true, log: true, maybe: true}}
        wd: {options: {wd: true}}
        some: {options: {wd: 0.5}}
        """,
    )
    assert call("off") == "False False 0.0 False None"
    assert call("on") == "True True 0.0 True True"
    assert call("wd") == "False True 0.1 False None"
    assert call("some") == "False True 0.5 False None"


CLICK = """
import click

@click.command()
@click.option("--mode", type=click.Choice(["Fast", "Slow"], case_sensitive=False), default="Fast")
@click.option("--exact", type=click.Choice(["Fast", "Slow"]), default="Fast")
@click.argument("what", type=click.Choice(["Fit"], False), default="Fit")
def main(mode, exact, what):
    print(mode, exact, what)

main()
"""
TYPER = """
from enum import Enum
from typing import Annotated
import typer

class Kind(str, Enum):
    A = "alpha"
    B = "beta"

def main(kind: Annotated[Kind, typer.Option(case_sensitive=False)] = Kind.A):
    print(kind.value)

typer.run(main)
"""


def test_choices_without_case_are_taken_in_any_case(driven):
    call = driven(
        CLICK,
        "slow: {options: {mode: slow}}\nfit: {options: {what: FIT}}\np: {options: {exact: Fast}}",
    )
    assert call("slow") == "Slow Fast Fit"
    assert call("fit") == call("p", "FIT") == "Fast Fast Fit"
    assert call("p", "--mode", "SLOW") == "Slow Fast Fit"
    assert "invalid value `slow` for `--exact` -- allowed: Fast, Slow" in call(
        "p", "--exact", "slow"
    )
    assert "did you mean `Slow`" in call("p", "--mode", "slo")


def test_typer_takes_members_in_any_case(driven):
    call = driven(TYPER, "beta: {options: {kind: BETA}}\np: {options: {kind: alpha}}")
    assert call("beta") == call("p", "--kind", "BETA") == "beta"
    assert "invalid value `gamma`" in call("p", "--kind", "gamma")


UNCLEAR = """
import argparse, json
p = argparse.ArgumentParser()
p.add_argument("--tags", type=lambda text: text.split(","))
p.add_argument("--amp", type=lambda text: text == "yes")
p.add_argument("--lr", type=lambda text: float(text))
p.add_argument("--data", type=json.loads)
print(p.parse_known_args())
"""


def test_what_the_source_does_not_say_is_passed_with_one_warning(project, fdl):
    manifest = """
        entry: python main.py
        commands:
          p: {options: {tags: [a, b], amp: true, lr: 0.1, data: {a: [1]}, other: 1}}
          one: {options: {amp: true}}
          said: {options: {--tags: [a, b], --amp: "yes", lr: 0.1, data: !null , --other: 1}}
    """
    project({"fdl.yml": manifest, "main.py": UNCLEAR})
    told = fdl("-n", "p")
    assert told.err.startswith("warning: not checked: `tags`, `amp` and `other`: ")
    assert told.err.count("\n") == 1
    assert "--amp true --data '{\"a\": [1]}' --lr 0.1 --other 1 --tags a,b" in told.out
    one = fdl("-n", "one")
    assert one.err.startswith("warning: not checked: `amp`: ")
    said = fdl("-n", "said")
    assert said.err == ""
    assert "--amp yes --other 1 --tags a,b --data null --lr 0.1" in said.out


NUMBERS = """
import argparse
p = argparse.ArgumentParser()
p.add_argument("--x", type=float)
p.add_argument("--pair", type=float, nargs=2)
p.add_argument("rest", type=float, nargs="*")
a = p.parse_args()
print(a.x, a.pair, a.rest)
"""


def test_argparse_takes_small_numbers_below_zero_for_numbers(driven):
    call = driven(
        NUMBERS,
        """
        one: {options: {x: -1e-5}}
        far: {options: {x: -.inf}}
        big: {options: {x: -1e+20}}
        two: {options: {pair: [-1e-5, 2]}}
        rest: {options: {rest: [-2.5e-7]}}
        """,
    )
    assert call("one") == "-1e-05 None []"
    assert call("far") == "-inf None []"
    assert call("big") == "-1e+20 None []"
    assert call("two") == "None [-1e-05, 2.0] []"
    assert call("rest") == "None None [-2.5e-07]"
    assert "-1e-05 None []" in call("one", "--each", "x=-1e-5,-2e-5")
