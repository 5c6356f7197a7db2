"""Dataclasses as schemas: every field is an option, as the usual parsers for them have it.

Those parsers differ in detail, so the schema is never strict.
"""

from __future__ import annotations

import dataclasses
import typing
from typing import TYPE_CHECKING, Any

from fdl.programs.args.adapters.draft import allowed, default_of
from fdl.programs.args.annotations import describe
from fdl.programs.parameters.document import plain
from fdl.programs.parameters.parameter import UNSET

if TYPE_CHECKING:
    from fdl.programs.args.adapters.draft import Draft


def draw_dataclass(draft: Draft, target: type) -> None:
    """Put the fields of a dataclass into a draft.

    ``metadata={"help": …, "group": …}`` describes a field.
    """
    draft.strict = False
    # Without a docstring, a dataclass shows its signature there.
    text = target.__doc__ or ""
    draft.description = "" if text.startswith(f"{target.__name__}(") else " ".join(text.split())
    annotations = _annotations(target)
    for field in dataclasses.fields(target):
        if not field.init:
            continue
        try:
            type_, shape, choices = describe(_without_none(annotations.get(field.name, field.type)))
        except TypeError:
            continue
        many = shape == "list"
        draft.option(
            [f"--{field.name.replace('_', '-')}"],
            type=type_,
            many=many,
            default=_default(field, type_, many=many),
            choices=allowed([plain(choice) for choice in choices], type_, many=many),
            help=" ".join(str(field.metadata.get("help", "")).split()),
            group=str(field.metadata.get("group", "")),
        )


def _annotations(target: type) -> dict[str, Any]:
    """The annotations as types; as they were written where a name in one is not known."""
    try:
        return typing.get_type_hints(target, include_extras=True)
    except (NameError, TypeError):
        return {}


def _without_none(annotation: Any) -> Any:
    """``list[T] | None`` and ``bool | None`` as the type that is meant when it is given."""
    parts = [part for part in typing.get_args(annotation) if part is not type(None)]
    is_optional = type(None) in typing.get_args(annotation)
    return parts[0] if is_optional and len(parts) == 1 else annotation


def _default(field: dataclasses.Field[Any], type_: str, *, many: bool) -> Any:
    value = field.default
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    return UNSET if value is dataclasses.MISSING else default_of(value, type_, many=many)
