"""Which library multiplies while many texts are run through a model on the CPU."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

# Parameters times texts. Finding out which library is faster takes about a second, once per
# machine; work of this size takes several.
_WORTH_A_PROBE = 10**10

# Of a product: the tokens of a few texts together.
_ROWS = 512

# Of the time: what a busy machine may make of libraries that are equally fast.
_NOT_WORTH_IT = 0.9


def fastest_products(model: nn.Module, texts: int) -> AbstractContextManager[None]:
    """Let the faster of torch's two libraries multiply, where this is worth finding out.

    Both compute in float32; see :mod:`flodl.train.engines.routing`.

    Args:
        model: In float32 on the CPU, or nothing changes.
        texts: How many are run through it.
    """
    sizes = [one.numel() for one in model.parameters() if one.dtype == torch.float32]
    if sum(sizes) * texts < _WORTH_A_PROBE:
        return nullcontext()
    # Loaded here and not above: a single prediction must not wait for it.
    from flodl.train.engines.products import products_of_layers
    from flodl.train.engines.routing import route_verdict, routed

    verdict = route_verdict(products_of_layers(model, _ROWS))
    return nullcontext() if verdict.reason or verdict.forward > _NOT_WORTH_IT else routed()
