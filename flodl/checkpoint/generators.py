"""The states of the global random generators that a training step may use: kept and compared."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from flodl import log

if TYPE_CHECKING:
    from collections.abc import Iterator


def generator_states() -> dict[str, Any]:
    """Return the states of torch's generators (CPU, every CUDA device), Python's and NumPy's.

    Those of NumPy and Python are the global ones. A program must save its own generators itself.
    """
    name, key, position, has_gauss, gauss = np.random.get_state()
    version, words, following = random.getstate()
    cuda_in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    # Hundreds of words each: as tensors they take little space in a checkpoint.
    return {
        "torch": torch.get_rng_state(),
        # A device that is not in use yet has drawn nothing.
        "cuda": torch.cuda.get_rng_state_all() if cuda_in_use else [],
        "python": (version, torch.tensor(words, dtype=torch.int64, device="cpu"), following),
        "numpy": (
            str(name),
            torch.from_numpy(np.asarray(key, np.int64)),
            int(position),
            int(has_gauss),
            float(gauss),
        ),
    }


def check_generator_states(states: Any) -> None:
    """Check that states have the form of :func:`generator_states`.

    Raises:
        ValueError: They have another form.
    """
    now = torch.get_rng_state()
    match states:
        case {
            "torch": Tensor(dtype=now.dtype, shape=now.shape),
            "cuda": list(devices),
            "python": (int(), Tensor(dtype=torch.int64), _),
            "numpy": (str(), Tensor(dtype=torch.int64), _, _, _),
        } if all(isinstance(state, Tensor) and state.dtype == now.dtype for state in devices):
            return
    raise ValueError("it does not hold the states of torch's, Python's and NumPy's generators")


def set_generator_states(states: dict[str, Any]) -> None:
    """Let all generators continue from the given states.

    Raises:
        ValueError: A state is invalid.
        RuntimeError: A state is invalid, reported by torch.
        TypeError: A state is invalid, reported by Python.
    """
    name, key, position, has_gauss, gauss = states["numpy"]
    np.random.set_state((name, np.array(key.tolist(), np.uint32), position, has_gauss, gauss))
    version, words, following = states["python"]
    random.setstate((version, tuple(words.tolist()), following))
    torch.set_rng_state(states["torch"])
    here = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if len(states["cuda"]) != here:
        if states["cuda"]:
            log.warning(
                f"the training ran on a machine with {len(states['cuda'])} CUDA devices, this one "
                f"has {here}: random numbers drawn on them, as for dropout, will be others"
            )
        return
    for device, state in enumerate(states["cuda"]):
        torch.cuda.set_rng_state(state, device)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Restore the generators of torch, Python and NumPy at the end of the context."""
    states = generator_states()
    try:
        yield
    finally:
        set_generator_states(states)


def same(one: object, other: object) -> bool:
    """Whether two states of generators, or parts of them, are equal."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return one == other
