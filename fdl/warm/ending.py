"""The end of a program: packages that the server has imported are not taken apart.

At its end the interpreter destroys module after module, and the C++ libraries their objects. For
torch this takes longer than to fork the server. Nobody sees it, and the system takes back the
memory. So it is left out. Everything else ends as always, the program's own objects too.

Runs in the project's interpreter. Standard library only.
"""

# The paths of modules are strings.
# ruff: noqa: PTH120
from __future__ import annotations

import atexit
import ctypes
import gc
import io
import os
import socket
import sys
from types import GeneratorType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

_WITHOUT_WORK = ("torch", "numpy")
"""Their own objects have nothing to do at the end, though their classes have ``__del__``."""

_CLOSED_BY_THE_SYSTEM = (io.FileIO, io.BufferedReader, socket.socket)
"""They have no text or bytes to write."""

_WRITING = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)

_LIBRARY = ("<frozen ", os.path.dirname(os.__file__) + os.sep)

_INTERPRETER = {*sys.stdlib_module_names, "__main__", __name__.partition(".")[0]}

_kept: dict[str, ModuleType] = {}


def prepare() -> None:
    """Let :func:`_leave` be the last exit function: call it before anything is imported."""
    atexit.register(_leave)


def skip_destructors() -> None:
    """Let the process end before the destructors of the C++ libraries that are loaded now.

    Those of torch visit all its operators. What the program itself loads is destroyed as always,
    and C's own streams are written. Call it after the import of torch and before any other.
    """
    # A library that was preloaded may write its result in a destructor.
    if os.environ.get("LD_PRELOAD"):
        return
    library = ctypes.CDLL(None)
    try:
        # The last one is called first; `_exit` gets the exit code.
        functions = (library._exit, library.fcloseall)
        register = library.on_exit
    except AttributeError:
        return  # not the C library of GNU
    for function in functions:
        register(function, None)


def note_imports() -> None:
    """Note the packages that are imported now, unless an object of theirs has work at the end."""
    if _any_work(gc.get_objects()):
        return
    _kept.update(
        (name, module)
        for name, module in sys.modules.items()
        if name.partition(".")[0] not in _INTERPRETER
    )


def _leave() -> None:
    """Hide the packages from the interpreter, unless an object of the program has work to do.

    They might hold it, and its work would not be done.
    """
    if not _kept or _any_work(gc.get_objects()):
        return
    hidden = []
    for name, module in _kept.items():
        if sys.modules.get(name) is module:
            hidden.append(sys.modules.pop(name))
    # A reference that nothing gives back: they stay as they are.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(hidden))


def _any_work(objects: Iterable[object]) -> bool:
    """Whether an object has work to do when it is destroyed; the standard streams do not count."""
    kinds: dict[type, bool] = {}
    streams = set()
    for stream in (sys.__stdin__, sys.__stdout__, sys.__stderr__):
        streams |= {id(stream), id(getattr(stream, "buffer", None))}
    for one in objects:
        kind = type(one)
        if kind not in kinds:
            kinds[kind] = _may_work(kind)
        if kinds[kind] and id(one) not in streams and _has_work(one):
            return True
    return False


def _may_work(kind: type) -> bool:
    package = str(getattr(kind, "__module__", "")).partition(".")[0]
    return hasattr(kind, "__del__") and package not in _WITHOUT_WORK


def _has_work(one: object) -> bool:
    if isinstance(one, GeneratorType):
        # One that has not begun, or has ended, does nothing; nor do those of the standard library.
        file = one.gi_code.co_filename
        known = file.startswith(_LIBRARY) and "-packages" not in file
        return not known and (one.gi_suspended or one.gi_running)
    if type(one) in _WRITING:
        try:
            return not one.closed  # type: ignore[attr-defined]
        except ValueError:
            return False  # it has been detached from its file
    return type(one) not in _CLOSED_BY_THE_SYSTEM
