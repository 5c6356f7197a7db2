"""The files of a tokenizer: which exist, what they contain, and what is wrong with them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from flodl.hf.errors import CheckpointFormatError, TokenizerMissingError
from flodl.hf.source import Checkpoint, Directory, json_object

TOKENIZER: Final = "tokenizer.json"
SETTINGS: Final = "tokenizer_config.json"
SPECIAL: Final = "special_tokens_map.json"
ADDED: Final = "added_tokens.json"
ROLES: Final = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")

# The tokenizer is made from the first set of files that is complete.
SOURCES: Final = (
    (TOKENIZER,),
    ("vocab.txt",),
    ("vocab.json", "merges.txt"),
    ("spiece.model",),
    ("sentencepiece.bpe.model",),
    ("spm.model",),
)
OWN_NAMES: Final = frozenset({SETTINGS, SPECIAL, ADDED}.union(*SOURCES))
"""Every file that a tokenizer may be read from."""

# Tokenizer files write a larger limit if there is no limit.
_NO_LIMIT = 10**6


@dataclass(frozen=True, slots=True)
class SpecialToken:
    """A token with a special meaning, and how it is found in a text.

    Attributes:
        content: The token.
        options: ``lstrip``, ``rstrip``, ``single_word``, ``normalized``, ``special``, if a file
            gives them.
    """

    content: str
    options: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The files that one tokenizer was read from.

    Attributes:
        origin: Directory or repository, for messages.
        contents: Name and bytes of every file; the files that it is made from come first.
        source: The names of the files that it is made from.
    """

    origin: str
    contents: Mapping[str, bytes]
    source: tuple[str, ...]
    _read: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def is_whole(self) -> bool:
        """Whether it was made from the one file that holds everything."""
        return len(self.source) == 1 and self.source[0].endswith(".json")

    def where(self, name: str) -> str:
        """A file's name with its origin, for messages."""
        return f"{self.origin}/{name}"

    def text(self, name: str) -> str:
        """The text of a file.

        Raises:
            CheckpointFormatError: The file is not UTF-8.
        """
        try:
            return self.contents[name].decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise CheckpointFormatError(
                f"{self.where(name)} is not UTF-8 text (byte {error.start}); fetch it again"
            ) from error

    def lines(self, name: str) -> list[str]:
        """Lines split at newlines only, because other line separators may be tokens."""
        lines = self.text(name).replace("\r\n", "\n").split("\n")
        return lines[:-1] if lines[-1] == "" else lines

    def mapping(self, name: str) -> dict[str, Any]:
        """A JSON object, read once; empty if there is no such file. Do not change it.

        Raises:
            CheckpointFormatError: The file is not a JSON object.
        """
        if name not in self._read:
            self._read[name] = self.read_mapping(name) if name in self.contents else {}
        return self._read[name]

    def read_mapping(self, name: str) -> dict[str, Any]:
        """A JSON object that may be large, read in every call; see :meth:`mapping`."""
        return json_object(self.text(name), self.where(name))

    def special_tokens(self) -> dict[str, SpecialToken]:
        """The special tokens that the side files name, by role (``pad``, ``mask``, …).

        Raises:
            CheckpointFormatError: A token is neither a text nor an object with a ``content``.
        """
        found: dict[str, SpecialToken] = {}
        for name in (SETTINGS, SPECIAL):
            told = self.mapping(name)
            for role in ROLES:
                value = told.get(f"{role}_token")
                if value is not None:
                    token = special_token(value, f"{self.where(name)}: {role}_token")
                    known = found.get(role)
                    if known is None or (known.content == token.content and not known.options):
                        found[role] = token
        return found

    def setting(self, name: str, fits: Callable[[Any], bool], must: str) -> Any:
        """A value of ``tokenizer_config.json``; None if it is null or not given.

        Args:
            name: Its name.
            fits: Whether a value has the right kind.
            must: What a value must do, for the message: ``"be a number"``.

        Raises:
            CheckpointFormatError: The value is of another kind.
        """
        value = self.mapping(SETTINGS).get(name)
        if value is not None and not fits(value):
            raise CheckpointFormatError(
                f"{self.where(SETTINGS)}: {name} must {must}, not {value!r}"
            )
        return value

    def model_max_length(self) -> int | None:
        """The length that the tokenizer's settings truncate to; None if they give none.

        Raises:
            CheckpointFormatError: It is not a positive number.
        """
        value = self.setting("model_max_length", _is_positive, "be a positive number")
        return None if value is None or value >= _NO_LIMIT else int(value)


def _is_positive(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 1


def special_token(value: object, where: str) -> SpecialToken:
    """Read a special token in the form of the side files.

    Raises:
        CheckpointFormatError: It is neither a text nor an object with a ``content``.
    """
    if isinstance(value, str):
        return SpecialToken(value)
    content = value.get("content") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(content, str):
        raise CheckpointFormatError(
            f"{where} must be text or an object with a 'content', not {value!r}"
        )
    names = ("lstrip", "rstrip", "single_word", "normalized", "special")
    return SpecialToken(content, {name: bool(value[name]) for name in names if name in value})


def flag(files: TokenizerFiles, name: str, default: bool | None) -> bool | None:
    """A true or false of ``tokenizer_config.json``; null counts as not given.

    Raises:
        CheckpointFormatError: The value is neither true, false nor null.
    """
    value: bool | None = files.setting(
        name, lambda given: isinstance(given, bool), "be true or false"
    )
    return default if value is None else value


def as_json(value: Mapping[str, Any]) -> bytes:
    """A JSON object as the bytes of a file."""
    return json.dumps(value, ensure_ascii=False, indent=2).encode() + b"\n"


def read_files(source: Checkpoint, wanted: str | None = None) -> TokenizerFiles:
    """Read the files that a tokenizer is made from, and the files that add to them.

    Args:
        source: A checkpoint.
        wanted: The name of the file to make it from; None for the first kind that exists.

    Raises:
        TokenizerMissingError: There is no tokenizer of a supported kind.
        HubError: A file has to be downloaded and cannot be.
    """
    kinds = SOURCES if wanted is None else _kinds_with(wanted)
    for kind in kinds:
        paths = {name: source.file(name) for name in kind}
        if None not in paths.values():
            break
    else:
        tried = ", ".join(" with ".join(kind) for kind in kinds)
        raise TokenizerMissingError(
            f"{source.name} has no tokenizer: looked for {tried}; copy the tokenizer's files "
            "there, or pass another tokenizer"
        )
    beside = (SETTINGS, SPECIAL) if kind[0] == TOKENIZER else (SETTINGS, SPECIAL, ADDED)
    paths |= {name: source.file(name) for name in beside}
    contents = {name: path.read_bytes() for name, path in paths.items() if path is not None}
    return TokenizerFiles(source.name, contents, kind)


def _kinds_with(name: str) -> tuple[tuple[str, ...], ...]:
    """The kinds that a file is part of; a JSON file of another name is a whole tokenizer."""
    return tuple(kind for kind in SOURCES if name in kind) or ((name,),)


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Turn any error of the ``tokenizers`` package about a file into an error that names it.

    The package's Rust code can also panic; that exception is not derived from ``Exception``.

    Args:
        where: The file, for messages.

    Raises:
        CheckpointFormatError: The file is broken.
    """
    try:
        yield
    except CheckpointFormatError:
        raise
    except Exception as error:
        raise CheckpointFormatError(f"{where} is not a tokenizer: {error}") from error
    except BaseException as error:
        if not is_panic(error):
            raise
        raise CheckpointFormatError(f"{where} makes the tokenizer fail: {error}") from error


def is_panic(error: BaseException) -> bool:
    """Whether an exception is a panic of Rust code, not an interrupt or an exit."""
    return type(error).__name__ == "PanicException"


def local_files(path: str | os.PathLike[str]) -> tuple[Checkpoint, str]:
    """The directory of a tokenizer's file, and the name of the file.

    Raises:
        FileNotFoundError: There is no such file.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise FileNotFoundError(f"there is no tokenizer file {str(file)!r}")
    return Directory(file.parent), file.name
