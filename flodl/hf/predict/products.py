"""Choose the library for matrix products while a model processes many texts on the CPU."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

# Parameters times texts. Measuring which library is faster takes about a second, once per machine;
# work of this size takes several seconds.
_WORTH_A_PROBE = 10**10

# Rows of a product: the tokens of a few texts together.
_ROWS = 512

# Part of the time: on a busy machine, equally fast libraries can differ by this much.
_NOT_WORTH_IT = 0.9


def fastest_products(model: nn.Module, texts: int) -> AbstractContextManager[None]:
    """Use the faster of torch's two libraries for products, if measuring is worth the time.

    Both compute in float32; see :mod:`flodl.train.engines.routing`.

    Args:
        model: The model; without effect unless it is in float32 on the CPU.
        texts: Number of texts that are run through it.
    """
    sizes = [one.numel() for one in model.parameters() if one.dtype == torch.float32]
    if sum(sizes) * texts < _WORTH_A_PROBE:
        return nullcontext()
    # Imported here, because a single prediction must not wait for it.
    from flodl.train.engines.products import products_of_layers
    from flodl.train.engines.routing import route_verdict, routed

    verdict = route_verdict(products_of_layers(model, _ROWS))
    return nullcontext() if verdict.reason or verdict.forward > _NOT_WORTH_IT else routed()
