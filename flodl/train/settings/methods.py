"""Methods that set one value each, made from the fields of the settings.

``methods.pyi`` has their signatures, for editors and type checkers: ``python scripts/settings.py``.
"""

from __future__ import annotations

from typing import Any, Self

from flodl.ranks.settings import DdpRunConfig
from flodl.setting import with_methods
from flodl.train.settings.compute import ComputeSettings
from flodl.train.settings.data import DataSettings
from flodl.train.settings.records import RecordSettings

PARTS = (DataSettings, ComputeSettings, RecordSettings, DdpRunConfig)


@with_methods(*PARTS)
class SettingMethods:
    """A method for each setting that is one value; the value is checked at the call."""

    def __init__(self) -> None:
        self._settings: dict[str, Any] = {}

    def _set(self, name: str, value: object) -> Self:
        self._settings[name] = value
        return self
