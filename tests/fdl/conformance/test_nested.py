"""Lists in lists, and mappings, for programs that have no spelling for them."""

from __future__ import annotations

ARGPARSE = """
import argparse
p = argparse.ArgumentParser()
p.add_argument("--x", nargs="*")
p.add_argument("--y")
p.add_argument("--z", nargs="+", action="append")
print(p.parse_args())
"""


def test_a_list_in_a_list_is_refused_where_nothing_can_read_it(driven):
    call = driven(
        ARGPARSE,
        """
        deep: {options: {y: [[1], [2]]}}
        mapping: {options: {x: [{a: 1}]}}
        empty: {options: {x: []}}
        """,
    )
    told = call("deep")
    assert "fdl.yml:3:23: `y` lists a list, and fdl does not know how the program takes" in told
    assert "hint: write the list as the text that you would type" in told
    assert "`x` lists a mapping" in call("mapping")
    assert call("empty") == "Namespace(x=[], y=None, z=None)"


def test_inner_lists_of_an_option_that_may_be_given_once_are_not_lost(driven):
    call = driven(
        ARGPARSE,
        "p: {options: {x: [[1], [2]], z: [[1, 2], [3]]}}\nq: {options: {z: [[1, 2], [3]]}}",
    )
    assert "`x` lists a list" in call("p")
    assert call("q") == "Namespace(x=None, y=None, z=[['1', '2'], ['3']])"


def test_a_program_that_was_not_read_can_be_said_to_read_python(driven):
    program = "import sys; print(sys.argv[1:])"
    presets = 'p: {options: {x: [1, "2", {a: !null }], v: "1.10", amp: false, d: {k: [1]}}}'
    assert driven(program, presets, above="style: fire\n")("p") == (
        "['--amp', 'False', '--d', \"{'k': [1]}\", '--v', \"'1.10'\", "
        "'--x', \"[1, '2', {'a': None}]\"]"
    )


def test_a_mapping_merges_key_by_key_and_hides_a_secret_in_it(driven):
    program = "import sys; print(sys.argv[1:])"
    call = driven(
        program,
        """
        p: {options: {d: {b: null, c.d: 3}}}
        q: {options: {d: {word: !secret abcdef}}}
        """,
        above="style: fire\noptions: {d: {a: 1, b: 2}}\n",
    )
    assert call("p") == "['--d', \"{'a': 1, 'c.d': 3}\"]"
    shown = call("--dry-run", "q")
    assert "--d '<secret>'" in shown
    assert "abcdef" not in shown


CLICK = """
import click

@click.command()
@click.option("--size", nargs=2, type=int)
@click.option("--sizes", nargs=2, type=int, multiple=True)
def main(size, sizes):
    print(size, sizes)

main()
"""


def test_inner_lists_of_an_option_of_click_that_may_be_given_once_are_not_lost(driven):
    call = driven(
        CLICK,
        """
        p: {options: {size: [[1, 2], [3, 4]]}}
        q: {options: {size: [1, 2], sizes: [[1, 2], [3, 4]]}}
        """,
    )
    assert "`size` lists a list" in call("p")
    assert call("q") == "(1, 2) ((1, 2), (3, 4))"


def test_an_empty_list_is_refused_where_the_default_would_count(driven):
    program = CLICK.replace('"--size", nargs=2, type=int', '"--size", multiple=True, default=["a"]')
    call = driven(program, "p: {options: {size: []}}\nq: {options: {sizes: []}}")
    assert "no words give an empty list to `--size`: its default would count" in call("p")
    assert call("q") == "('a',) ()"
