"""The state that each process of a sharded model has for itself: its random generators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flodl.checkpoint.generators import generator_states
from flodl.checkpoint.sharded import collected, sharing_ranks
from flodl.checkpoint.values import decode, encode

if TYPE_CHECKING:
    from torch import Tensor, nn

    from flodl.checkpoint.training import TrainingFile

RANKS = "generators of ranks"
"""Key in a training's description; present only if the model is sharded over ranks."""


def ranks_generators(model: nn.Module) -> list[Any]:
    """Return the states of the generators of all ranks; collective.

    It is empty if one process holds the whole model.

    Raises:
        CheckpointError: Other ranks did not join the call.
    """
    parameters = list(model.parameters())
    if not sharing_ranks(parameters):
        return []
    tensors: dict[str, Tensor] = {}
    form = encode(generator_states(), "", tensors)
    told = [form, {name: [str(t.dtype), t.tolist()] for name, t in tensors.items()}]
    answers = collected(told, parameters, "the random generators of a training")
    return [decode(form, _reader(numbers)) for form, numbers in answers]


def own_generators(file: TrainingFile, model: nn.Module) -> Any:
    """Return the states of this rank's generators; None if the file has another number of ranks."""
    ranks = sharing_ranks(model.parameters())
    states = file.value(RANKS) if RANKS in file.description else []
    if not ranks or not isinstance(states, list) or len(states) != len(ranks):
        return None
    return states[ranks.index(torch.distributed.get_rank())]


def _reader(numbers: dict[str, Any]) -> Any:
    def tensor(name: str) -> Tensor:
        dtype, values = numbers[name]
        return torch.tensor(values, dtype=getattr(torch, dtype.removeprefix("torch.")))

    return tensor
