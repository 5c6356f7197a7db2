"""What a call computes on its way, for the one who makes the call."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(slots=True)
class Record:
    """Given with a call of an encoder, which fills it; nothing of it stays in the model.

    Attributes:
        hidden_states: What every layer was given, ``[B, S, H]`` each; None where they are not
            asked for.
        attentions: The weights of every layer, ``[B, heads, S, S]`` each, from query to key, before
            dropout; None where they are not asked for.
        tags: The tagged values of the encoder, by name.
    """

    hidden_states: list[Tensor] | None = None
    attentions: list[Tensor] | None = None
    tags: dict[str, Tensor] = field(default_factory=dict)
