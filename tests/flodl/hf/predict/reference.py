"""Tiny checkpoints written by the reference, with tokenizers of three kinds."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from tests.later import transformers

SENTENCES = (
    "Ada Lovelace met Charles Babbage in London in the year 1833.",
    "The Federal Bank of Zürich raised its rates, said Jean-Luc O'Brien.",
    "Unbelievable! The orchestra played Beethoven's symphonies twice.",
    "She moved from New York to San Francisco for Acme Corp.",
    "the quick brown fox jumps over the lazy dog",
    "Crème brûlée costs 4.50 in Montréal; not in Saint-Étienne.",
    "Short.",
    "He   writes  with  many   spaces and (brackets) [too].",
)

_SPECIAL = {
    "bert": {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    "roberta": {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"},
}
_OUTPUTS = ("classifier.weight", "classifier.out_proj.weight", "qa_outputs.weight")
_KIND = {
    "roberta": "bytes",
    "xlm-roberta": "pieces",
    "albert": "pieces",
    "deberta-v2": "pieces",
    "modernbert": "bytes",
}


def kind_of(family: str) -> str:
    """``words`` (with marked pieces), ``bytes`` or ``pieces`` (of a unigram model)."""
    return _KIND.get(family, "words")


@functools.cache
def tokenizer_of(family: str) -> transformers.PreTrainedTokenizerFast:
    """A tokenizer of the kind the family has, trained on the sentences."""
    kind = kind_of(family)
    names = _SPECIAL["roberta" if "roberta" in family else "bert"]
    inner = {"words": _words, "bytes": _bytes, "pieces": _pieces}[kind]()
    trainer = {
        "words": trainers.WordPieceTrainer,
        "bytes": trainers.BpeTrainer,
        "pieces": trainers.UnigramTrainer,
    }[kind]
    options = {"unk_token": names["unk"]} if kind == "pieces" else {}
    if kind == "bytes":
        options["initial_alphabet"] = pre_tokenizers.ByteLevel.alphabet()
    sizes = {"words": 120, "bytes": 320, "pieces": 140}
    # Characters of the later sentences are unknown to all but the one of bytes.
    inner.train_from_iterator(
        SENTENCES[:5],
        trainer(
            vocab_size=sizes[kind],
            special_tokens=list(names.values()),
            show_progress=False,
            **options,
        ),
    )
    first, last = ((names[role], inner.token_to_id(names[role])) for role in ("cls", "sep"))
    inner.post_processor = processors.TemplateProcessing(
        single=f"{first[0]} $A {last[0]}",
        pair=f"{first[0]} $A {last[0]} $B:1 {last[0]}:1",
        special_tokens=[first, last],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        model_input_names=["input_ids", "attention_mask"]
        + ["token_type_ids"] * (family in ("bert", "albert")),
        **{f"{role}_token": token for role, token in names.items()},
    )


def _words() -> Tokenizer:
    inner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer(lowercase=True)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    return inner


def _bytes() -> Tokenizer:
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return inner


def _pieces() -> Tokenizer:
    inner = Tokenizer(models.Unigram())
    inner.normalizer = normalizers.NFKC()
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Metaspace()
    return inner


def config_of(family: str, **fields: Any) -> Any:
    """A configuration of the reference for a model of two narrow layers."""
    tokenizer = tokenizer_of(family)
    known = {
        "vocab_size": len(tokenizer),
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": 130 if "roberta" in family else 128,
        "pad_token_id": tokenizer.pad_token_id,
    }
    if family == "distilbert":
        names = {
            "hidden_size": "dim",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "intermediate_size": "hidden_dim",
        }
        known = {names.get(name, name): value for name, value in known.items()}
    if family == "albert":
        known["embedding_size"] = 8
    if family == "modernbert":
        known |= {"num_hidden_layers": 3, "local_attention": 8}
    return transformers.AutoConfig.for_model(family, **{**known, **fields})


def model_of(family: str, head: str, *, seed: int = 0, spread: float = 1.0, **fields: Any) -> Any:
    """A model of the reference whose every parameter matters, in evaluation mode.

    Args:
        family: As ``model_type`` spells it.
        head: What the class is called after ``AutoModel``: ``ForMaskedLM``; empty for none.
        seed: Of its values.
        spread: Standard deviation that the embeddings of words get. Logits of tied words grow
            with it, and the rounding errors of float32 with them.
        **fields: Of the configuration.
    """
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        model = getattr(transformers, f"AutoModel{head}").from_config(config_of(family, **fields))
        for name, parameter in model.named_parameters():
            # Tokens and labels that differ much, so that predictions do too.
            scale = spread if "word_embeddings" in name or "tok_embeddings" in name else 0.1
            scale = 0.5 if name.endswith(_OUTPUTS) else scale
            parameter.add_(scale * torch.randn(parameter.shape))
    return model.eval()


def write(directory: Path, family: str, head: str, **fields: Any) -> Any:
    """Write a checkpoint with its tokenizer; return the reference's model."""
    model = model_of(family, head, **fields)
    model.save_pretrained(directory)
    tokenizer = tokenizer_of(family)
    # Calls leave their settings in it, which would be written.
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.save_pretrained(directory)
    return model


def pipeline(task: str, directory: Path, **options: Any) -> Any:
    """A pipeline of the reference on a checkpoint, in float32 on the CPU."""
    family = transformers.AutoConfig.from_pretrained(directory).model_type
    heads = {
        "text-classification": transformers.AutoModelForSequenceClassification,
        "token-classification": transformers.AutoModelForTokenClassification,
        "fill-mask": transformers.AutoModelForMaskedLM,
    }
    model = heads[task].from_pretrained(directory, dtype=torch.float32)
    return transformers.pipeline(
        task, model=model, tokenizer=tokenizer_of(family), device="cpu", **options
    )
