"""The interface that predictions need; the mixins of this package work on any such model."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn

from flodl.hf.encoded import EncodedBatch
from flodl.hf.families import EncoderConfig
from flodl.hf.tokenizer import HfTokenizer


class EncoderHead(Protocol):
    """An encoder with a head."""

    @property
    def graph(self) -> nn.Module:
        """The model."""

    @property
    def config(self) -> EncoderConfig:
        """The configuration of the model."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of its outputs, in order."""

    @property
    def tokenizer(self) -> HfTokenizer | None:
        """The tokenizer of the model; None if it has none."""

    def forward_encoded(self, enc: EncodedBatch, *, padding: bool | None = None) -> Tensor:
        """Compute logits, in the current mode of the model.

        Args:
            enc: Encoded texts.
            padding: Whether logits at padding are computed too; None for the choice of the model.
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
