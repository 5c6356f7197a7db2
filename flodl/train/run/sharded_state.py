"""The state that each process of a sharded model has for itself.

It consists of its random generators, and of what modules and registered objects hold besides
tensors that the processes share.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from flodl.checkpoint.extra_state import tensor_finder
from flodl.checkpoint.files import read_stream
from flodl.checkpoint.generators import generator_states
from flodl.checkpoint.sharded import collected, is_sharded, sharing_ranks
from flodl.checkpoint.store import save_checkpoint
from flodl.checkpoint.values import decode, encode

if TYPE_CHECKING:
    from torch import nn

    from flodl.checkpoint.training import TrainingFile

RANKS = "generators of ranks"
"""Key in a training's description; present only if the model is sharded over ranks."""


OWN = "own states of ranks"
"""The same for what modules and registered objects hold; present only if ranks differ in it."""


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


def ranks_own(own: Any, model: nn.Module) -> list[Any]:
    """Return the own states of all ranks, without sharded tensors; collective.

    It is empty if one process holds the whole model, and if the ranks do not differ.

    Args:
        own: That of this rank.
        model: The model that the ranks share.

    Raises:
        CheckpointError: Other ranks did not join the call.
        ValueError: It contains an object that a checkpoint cannot keep.
    """
    parameters = list(model.parameters())
    if not sharing_ranks(parameters):
        return []
    packed = _packed(_local(own))
    digest = hashlib.sha256(packed.encode()).hexdigest()
    what = "what the program and its modules keep on each rank"
    if len(set(collected(digest, parameters, what))) == 1:
        return []
    return [_unpacked(text) for text in collected(packed, parameters, what)]


def with_own(shared: Any, own: Any) -> Any:
    """Return the own state of a rank, with sharded tensors from the shared state."""
    if own is None:
        return shared
    if isinstance(own, Mapping) and isinstance(shared, Mapping):
        return {key: with_own(shared.get(key), value) for key, value in own.items()}
    if isinstance(own, list | tuple) and isinstance(shared, list | tuple):
        padded = [*shared, *[None] * (len(own) - len(shared))]
        return type(own)(map(with_own, padded, own))
    return own


def part_of_rank(key: str, file: TrainingFile, model: nn.Module) -> Any:
    """Return this rank's part of a list in a file; None if that has another number of ranks."""
    ranks = sharing_ranks(model.parameters())
    states = file.value(key) if key in file.description else []
    if not ranks or not isinstance(states, list) or len(states) != len(ranks):
        return None
    return states[ranks.index(torch.distributed.get_rank())]


def _local(value: Any) -> Any:
    """Return a value with None in place of the tensors that ranks share."""
    if isinstance(value, Tensor):
        return None if is_sharded(value) else value
    if isinstance(value, Mapping):
        return {key: _local(item) for key, item in value.items()}
    return type(value)(map(_local, value)) if isinstance(value, list | tuple) else value


def _packed(value: Any) -> str:
    """Return a value as text: a container, which keeps every type of tensor."""
    tensors: dict[str, Tensor] = {}
    form = json.dumps(encode(value, OWN, tensors))
    stream = io.BytesIO()
    save_checkpoint(stream, [], tensors.items(), metadata={OWN: form})
    return base64.b64encode(stream.getvalue()).decode()


def _unpacked(text: str) -> Any:
    container = read_stream(io.BytesIO(base64.b64decode(text)))
    return decode(json.loads(container.header.metadata[OWN]), tensor_finder(container))


def _reader(numbers: dict[str, Any]) -> Any:
    def tensor(name: str) -> Tensor:
        dtype, values = numbers[name]
        return torch.tensor(values, dtype=getattr(torch, dtype.removeprefix("torch.")))

    return tensor
