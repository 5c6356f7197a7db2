"""The settings that a builder collects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Self


class Settings:
    """Keeps the settings of a training by name; the methods of a builder set them."""

    _settings: dict[str, Any]

    def _choose(self, name: str, value: Any, choices: tuple[Any, ...]) -> Self:
        if value not in choices:
            raise ValueError(f"{name}={value!r}: it must be one of {', '.join(map(repr, choices))}")
        return self._set(name, value)

    def _set(self, name: str, value: object) -> Self:
        self._settings[name] = value
        return self


def callable_setting(name: str, value: Any) -> Any:
    """Return a setting that must be a function.

    Raises:
        ValueError: It cannot be called.
    """
    if not callable(value):
        raise ValueError(f"{name}={value!r}: it must be a function")
    return value
