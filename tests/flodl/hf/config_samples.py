"""The seven families: their classes, the reference's, and small configurations as text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flodl.hf.errors import ConfigError
from flodl.hf.families import (
    AlbertConfig,
    AutoConfig,
    BertConfig,
    DebertaV2Config,
    DistilBertConfig,
    EncoderConfig,
    ModernBertConfig,
    RobertaConfig,
    XLMRobertaConfig,
)
from tests.later import transformers

SHAPE = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 20,
}
SMALLEST: dict[str, dict[str, Any]] = {
    "bert": {"model_type": "bert", **SHAPE},
    "roberta": {"model_type": "roberta", **SHAPE},
    "xlm-roberta": {"model_type": "xlm-roberta", **SHAPE},
    "distilbert": {
        "model_type": "distilbert",
        "vocab_size": 40,
        "dim": 16,
        "n_layers": 2,
        "n_heads": 4,
        "hidden_dim": 24,
        "max_position_embeddings": 20,
    },
    "albert": {"model_type": "albert", "embedding_size": 8, **SHAPE},
    "deberta-v2": {"model_type": "deberta-v2", **SHAPE},
    "modernbert": {"model_type": "modernbert", "pad_token_id": 0, **SHAPE},
}
FAMILIES = tuple(SMALLEST)

CLASSES = {
    "bert": BertConfig,
    "roberta": RobertaConfig,
    "xlm-roberta": XLMRobertaConfig,
    "distilbert": DistilBertConfig,
    "albert": AlbertConfig,
    "deberta-v2": DebertaV2Config,
    "modernbert": ModernBertConfig,
}
DISTILBERT = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}
RATES = {
    **dict.fromkeys(FAMILIES, ("hidden_dropout_prob", "attention_probs_dropout_prob")),
    "distilbert": ("dropout", "attention_dropout", "qa_dropout", "seq_classif_dropout"),
    "modernbert": ("embedding_dropout", "attention_dropout", "mlp_dropout", "classifier_dropout"),
}


def reference_of(family: str) -> Any:
    """The class of configurations in transformers."""
    return getattr(transformers, CLASSES[family].__name__)


def text_of(family: str, /, *without: str, **fields: Any) -> str:
    """The text of a small configuration of a family with some fields set, some removed."""
    data = SMALLEST[family] | fields
    return json.dumps({key: value for key, value in data.items() if key not in without})


def read(family: str, /, *without: str, **fields: object) -> EncoderConfig:
    return AutoConfig.from_json_str(text_of(family, *without, **fields))


def refused(family: str, /, *without: str, **fields: object) -> str:
    with pytest.raises(ConfigError) as caught:
        read(family, *without, **fields)
    return str(caught.value)
