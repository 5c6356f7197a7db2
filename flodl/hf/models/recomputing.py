"""Layers that can compute their inner values again in the backward instead of keeping them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class RecomputedLayer(nn.Module):
    """A layer whose inner values need not stay in memory until the backward.

    Attributes:
        recomputed: True keeps only the inputs of a call in training mode. The backward runs the
            layer a second time, with the same random numbers (Chen et al., 2016).
    """

    recomputed: bool = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer."""
        if not (self.recomputed and self.training and torch.is_grad_enabled()):
            return super().__call__(*args, **kwargs)
        # Imported here, because models that are only used must not wait for it.
        from torch.utils.checkpoint import checkpoint

        return checkpoint(super().__call__, *args, use_reentrant=False, **kwargs)
