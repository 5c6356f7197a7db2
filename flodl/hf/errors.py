"""The errors between a Hugging Face checkpoint and a graph; all derive from FlodlError.

::

    FlodlError
    ├── ConfigError                 config.json holds an impossible value
    │   └── UnsupportedModelError   it describes a model of another family
    ├── CheckpointError
    │   ├── CheckpointFormatError   a file is broken or of another format
    │   ├── CheckpointMismatchError its tensors do not match the model
    │   └── PickleOnlyError         the weights exist as pickle files only
    ├── HubError
    │   ├── RepoNotFound, RevisionNotFound, FileNotFoundOnHub, GatedRepo
    │   └── HubOffline              it cannot be reached and the cache is not enough
    ├── TokenizerMissingError       text was given to a model without a tokenizer
    └── MissingDependencyError      a package of an extra is not installed
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

from flodl.errors import CheckpointError, FlodlError

_SHOWN = 20


class ConfigError(FlodlError):
    """No model can be built from the configuration; names the file and the field."""


class UnsupportedModelError(ConfigError):
    """The configuration describes a model family that flodl does not have."""


class CheckpointFormatError(CheckpointError):
    """A weights file, index or tokenizer file is broken; names the file."""


class CheckpointMismatchError(CheckpointError):
    """The tensors of a checkpoint do not match those of the model; lists all differences.

    Attributes:
        missing: Keys that the model needs and the files lack, sorted.
        unused: Keys of the files that have no place in the model, sorted.
        shape_mismatches: Key, expected shape, found shape; sorted by key.
        bad_dtypes: Key and dtype of needed tensors that hold no floats, sorted.
    """

    def __init__(
        self,
        message: str,
        *,
        missing: Iterable[str] = (),
        unused: Iterable[str] = (),
        shape_mismatches: Iterable[tuple[str, Sequence[int], Sequence[int]]] = (),
        bad_dtypes: Iterable[tuple[str, str]] = (),
        suggestions: Iterable[tuple[str, str]] = (),
    ) -> None:
        self.missing = sorted(missing)
        self.unused = sorted(unused)
        self.shape_mismatches = sorted(
            (key, tuple(expected), tuple(found)) for key, expected, found in shape_mismatches
        )
        self.bad_dtypes = sorted(bad_dtypes)
        near = dict(suggestions)
        parts = [
            message,
            *_bucket("missing", [_with_hint(key, near.get(key)) for key in self.missing]),
            *_bucket("unused", self.unused),
            *_bucket(
                "of another shape",
                [
                    f"{key}: expected {list(expected)}, found {list(found)}"
                    for key, expected, found in self.shape_mismatches
                ],
            ),
            *_bucket("not of floats", [f"{key}: {dtype}" for key, dtype in self.bad_dtypes]),
        ]
        super().__init__("\n".join(parts))


def first_of(names: Sequence[str], most: int = 5) -> str:
    """The first names of a list, and how many more there are."""
    more = f", ... and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _bucket(what: str, entries: Sequence[str]) -> list[str]:
    """A heading with the full count, the first entries, and the number of further entries."""
    if not entries:
        return []
    more = len(entries) - _SHOWN
    tail = [f"    ... and {more} more"] if more > 0 else []
    return [f"  {len(entries)} {what}:", *(f"    {entry}" for entry in entries[:_SHOWN]), *tail]


def _with_hint(key: str, near: str | None) -> str:
    return key if near is None else f"{key} (unused and nearly the same: {near})"


class PickleOnlyError(CheckpointError):
    """The weights exist as pickle files only, which are never loaded; names the command to run."""


class HubError(FlodlError):
    """The Hub reported an error or did not answer."""


class RepoNotFound(HubError):  # noqa: N818 - the Hub's own names for these
    """The repository does not exist, or the token has no access to it."""


class RevisionNotFound(HubError):  # noqa: N818
    """The repository has no such branch, tag or commit."""


class FileNotFoundOnHub(HubError):  # noqa: N818
    """The repository has no such file."""


class GatedRepo(HubError):  # noqa: N818
    """The repository's terms have to be accepted first; names the page."""


class HubOffline(HubError):  # noqa: N818
    """The Hub cannot be reached or must not be asked, and the cache lacks a needed file."""


class DiskFull(HubError):  # noqa: N818
    """The disk of the cache has no space for a file of the Hub; names both."""


class TokenizerMissingError(FlodlError):
    """A method that takes text was called on a model without a tokenizer; names the method."""


class MissingDependencyError(FlodlError, ImportError):
    """A package is not installed; names the extra that installs it."""


def need(package: str, extra: str = "hf") -> Any:
    """Import a package, or raise an error that names the extra to install.

    Args:
        package: Name of a package or of a module inside one: ``tokenizers``, ``safetensors.torch``.
        extra: The extra of flodl that installs it.

    Returns:
        The module.

    Raises:
        MissingDependencyError: The package is not installed.
        ImportError: The package is installed but broken; installing the extra would not help.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        top = package.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != top:
            raise
        raise MissingDependencyError(
            f'the package {top} is not installed: run pip install "flodl[{extra}]"'
        ) from None
