"""Heads without a model worth the name: logits are looked up, so that a test knows them."""

from __future__ import annotations

import torch
from torch import Tensor

from flodl.hf import BatchEncoding, BertForQuestionAnswering
from flodl.hf.families import BertConfig
from flodl.hf.tokenizer import PreTrainedTokenizerFast

LONGEST = 512


def config(vocabulary: int) -> BertConfig:
    return BertConfig(
        vocab_size=vocabulary,
        hidden_size=4,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=4,
        max_position_embeddings=LONGEST,
    )


class ScriptedQuestionAnswering(BertForQuestionAnswering):
    """Logits that depend on nothing but the token and its place in the row.

    Args:
        tokenizer: Of the texts.
        seed: Of the logits.
        scale: How far they are apart.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int, scale: float = 2.0) -> None:
        generator = torch.Generator().manual_seed(seed)
        vocabulary = tokenizer.inner.get_vocab_size()
        super().__init__(config(vocabulary), tokenizer=tokenizer)
        self.by_token = scale * torch.randn(vocabulary, 2, generator=generator)
        self.by_place = scale * torch.randn(LONGEST, 2, generator=generator)

    def forward_encoded(self, enc: BatchEncoding, *, padding: bool | None = None) -> Tensor:  # noqa: ARG002
        return self.logits(enc.input_ids)

    def logits(self, ids: Tensor) -> Tensor:
        return self.by_token[ids] + self.by_place[: ids.shape[1]]
