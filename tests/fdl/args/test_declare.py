"""Declaring arguments: what a class may say, and what is refused when it is made."""

import enum
import warnings
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field, ValidationError

from fdl import FdlArgs, arg, option
from fdl.base.secrets import REDACTED
from tests.rows import each_row


def declare(**fields: object) -> type[FdlArgs]:
    annotations = {name: kind for name, (kind, _) in fields.items()}  # type: ignore[misc]
    values = {name: value for name, (_, value) in fields.items()}  # type: ignore[misc]
    return type(
        "Bad", (FdlArgs,), {"__annotations__": annotations, "__module__": __name__, **values}
    )


@each_row(
    ("fields", "message"),
    [
        ({"x": (str, option(default="", short="="))}, "Bad.x: the short name must be one"),
        ({"x": (str, option(default="", choices=[]))}, "Bad.x: `choices` must not be empty"),
        ({"x": (bool, option(choices=[True]))}, "Bad.x: a flag has no value to choose"),
        ({"x": (bool | None, option())}, "Bad.x: a bool is a plain flag"),
        ({"x": (list[str] | None, option())}, "Bad.x: a list is empty when it is absent"),
        ({"x": (Literal[1, "a"], option(default=1))}, "Bad.x: the values of a Literal must share"),
        ({"x": ("Absent", option(default=1))}, "Bad.x: the type `Absent` is not known"),
        ({"x": (int, option(default="a"))}, "Bad.x: the default 'a' is not an integer"),
        ({"x": (int, option(default=True))}, "Bad.x: the default True is not an integer"),
        ({"x": (list[int], option(default=3))}, "Bad.x: the default of a list must be a list"),
        (
            {"x": (str, option(default="c", choices=["a"]))},
            "Bad.x: the default 'c' is not one of a",
        ),
        (
            {"api_key": (str, option(default="hunter2", choices=["a"]))},
            f"Bad.api_key: the default {REDACTED} is not one of a",
        ),
        ({"_x": (int, option(default=1))}, "Bad._x: a field cannot begin with an underscore"),
        ({"collapsed": (int, option(default=1))}, "Bad.collapsed: FdlArgs itself has an attrib"),
        ({"resolved": (int, option(default=1))}, "Bad.resolved: FdlArgs itself has an attribute"),
        ({"x": (str, option(default="", short="ab"))}, "Bad.x: the short name must be one"),
        ({"x": (int, option())}, "Bad.x: an option of a plain type needs a default"),
        ({"x": (bool, option(env="X"))}, "Bad.x: a flag takes neither default nor env"),
        ({"x": (bool, arg())}, "Bad.x: a positional cannot be a bool"),
        ({"x": (list[str], arg())}, "Bad.x: a list positional must be variadic"),
        ({"x": (int, 3)}, r"Bad.x: declare the field with option"),
        ({"x": (dict, option(default={}))}, "Bad.x: type .* is not one of"),
        ({"x": (int | str, option(default=1))}, "Bad.x: a union is only possible"),
        (
            {"a": (str, arg(default="")), "b": (str, arg())},
            "Bad.b: a required positional cannot follow `a`",
        ),
        (
            {"a": (list[str], arg(variadic=True)), "b": (str, arg(default=""))},
            "Bad.b: nothing may follow the variadic `a`",
        ),
        (
            {"a": (int, option(default=1, short="x")), "b": (int, option(default=1, short="x"))},
            "Bad.b: `-x` is taken by a",
        ),
    ],
)
def test_impossible_declarations_fail_when_the_class_is_made(fields, message):
    with pytest.raises(TypeError, match=message):
        declare(**fields)


@pytest.mark.case("cli", 46)
@each_row(
    ("fields", "message"),
    [
        ({"help": (str, option(default=""))}, "Bad.help: the long name is reserved"),
        ({"x": (str, option(default="", short="q"))}, "Bad.x: the short name is reserved"),
    ],
)
def test_a_field_called_help_or_a_short_q_is_refused_when_the_class_is_made(fields, message):
    with pytest.raises(TypeError, match=message):
        declare(**fields)


@each_row(
    "name",
    ["version", "quiet", "env", "ansi", "no_ansi", "no_append", "fdl_schema", "refresh_schema"],
)
def test_no_field_takes_a_name_that_fdl_answers_to(name):
    with pytest.raises(TypeError, match=f"Bad.{name}: the long name is reserved"):
        declare(**{name: (str, option(default=""))})


@each_row("short", ["h", "V", "q", "v", "e"])
def test_no_field_takes_a_letter_that_fdl_answers_to(short):
    with pytest.raises(TypeError, match="the short name is reserved"):
        declare(x=(str, option(default="", short=short)))


def test_a_declaration_without_a_type_is_refused():
    with pytest.raises(TypeError, match=r"Bad.x: give the field a type: `x: int = …`"):
        type("Bad", (FdlArgs,), {"__module__": __name__, "x": option(default=1)})


def test_names_of_pydantic_methods_are_ordinary_fields():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")

        class Exporter(FdlArgs):
            json: str = option(default="a.json")
            copy: bool = option()
            schema: str = option(default="public")
            dict: int = option(default=1)
            model_dump: str = option(default="w")

    assert said == []
    args = Exporter.try_parse_from(["--json", "b.json", "--copy"])
    assert (args.json, args.copy, args.schema, args.dict) == ("b.json", True, "public", 1)
    assert Exporter.schema()["options"]["schema"]["default"] == "public"
    assert args.resolved()["model_dump"] == {"value": "w", "origin": "default"}


class Color(enum.IntEnum):
    RED = 1
    BLUE = 2


def test_types_are_seen_through_annotated_and_enums_bring_their_type():
    class Annotations(FdlArgs):
        size: Annotated[int, Field(ge=1)] = option(default=2)
        sizes: list[Annotated[int, Field(ge=1)]] = option()
        limit: Annotated[float, Field(ge=0)] | None = option()
        inside: Annotated[int, option(default=3)]
        color: Color = option(default=Color.RED)

    options = Annotations.schema()["options"]
    assert {name: row["type"] for name, row in options.items()} == {
        "size": "int",
        "sizes": "list[int]",
        "limit": "float",
        "inside": "int",
        "color": "int",
    }
    assert options["color"]["choices"] == [1, 2]
    assert Annotations.try_parse_from(["--color", "2"]).color is Color.BLUE
    assert Annotations.try_parse_from([]).inside == 3


class Seeded(FdlArgs):
    """Anything with a seed."""

    data: Path = arg()
    seed: int = option(default=1)


class Device:
    device: str = option(default="cpu")


class Tuned(Device, Seeded):
    seed: int = option(default=2, short="s")
    trials: int = option(default=5)


def test_classes_inherit_add_and_redeclare_fields():
    args = Tuned.try_parse_from(["images", "-s", "7"])
    assert (args.data, args.seed, args.trials, args.device) == (Path("images"), 7, 5, "cpu")
    assert Tuned.try_parse_from(["x"]).seed == 2
    assert Seeded.try_parse_from(["x"]).seed == 1
    assert Tuned.schema()["description"] == "Anything with a seed."


def test_positionals_of_a_base_class_come_first():
    class Early(FdlArgs):
        data: str = arg(default="")

    late = {"__annotations__": {"more": str}, "__module__": __name__, "more": arg()}
    with pytest.raises(TypeError, match=r"Late.more: a required positional cannot follow `data`"):
        type("Late", (Early,), late)


def test_a_default_has_the_type_of_its_field():
    class Typed(FdlArgs):
        output: Path = option(default="runs")
        lr: float = option(default=1)
        paths: list[Path] = option(default=["a"])

    args = Typed()
    assert (args.output, args.paths) == (Path("runs"), [Path("a")])
    assert isinstance(args.lr, float)


def test_a_class_called_in_a_program_knows_defaults_and_what_is_required():
    assert Seeded(data=Path("x")).seed == 1
    with pytest.raises(ValidationError, match="data"):
        Seeded()
