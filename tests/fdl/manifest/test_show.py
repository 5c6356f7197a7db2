"""What ``fdl config show`` prints reads back to what was in the manifest."""

from __future__ import annotations

from typing import Any

import yaml
from hypothesis import example, given, strategies as st

from fdl.base.output import Palette
from fdl.manifest.inspect.document import listing
from fdl.manifest.node import Node, dotted
from fdl.manifest.read_yaml import read_yaml
from fdl.manifest.show import lines, scalar
from fdl.manifest.source import MAX_KEY
from tests.rows import each_row


def node_of(value: Any) -> Node:
    if isinstance(value, dict):
        value = {key: node_of(item) for key, item in value.items()}
    elif isinstance(value, list):
        value = [node_of(item) for item in value]
    return Node(value, "/project/fdl.yml", 7, 3)


def text_of(value: Any, width: int | None = None) -> str:
    return listing(node_of(value), [], "/project", Palette(on=False), width)


# Words and shapes that a careless writer leaves unquoted, among all other text.
TRICKY = st.sampled_from(
    [
        *("", "~", "null", "Null", "true", "FALSE", "yes", "No", "on", "OFF", "y", "=", "<<"),
        *("<<:", "-", "--", "---", "...", ".5", "1e3", "1e-3", "0x1F", "0o17", "0b1", "1_000"),
        *("12:30", "2024-01-31", ".inf", "-.INF", ".nan", "+1", ".", "..", "!", "!x", "&a", "*a"),
        *("|", ">", "%x", "@x", "`", "?", "?x", ":", "a:", ":a", "#a", "a#", "[a", "{a", "a]"),
        *("a}", "a,", ",a", "'a", '"a', "a\\", "1.2.3", "+.5", "1.", "1e", "0x", "😀", "\x1b[1m"),
        *("\u2028", "\x85", "\ufeff", "\n", "\t"),
    ]
)
TEXT = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    TRICKY,
    st.tuples(TRICKY, TRICKY).map(" ".join),
    st.text(" \t\n\r:#-,[]{}'\"", max_size=6),
)
KEYS = TEXT.filter(lambda key: 0 < len(key) <= MAX_KEY)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXT
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(KEYS, inner, max_size=4)
)


@given(st.dictionaries(KEYS, VALUES, max_size=5))
@example({})
@example({"... x": 1})
def test_any_manifest_reads_back_to_the_same_values(options: dict[str, Any]) -> None:
    manifest = {**options, "commands": {"quick": {"options": options}}} if options else {}
    text = text_of(manifest)
    # repr, because 1, 1.0 and True are equal.
    assert repr(read_yaml(text, "fdl.yml").plain()) == repr(manifest)


# A key inside of a list may not be broken over two lines, so mappings there are left out.
WRAPPED = st.recursive(
    SCALARS | st.lists(SCALARS, max_size=5),
    lambda inner: st.dictionaries(KEYS, inner, max_size=4),
)


@given(st.dictionaries(KEYS, WRAPPED, max_size=5), st.integers(20, 130))
def test_what_a_terminal_shows_reads_back_as_well(manifest: dict[str, Any], width: int) -> None:
    text = text_of(manifest, width)
    assert repr(read_yaml(text, "fdl.yml").plain()) == repr(manifest)
    assert repr(yaml.safe_load(text)) == repr(manifest)


@given(VALUES)
def test_readers_of_older_yaml_see_the_same(value: Any) -> None:
    text = text_of({"key": value})
    assert repr(yaml.safe_load(text)) == repr({"key": value})


@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=5))
def test_every_origin_stands_in_one_column(manifest: dict[str, Any]) -> None:
    comment = "  # fdl.yml:7"
    commented = [line for line in text_of(manifest).split("\n") if comment in line]
    assert len(commented) == len(list(node_of(manifest).leaves()))
    bodies = [line.removesuffix(comment) for line in commented]
    assert len({len(body) for body in bodies}) == 1
    assert len(bodies[0]) == max(12, *(len(body.rstrip(" ")) for body in bodies))


@each_row(
    ("value", "text"),
    [
        ("plain words", "plain words"),
        ("./train/main.py", "./train/main.py"),
        ("python main.py --fast", "python main.py --fast"),
        ("$HOME && (ls)", "$HOME && (ls)"),
        ("é", "é"),
        (".", "."),
        ("a-b", "a-b"),
        ("", '""'),
        ("a: b", '"a: b"'),
        ("a #b", '"a #b"'),
        ("it's", '"it\'s"'),
        ('say "x"', '"say \\"x\\""'),
        ("two\nlines", '"two\\nlines"'),
        ("-x", '"-x"'),
        (" x", '" x"'),
        ("x ", '"x "'),
        ("true", '"true"'),
        ("no", '"no"'),
        ("Null", '"Null"'),
        ("12", '"12"'),
        ("1e-3", '"1e-3"'),
        ("2024-01-31", '"2024-01-31"'),
        ("\x1b[1m", '"\\x1b[1m"'),
        ("\u2028", '"\\u2028"'),
        ("\U000e0001", '"\\U000e0001"'),
        (None, "null"),
        (True, "true"),
        (12, "12"),
        (0.001, "0.001"),
        (1e-5, "1.0e-05"),
        (1e16, "1.0e+16"),
        (1.5e300, "1.5e+300"),
        (float("inf"), ".inf"),
        (float("-inf"), "-.inf"),
        (float("nan"), ".nan"),
    ],
)
def test_only_ambiguous_text_is_quoted(value: Any, text: str) -> None:
    assert scalar(value) == text


def test_lists_stand_on_one_line_up_to_eighty_characters() -> None:
    fits = "x" * (80 - len("  key: [a, ]"))
    assert text_of({"m": {"key": ["a", fits]}}) == (f"m:\n  key: [a, {fits}]  # fdl.yml:7\n")
    assert text_of({"m": {"key": ["a, b", f"{fits}y"]}}) == (
        f"m:\n  key:        # fdl.yml:7\n    - a, b\n    - {fits}y\n"
    )


def test_nested_lists_stand_in_a_block_with_one_origin() -> None:
    value = {"key": [{"a": [1, "x, y"], "b": {}}, [], "z"], "none": [], "empty": {}}
    assert text_of(value) == (
        "key:          # fdl.yml:7\n"
        '  - {a: [1, "x, y"], b: {}}\n'
        "  - []\n"
        "  - z\n"
        "none: []      # fdl.yml:7\n"
        "empty: {}     # fdl.yml:7\n"
    )


def test_an_empty_manifest_is_an_empty_mapping() -> None:
    assert text_of({}) == "{}            # fdl.yml:7\n"


def test_every_leaf_comes_with_its_path() -> None:
    tree = node_of({"a.b": {'"': 1}, "c": [1, [2]], "d": {}})
    paths = [path for _, _, path, leaf in lines(tree) if leaf]
    assert [dotted(path) for path in paths] == ['"a.b"."\\""', "c", "d"]


@each_row(
    ("value", "text"),
    [
        # A list too long for one line: a scalar stands alone on its line and needs no quotes.
        (["a, b", "x" * 80], "key:  # fdl.yml:7\n  - a, b\n  - " + "x" * 80 + "\n"),
        # Beside a list or mapping, a scalar is quoted like what is inside of one.
        (["a, b", [1]], 'key:         # fdl.yml:7\n  - "a, b"\n  - [1]\n'),
        (["a, b"], 'key: ["a, b"]  # fdl.yml:7\n'),
    ],
)
def test_quotes_inside_and_outside_of_brackets(value: Any, text: str) -> None:
    lines = [line.split("  #")[0].rstrip() for line in text_of({"key": value}).splitlines()]
    assert lines == [line.split("  #")[0].rstrip() for line in text.splitlines()]
