"""Give buffers the sizes that they have in a file: modules may resize and set them in a training.

So a new model may have its buffers in other sizes than a trained one, or not set at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import torch
from torch.nn.parameter import is_lazy

from flodl.checkpoint.names import qualify
from flodl.checkpoint.sharded import is_sharded

if TYPE_CHECKING:
    from torch import Tensor, nn

    from flodl.checkpoint.container import Entry, Header


@contextmanager
def sized_as_stored(
    model: nn.Module, header: Header, *, prefix: str = "", keep: bool = True
) -> Iterator[None]:
    """Give the persistent buffers of a model their sizes in a file; an error takes that back.

    Their values are undefined until they are loaded.

    Args:
        model: The model.
        header: The header of the file.
        prefix: The dotted name of the model in that of the file; empty if it is the same.
        keep: Whether they have these sizes after the block, too.
    """
    entries = {entry.name: entry for entry in header.model_entries}
    entries |= {alias: entries[name] for alias, name in header.aliases.items() if name in entries}
    home = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    with ExitStack() as undo:
        for path, module in model.named_modules():
            for key, buffer in module._buffers.items():
                entry = entries.get(qualify(".".join(filter(None, (prefix, path, key)))))
                if entry is None or key in module._non_persistent_buffers_set:
                    continue
                if buffer is None:
                    undo.callback(module._buffers.__setitem__, key, None)
                    module._buffers[key] = torch.empty(entry.shape, dtype=entry.dtype, device=home)
                elif resizable(buffer, entry):
                    undo.callback(setattr, buffer, "data", buffer.data)
                    buffer.data = buffer.new_empty(entry.shape)
        yield
        if keep:
            undo.pop_all()


def resizable(buffer: Tensor, entry: Entry) -> bool:
    """Whether a buffer has another size than in a file, and can get that size."""
    dense = buffer.layout is entry.layout is torch.strided
    fixed = is_sharded(buffer) or is_lazy(buffer)
    return dense and not fixed and buffer.shape != entry.shape
