"""The kinds of values in a manifest, as types of pydantic.

A kind is strict and converts nothing: ``"5"`` is not a number and 5 is not text.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, TypeGuard, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from fdl.manifest.words import NAMED_MODES, is_endpoint, minutes, node_range, solo_device

Rule = dict[str, Any]
T = TypeVar("T")

EMPTY = object()
"""The value of a key behind which nothing stands."""


class Mapping(BaseModel):
    """A mapping that holds certain keys and no others. A key that is null counts as not given."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    may_be_empty: ClassVar[bool] = True

    @field_validator("*", mode="before")
    @classmethod
    def _given(cls, value: object, info: ValidationInfo) -> object:
        if value is not EMPTY:
            return value
        required = cls.model_fields[info.field_name or ""].is_required()
        return None if cls.may_be_empty or required else _refuse_empty(value)


class Section(Mapping):
    """A mapping in which a key without a value is a slip; null is none."""

    may_be_empty: ClassVar[bool] = False


def _refuse_empty(value: object) -> object:
    if value is EMPTY:
        raise PydanticCustomError("empty", "has no value")
    return value


def unsuitable(demand: str, remedy: str = "", near: Sequence[str] = ()) -> PydanticCustomError:
    """The error for a value that does not meet a demand, ``must be …``; it shows the value.

    Args:
        demand: The demand.
        remedy: What to do about this value.
        near: Values that the user may have meant.
    """
    return PydanticCustomError(
        "unsuitable", "{demand}", {"demand": demand, "remedy": remedy, "near": near}
    )


def refused(problem: str, kind: str = "refused") -> PydanticCustomError:
    """The error for a value, or the name above it, that must not stand here at all."""
    return PydanticCustomError(kind, "{problem}", {"problem": problem})


class Judged:
    """A value that one function judges.

    Args:
        demand: The demand that a value does not meet, ``must be …``; empty for one that meets all.
        rules: JSON Schemas; a value must fit at least one of them.
        near: Values that the user may have meant.
        described: Whether messages repeat the value.
    """

    def __init__(
        self,
        demand: Callable[[Any], str],
        *rules: Rule,
        near: Sequence[str] = (),
        described: bool = True,
    ) -> None:
        self._demand = demand
        self._rules = rules
        self._near = near
        self._described = described

    def _judge(self, value: object) -> object:
        if demand := self._demand(value):
            raise unsuitable(demand, near=self._near) if self._described else refused(demand)
        return value

    def __get_pydantic_core_schema__(self, _: object, __: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._judge)

    def __get_pydantic_json_schema__(self, _: CoreSchema, __: GetJsonSchemaHandler) -> Rule:
        return {"anyOf": [*self._rules]} if len(self._rules) > 1 else self._rules[0]


class Or:
    """A value of the annotated type, or one that passes a test.

    Args:
        passes: The test.
        rule: The JSON Schema of what passes.
        first: Whether that schema is listed first.
    """

    def __init__(self, passes: Callable[[Any], bool], rule: Rule, *, first: bool = False) -> None:
        self._passes = passes
        self._rule = rule
        self._first = first

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(
            lambda value, inner: value if self._passes(value) else inner(value), handler(source)
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> Rule:
        rules = [handler(schema), self._rule]
        return {"anyOf": rules[::-1] if self._first else rules}


def _is_reference(value: object) -> bool:
    return isinstance(value, str) and "${" in value


def _demand_of_mode(value: object) -> str:
    if value in NAMED_MODES or (isinstance(value, str) and solo_device(value) is not None):
        return ""
    known = ", ".join(f"`{name}`" for name in NAMED_MODES)
    return f"must be `solo-N` for one device, or one of {known}"


def _demand_of_auto_or_count(value: object) -> str:
    if _is_whole(value):
        return "" if value >= 1 else "must be at least 1"
    return "" if value == "auto" else "must be `auto` or a whole number"


def _demand_of_nodes(value: object) -> str:
    if _is_whole(value):
        return "" if value >= 1 else "must be at least 1"
    fits = isinstance(value, str) and node_range(value)
    return "" if fits else 'must be a whole number, or a range such as "1:2"'


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _demand_of_endpoint(value: object) -> str:
    fits = isinstance(value, str) and is_endpoint(value)
    return "" if fits else "must be a host and a port, such as `gpu1:29400`"


def _demand_of_auto_or_switch(value: object) -> str:
    return "" if value == "auto" or isinstance(value, bool) else "must be `auto`, true or false"


def _demand_of_time(value: object) -> str:
    fits = minutes(value) is not None
    return "" if fits else 'must be minutes, or a time such as "1:30:00" or "2-12:00:00"'


def _demand_of_factor(value: object) -> str:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1
    return "" if fits else "must be a number above 0 and at most 1"


def _demand_of_variable(value: object) -> str:
    fits = not isinstance(value, dict | list)
    return "" if fits else "is one variable, so it holds text, a number, true or false"


def _demand_of_env_files(value: object) -> str:
    if all(map(_is_env_file, value if isinstance(value, list) else [value])):
        return ""
    return "must be a path, or a list of paths and of `{path: FILE, required: false}`"


def _is_env_file(value: object) -> bool:
    if not isinstance(value, dict):
        return isinstance(value, str) and bool(value.strip())
    return (
        value.keys() <= {"path", "required"}
        and isinstance(value.get("path"), str)
        and isinstance(value.get("required", False), bool)
    )


def _demand_of_texts(value: object) -> str:
    items = value if isinstance(value, list) else [value]
    fits = all(isinstance(item, str) and item.strip() for item in items)
    return "" if fits else "must be text, or a list of texts"


def _demand_of_values(value: object) -> str:
    items = value if isinstance(value, list) else [value]
    fits = items and all(
        isinstance(item, str | bool | int | float) and item != "" for item in items
    )
    return "" if fits else "must be a value, or a list of values, none of them empty"


def _demand_of_pattern(value: object) -> str:
    if not isinstance(value, str) or not value:
        return "must be a regular expression, as text"
    try:
        with warnings.catch_warnings():
            # What a later Python may read otherwise is not the author's concern now.
            warnings.simplefilter("ignore", FutureWarning)
            re.compile(value)
    except re.error as problem:
        return f"is not a regular expression: {problem}"
    return ""


def _parent(value: object) -> object:
    if isinstance(value, str) and value.strip():
        return value
    kinds = {bool: " (a boolean)", int: " (a number)", float: " (a number)"}
    demand = "must be the path of the manifest to inherit from"
    raise unsuitable(demand, kinds.get(type(value), ""))


def _switch_or_mapping(value: object) -> object:
    if isinstance(value, bool | dict):
        return value
    raise unsuitable("must be true, false or a mapping")


def _variable_name(name: str) -> str:
    if not name or "=" in name:
        problem = "names no variable: a name is not empty and holds no `=`"
        raise refused(problem, "refused_name")
    return name


_TEXT: Rule = {"type": "string"}
_SCALAR: Rule = {"type": ["string", "number", "boolean"]}
_ENV_FILE: Rule = {
    "anyOf": [
        _TEXT,
        {
            "additionalProperties": False,
            "properties": {"path": _TEXT, "required": {"type": "boolean"}},
            "required": ["path"],
            "type": "object",
        },
    ]
}


def _or_list(rule: Rule) -> tuple[Rule, Rule]:
    return rule, {"items": rule, "type": "array"}


def _number(least: int) -> Rule:
    return {"minimum": least, "type": "integer"}


def _texts(pattern: str) -> Rule:
    return {"pattern": pattern, **_TEXT}


Count = Annotated[int, Field(ge=1)]
Referring = Annotated[T, Or(_is_reference, _texts("\\$\\{"))]
"""A value of another kind, or text with ``${VAR}``, which is checked when it has a value."""
Table = dict[str, Annotated[T | None, BeforeValidator(lambda one: None if one is EMPTY else one)]]
"""A mapping from names that the user chooses to values of one kind or null."""
SwitchOr = Annotated[
    T,
    Or(lambda value: isinstance(value, bool), {"type": "boolean"}, first=True),
    BeforeValidator(_switch_or_mapping),
]
"""True, false, or a section that means true."""
Factor = Annotated[
    Any, Judged(_demand_of_factor, {"exclusiveMinimum": 0, "maximum": 1, "type": "number"})
]
Parent = Annotated[str, BeforeValidator(_parent), WithJsonSchema(_texts("\\S"))]
EnvFiles = Annotated[Any, Judged(_demand_of_env_files, *_or_list(_ENV_FILE))]
Texts = Annotated[Any, Judged(_demand_of_texts, *_or_list(_TEXT))]
Values = Annotated[Any, Judged(_demand_of_values, *_or_list(_SCALAR), described=False)]
Pattern = Annotated[Any, Judged(_demand_of_pattern, {"minLength": 1, **_TEXT}, described=False)]
Time = Annotated[Any, Judged(_demand_of_time, _number(1), _TEXT)]
Mode = Annotated[
    Any,
    Judged(
        _demand_of_mode,
        {"enum": [*NAMED_MODES]},
        _texts("^solo-[0-9]{1,6}$"),
        near=(*NAMED_MODES, "solo-0"),
    ),
]
AutoOrCount = Annotated[Any, Judged(_demand_of_auto_or_count, {"const": "auto"}, _number(1))]
AutoOrSwitch = Annotated[
    Any, Judged(_demand_of_auto_or_switch, {"const": "auto"}, {"type": "boolean"})
]
Nodes = Annotated[
    Any, Judged(_demand_of_nodes, _number(1), _texts("^[1-9][0-9]{0,5}(:[1-9][0-9]{0,5})?$"))
]
Endpoint = Annotated[Any, Judged(_demand_of_endpoint, _texts("^\\S+:[0-9]{1,5}$"))]
Variables = dict[
    Annotated[str, AfterValidator(_variable_name)],
    Annotated[
        Any,
        Judged(_demand_of_variable, {"anyOf": [_SCALAR, {"type": "null"}]}, described=False),
        BeforeValidator(_refuse_empty),
    ],
]
"""Environment variables: name -> value."""
