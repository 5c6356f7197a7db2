"""What the predictions need of a model: the mixins of this package work on any of this shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn

    from flodl.hf.config_json import EncoderConfig
    from flodl.hf.encoded import EncodedBatch
    from flodl.hf.tokenizer import HfTokenizer


class EncoderHead(Protocol):
    """An encoder with a head on it."""

    @property
    def graph(self) -> nn.Module:
        """The model."""

    @property
    def config(self) -> EncoderConfig:
        """How it is built."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of its outputs, in order."""

    @property
    def tokenizer(self) -> HfTokenizer | None:
        """What encodes texts for it; None if it has none."""

    def forward_encoded(self, enc: EncodedBatch, *, padding: bool | None = None) -> Tensor:
        """Logits, in whatever mode the model is.

        Args:
            enc: Encoded texts.
            padding: Whether those at padding are computed, too; None for the choice of the model.
        """


class MaskedLMHead(EncoderHead, Protocol):
    """An encoder that predicts tokens."""

    def logits_at(self, enc: EncodedBatch, rows: Tensor, columns: Tensor) -> Tensor:
        """Logits ``[N, V]`` of some positions; only these are decoded.

        Args:
            enc: Encoded texts.
            rows: Row of each position, ``[N]``.
            columns: Column of each position, ``[N]``.
        """
