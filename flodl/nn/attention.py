"""Self-attention with one input and one output, so that it chains like other layers."""

from __future__ import annotations

from torch import Tensor, nn


class SelfAttention(nn.Module):
    """Multi-head scaled dot-product attention of a sequence to itself (Vaswani et al., 2017).

    ``torch.nn.MultiheadAttention`` takes query, key and value and also returns attention weights.
    This layer takes one batch of sequences and returns one.

    Args:
        embed: Width E of every position.
        heads: Number of heads; E must be a multiple of it.

    Raises:
        ValueError: A size is not a positive integer, or ``embed`` is not a multiple of ``heads``.
    """

    def __init__(self, embed: int, heads: int) -> None:
        super().__init__()
        for name, size in (("embed", embed), ("heads", heads)):
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {size!r}")
        if embed % heads:
            raise ValueError(f"embed must be a multiple of heads, got {embed} and {heads}")
        self.attention = nn.MultiheadAttention(embed, heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Attend from every position of ``[B, T, E]`` to all positions; keeps the shape."""
        attended: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return attended

    def extra_repr(self) -> str:
        """Width and heads."""
        return f"embed={self.attention.embed_dim}, heads={self.attention.num_heads}"
