"""Intermediate values of a call, for the caller."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(slots=True)
class Record:
    """Passed with a call of an encoder, which fills it; nothing of it stays in the model.

    Attributes:
        hidden_states: The input of every layer, ``[B, S, H]`` each; None if not asked for.
        attentions: The weights of every layer, ``[B, heads, S, S]`` each, from query to key, before
            dropout; None if not asked for.
        tags: The tagged values of the encoder, by name.
    """

    hidden_states: list[Tensor] | None = None
    attentions: list[Tensor] | None = None
    tags: dict[str, Tensor] = field(default_factory=dict)
