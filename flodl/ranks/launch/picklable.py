"""Send values to other processes, after a check that names the part that cannot be sent."""

from __future__ import annotations

import io
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from multiprocessing.reduction import ForkingPickler
from types import FunctionType
from typing import Any, final

import cloudpickle


@final
class ByValue:
    """A value that another process gets with the code of its functions and classes.

    A notebook or a prompt is in no file that another process could import. Tensors are shared as
    :mod:`torch.multiprocessing` does it.

    Args:
        value: Any value that :func:`check_picklable` accepts.
    """

    def __init__(self, value: object) -> None:
        self._value = value

    def __reduce__(self) -> tuple[Callable[[bytes], object], tuple[bytes]]:
        """Return how the other process makes the value itself; called once for each process."""
        file = io.BytesIO()
        pickler = cloudpickle.Pickler(file)
        shared = ForkingPickler(io.BytesIO()).dispatch_table
        pickler.dispatch_table = ChainMap(shared, pickler.dispatch_table)
        pickler.dump(self._value)
        return pickle.loads, (file.getvalue(),)


def is_typed_in() -> bool:
    """Whether the program is a notebook or was typed in: other processes cannot import it."""
    main = sys.modules["__main__"]
    return getattr(main, "__spec__", None) is None and not getattr(main, "__file__", None)


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
    pickler = cloudpickle.Pickler if is_typed_in() else pickle.Pickler
    try:
        pickler(_Nowhere()).dump(value)
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
