"""What tokenizer classes of transformers settle beside the vocabulary, and settings of a caller.

Settings beside a ``tokenizer.json`` may say otherwise than it does. Transformers follows them, and
so does this module: otherwise a model that was fine-tuned by transformers gets other ids here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

from flodl.hf.families import FAMILIES
from flodl.hf.families.bert import WORD_PIECES
from flodl.hf.families.family import IDS, Family, Words
from flodl.hf.text.call_options import NO_LIMIT, SIDES, Side
from flodl.hf.text.files import SETTINGS, TokenizerFiles, as_json, flag

if TYPE_CHECKING:
    from tokenizers import Tokenizer

WORDS: Final[Mapping[str, Family[Any]]] = {
    family.words.files[0]: family for family in FAMILIES.values() if family.words is not None
}
"""The family of each kind of vocabulary, by the first of its files."""

_A_SIDE: Final = (SIDES.__contains__, "be 'right' or 'left'")
_A_NUMBER: Final = (lambda value: type(value) is int, "be a number")


def words_of(files: TokenizerFiles) -> Words:
    """How a tokenizer is made of these files, which are not one whole tokenizer."""
    return cast("Words", WORDS[files.source[0]].words)


@dataclass(frozen=True, slots=True)
class Conventions:
    """What a call of a tokenizer returns and how it fills rows, unless its arguments say otherwise.

    Attributes:
        model_input_names: The values that a call returns.
        model_max_length: Tokens of a row; a very large number for no limit.
        padding_side: The side that is filled.
        truncation_side: The side that is cut off.
        pad_token_type_id: The segment of padding.
        clean_up: Whether decoding removes the spaces before punctuation.
    """

    model_input_names: tuple[str, ...]
    model_max_length: int = NO_LIMIT
    padding_side: Side = "right"
    truncation_side: Side = "right"
    pad_token_type_id: int = 0
    clean_up: bool = False


def conventions(
    files: TokenizerFiles | None, model_type: str | None, limit: int | None
) -> Conventions:
    """The conventions of a tokenizer, from its settings, its class and its model.

    Args:
        files: The tokenizer's files; None if it was made in memory.
        model_type: The family of its model, if that is known.
        limit: Tokens for which the model has positions, if that is known.

    Raises:
        CheckpointFormatError: A setting has a value of the wrong kind.
    """
    if files is None:
        return Conventions(_inputs_of(None, model_type), NO_LIMIT if limit is None else limit)
    names = files.setting("model_input_names", _is_names, "list names")
    lengths = (files.model_max_length(), limit)
    return Conventions(
        model_input_names=tuple(names) if names else _inputs_of(files, model_type),
        model_max_length=min((one for one in lengths if one is not None), default=NO_LIMIT),
        padding_side=files.setting("padding_side", *_A_SIDE) or "right",
        truncation_side=files.setting("truncation_side", *_A_SIDE) or "right",
        pad_token_type_id=files.setting("pad_token_type_id", *_A_NUMBER) or 0,
        clean_up=bool(files.mapping(SETTINGS).get("clean_up_tokenization_spaces", False)),
    )


def _inputs_of(files: TokenizerFiles | None, model_type: str | None) -> tuple[str, ...]:
    """What a call returns if no setting says so: as the tokenizer's class, its model or its files.

    Without segments, unless the models of the family read them.
    """
    named = None if files is None else files.mapping(SETTINGS).get("tokenizer_class")
    if isinstance(named, str):
        known = (
            one for one in FAMILIES.values() if one.tokenizer_class == named.removesuffix("Fast")
        )
        family = next(known, None)
    elif model_type is not None:
        family = FAMILIES.get(model_type)
    else:
        family = None if files is None else WORDS.get(files.source[0])
    return Family.inputs if family is None else family.inputs


def _is_names(value: object) -> bool:
    return isinstance(value, list) and IDS in value and all(isinstance(one, str) for one in value)


ARGUMENTS: Final = (
    "do_lower_case",
    "strip_accents",
    "tokenize_chinese_chars",
    "keep_accents",
    "split_by_punct",
    "add_prefix_space",
)
"""Settings that a caller may give."""

_PLAIN: Final = ("PreTrainedTokenizerFast", "PreTrainedTokenizer", "TokenizersBackend")


def settle(tokenizer: Tokenizer, files: TokenizerFiles) -> None:
    """Let the settings of the files count in a tokenizer that was read from ``tokenizer.json``.

    Raises:
        CheckpointFormatError: A setting is neither true, false nor null.
    """
    if _is_plain(files):
        return
    steps = tokenizer.normalizer
    if _is(steps, "BertNormalizer"):
        steps.lowercase = flag(files, "do_lower_case", steps.lowercase)
        steps.strip_accents = flag(files, "strip_accents", steps.strip_accents)
        chinese = flag(files, "tokenize_chinese_chars", steps.handle_chinese_chars)
        steps.handle_chinese_chars = chinese
        tokenizer.normalizer = steps
    splits = tokenizer.pre_tokenizer
    if _is(splits, "ByteLevel"):
        spaced = bool(flag(files, "add_prefix_space", splits.add_prefix_space))
        if spaced != splits.add_prefix_space:
            splits.add_prefix_space = spaced
            tokenizer.pre_tokenizer = splits
            last = tokenizer.post_processor
            if _is(last, "RobertaProcessing"):
                last.add_prefix_space = spaced
                tokenizer.post_processor = last


def with_settings(
    files: TokenizerFiles, settings: Mapping[str, bool], tokenizer: Tokenizer
) -> TokenizerFiles:
    """The same files with other settings.

    Args:
        files: The files.
        settings: Values of ``tokenizer_config.json`` by name.
        tokenizer: The tokenizer that was made from the files.

    Raises:
        ValueError: A setting has no effect on this kind of tokenizer.
    """
    known = _settable(files, tokenizer)
    for name in settings:
        if name not in known:
            raise ValueError(
                f"{name} has no effect on {files.where(files.source[0])}; "
                f"{'it takes ' + ', '.join(known) if known else 'that file settles everything'}"
            )
    told = as_json({**files.mapping(SETTINGS), **settings})
    return replace(files, contents={**files.contents, SETTINGS: told}, _read={})


def _settable(files: TokenizerFiles, tokenizer: Tokenizer) -> tuple[str, ...]:
    if not files.is_whole:
        return words_of(files).settings
    if _is_plain(files):
        return ()
    words = WORD_PIECES if _is(tokenizer.normalizer, "BertNormalizer") else ()
    spaces = ("add_prefix_space",) if _is(tokenizer.pre_tokenizer, "ByteLevel") else ()
    return (*words, *spaces)


def _is_plain(files: TokenizerFiles) -> bool:
    """Whether the settings name the class of transformers that reads the file as it is."""
    return files.mapping(SETTINGS).get("tokenizer_class") in _PLAIN


def _is(step: Any, name: str) -> bool:
    return type(step).__name__ == name


NOT_OF_TOKENIZERS: Final = {
    "config": "it is read from the same source",
    "tokenizer_type": "it is read from the files",
    "tokenizer_file": "call PreTrainedTokenizerFast.from_file(path)",
    "clean_up_tokenization_spaces": "give it to decode()",
    "split_special_tokens": "set tokenizer.backend_tokenizer.encode_special_tokens",
    "from_slow": "every tokenizer is read from its files: leave it out",
    "legacy": "every tokenizer works as its files say: leave it out",
    "max_len": "give model_max_length=",
}
"""Arguments of transformers for tokenizers -> what to do instead."""


def check_settings(settings: Mapping[str, object]) -> None:
    """Check the settings that a caller gives instead of those of the files.

    Raises:
        TypeError: There is no such setting, or it is not True or False.
    """
    for name, value in settings.items():
        if name not in ARGUMENTS:
            raise TypeError(
                f"from_pretrained() takes no argument {name!r} for a tokenizer; its settings are "
                f"{', '.join(ARGUMENTS)}"
            )
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, not {value!r}")
