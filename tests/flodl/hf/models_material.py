"""Small models of all families, for tests that train them or change their shape."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flodl.graph import Graph
from flodl.hf.build import build
from flodl.hf.families import (
    AlbertConfig,
    BertConfig,
    DebertaV2Config,
    DistilBertConfig,
    EncoderConfig,
    ModernBertConfig,
    RobertaConfig,
    XLMRobertaConfig,
)
from flodl.hf.head_kind import HeadKind

VOCABULARY = 60
FAMILIES: dict[str, type[EncoderConfig]] = {
    "bert": BertConfig,
    "roberta": RobertaConfig,
    "xlm-roberta": XLMRobertaConfig,
    "distilbert": DistilBertConfig,
    "albert": AlbertConfig,
    "deberta-v2": DebertaV2Config,
    "modernbert": ModernBertConfig,
}


def small_config(family: str, kind: HeadKind = HeadKind.BASE, **fields: Any) -> EncoderConfig:
    """A configuration of few small layers without dropout."""
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    if family == "albert":
        fields = {"embedding_size": 8, **fields}
    if family == "deberta-v2":
        fields = {
            "relative_attention": True,
            "pos_att_type": ("c2p", "p2c"),
            "position_buckets": 4,
            **fields,
        }
    if family == "modernbert":
        fields = {"local_attention": 4, "pad_token_id": 1, **fields}
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": 40,
    }
    config = FAMILIES[family](**{**sizes, **none, **fields})
    return config.replace(architectures=(config.class_prefix + kind.suffix,))


def small_model(
    family: str, kind: HeadKind = HeadKind.BASE, *, seed: int = 0, **fields: Any
) -> Graph:
    """A model with fresh values, larger than usual so that every part of it shows."""
    config = small_config(family, kind, **fields)
    graph = build(config, kind, device="cpu", seed=seed)
    graph.set_source_config(config.to_json_string())
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in graph.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return graph.eval()


def some_ids(rows: int = 4, length: int = 9, *, seed: int = 3) -> tuple[Tensor, Tensor]:
    """Ids and a mask that ends every second row early; masked ids are the padding of RoBERTa."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, VOCABULARY, (rows, length), generator=generator)
    mask = torch.ones(rows, length, dtype=torch.int64)
    mask[1::2, length - 3 :] = 0
    return ids.masked_fill(mask == 0, 1), mask
