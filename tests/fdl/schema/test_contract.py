"""The document a program prints for ``--fdl-schema``, read and checked."""

import enum
import json
from pathlib import Path
from typing import ClassVar

import pytest

from fdl import FdlArgs, arg, option
from fdl.programs.parameters.contract import ContractError, parse
from fdl.programs.parameters.parameter import UNSET
from tests.rows import each_row


class Mode(enum.Enum):
    FAST = "fast"
    EXACT = "exact"


class Train(FdlArgs):
    """Train a
    model."""

    data: Path = arg(help="Folder with the data")
    extra: list[str] = arg(variadic=True)
    epochs: int = option(default=10, short="n", help="Passes")
    lr: float = option(default=0.1, env="LR")
    mode: Mode = option(default=Mode.FAST)
    tags: list[str] = option(default=["a"], completer="ls")
    note: str | None = option()
    dry: bool = option()
    rate: int | None = option(group="Data loading")
    collapsed: ClassVar = {"Data loading": "reading files"}


@pytest.mark.case("cli", 47)
def test_what_fdl_args_prints_is_read_back_whole():
    schema = parse(json.loads(json.dumps(Train.schema())))
    assert (schema.description, schema.strict) == ("Train a model.", True)
    data, extra = schema.arguments
    assert (data.name, data.type, data.required, data.help) == (
        "data",
        "path",
        True,
        "Folder with the data",
    )
    assert (extra.type_name, extra.variadic, extra.required) == ("list[string]", True, False)
    options = schema.options
    assert list(options) == ["epochs", "lr", "mode", "tags", "note", "dry", "rate"]
    assert {one.group for one in options.values()} == {"", "Data loading"}
    assert schema.collapsed == {"Data loading": "reading files"}
    epochs = options["epochs"]
    assert (epochs.type, epochs.shape, epochs.default, epochs.short) == ("int", "value", 10, "n")
    assert options["lr"].env == "LR"
    assert options["mode"].choices == ("fast", "exact")
    assert (options["tags"].shape, options["tags"].default) == ("list", ["a"])
    assert options["tags"].completer == "ls"
    assert (options["note"].shape, options["note"].default) == ("optional", UNSET)
    assert options["dry"].shape == "flag"


def option_row(**row: object) -> dict[str, object]:
    return {"options": {"x": {"type": "string", **row}}}


def argument_rows(*rows: dict[str, object]) -> dict[str, object]:
    return {"args": [{"name": "a", "type": "string", **row} for row in rows]}


REFUSED = [
    pytest.param(
        {"options": {"help": {"type": "bool"}}},
        "`options.help` cannot be declared: fdl itself answers to `--help`",
        marks=pytest.mark.case("cli", 47),
        id="reserved long",
    ),
    (option_row(short="v"), "`options.x.short` cannot be `v`: fdl answers to `-v`"),
    (option_row(short="ab"), "`options.x.short` must be one character"),
    (option_row(short="-"), "`options.x.short` must be one character"),
    (option_row(type="flot"), "`options.x.type` is `flot`, which is not one of string, int, float"),
    (option_row(type="list[bool]"), "`options.x.type` is `list[bool]`, which is not one of"),
    ({"options": {"x": {}}}, "`options.x` needs a `type`"),
    ({"options": {"--x": {"type": "int"}}}, "is not a long name"),
    ({"options": {"": {"type": "int"}}}, "is not a long name"),
    (
        {"options": {"x": {"type": "int", "short": "k"}, "y": {"type": "int", "short": "k"}}},
        "`options.y.short` is `k`, which `--x` has already",
    ),
    (argument_rows({}, {}), "`args[1].name` repeats `a`"),
    (argument_rows({"name": None}), "`args[0]` needs a `name`"),
    (
        argument_rows({"variadic": True, "type": "list[string]"}, {"name": "b"}),
        "`args[1]` cannot follow `a`, which takes all that remains",
    ),
    (
        argument_rows({"required": True, "default": "x"}),
        "`args[0].required` cannot be true beside a `default`",
    ),
    (
        argument_rows({"required": False}, {"name": "b"}),
        "`args[1]` is required, so it cannot follow `a`, which may be left out",
    ),
    (
        option_row(type="int", default="many"),
        "`options.x.default` is `many`, which is not an integer",
    ),
    (option_row(type="int", default=1.5), "`options.x.default` must be of type int"),
    (option_row(type="int", default=True), "`options.x.default` must be of type int"),
    (option_row(default={"a": 1}), "`options.x.default` must be of type string"),
    (option_row(choices="a,b"), "`options.x.choices` must be a list"),
    (
        option_row(type="int", choices=[1, "b"]),
        "`options.x.choices[1]` is `b`, which is not an integer",
    ),
    (option_row(group=3), "`options.x.group` must be text"),
    ({"collapsed": ["a"]}, "`collapsed` must be a mapping"),
    ({"collapsed": {"a": 3}}, "`collapsed.a` must be text"),
    (option_row(env=3), "`options.x.env` must be text"),
    ({"strict": "yes"}, "`strict` must be true or false"),
    ({"args": {}}, "`args` must be a list of arguments"),
    ({"options": []}, "`options` must be a mapping of long names"),
    ([], "the document must be a mapping"),
    ({"args": ["a"]}, "`args[0]` must be a mapping"),
]


@each_row(("document", "message"), REFUSED)
def test_what_makes_no_sense_is_refused_with_its_place(document, message):
    with pytest.raises(ContractError) as caught:
        parse(document)
    assert message in str(caught.value)


def test_values_may_be_written_as_text_or_as_what_they_are():
    texts = {
        "options": {
            "epochs": {"type": "int", "default": "10", "choices": ["10", 20]},
            "lr": {"type": "float", "default": "1e-3"},
            "rate": {"type": "float", "default": 1},
            "fast": {"type": "bool", "default": "True"},
            "tags": {"type": "list[int]", "default": "1, 2,"},
            "level": {"type": "string", "default": 3, "choices": [3, True]},
        }
    }
    options = parse(texts).options
    assert (options["epochs"].default, options["epochs"].choices) == (10, (10, 20))
    assert (options["lr"].default, options["rate"].default) == (1e-3, 1)
    assert options["fast"].default is True
    assert options["tags"].default == [1, 2]
    assert (options["level"].default, options["level"].choices) == ("3", ("3", "true"))


def test_absent_and_null_are_the_same():
    schema = parse(
        {
            "description": None,
            "args": [{"name": "a", "type": "string", "default": None, "variadic": None}],
            "options": {"x": {"type": "string", "default": None, "choices": None, "short": None}},
        }
    )
    (only,) = schema.arguments
    assert (only.required, only.default, schema.strict, schema.description) == (
        True,
        UNSET,
        False,
        "",
    )
    assert schema.options["x"].default is UNSET
    assert parse({}).parameters == ()


def test_a_default_makes_an_argument_optional():
    (only,) = parse(argument_rows({"default": "here"})).arguments
    assert (only.required, only.shape, only.default) == (False, "value", "here")


def test_a_newer_program_may_say_more_but_a_manifest_may_not():
    document = {"options": {"x": {"type": "int", "colour": "red"}}, "since": 3}
    assert list(parse(document).options) == ["x"]
    with pytest.raises(ContractError, match="`since` is unknown; known here: description, args"):
        parse(document, closed=True)
    with pytest.raises(ContractError, match=r"`options.x.defualt` is unknown; did you mean `defa"):
        parse({"options": {"x": {"type": "int", "defualt": 1}}}, closed=True)
