"""Copies of a caller's arrays, made at once and read later on another thread."""

from __future__ import annotations

import sys
from typing import Any, final

import numpy as np


def is_tensor(value: object) -> bool:
    """Whether a value is a tensor of torch; does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


@final
class Captured:
    """The values of a tensor, array or list at the moment of the call.

    A tensor on a GPU is copied on the GPU, which the caller does not wait for. :meth:`array`
    fetches it on the thread that calls it.

    Args:
        value: A tensor of torch, an array of NumPy, an image of Pillow, or nested lists of numbers.

    Raises:
        ValueError: The value is not one of these.
    """

    def __init__(self, value: Any) -> None:
        self._copied: Any = None
        self.is_tensor = is_tensor(value)
        if self.is_tensor:
            self._value = value.detach().clone()
            if value.is_cuda:
                torch = sys.modules["torch"]
                self._copied = torch.cuda.Event()
                self._copied.record(torch.cuda.current_stream(value.device))
            self.shape = tuple(value.shape)
            self.is_floating = bool(value.is_floating_point())
            self.dtype = str(value.dtype).removeprefix("torch.")
            return
        self._value = _array(value)
        self.shape = self._value.shape
        self.is_floating = self._value.dtype.kind == "f"
        self.dtype = str(self._value.dtype)

    @property
    def bytes(self) -> int:
        """Memory of the copy."""
        return int(self._value.nbytes)

    def array(self) -> np.ndarray[Any, Any]:
        """Return the values on the CPU; waits for the copy of a GPU."""
        if not self.is_tensor:
            return np.asarray(self._value)
        if self._copied is not None:
            self._copied.synchronize()
        tensor = self._value.cpu()
        if self.dtype == "bfloat16":  # NumPy lacks it
            tensor = tensor.float()
        return np.asarray(tensor.numpy())


def _array(value: Any) -> np.ndarray[Any, Any]:
    if hasattr(value, "convert") and hasattr(value, "mode"):  # an image of Pillow
        alpha = value.mode in ("LA", "RGBA", "PA") or "transparency" in value.info
        grey = value.mode in ("1", "L", "I", "F", "I;16")
        value = (
            value
            if value.mode == "L"
            else value.convert("RGBA" if alpha else "L" if grey else "RGB")
        )
    elif isinstance(value, (list, tuple)) and any(map(is_tensor, value)):
        value = [one.detach().cpu().numpy() if is_tensor(one) else one for one in value]
    try:
        array = np.array(value)
    except ValueError as error:  # lists of different lengths
        raise ValueError(f"it cannot be read as an array: {error}") from None
    if array.dtype.kind not in "biuf":
        raise ValueError(
            f"a {type(value).__name__} of dtype {array.dtype} is not an array of numbers; pass a "
            "tensor, a NumPy array or a list of numbers"
        )
    return array
