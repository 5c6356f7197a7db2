"""Find the first module whose output or gradient is not finite, while a step runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from flodl.data.structure import tensors_of

if TYPE_CHECKING:
    from torch import nn
    from torch.utils.hooks import RemovableHandle


@final
class FirstNonFinite:
    """Looks at the outputs of all modules, and at the gradients of their inputs and parameters.

    A gradient is blamed on the module that made it: the one that used the tensor last.

    Args:
        model: The model whose steps are looked at.
        gradients: Whether to look at gradients. Not with a loss scaler, which expects some that are
            not finite.

    Attributes:
        found: What was found first, for people; empty if everything is finite.
    """

    def __init__(self, model: nn.Module, *, gradients: bool = True) -> None:
        self.found = ""
        self._model, self._gradients = model, gradients
        self._users: dict[int, str] = {}
        self._kept: list[Tensor] = []
        """The tensors of :attr:`_users`, so that their ids are not used again."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look at the steps inside the context."""
        handles: list[RemovableHandle] = []
        for path, module in self._model.named_modules():
            name = f"{path or 'the model'} ({type(module).__name__})"
            handles.append(module.register_forward_pre_hook(self._before(name), with_kwargs=True))
            handles.append(module.register_forward_hook(self._after(name)))
        if self._gradients:
            for path, parameter in self._model.named_parameters():
                if parameter.requires_grad:
                    handle = parameter.register_hook(self._of_parameter(path))  # type: ignore[no-untyped-call]
                    handles.append(handle)
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._users.clear()
            self._kept.clear()

    def _before(self, name: str) -> Any:
        def hook(_: nn.Module, args: Any, kwargs: Any) -> None:
            for tensor in _tensors((args, kwargs)):
                self._used(tensor, f"the gradient of the input of module {name}")

        return hook

    def _after(self, name: str) -> Any:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            for tensor in _tensors(output):
                if not self.found and not _finite(tensor):
                    self.found = f"the output of module {name}"
                if id(tensor) not in self._users:
                    self._used(tensor, f"the gradient of the output of module {name}")

        return hook

    def _used(self, tensor: Tensor, what: str) -> None:
        if not self._gradients or not tensor.requires_grad or not torch.is_grad_enabled():
            return
        key = id(tensor)
        known = key in self._users
        self._users[key] = what
        if known or tensor.is_leaf:
            return
        self._kept.append(tensor)

        def hook(gradient: Tensor) -> None:
            if not self.found and not _finite(gradient):
                self.found = self._users[key]

        tensor.register_hook(hook)  # type: ignore[no-untyped-call]

    def _of_parameter(self, path: str) -> Any:
        holder, _, own = path.rpartition(".")
        module = dict(self._model.named_modules())[holder]
        name = f"{holder or 'the model'} ({type(module).__name__})"

        def hook(gradient: Tensor) -> None:
            if not self.found and not _finite(gradient):
                self.found = f"the gradient of {own} of module {name}"

        return hook


def sentence(found: str) -> str:
    """Return a sentence about what was found; nothing if it is empty."""
    if not found:
        return "The outputs and gradients of all modules were finite when it was trained again"
    return f"The first value that is not finite: {found}"


def _tensors(values: Any) -> list[Tensor]:
    return [one for one in tensors_of(values) if one.is_floating_point() or one.is_complex()]


def _finite(tensor: Tensor) -> bool:
    return bool(tensor.detach().isfinite().all())
