"""Settings that a program declares as changeable while it trains."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, final

from flodl import log

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Value: TypeAlias = bool | int | float | str

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@final
@dataclass(frozen=True, slots=True)
class LiveSetting:
    """A declared setting.

    Attributes:
        name: Its name.
        default: The value at the beginning; its type is the type of all values.
        on_change: Called with each new value.
    """

    name: str
    default: Value
    on_change: Callable[[Value], object]

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ValueError(f"live_setting({self.name!r}): use letters, digits and underscores")
        if self.name == "lr":
            raise ValueError(
                "live_setting('lr'): every training has it already; type fdl runs tell RUN lr=1e-4"
            )
        if not isinstance(self.default, bool | int | float | str):
            raise ValueError(
                f"live_setting({self.name!r}): the default is a {type(self.default).__name__}; "
                "give a number, a text, True or False"
            )
        if not callable(self.on_change):
            raise ValueError(f"live_setting({self.name!r}): on_change must be a function")

    def read(self, text: str) -> Value:
        """Return the value that a text means.

        Raises:
            ValueError: It has another type than the default.
        """
        if isinstance(self.default, str):
            return text
        if isinstance(self.default, bool):
            word = text.strip().lower()
            if word in _TRUE or word in _FALSE:
                return word in _TRUE
            raise ValueError(f"{self.name}={text!r}: use true or false")
        kind = int if isinstance(self.default, int) else float
        try:
            value = kind(text)
        except ValueError:
            name = "a whole number" if kind is int else "a number"
            raise ValueError(f"{self.name}={text!r}: it must be {name}") from None
        if not math.isfinite(value):
            raise ValueError(f"{self.name}={text!r}: it must be finite")
        return value


@final
class LiveSettings:
    """The declared settings of a training, with their current values.

    Args:
        declared: The settings.
    """

    def __init__(self, declared: Sequence[LiveSetting] = ()) -> None:
        self._declared = {one.name: one for one in declared}
        self._values: dict[str, Value] = {one.name: one.default for one in declared}

    @property
    def values(self) -> Mapping[str, Value]:
        """The current values by name."""
        return dict(self._values)

    def changed(self) -> dict[str, Value]:
        """Return the values that are not their defaults."""
        return {k: v for k, v in self._values.items() if v != self._declared[k].default}

    def set(self, name: str, text: str) -> tuple[Value, Value]:
        """Change a setting, and call its function.

        Returns:
            The new value and the one before.

        Raises:
            ValueError: No such setting is declared, the text is not a value of it, or its function
                refused the value with a ``ValueError``.
        """
        setting = self._declared.get(name)
        if setting is None:
            known = ", ".join(self._declared) or "none"
            raise ValueError(
                f"{name!r} is not a live setting of this program; declared: {known}; declare it "
                f"with .live_setting({name!r}, default, on_change=…)"
            )
        value = setting.read(text)
        self._call(setting, value)
        old, self._values[name] = self._values[name], value
        return value, old

    def restore(self, values: Mapping[str, Value]) -> None:
        """Set the values of a checkpoint; settings that are no longer declared are left out."""
        for name, value in values.items():
            setting = self._declared.get(name)
            if setting is None:
                log.warning(
                    f"the checkpoint has {name}={value!r}, which is not a live setting any more; "
                    "it is left out"
                )
            elif value != self._values[name]:
                self._call(setting, value)
                self._values[name] = value

    @staticmethod
    def _call(setting: LiveSetting, value: Value) -> None:
        try:
            setting.on_change(value)
        except Exception as error:
            error.add_note(f"in on_change of the live setting {setting.name}={value!r}")
            raise
