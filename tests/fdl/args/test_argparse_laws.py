"""Whatever an argparse parser declares: its schema is valid, and promises what argparse does."""

import argparse
import contextlib
import io
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st

from fdl.base.errors import UsageError
from fdl.plan.check import check_tail
from fdl.programs.args import expose
from fdl.programs.parameters.contract import Schema, parse
from fdl.programs.parameters.parameter import UNSET
from tests.rows import each_row

LONGS = ("alpha", "beta", "gamma-ray", "mu_nu", "env", "version", "quiet", "ref/x")
SHORTS = ("a", "b", "m", "e", "v", "q", "1")
WORDS = ("x", "y", "z 1", "1", "2", "-3", "0.5", "a,b", "sub", "")
TYPES = (None, int, float, str.lower)


@st.composite
def declaration(draw: st.DrawFn, names: list[str]) -> dict[str, Any]:
    """The keywords of an argument that takes values."""
    kind = draw(st.sampled_from(TYPES))
    made: dict[str, Any] = {"type": kind} if kind else {}
    nargs = draw(st.sampled_from([None, None, None, "?", "*", "+", 1, 2, argparse.REMAINDER]))
    if nargs is not None:
        made["nargs"] = nargs
    values = {int: st.sampled_from([1, 2, -3]), float: st.sampled_from([1.0, 0.5, 2])}.get(
        kind, st.sampled_from(WORDS)
    )
    if draw(st.booleans()):
        made["choices"] = draw(st.lists(values, min_size=1, max_size=3))
    if draw(st.booleans()):
        shared = draw(values)
        made["default"] = [shared] if nargs in ("*", "+", 1, 2) else shared
    made["help"] = draw(st.sampled_from([None, "Of %(prog)s", "100%", argparse.SUPPRESS]))
    return {key: value for key, value in made.items() if value is not None} | {"names": names}


FLAGS = ("store_true", "store_false", "count", "append", argparse.BooleanOptionalAction)


@st.composite
def option(draw: st.DrawFn, long: str, short: str | None) -> dict[str, Any]:
    names = [*([f"-{short}"] if short else []), f"--{long}"]
    action = draw(st.sampled_from([None, None, *FLAGS]))
    if action is None:
        return draw(declaration(names))
    return {"names": names, "action": action}


@st.composite
def parsers(draw: st.DrawFn) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="program",
        allow_abbrev=draw(st.booleans()),
        fromfile_prefix_chars=draw(st.sampled_from([None, None, None, "@"])),
    )
    longs = draw(st.lists(st.sampled_from(LONGS), unique=True, max_size=4))
    shorts = draw(st.permutations(SHORTS))
    declared = [
        draw(option(long, short if draw(st.booleans()) else None))
        for long, short in zip(longs, shorts, strict=False)
    ]
    names = draw(st.lists(st.sampled_from(["data", "out_dir", "rest"]), unique=True))
    declared += [draw(declaration([name])) for name in names]
    for row in draw(st.permutations(declared)):
        parser.add_argument(*row.pop("names"), **row)
    if draw(st.integers(0, 4)) == 0:
        inner = parser.add_subparsers(dest=draw(st.sampled_from([None, "what"])))
        sub = inner.add_parser("sub")
        sub.add_argument("--alpha", choices=["y", "2"])
        sub.add_argument("free", nargs="*")
    return parser


def schema_of(parser: argparse.ArgumentParser) -> Schema:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), pytest.raises(SystemExit) as left:
        expose(parser, ["--fdl-schema"])
    assert left.value.code == 0
    return parse(json.loads(said.getvalue()))


def accepts(parser: argparse.ArgumentParser, argv: list[str]) -> bool:
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        try:
            parser.parse_args(argv)
        except (SystemExit, OSError):
            return False
        except (TypeError, IndexError, ValueError):
            # argparse stumbles over some parsers it has let be built.
            assume(False)
    return True


def words(parser: argparse.ArgumentParser) -> st.SearchStrategy[list[str]]:
    """Command lines made of what the parser knows, and of some that it may not."""
    groups: list[list[str]] = [[word] for word in (*WORDS, "--alp", "@file", "sub")]
    for flag, action in parser._option_string_actions.items():
        values = [str(choice) for choice in action.choices or ("x", "1")]
        groups += [[flag], *([flag, value] for value in values)]
        groups += [[f"{flag}={value}"] for value in values]
        groups += [[f"{flag}{value}"] for value in values if len(flag) == 2]
    for action in parser._actions:
        if not action.option_strings:
            groups += [[str(choice)] for choice in action.choices or ()] * 3
    known = [group for group in groups if group[0] not in ("-h", "--help")]
    chosen = st.lists(st.sampled_from(known), max_size=4)
    return chosen.map(lambda found: [word for group in found for word in group])


@each_row(
    ("declarations", "argv"),
    [
        # A word behind an option of several words is not the positional it looks like.
        (
            [("--sizes", {"nargs": 2}), ("stage", {"choices": ["fit"]})],
            ["--sizes", "1", "2", "fit"],
        ),
        ([("--size", {}), ("-1", {}), ("stage", {"choices": ["fit"]})], ["-1", "x", "fit"]),
        # `-ab` is one name, and no cluster of `-a` and `-b`.
        (
            [
                ("-ab", {}),
                ("-a", "--an", {"action": "store_true"}),
                ("-b", "--be", {"choices": ["x"]}),
            ],
            ["-ab", "y"],
        ),
        # The word can only be the second positional.
        ([("a", {"nargs": "?", "choices": ["x"]}), ("b", {})], ["y"]),
        ([("-n", "--size", {}), ("stage", {"choices": ["fit"]})], ["-n3", "fit"]),
        ([("-n", "--size", {}), ("-m", "--mode", {"choices": ["x"]})], ["-nm"]),
        ([("--mode", {"choices": ["a"], "type": str.lower})], ["--mode", "A"]),
        ([("--mode", {"choices": ["a,b"], "action": "append"})], ["--mode", "a,b"]),
        ([("rest", {"nargs": "...", "choices": ["a"]})], ["b", "--mode"]),
    ],
)
def test_a_schema_lets_pass_what_only_looks_wrong(declarations, argv):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for *names, keywords in declarations:
        parser.add_argument(*names, **keywords)
    assert accepts(parser, argv)
    check_tail(schema_of(parser), argv, "program", "program")


LAWS = {"derandomize": True, "suppress_health_check": list(HealthCheck)}
FEW = settings(max_examples=80, **LAWS)
MANY = settings(max_examples=1000, **LAWS)
"""Every run of the tests looks at few parsers, and the slow ones at many."""


def refuses_nothing_that_argparse_accepts(data: st.DataObject) -> None:
    parser = data.draw(parsers())
    schema = schema_of(parser)
    argv = data.draw(words(parser))
    if accepts(parser, argv):
        try:
            check_tail(schema, argv, "program", "program")
        except UsageError as refusal:
            pytest.fail(f"argparse accepts {argv}, and the schema says: {refusal.message}")


@FEW
@given(data=st.data())
def test_a_schema_never_refuses_what_argparse_accepts(data: st.DataObject):
    refuses_nothing_that_argparse_accepts(data)


@pytest.mark.slow
@MANY
@given(data=st.data())
def test_many_schemas_never_refuse_what_argparse_accepts(data: st.DataObject):
    refuses_nothing_that_argparse_accepts(data)


def has_the_defaults_that_argparse_takes(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        action.required = False
    optional = argparse.ArgumentParser(parents=[], add_help=False)
    for action in parser._actions:
        if action.option_strings and action.dest != "help":
            with contextlib.suppress(argparse.ArgumentError):
                optional._add_action(action)
    try:
        found = vars(optional.parse_args([]))
    except SystemExit:
        assume(False)
    actions = parser._option_string_actions
    for one in schema_of(parser).options.values():
        if one.default is not UNSET:
            assert one.default == found[actions[one.flag].dest]


@FEW
@given(parser=parsers())
def test_defaults_are_what_argparse_takes(parser: argparse.ArgumentParser):
    has_the_defaults_that_argparse_takes(parser)


@pytest.mark.slow
@MANY
@given(parser=parsers())
def test_many_defaults_are_what_argparse_takes(parser: argparse.ArgumentParser):
    has_the_defaults_that_argparse_takes(parser)


def has_the_values_that_argparse_takes(parser: argparse.ArgumentParser) -> None:
    actions = parser._option_string_actions
    for one in schema_of(parser).options.values():
        action = actions[one.flag]
        if one.shape == "flag":
            assert action.nargs == 0
            continue
        assert action.nargs != 0
        assert one.type == {int: "int", float: "float"}.get(action.type, "string")
        for choice in one.choice_texts():
            value = parser._get_value(action, choice)
            parser._check_value(action, value)


@FEW
@given(parser=parsers())
def test_choices_and_types_are_what_argparse_takes(parser: argparse.ArgumentParser):
    has_the_values_that_argparse_takes(parser)


@pytest.mark.slow
@MANY
@given(parser=parsers())
def test_many_choices_and_types_are_what_argparse_takes(parser: argparse.ArgumentParser):
    has_the_values_that_argparse_takes(parser)
