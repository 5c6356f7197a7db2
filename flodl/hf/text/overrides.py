"""Settings beside a ``tokenizer.json`` that say otherwise than it does: transformers follows them.

So does this module. Otherwise a model that was fine-tuned by transformers gets other ids here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from flodl.hf.dependencies import need
from flodl.hf.families.bert import WORD_PIECES
from flodl.hf.text.conventions import words_of
from flodl.hf.text.files import SETTINGS, TokenizerFiles, as_json, flag

if TYPE_CHECKING:
    from tokenizers import Tokenizer

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
    tk = need("tokenizers")
    steps = tokenizer.normalizer
    if _is(steps, "BertNormalizer"):
        told = {
            "lowercase": flag(files, "do_lower_case", steps.lowercase),
            "strip_accents": flag(files, "strip_accents", steps.strip_accents),
            "handle_chinese_chars": flag(
                files, "tokenize_chinese_chars", steps.handle_chinese_chars
            ),
        }
        if any(getattr(steps, name) != value for name, value in told.items()):
            tokenizer.normalizer = tk.normalizers.BertNormalizer(
                clean_text=steps.clean_text, **told
            )
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
    return replace(files, contents={**files.contents, SETTINGS: told})


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


def check_settings(settings: Mapping[str, object], trust_remote_code: bool | None) -> None:
    """Check the settings that a caller gives instead of those of the files.

    Raises:
        TypeError: There is no such setting, it is not True or False, or code is to be run.
    """
    if trust_remote_code:
        raise TypeError(
            "trust_remote_code=True: code of a repository is never run; leave the argument out"
        )
    for name, value in settings.items():
        if name not in ARGUMENTS:
            raise TypeError(
                f"from_pretrained() takes no argument {name!r} for a tokenizer; its settings are "
                f"{', '.join(ARGUMENTS)}"
            )
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, not {value!r}")
