"""A tokenizer of the ``tokenizers`` package with the settings of its files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from fdl.base.files import put
from flodl.hf.errors import CheckpointFormatError, need
from flodl.hf.text.conventions import settle, words_of
from flodl.hf.text.files import (
    ADDED,
    ROLES,
    SETTINGS,
    SPECIAL,
    TOKENIZER,
    SpecialToken,
    TokenizerFiles,
    as_json,
    reading,
    special_token,
)

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer


USUAL: Final = {
    "bos": ("<s>",),
    "eos": ("</s>",),
    "unk": ("[UNK]", "<unk>"),
    "sep": ("[SEP]", "</s>"),
    "pad": ("[PAD]", "<pad>"),
    "cls": ("[CLS]", "<s>"),
    "mask": ("[MASK]", "<mask>"),
}
"""Names of the special tokens if no file gives them."""

_FRAME: Final = {"bos": "cls", "eos": "sep"}
"""Roles whose tokens are those of another role, in families whose texts these tokens frame."""


@final
class TokenizerSource:
    """A tokenizer without padding and truncation of its own, and its origin.

    Attributes:
        inner: The tokenizer.
        files: The files it was read from; None if it was made in memory.
        length: Length that its files truncate to; None if they give none.
        pad_id: The id of padding, from the padding section or the side files.
        usual_pad_id: The id of the token with the usual name of padding.
    """

    def __init__(self, inner: Tokenizer, files: TokenizerFiles | None = None) -> None:
        self._padding = inner.padding
        self._truncation = inner.truncation
        special = {} if files is None else files.special_tokens()
        self._named = {role: token.content for role, token in special.items()}
        self._renamed: dict[str, str] = {}
        words = None if files is None or files.is_whole else words_of(files)
        self._framed_by_cls = words is not None and words.framed_by_cls
        self.files = files
        # A caller's tokenizer must stay as it is.
        self.inner = working_copy(inner) if inner.padding or inner.truncation else inner
        # A truncation section only holds what the last call before saving used. So it counts only
        # if the settings give no length and do not say that there is no limit.
        if files is None or files.mapping(SETTINGS).get("model_max_length") is None:
            cut = self._truncation
            self.length = None if cut is None else int(cut["max_length"])
        else:
            self.length = files.model_max_length()
        self.usual_pad_id = self._usual_id("pad")
        named = self._named.get("pad")
        self.pad_id: int | None = None if named is None else self.inner.token_to_id(named)
        if self._padding is not None:
            self.pad_id = int(self._padding["pad_id"])

    @property
    def where(self) -> str:
        """The file it was read from, for messages."""
        return "the tokenizer" if self.files is None else self.files.where(self.files.source[0])

    def special(self, role: str) -> str | None:
        """A special token in the vocabulary: the one in the files, else the one by usual name."""
        named = self._named.get(role)
        if named is not None and self.inner.token_to_id(named) is not None:
            return named
        if role in _FRAME and self._framed_by_cls:
            return self.special(_FRAME[role])
        usual = self._usual_id(role)
        return None if usual is None else self.inner.id_to_token(usual)

    def name_token(self, role: str, token: str) -> None:
        """Let a token of the vocabulary have a role, such as ``pad``, from now on."""
        self._named[role] = self._renamed[role] = token
        if role != "pad":
            return
        self.pad_id = self.inner.token_to_id(token)
        if self._padding is not None:
            self._padding = {**self._padding, "pad_id": self.pad_id, "pad_token": token}

    def save(self, path: str | os.PathLike[str], told: Mapping[str, Any]) -> tuple[Path, ...]:
        """Write the tokenizer's files, and return them; see ``PreTrainedTokenizerFast.save``.

        Args:
            path: A directory, or a file.
            told: Settings that are others than in its files.
        """
        target = Path(path)
        if target.suffix == ".json":
            written = {target: self._alone()}
        else:
            contents = self._contents()
            told = {**told, **{f"{role}_token": token for role, token in self._renamed.items()}}
            if told:
                read = {} if self.files is None else self.files.mapping(SETTINGS)
                contents[SETTINGS] = as_json({**(read or self._settings()), **told})
            written = {target / name: content for name, content in contents.items()}
        for file, content in written.items():
            put(file, content)
        return tuple(written)

    def _contents(self) -> dict[str, bytes]:
        """The files of a directory from which the tokenizer can be loaded."""
        files = self.files
        if files is None:
            return {TOKENIZER: self._as_json(), SETTINGS: as_json(self._settings())}
        unchanged = self._equals(build(files))
        if unchanged and not files.is_whole:
            return dict(files.contents)
        json = files.contents[files.source[0]] if unchanged else self._as_json()
        beside = {
            name: files.contents[name] for name in (SETTINGS, SPECIAL) if name in files.contents
        }
        return {TOKENIZER: json} | beside

    def _alone(self) -> bytes:
        """Everything in one file; no settings beside it say otherwise than it does."""
        files = self.files
        if files is not None and files.is_whole and self._equals(_whole(files)):
            return files.contents[files.source[0]]
        return self._as_json()

    def _equals(self, read: Tokenizer) -> bool:
        """Whether the tokenizer was not changed since it was read."""
        return not self._renamed and working_copy(read).to_str() == self.inner.to_str()

    def _as_json(self) -> bytes:
        """The present state of the tokenizer, with the padding and truncation it was read with."""
        with reading(self.where):
            copy: Tokenizer = need("tokenizers").Tokenizer.from_str(self.inner.to_str())
        if copy.padding is None and self._padding is not None:
            copy.enable_padding(**self._padding)
        if copy.truncation is None and self._truncation is not None:
            copy.enable_truncation(**self._truncation)
        return copy.to_str(pretty=True).encode()

    def _settings(self) -> dict[str, Any]:
        """The minimal settings, which tell the reference what kind of tokenizer it is."""
        named = {f"{role}_token": self.special(role) for role in ROLES}
        return {"tokenizer_class": "PreTrainedTokenizerFast"} | {
            name: token for name, token in named.items() if token is not None
        }

    def _usual_id(self, role: str) -> int | None:
        """The id of the role's usual token; a token marked as special comes first."""
        found = [self.inner.token_to_id(name) for name in USUAL[role]]
        present = [number for number in found if number is not None]
        added = self.inner.get_added_tokens_decoder()
        marked = [number for number in present if number in added and added[number].special]
        return next(iter(marked + present), None)


def from_files(files: TokenizerFiles) -> TokenizerSource:
    """Make a tokenizer from files that were read.

    Raises:
        CheckpointFormatError: A file is broken.
        MissingDependencyError: The package tokenizers is not installed.
    """
    return TokenizerSource(build(files), files)


def working_copy(inner: Tokenizer) -> Tokenizer:
    """A tokenizer with the same vocabulary and steps, whose padding and truncation are off.

    Vocabulary and steps are shared, not copied, so it takes about 10 µs.
    """
    copy: Tokenizer = need("tokenizers").Tokenizer(inner.model)
    # The package sets a step, but not the absence of a step.
    for step in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        value = getattr(inner, step)
        if value is not None:
            setattr(copy, step, value)
    added = inner.get_added_tokens_decoder()
    copy.add_tokens([added[number] for number in sorted(added)])
    if copy.get_added_tokens_decoder().keys() != added.keys():
        # Numbers with gaps between them cannot be given again, only read.
        copy = need("tokenizers").Tokenizer.from_str(inner.to_str())
        copy.no_padding()
        copy.no_truncation()
    copy.encode_special_tokens = inner.encode_special_tokens
    return copy


def build(files: TokenizerFiles) -> Tokenizer:
    """Make the tokenizer that the files describe.

    Raises:
        CheckpointFormatError: A file is broken; names it.
        MissingDependencyError: The package tokenizers is not installed.
    """
    kind = files.source[0]
    if files.is_whole:
        whole = _whole(files)
        settle(whole, files)
        return whole
    special = _special_tokens(files)
    words = words_of(files)
    tokenizer = words.build(files, {role: token.content for role, token in special.items()})
    with reading(files.where(kind)):
        _add_numbered(tokenizer, files)
        tokenizer.add_special_tokens(
            [_added(special[role], special=True) for role in ROLES if role in special]
        )
        ends = special["cls"].content, special["sep"].content
        tokenizer.post_processor = words.frame(files, *ends, tokenizer)
    return tokenizer


def _whole(files: TokenizerFiles) -> Tokenizer:
    """The tokenizer of the one file that holds everything, without the settings beside it."""
    kind = files.source[0]
    text = files.text(kind)
    with reading(files.where(kind)):
        whole: Tokenizer = need("tokenizers").Tokenizer.from_str(text)
    return whole


def _special_tokens(files: TokenizerFiles) -> dict[str, SpecialToken]:
    """The special tokens of this kind of tokenizer, unless the files name others."""
    words = words_of(files)
    tokens = {role: SpecialToken(name) for role, name in words.special.items()}
    if words.mask_takes_space:
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
