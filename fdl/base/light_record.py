"""Classes that hold data, without ``dataclasses``, whose import takes longer than a warm start.

Imported on the warm path: nothing at module top.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar, Self, dataclass_transform
else:

    def dataclass_transform(**_options: bool) -> object:  # noqa: D103
        return lambda made: made


@dataclass_transform(eq_default=False)
class Record:
    """A class whose annotated names are the arguments of its constructor.

    Their order, their defaults and inheritance are those of a dataclass.

    Raises:
        TypeError: An argument of the constructor is unknown, or one too many. A missing argument
            is found by mypy only.
    """

    field_names: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls.field_names = (*cls.field_names, *cls.__annotations__)

    def __init__(self, *values: Any, **named: Any) -> None:
        if len(values) > len(self.field_names) or not named.keys() <= {*self.field_names}:
            raise TypeError(f"{type(self).__name__} takes {', '.join(self.field_names)}")
        # Defaults are found in the class.
        self.__dict__.update(zip(self.field_names, values, strict=False), **named)
        self.settle()

    def settle(self) -> None:
        """Derive values from those of the constructor."""

    def replaced(self, **named: Any) -> Self:
        """The same with other values for some names."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, **named)
        return made
