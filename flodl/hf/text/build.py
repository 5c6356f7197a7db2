"""Make a tokenizer from ``tokenizer.json``, or from the vocabulary files of older checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from flodl.hf.dependencies import need
from flodl.hf.errors import CheckpointFormatError
from flodl.hf.text.families import (
    MASK_TAKES_SPACE,
    NAMES,
    albert,
    byte_pairs,
    deberta,
    flag,
    word_pieces,
    xlm_roberta,
)
from flodl.hf.text.files import (
    ADDED,
    ROLES,
    SETTINGS,
    SpecialToken,
    TokenizerFiles,
    reading,
    special_token,
)

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

    _Builder: TypeAlias = Callable[[TokenizerFiles, Mapping[str, str]], Tokenizer]

_BUILDERS: Final[Mapping[str, _Builder]] = {
    "vocab.txt": word_pieces,
    "vocab.json": byte_pairs,
    "spiece.model": albert,
    "sentencepiece.bpe.model": xlm_roberta,
    "spm.model": deberta,
}


def build(files: TokenizerFiles) -> Tokenizer:
    """Make the tokenizer that the files describe.

    Raises:
        CheckpointFormatError: A file is broken; names it.
        MissingDependencyError: The package tokenizers is not installed.
    """
    tokenizers = need("tokenizers")
    kind = files.source[0]
    if files.is_whole:
        text = files.text(kind)
        with reading(files.where(kind)):
            whole: Tokenizer = tokenizers.Tokenizer.from_str(text)
        return whole
    special = _special_tokens(files)
    tokenizer = _BUILDERS[kind](files, {role: token.content for role, token in special.items()})
    with reading(files.where(kind)):
        _add_numbered(tokenizer, files)
        tokenizer.add_special_tokens(
            [_added(special[role], special=True) for role in ROLES if role in special]
        )
        _add_template(tokenizer, files, special["cls"].content, special["sep"].content)
    return tokenizer


def _special_tokens(files: TokenizerFiles) -> dict[str, SpecialToken]:
    """The special tokens of this kind of tokenizer, unless the files name others."""
    kind = files.source[0]
    tokens = {role: SpecialToken(name) for role, name in NAMES[kind].items()}
    if kind in MASK_TAKES_SPACE:
        tokens["mask"] = SpecialToken(tokens["mask"].content, {"lstrip": True})
    for role, named in files.special_tokens().items():
        usual = tokens.get(role, named)
        options = usual.options if usual.content == named.content else {}
        tokens[role] = SpecialToken(named.content, {**options, **named.options})
    return tokens


def _added(token: SpecialToken, *, special: bool) -> AddedToken:
    options: dict[str, Any] = {"normalized": False, "special": special, **token.options}
    if special:
        options["special"] = True
    made: AddedToken = need("tokenizers").AddedToken(token.content, **options)
    return made


def _add_numbered(tokenizer: Tokenizer, files: TokenizerFiles) -> None:
    """Add the tokens that came after the vocabulary, and check that they get their ids."""
    for index, token, name in sorted(_numbered(files), key=lambda entry: entry[0]):
        tokenizer.add_tokens([_added(token, special=False)])
        given = tokenizer.token_to_id(token.content)
        if given != index:
            raise CheckpointFormatError(
                f"{files.where(name)}: {token.content!r} must have the id {index}, but comes to "
                f"{given} after the vocabulary of {files.source[0]}; the files do not belong "
                "together"
            )


def _numbered(files: TokenizerFiles) -> list[tuple[int, SpecialToken, str]]:
    found: dict[int, tuple[int, SpecialToken, str]] = {}
    for token, index in files.mapping(ADDED).items():
        if type(index) is not int:
            raise CheckpointFormatError(
                f"{files.where(ADDED)}: {token!r} has the id {index!r}, not a number"
            )
        found[index] = (index, SpecialToken(token), ADDED)
    told = files.mapping(SETTINGS).get("added_tokens_decoder") or {}
    where = f"{files.where(SETTINGS)}: added_tokens_decoder"
    if not isinstance(told, dict):
        raise CheckpointFormatError(f"{where} must be an object, not {type(told).__name__}")
    for key, value in told.items():
        if not (key.isascii() and key.isdigit()):
            raise CheckpointFormatError(f"{where} has the key {key!r}, not a number")
        found[int(key)] = (int(key), special_token(value, f"{where} {key}"), SETTINGS)
    return list(found.values())


def _add_template(tokenizer: Tokenizer, files: TokenizerFiles, first: str, end: str) -> None:
    """Add special tokens around a text and around a pair."""
    processors = need("tokenizers").processors
    first_id, end_id = tokenizer.token_to_id(first), tokenizer.token_to_id(end)
    kind = files.source[0]
    if kind == "vocab.json":
        tokenizer.post_processor = processors.RobertaProcessing(
            (end, end_id),
            (first, first_id),
            trim_offsets=flag(files, "trim_offsets", True),
            add_prefix_space=flag(files, "add_prefix_space", False),
        )
        return
    segments = kind != "sentencepiece.bpe.model"
    between = [f"{end}:0"] if segments else [f"{end}:0", f"{end}:0"]
    second = int(segments)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[f"{first}:0", "$A:0", f"{end}:0"],
        pair=[f"{first}:0", "$A:0", *between, f"$B:{second}", f"{end}:{second}"],
        special_tokens=[(first, first_id), (end, end_id)],
    )
