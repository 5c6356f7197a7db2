"""Check whether values can be sent to another process, and name the part that cannot."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import FunctionType
from typing import Any, final


def check_picklable(function: Callable[..., Any], args: Sequence[object]) -> None:
    """Check that a function and its arguments can be sent to new processes.

    Raises:
        ValueError: A value cannot be sent; the message names it, or the part of a data class or a
            mapping.
    """
    for name, value in (("the function", function), *_named(args)):
        if (problem := _problem(value)) is None:
            continue
        found = ((part, inner, _problem(inner)) for part, inner in _parts(value))
        worst = next((one for one in found if one[2] is not None), (name, value, problem))
        raise ValueError(
            f"{worst[0]} cannot be sent to the ranks ({worst[2]}): {_described(worst[1])}. Ranks "
            "that a program starts itself are new processes, which find functions and classes by "
            "the names they have in a module: define it at the top of a file, without lambda and "
            "not inside of a function; or launch the program with fdl or torchrun, where every "
            "rank runs all of it"
        )


def _named(args: Sequence[object]) -> Iterator[tuple[str, object]]:
    for index, value in enumerate(args):
        yield f"argument {index} ({type(value).__name__})", value


def _parts(value: object) -> Iterator[tuple[str, object]]:
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield field.name, getattr(value, field.name)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield str(key), inner


def _problem(value: object) -> str | None:
    try:
        _Probe(_Nowhere()).dump(value)
    except Exception as error:  # __reduce__ of a user's class may raise any error
        return f"{type(error).__name__}: {error}"
    return None


def _described(value: object) -> str:
    if isinstance(value, FunctionType):
        code = value.__code__
        return f"{value.__qualname__} ({code.co_filename}:{code.co_firstlineno})"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


@final
class _Nowhere(io.RawIOBase):
    """Accepts bytes and discards them: a data set may be large."""

    def write(self, data: Any) -> int:
        """Discard the bytes."""
        return memoryview(data).nbytes


@final
class _Probe(pickle.Pickler):
    """Refuses to pickle functions and classes that a new process cannot find."""

    def __init__(self, file: io.RawIOBase) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)

    def reducer_override(self, value: Any) -> Any:
        """Refuse functions and classes that exist in this process only."""
        if isinstance(value, FunctionType | type) and value.__module__ == "__main__":
            main = sys.modules["__main__"]
            file = getattr(main, "__file__", None) or ""
            if getattr(main, "__spec__", None) is None and not Path(file).is_file():
                raise pickle.PicklingError(
                    f"{value.__qualname__} was typed in and is in no file that another process "
                    "could import"
                )
        return NotImplemented
