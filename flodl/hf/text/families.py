"""Build each family's tokenizer from vocabulary files: normaliser, splitting, model, template.

The published checkpoints were trained with these steps. If a checkpoint has a ``tokenizer.json``,
it describes the same steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from flodl.hf.dependencies import need
from flodl.hf.errors import CheckpointFormatError
from flodl.hf.text.files import TokenizerFiles, flag, reading
from flodl.hf.text.pieces import Pieces, unigram
from flodl.hf.text.sentencepiece import PieceKind, SentencePieceModel, read_sentencepiece

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_BERT: Final = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
_ROBERTA: Final = {
    "bos": "<s>",
    "eos": "</s>",
    "unk": "<unk>",
    "sep": "</s>",
    "pad": "<pad>",
    "cls": "<s>",
    "mask": "<mask>",
}

# Names of the special tokens of each kind of vocabulary, if no file gives them.
NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "vocab.txt": _BERT,
    "vocab.json": _ROBERTA,
    "spiece.model": {**_BERT, "unk": "<unk>", "pad": "<pad>"},
    "sentencepiece.bpe.model": _ROBERTA,
    "spm.model": _BERT,
}
# Kinds whose mask token includes the space before it.
MASK_TAKES_SPACE: Final = frozenset({"vocab.json", "spiece.model", "sentencepiece.bpe.model"})


def word_pieces(files: TokenizerFiles, names: Mapping[str, str]) -> Tokenizer:
    """BERT's and DistilBERT's tokenizer: words cut into pieces, from ``vocab.txt``.

    Raises:
        CheckpointFormatError: The vocabulary lacks its unknown token, or a setting is not a flag.
    """
    tk = need("tokenizers")
    vocab = {token: index for index, token in enumerate(_lines(files.text("vocab.txt")))}
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


def byte_pairs(files: TokenizerFiles, names: Mapping[str, str]) -> Tokenizer:  # noqa: ARG001
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


def albert(files: TokenizerFiles, names: Mapping[str, str]) -> Tokenizer:  # noqa: ARG001
    """ALBERT's SentencePiece vocabulary, from ``spiece.model``.

    Raises:
        CheckpointFormatError: The file is broken.
    """
    steps = need("tokenizers").normalizers
    model = _model(files)
    before = [steps.Replace("``", '"'), steps.Replace("''", '"')]
    if not flag(files, "keep_accents", False):
        before += [steps.NFKD(), steps.StripAccents()]
    if flag(files, "do_lower_case", True):
        before.append(steps.Lowercase())
    return _divided(files, model, list(model.pieces), model.unk_id, before, by_words=True)


def xlm_roberta(files: TokenizerFiles, names: Mapping[str, str]) -> Tokenizer:
    """XLM-RoBERTa's SentencePiece vocabulary, from ``sentencepiece.bpe.model``.

    Ids of the model differ from those of the file: four special tokens replace the first three
    pieces, and the mask token comes last.

    Raises:
        CheckpointFormatError: The file is broken, or begins with pieces of text.
    """
    model = _model(files)
    ordinary = {PieceKind.NORMAL, PieceKind.USER_DEFINED, PieceKind.BYTE}
    if len(model.pieces) < 3 or ordinary & set(model.kinds[:3]):
        raise CheckpointFormatError(
            f"{files.where(files.source[0])} does not begin with the three special pieces that "
            "XLM-RoBERTa's vocabulary has"
        )
    special = [(names[role], 0.0) for role in ("bos", "pad", "eos", "unk")]
    pieces = [*special, *model.pieces[3:], (names["mask"], 0.0)]
    return _divided(files, model, pieces, 3, [], by_words=True)


def deberta(files: TokenizerFiles, names: Mapping[str, str]) -> Tokenizer:  # noqa: ARG001
    """DeBERTa-v2's and v3's SentencePiece vocabulary, from ``spm.model``.

    Raises:
        CheckpointFormatError: The file is broken.
    """
    tk = need("tokenizers")
    model = _model(files)
    before = [tk.normalizers.Strip()]
    if flag(files, "do_lower_case", False):
        before.insert(0, tk.normalizers.Lowercase())
    tokenizer = _divided(files, model, list(model.pieces), model.unk_id, before, by_words=False)
    if flag(files, "split_by_punct", False):
        tokenizer.pre_tokenizer = tk.pre_tokenizers.Sequence(
            [tk.pre_tokenizers.Punctuation(behavior="isolated"), tokenizer.pre_tokenizer]
        )
    return tokenizer


def _divided(
    files: TokenizerFiles,
    model: SentencePieceModel,
    pieces: Pieces,
    unk_id: int,
    before: list[Any],
    *,
    by_words: bool,
) -> Tokenizer:
    """The tokenizer of a SentencePiece file."""
    where = files.where(files.source[0])
    spaced = bool(flag(files, "add_prefix_space", True))
    return unigram(model, pieces, unk_id, before, spaced=spaced, by_words=by_words, where=where)


def _model(files: TokenizerFiles) -> SentencePieceModel:
    name = files.source[0]
    return read_sentencepiece(files.contents[name], files.where(name))


def _token_ids(files: TokenizerFiles) -> dict[str, int]:
    vocab = files.mapping("vocab.json")
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
    for number, line in enumerate(_lines(files.text("merges.txt")), start=1):
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


def _lines(text: str) -> list[str]:
    """Lines split at newlines only, because other line separators may be tokens."""
    lines = text.replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines
