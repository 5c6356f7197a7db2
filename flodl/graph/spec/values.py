"""Constructor arguments as JSON, and the names of classes in a description.

Values without a JSON notation become a mapping with one key: ``{"tuple": [2, 2]}``,
``{"module": 3}`` for another entry of the description, ``{"name": "torch.nn.GELU"}`` for a class
or function. Names are never imported: they are looked up among the allowed ones.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from flodl.graph import routing
from flodl.graph.modules import Lambda
from flodl.graph.spec.place import LARGEST, Place
from flodl.nn.layers import GaussianBlur, SelfAttention

_DEEPEST = 32
"""Levels of lists and mappings in one argument."""

_OWN: dict[type, str] = {
    cls: f"flodl.{cls.__name__}"
    for cls in (
        routing.SoftmaxRouter,
        routing.SigmoidRouter,
        routing.ArgmaxSelector,
        routing.FixedSelector,
        routing.ThresholdHalt,
        routing.LearnedHalt,
        routing.StateAdd,
        routing.Reshape,
        Lambda,
        SelfAttention,
        GaussianBlur,
    )
}
_DTYPES = {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
_DTYPE_NAMES = {value: str(value).removeprefix("torch.") for value in _DTYPES.values()}


class UndescribableError(Exception):
    """A value cannot be described; the message says why and what to do."""


# --- Names ---------------------------------------------------------------------------------


def name_of(thing: object) -> str:
    """The name of a class or of a plain function.

    Raises:
        UndescribableError: It has no name, or its name would not lead back to it.
    """
    if isinstance(thing, type):
        if thing in _OWN:
            return _OWN[thing]
        if _found_in(nn, thing.__name__) is thing:
            return f"torch.nn.{thing.__name__}"
        return f"{thing.__module__}.{thing.__qualname__}"
    name = getattr(thing, "__qualname__", None)
    if not isinstance(name, str) or not callable(thing):
        raise UndescribableError(f"a {type(thing).__name__} has no name that could be written down")
    if "<lambda>" in name or "<locals>" in name:
        raise UndescribableError(
            f"{name} is local to a function and cannot be named; define it at the top of a module"
        )
    home = getattr(thing, "__module__", None)
    # Torch's operators written in C++ do not know their public place.
    places: dict[str, object] = {
        "torch": torch,
        "torch.nn.functional": nn.functional,
        "torch.Tensor": Tensor,
    }
    if isinstance(home, str) and home in sys.modules:
        places.setdefault(home, sys.modules[home])
    for place, holder in places.items():
        for path in (name, name.rpartition(".")[2]):
            if _found_in(holder, path) is thing:
                return f"{place}.{path}"
    raise UndescribableError(
        f"{name} is not what its module {home} has under that name; give a plain function"
    )


def _found_in(module: object, path: str) -> object:
    try:
        return functools.reduce(getattr, path.split("."), module)
    except AttributeError:
        return None


class Vocabulary:
    """The classes and functions that a description may name.

    Args:
        allow: Classes and functions allowed besides the layers of ``torch.nn`` and flodl's modules.

    Raises:
        ValueError: An item is not a class or plain function, or two items have the same name.
    """

    def __init__(self, allow: Iterable[object] = ()) -> None:
        self._things: dict[str, object] = dict(_ready_made())
        for thing in allow:
            try:
                self.add(thing)
            except UndescribableError as reason:
                raise ValueError(f"allow: {reason}") from None

    def add(self, thing: object) -> str:
        """Allow one more class or function; returns its name.

        Raises:
            UndescribableError: It has no name, or its name belongs to something else.
        """
        name = name_of(thing)
        if self._things.setdefault(name, thing) is not thing:
            raise UndescribableError(
                f"two different things are called {name}; a description could mean either"
            )
        return name

    def thing(self, place: Place) -> object:
        """The class or function with a name.

        Raises:
            BuildError: It is not allowed.
        """
        name = place.text()
        if name not in self._things:
            raise place.wrong(
                f"{name!r:.100} is not allowed here; if you trust it, pass the class or function "
                "itself in allow="
            )
        return self._things[name]

    def module_class(self, place: Place) -> type[nn.Module]:
        """The module class with a name.

        Raises:
            BuildError: The name is not allowed, or is not a module class.
        """
        thing = self.thing(place)
        if not isinstance(thing, type) or not issubclass(thing, nn.Module):
            raise place.wrong(f"{place.value!r:.100} is not a module class")
        return thing


@functools.cache
def _ready_made() -> dict[str, object]:
    # Modules that move other modules between devices are not layers.
    excluded = {nn.Module, nn.DataParallel}
    layers = {
        f"torch.nn.{name}": thing
        for name, thing in vars(nn).items()
        if inspect.isclass(thing) and issubclass(thing, nn.Module) and thing not in excluded
    }
    return {**layers, **{name: cls for cls, name in _OWN.items()}}


# --- Values --------------------------------------------------------------------------------


def encode(value: object, refer: Callable[[nn.Module], int], name: Callable[[object], str]) -> Any:
    """Write an argument as JSON.

    Args:
        value: A constructor argument.
        refer: Returns the index of the entry that describes a module.
        name: Returns the name of a class or function.

    Raises:
        UndescribableError: The value, or a part of it, cannot be written.
    """
    inner = functools.partial(encode, refer=refer, name=name)
    if value is None or isinstance(value, bool) or type(value) is str:
        return value
    if type(value) is int:
        if abs(value) > LARGEST:
            raise UndescribableError(f"{value} has more than 64 bits")
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if type(value) is list:
        return [inner(item) for item in value]
    if type(value) in (tuple, torch.Size):
        return {"tuple": [inner(item) for item in value]}  # type: ignore[attr-defined]
    if type(value) is dict:
        if not all(type(key) is str for key in value):
            raise UndescribableError("a dictionary whose keys are not all texts")
        return {"dict": {key: inner(item) for key, item in value.items()}}
    if isinstance(value, torch.dtype):
        return {"dtype": _DTYPE_NAMES[value]}
    return _encode_object(value, refer, name)


def _encode_object(
    value: object, refer: Callable[[nn.Module], int], name: Callable[[object], str]
) -> Any:
    if isinstance(value, Tensor):
        raise UndescribableError("a tensor: a description holds no numbers of weights")
    if isinstance(value, nn.Module):
        return {"module": refer(value)}
    if callable(value):
        return {"name": name(value)}
    raise UndescribableError(f"a value of type {type(value).__name__}")


def decode(
    place: Place, part: Callable[[Place], nn.Module], words: Vocabulary, depth: int = 0
) -> Any:
    """Read an argument.

    Args:
        place: The result of :func:`encode`.
        part: Returns the module of the entry that a place refers to.
        words: Names that may be used.
        depth: Number of lists and mappings around it.

    Raises:
        BuildError: It is malformed, refers to a missing entry, or uses a name that is not allowed.
    """
    value = place.value
    if depth > _DEEPEST:
        raise place.wrong(f"is nested more than {_DEEPEST} levels deep")
    if value is None or type(value) in (bool, str):
        return value
    if type(value) is int:
        return place.integer(-LARGEST, LARGEST)
    if type(value) is float:
        return value
    if isinstance(value, list):
        return [decode(item, part, words, depth + 1) for item in place.items()]
    tagged = place.mapping()
    if len(tagged) != 1:
        raise place.wrong("must have one key that tells its type")
    [(kind, inner)] = tagged.items()
    match kind:
        case "tuple":
            return tuple(decode(item, part, words, depth + 1) for item in inner.items())
        case "dict":
            entries = inner.mapping().items()
            return {key: decode(item, part, words, depth + 1) for key, item in entries}
        case "float":
            return float(inner.choice(("nan", "inf", "-inf")))
        case "dtype":
            return _DTYPES[inner.choice(tuple(_DTYPES))]
        case "module":
            return part(inner)
        case "name":
            return words.thing(inner)
        case _:
            raise place.wrong(f"has an unknown type {kind!r:.50}")
