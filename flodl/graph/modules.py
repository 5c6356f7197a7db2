"""Small modules for building graphs out of functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

ModuleLike = nn.Module | Callable[..., Any]
"""Values that can become a node: a module, or a callable on tensors."""


class Lambda(nn.Module):
    """A function as a module: ``Lambda(torch.sin)``; it has no parameters.

    Args:
        function: Called with the inputs of the module. A graph with a lambda expression cannot be
            pickled; a graph with a named function can.

    Raises:
        ValueError: ``function`` is not callable.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        if not callable(function):
            raise ValueError(f"Lambda needs a callable, not {type(function).__name__}")
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        """Apply the function."""
        return self.function(*inputs)

    def extra_repr(self) -> str:
        """Return the name of the function."""
        return getattr(self.function, "__qualname__", repr(self.function))


def as_module(candidate: ModuleLike) -> nn.Module:
    """Return a module unchanged, and any other callable as a :class:`Lambda`.

    Raises:
        ValueError: The candidate is neither, or is a class instead of an instance.
    """
    if isinstance(candidate, nn.Module):
        return candidate
    if isinstance(candidate, type) or not callable(candidate):
        raise ValueError(f"expected a module or a function of tensors, not {candidate!r}")
    return Lambda(candidate)


def modules(*candidates: ModuleLike) -> list[nn.Module]:
    """Collect modules for ``split``, ``gate`` and ``switch``; functions become :class:`Lambda`.

    Raises:
        ValueError: One of them is neither a module nor a function.
    """
    return [as_module(candidate) for candidate in candidates]
