"""A tiny model with random weights and a tokenizer, made in a folder without any download.

It serves to try programs and commands. Its answers mean nothing.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

import torch

from fdl.base.files import staging
from flodl.hf.auto import class_of
from flodl.hf.export import save_model
from flodl.hf.families import AutoConfig, EncoderConfig
from flodl.hf.head_kind import HeadKind
from flodl.hf.matrix import FAMILIES, Cell, tiny_config
from flodl.hf.source import CONFIG
from flodl.hf.text.files import SETTINGS, TokenizerFiles, as_json
from flodl.hf.text.source import build
from flodl.hf.tokenizer import PreTrainedTokenizerFast

LABELS = ("negative", "neutral", "positive")
"""The classes of a tiny classifier of texts."""
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
"""The classes of a tiny classifier of tokens."""

_SPREAD = 0.3  # standard deviation of the weights; the usual 0.02 would make all answers alike
_POSITIONS = 256
_WORD = re.compile(r"[a-z0-9]+")
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_MARKS = ".,;:!?'\"()-"
_LIKE_BERT = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
# Models of the RoBERTa family pad with id 1.
_LIKE_ROBERTA = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
_ROBERTAS = ("roberta", "xlm-roberta")


def write_tiny_model(
    folder: str | os.PathLike[str],
    *,
    family: str = "bert",
    head: HeadKind | str = HeadKind.BASE,
    words: Iterable[str] = (),
    seed: int = 0,
) -> Path:
    """Write a model of two layers with random weights, and a tokenizer for it.

    The same arguments give the same files. The folder appears when all its files are complete. A
    model that is there already is kept.

    Args:
        folder: The directory to write.
        family: One of :data:`flodl.hf.matrix.FAMILIES`.
        head: What the model predicts; also the word, ``"seqcls"`` for instance.
        words: Texts whose words become tokens of their own. All other words are spelled.
        seed: Seed of the weights.

    Returns:
        The folder.

    Raises:
        ValueError: There is no such family or head.
        FlodlError: The folder holds something else.
        MissingDependencyError: The package ``tokenizers`` is not installed.
        OSError: The system refused.
    """
    target, head = Path(folder), HeadKind(head)
    if family not in FAMILIES:
        raise ValueError(f"family {family!r} is not one of {', '.join(FAMILIES)}")
    if (target / CONFIG).is_file():
        return target
    special = _LIKE_ROBERTA if family in _ROBERTAS else _LIKE_BERT
    vocabulary = _vocabulary(special.values(), words)
    config = _config(family, head, special, len(vocabulary))
    target.parent.mkdir(parents=True, exist_ok=True)
    with staging(target.parent) as whole:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = class_of(config, head).from_config(config)
        tokenizer = _tokenizer(vocabulary, special)
        save_model(model.graph, model.config, whole, tokenizer=tokenizer)
        whole.rename(target)
    return target


def _vocabulary(special: Iterable[str], texts: Iterable[str]) -> list[str]:
    """The tokens in the order of their ids."""
    spelled = [*_LETTERS, *(f"##{letter}" for letter in _LETTERS), *_MARKS]
    words = {word for text in texts for word in _WORD.findall(text.lower())}
    return [*special, *spelled, *sorted(words - set(spelled))]


def _config(family: str, head: HeadKind, special: dict[str, str], vocab_size: int) -> EncoderConfig:
    fields = tiny_config(Cell(family, HeadKind.BASE.value, "", False)).source
    ids = {f"{role}_token_id": place for place, role in enumerate(special)}
    fields |= {
        "vocab_size": vocab_size,
        "max_position_embeddings": _POSITIONS,
        "initializer_range": _SPREAD,
        "pad_token_id": ids["pad_token_id"],
    }
    if family in _ROBERTAS:
        fields |= {"bos_token_id": ids["cls_token_id"], "eos_token_id": ids["sep_token_id"]}
    config = AutoConfig.from_json_str(json.dumps(fields))
    if not head.labelled:
        return config
    return config.replace(id2label=LABELS if head is HeadKind.SEQCLS else TAGS)


def _tokenizer(vocabulary: list[str], special: dict[str, str]) -> PreTrainedTokenizerFast:
    """A tokenizer that cuts words into pieces, as that of BERT does."""
    contents = {
        "vocab.txt": "\n".join(vocabulary).encode(),
        SETTINGS: as_json({f"{role}_token": token for role, token in special.items()}),
    }
    inner = build(TokenizerFiles("a tiny model", contents, ("vocab.txt",)))
    tokenizer = PreTrainedTokenizerFast.from_inner(inner)
    tokenizer.model_max_length = _POSITIONS
    return tokenizer
