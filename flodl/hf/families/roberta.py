"""RoBERTa (Liu et al., 2019) and XLM-RoBERTa (Conneau et al., 2020): they differ in their words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from torch import Tensor, nn

from flodl.hf.config import EncoderConfig
from flodl.hf.config_fields import rate, refusal, whole
from flodl.hf.errors import CheckpointFormatError, need
from flodl.hf.families.family import Family, Words, framing
from flodl.hf.layers.activations import dropout
from flodl.hf.layers.encoder import Decoder, Part, Parts, first_token
from flodl.hf.text.files import TokenizerFiles, flag, reading
from flodl.hf.text.sentencepiece import PieceKind, sentence_pieces, unigram

if TYPE_CHECKING:
    from tokenizers import Tokenizer


_SPECIAL: Final = {
    "bos": "<s>",
    "eos": "</s>",
    "unk": "<unk>",
    "sep": "</s>",
    "pad": "<pad>",
    "cls": "<s>",
    "mask": "<mask>",
}


class _RobertaFamily(EncoderConfig):
    """RoBERTa and XLM-RoBERTa; they differ only in their vocabulary."""

    prefix: ClassVar[str] = "roberta"

    pad_token_id: int | None = whole(default=1, least=0, nullable=True)
    classifier_dropout: float = rate(default=None, nullable=True, inherits="hidden_dropout_prob")

    def _check(self, origin: str) -> None:
        super()._check(origin)
        if self.pad_token_id is None:
            raise refusal(
                origin, "pad_token_id", None, "a word id: positions are counted from the one after"
            )
        if self.pad_token_id + 1 >= self.max_position_embeddings:
            raise refusal(
                origin,
                "max_position_embeddings",
                self.max_position_embeddings,
                f"above {self.pad_token_id + 1}: positions begin after 'pad_token_id', which is "
                f"{self.pad_token_id}",
            )


class RobertaConfig(_RobertaFamily):
    """RoBERTa (https://arxiv.org/abs/1907.11692).

    Positions begin at ``pad_token_id + 1``; the rows before that in the position table hold no
    token.

    Attributes:
        classifier_dropout: Dropout in the classifier; ``hidden_dropout_prob`` if the file has no
            value.
    """

    model_type: ClassVar[str] = "roberta"
    class_prefix: ClassVar[str] = "Roberta"


class XLMRobertaConfig(_RobertaFamily):
    """XLM-RoBERTa (https://arxiv.org/abs/1911.02116): RoBERTa with words of 100 languages.

    Attributes:
        classifier_dropout: Dropout in the classifier; ``hidden_dropout_prob`` if the file has no
            value.
    """

    model_type: ClassVar[str] = "xlm-roberta"
    class_prefix: ClassVar[str] = "XLMRoberta"


# --- Tokenizers --------------------------------------------------------------------------------


def _byte_pairs(files: TokenizerFiles, names: Mapping[str, str]) -> Tokenizer:  # noqa: ARG001
    """RoBERTa's tokenizer: merges of bytes, from ``vocab.json`` and ``merges.txt``.

    Raises:
        CheckpointFormatError: A file is broken, or the files do not belong together.
    """
    tk = need("tokenizers")
    vocab = _token_ids(files)
    merges = _merges(files)
    with reading(f"{files.where('merges.txt')} with vocab.json"):
        model = tk.models.BPE(
            vocab=vocab, merges=merges, continuing_subword_prefix="", end_of_word_suffix=""
        )
    tokenizer: Tokenizer = tk.Tokenizer(model)
    tokenizer.pre_tokenizer = tk.pre_tokenizers.ByteLevel(
        add_prefix_space=flag(files, "add_prefix_space", False)
    )
    tokenizer.decoder = tk.decoders.ByteLevel()
    return tokenizer


def _token_ids(files: TokenizerFiles) -> dict[str, int]:
    vocab = files.read_mapping("vocab.json")
    where = files.where("vocab.json")
    owners: dict[int, str] = {}
    for token, index in vocab.items():
        if type(index) is not int or not 0 <= index < 2**32:
            raise CheckpointFormatError(f"{where}: {token!r} has the id {index!r}, not a number")
        if index in owners:
            raise CheckpointFormatError(
                f"{where}: {owners[index]!r} and {token!r} both have the id {index}"
            )
        owners[index] = token
    return vocab


def _merges(files: TokenizerFiles) -> list[tuple[str, str]]:
    merges: list[tuple[str, str]] = []
    for number, line in enumerate(files.lines("merges.txt"), start=1):
        if line.startswith("#version"):
            continue
        pair = line.split(" ")
        if len(pair) != 2 or not all(pair):
            raise CheckpointFormatError(
                f"{files.where('merges.txt')}, line {number}: {line!r:.80} is not two tokens "
                "with a space between them"
            )
        merges.append((pair[0], pair[1]))
    return merges


def _framed(files: TokenizerFiles, first: str, end: str, tokenizer: Tokenizer) -> Any:
    return need("tokenizers").processors.RobertaProcessing(
        (end, tokenizer.token_to_id(end)),
        (first, tokenizer.token_to_id(first)),
        trim_offsets=flag(files, "trim_offsets", True),
        add_prefix_space=flag(files, "add_prefix_space", False),
    )


def _sentence_pieces(files: TokenizerFiles, names: Mapping[str, str]) -> Tokenizer:
    """XLM-RoBERTa's SentencePiece vocabulary, from ``sentencepiece.bpe.model``.

    Ids of the model differ from those of the file: four special tokens replace the first three
    pieces, and the mask token comes last.

    Raises:
        CheckpointFormatError: The file is broken, or begins with pieces of text.
    """
    model = sentence_pieces(files)
    ordinary = {PieceKind.NORMAL, PieceKind.USER_DEFINED, PieceKind.BYTE}
    if len(model.pieces) < 3 or ordinary & set(model.kinds[:3]):
        raise CheckpointFormatError(
            f"{files.where(files.source[0])} does not begin with the three special pieces that "
            "XLM-RoBERTa's vocabulary has"
        )
    special = [(names[role], 0.0) for role in ("bos", "pad", "eos", "unk")]
    pieces = [*special, *model.pieces[3:], (names["mask"], 0.0)]
    return unigram(files, model, pieces, 3, [], by_words=True)


# --- Models ------------------------------------------------------------------------------------


class ClassificationHead(nn.Module):
    """RoBERTa's classifier: a hidden layer between the first token and the classes.

    Args:
        width: H.
        labels: Number of classes.
        dropout: Dropout before both layers.
    """

    def __init__(self, width: int, labels: int, dropout: float) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, labels)
        self.dropout = dropout

    def forward(self, state: Tensor) -> Tensor:
        """``[B, H]`` to ``[B, labels]``."""
        state = dropout(state, self.dropout, self.training)
        state = self.dense(state).tanh()
        logits: Tensor = self.out_proj(dropout(state, self.dropout, self.training))
        return logits


class Roberta(Family[_RobertaFamily]):
    """RoBERTa."""

    config: type[_RobertaFamily] = RobertaConfig
    decoders = ("lm_head.decoder",)
    heads = ("lm_head",)
    reads_segments = False
    offset_positions = True
    words = Words(
        ("vocab.json", "merges.txt"),
        _SPECIAL,
        _byte_pairs,
        ("add_prefix_space",),
        mask_takes_space=True,
        frame=_framed,
    )

    def row_classifier(self, config: _RobertaFamily) -> Parts:
        """A head of two layers for the first token."""
        head = ClassificationHead(config.hidden_size, config.num_labels, config.classifier_dropout)
        return Part(first_token), Part(head, "classifier")

    def word_decoder(self, config: _RobertaFamily) -> Parts:
        """A projection, then the table of words."""
        # Always the exact gelu, independent of the activation of the layers.
        decoder = Decoder(config, config.hidden_size, activate="gelu", norm="layer_norm")
        return (Part(decoder, "lm_head"),)


class XLMRoberta(Roberta):
    """XLM-RoBERTa."""

    config = XLMRobertaConfig
    words = Words(
        ("sentencepiece.bpe.model",),
        _SPECIAL,
        _sentence_pieces,
        ("add_prefix_space",),
        mask_takes_space=True,
        frame=framing(between=2, second=0),
    )
