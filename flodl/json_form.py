"""Read dataclasses from the JSON values that ``dataclasses.asdict`` gives of them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")


def from_form(kind: type[T], form: object) -> T:
    """Return the object of a dataclass; entries that it does not know are ignored.

    Raises:
        ValueError: A field is missing or has a value of another type.
    """
    found: T = _reader(kind).validate_python(form)  # type: ignore[arg-type]
    return found


@cache
def _reader(kind: type[Any]) -> TypeAdapter[Any]:
    # Imported here: only a training that continues another one reads its state.
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
