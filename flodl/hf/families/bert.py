"""BERT (Devlin et al., 2019): configuration, layers, names of weights and tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Final

from torch import nn

from flodl.hf.config import EncoderConfig
from flodl.hf.config_fields import rate
from flodl.hf.errors import CheckpointFormatError, need
from flodl.hf.families.family import IDS, MASK, TYPES, Family, Words
from flodl.hf.layers.encoder import Decoder, Named, Part, Parts
from flodl.hf.text.files import TokenizerFiles, flag, reading

if TYPE_CHECKING:
    from tokenizers import Tokenizer


SPECIAL: Final = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
"""The special tokens by role."""
WORD_PIECES: Final = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
"""Settings of tokenizers that cut words into pieces."""


class BertConfig(EncoderConfig):
    """BERT (https://arxiv.org/abs/1810.04805).

    Attributes:
        classifier_dropout: Dropout before the classifier; ``hidden_dropout_prob`` if the file has
            no value.
    """

    model_type: ClassVar[str] = "bert"
    prefix: ClassVar[str] = "bert"
    class_prefix: ClassVar[str] = "Bert"

    classifier_dropout: float = rate(default=None, nullable=True, inherits="hidden_dropout_prob")


def _word_pieces(files: TokenizerFiles, names: Mapping[str, str]) -> Tokenizer:
    """BERT's and DistilBERT's tokenizer: words cut into pieces, from ``vocab.txt``.

    Raises:
        CheckpointFormatError: The vocabulary lacks its unknown token, or a setting is not a flag.
    """
    tk = need("tokenizers")
    vocab = {token: index for index, token in enumerate(files.lines("vocab.txt"))}
    where = files.where("vocab.txt")
    if names["unk"] not in vocab:
        raise CheckpointFormatError(f"{where} has no line {names['unk']!r}, its unknown token")
    with reading(where):
        tokenizer: Tokenizer = tk.Tokenizer(tk.models.WordPiece(vocab, unk_token=names["unk"]))
    tokenizer.normalizer = tk.normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=flag(files, "tokenize_chinese_chars", True),
        strip_accents=flag(files, "strip_accents", None),
        lowercase=flag(files, "do_lower_case", True),
    )
    tokenizer.pre_tokenizer = tk.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tk.decoders.WordPiece(prefix="##")
    return tokenizer


def below_cls(config: EncoderConfig, table: int) -> nn.Module:
    """The decoder of words of BERT, below ``cls``; its table may be narrower than the layers."""
    decoder = Decoder(config, table, dense="transform.dense", norm="transform.LayerNorm")
    return Named("predictions", decoder)


class Bert(Family[BertConfig]):
    """BERT."""

    config = BertConfig
    decoders = ("cls.predictions.decoder",)
    heads = ("cls",)
    classifies_pooled = True
    tokenizer_class = "BertTokenizer"
    inputs = (IDS, TYPES, MASK)
    words = Words(("vocab.txt",), SPECIAL, _word_pieces, WORD_PIECES)

    def word_decoder(self, config: BertConfig) -> Parts:
        """A projection, then the table of words."""
        return (Part(below_cls(config, config.hidden_size), "cls"),)
