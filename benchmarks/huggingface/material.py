"""What is measured: checkpoints with random weights at true sizes, and sentences for them."""

from __future__ import annotations

import json
import math
import random
import string
from pathlib import Path
from typing import Any

import torch

WORDS = 30_000
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_FRAME = 2
"""Tokens a sentence has besides its words."""


def vocabulary(size: int = 30_522) -> list[str]:
    """Special tokens, made-up words and single letters; the same every time."""
    chance = random.Random(0)
    words: dict[str, None] = {}
    while len(words) < WORDS:
        words["".join(chance.choices(string.ascii_lowercase, k=chance.randint(3, 8)))] = None
    pieces = [f"##{letter}" for letter in string.ascii_lowercase]
    tokens = [*_SPECIAL, *words, *pieces, *string.ascii_lowercase]
    return tokens + [f"[unused{number}]" for number in range(size - len(tokens))]


def sentences(count: int, shortest: int, longest: int, *, log: bool = False) -> list[str]:
    """Texts of made-up words, each one token.

    Args:
        count: How many.
        shortest: Tokens of the shortest, special ones included.
        longest: Of the longest.
        log: Whether the logarithm of the length is uniform, instead of the length.
    """
    chance = random.Random(1)
    words = vocabulary()[len(_SPECIAL) :][:WORDS]

    def length() -> int:
        if log:
            return round(math.exp(chance.uniform(math.log(shortest), math.log(longest))))
        return chance.randint(shortest, longest)

    return [" ".join(chance.choices(words, k=length() - _FRAME)) for _ in range(count)]


def tiny_bert(folder: Path) -> Path:
    """Save a classifier of bert-base's depth and heads that is narrow, with the same tokenizer."""
    return bert(folder, hidden_size=24, intermediate_size=48)


def bert(folder: Path, labels: int = 3, **sizes: int) -> Path:
    """Save a classifier of bert-base's size, with a tokenizer; ``sizes`` replace settings."""
    import transformers

    config = transformers.BertConfig.from_dict({"num_labels": labels, **sizes})
    _save(transformers.BertForSequenceClassification, config, folder)
    _save_tokenizer(folder)
    return folder


def modernbert(folder: Path, labels: int = 3) -> Path:
    """Save a classifier of ModernBERT-base's size, with a tokenizer of made-up words."""
    import transformers

    config = transformers.ModernBertConfig.from_dict({"num_labels": labels, "pad_token_id": 0})
    # Its head ends with a norm, so larger weights would leave nothing but certain answers.
    _save(transformers.ModernBertForSequenceClassification, config, folder, spread=0.03)
    # The model has no segments, and the reference takes no others.
    _save_tokenizer(
        folder, model_max_length=8192, model_input_names=["input_ids", "attention_mask"]
    )
    return folder


def deberta(folder: Path) -> Path:
    """Save an encoder of deberta-v3-base's size, without a tokenizer."""
    import transformers

    settings = {
        "vocab_size": 128_100,
        "relative_attention": True,
        "position_buckets": 256,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
    }
    config = transformers.DebertaV2Config.from_dict(settings)
    _save(transformers.DebertaV2Model, config, folder)
    return folder


def xlm_roberta(folder: Path) -> Path:
    """Save a masked-language model of xlm-roberta-base's size, without a tokenizer."""
    from transformers import XLMRobertaConfig, XLMRobertaForMaskedLM

    config = XLMRobertaConfig(vocab_size=250_002, max_position_embeddings=514, type_vocab_size=1)
    _save(XLMRobertaForMaskedLM, config, folder)
    return folder


def sentence_model(folder: Path, checkpoint: Path) -> Path:
    """Make the encoder of a checkpoint a model that sentence-transformers opens, mean pooled."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import (  # type: ignore[import-not-found]
        Pooling,
        Transformer,
    )

    transformer = Transformer(str(checkpoint), max_seq_length=512)
    pooling = Pooling(transformer.get_word_embedding_dimension(), "mean")
    SentenceTransformer(modules=[transformer, pooling], device="cpu").save(str(folder))
    return folder


def _save(model: Any, config: Any, folder: Path, spread: float = 0.3) -> None:
    torch.manual_seed(0)
    made = model(config)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            # A fresh head answers nearly alike to everything, which would hide differences.
            if name.startswith(("classifier", "qa_outputs")):
                parameter.normal_(0.0, spread)
    made.save_pretrained(folder)


def _save_tokenizer(folder: Path, model_max_length: int = 512, **others: Any) -> None:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    ids = {token: number for number, token in enumerate(vocabulary())}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, ids[token]) for token in ("[CLS]", "[SEP]")],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": True,
        "model_max_length": model_max_length,
        **others,
        **{f"{token[1:-1].lower()}_token": token for token in _SPECIAL},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
