"""The files of a checkpoint: what every source of files has, and a directory as a source.

All later code asks the :class:`Checkpoint` for files by name. It does not need to know whether they
are in a directory or on the Hub. A directory needs no import and no socket.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Final, Protocol, final

from fdl.base.files import put
from flodl.hf.errors import CheckpointFormatError, PickleOnlyError

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach a repository on the Hub; for a directory only the subfolder counts.

    Attributes:
        revision: Branch, tag or commit; None for the default branch.
        token: Sent to the Hub and never shown. True requires the stored token, False sends none,
            None sends the stored token if there is one.
        cache_dir: Where downloads are kept; None for the cache that all Hub tools share.
        local_files_only: Never ask the network.
        subfolder: Folder inside the directory or repository, with ``/`` between its parts.

    Raises:
        ValueError: The subfolder leads outside, or the token or revision cannot be sent.
    """

    revision: str | None = None
    token: str | bool | None = field(default=None, repr=False)
    cache_dir: str | os.PathLike[str] | None = None
    local_files_only: bool = False
    subfolder: str = ""

    def __post_init__(self) -> None:
        if self.subfolder and not _is_inside(self.subfolder):
            raise ValueError(
                f"subfolder {self.subfolder!r} is not a folder inside the checkpoint: write it "
                "relative, with / between its parts and without .."
            )
        if self.revision is not None and not _is_inside(self.revision):
            raise ValueError(f"revision {self.revision!r} is not a branch, a tag or a commit")
        if isinstance(self.token, str) and not re.fullmatch(r"[!-~]+", self.token):
            raise ValueError("token is empty, or holds a space or a character that is not ASCII")


_REACH: Final = frozenset(one.name for one in fields(Access))
_REFUSED: Final[Mapping[str, str]] = {
    "trust_remote_code": "flodl never runs code of a checkpoint: leave it out",
    "use_auth_token": "give token=",
    "force_download": "remove the repository from the cache first",
    "resume_download": "downloads always continue: leave it out",
    "proxies": "set HTTPS_PROXY",
    "mirror": "set HF_ENDPOINT",
    "return_unused_kwargs": "all fields are kept in the configuration",
}
"""Arguments of transformers that flodl does not have -> what to do instead."""


def reach(
    options: Mapping[str, Any], refused: Mapping[str, str] = _REFUSED, who: str = "from_pretrained"
) -> tuple[Access, dict[str, Any]]:
    """How a caller reaches a checkpoint, and the other arguments of the call.

    Args:
        options: The arguments of the call.
        refused: Further arguments that flodl does not have -> what to do instead. None and False
            ask for nothing.
        who: The function that takes them, for messages.

    Raises:
        TypeError: flodl has nothing like an argument; the message says what to do instead.
        ValueError: As for :class:`Access`.
    """
    known, others = {}, {}
    for name, value in options.items():
        instead = refused.get(name) or _REFUSED.get(name)
        if name in _REACH:
            known[name] = value
        elif instead is None:
            others[name] = value
        elif value not in (None, False):
            raise TypeError(f"{who}() takes no argument {name!r}: {instead}")
    return Access(**known), others


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """The safetensors files that hold the tensors of a checkpoint.

    Attributes:
        files: One file, or the shards in the order of their names.
        index: The file that says which tensor is in which shard; None for a single file.
    """

    files: tuple[Path, ...]
    index: Path | None = None


class Checkpoint(Protocol):
    """The files of one checkpoint; on the Hub, all of one commit.

    Attributes:
        name: The repository, ``owner/name``, or the directory.
        commit: The commit of all files; None for a directory.
        is_local: Whether the checkpoint is a directory.
    """

    name: str
    commit: str | None
    is_local: bool

    def file(self, name: str) -> Path | None:
        """The local path of a file, downloaded if needed; None if the source has no such file.

        Args:
            name: Relative to the subfolder, with ``/`` between its parts.

        Raises:
            CheckpointFormatError: The name leads outside.
            HubError: The file has to be downloaded and cannot be.
        """

    def require(self, name: str) -> Path:
        """Like :meth:`file`, but the file must exist.

        Raises:
            FileNotFoundError: The directory has no such file.
            FileNotFoundOnHub: The repository has no such file.
            HubOffline: The file is not in the cache, and the Hub cannot be asked.
        """

    def text(self, name: str) -> str | None:
        """The text of a file; None if the source has no such file.

        Raises:
            CheckpointFormatError: The file is not UTF-8, or as for :meth:`file`.
        """
        path = self.file(name)
        return None if path is None else read_text(path)

    def weight_files(self) -> WeightFiles:
        """The safetensors files.

        Raises:
            CheckpointFormatError: The index is broken, names a file elsewhere or a missing file.
            PickleOnlyError: There are only pickle files, which are never loaded.
            FileNotFoundError: The directory holds no weights.
            FileNotFoundOnHub: The repository holds no weights.
            HubError: As for :meth:`file`.
        """


def path_is(kind: Callable[[Path], bool], path: Path) -> bool:
    """Whether a path is of this kind; False for a text that is too long to be a path."""
    try:
        return kind(path)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        raise


@final
class Directory(Checkpoint):
    """A checkpoint in a directory on this machine; it has no commits."""

    commit = None
    is_local = True

    def __init__(self, path: Path, subfolder: str = "") -> None:
        self._root = path / subfolder
        self.name = str(self._root)
        if not self._root.is_dir():
            missing = f"subfolder {subfolder!r} in {path}" if subfolder else f"directory {path}"
            raise FileNotFoundError(f"there is no {missing}")

    def __repr__(self) -> str:
        return f"Directory({str(self._root)!r})"

    def file(self, name: str) -> Path | None:
        """See :meth:`Checkpoint.file`."""
        check_inside(name, self.name)
        path = self._root / name
        return path if path_is(Path.is_file, path) else None

    def require(self, name: str) -> Path:
        """See :meth:`Checkpoint.require`."""
        path = self.file(name)
        if path is None:
            raise FileNotFoundError(f"{self.name} has no {name}: it is not a whole checkpoint")
        return path

    def weight_files(self) -> WeightFiles:
        """See :meth:`Checkpoint.weight_files`."""
        found = find_weights(self.file)
        if found is not None:
            return found
        if any(self._root.glob("pytorch_model*.bin")):
            raise pickle_only(self.name)
        raise FileNotFoundError(f"{self.name} has no weights: neither {WEIGHTS} nor {INDEX}")


def find_weights(file: Callable[[str], Path | None]) -> WeightFiles | None:
    """The single weight file, or the shards that the index names; None if there is neither.

    Args:
        file: Returns the path of a file of the checkpoint, or None.

    Raises:
        CheckpointFormatError: The index is broken, or a shard is missing.
    """
    single = file(WEIGHTS)
    if single is not None:
        return WeightFiles((single,))
    index = file(INDEX)
    if index is None:
        return None
    shards = []
    for name in shard_names(index):
        shard = file(name)
        if shard is None:
            raise CheckpointFormatError(
                f"{index} names the shard {name}, which is missing: fetch or export it again"
            )
        shards.append(shard)
    return WeightFiles(tuple(shards), index)


def shard_names(index: Path, ending: str = ".safetensors") -> list[str]:
    """The files that an index names, sorted; see :func:`shards_of`."""
    return sorted(set(shards_of(index, ending).values()))


def shards_of(index: Path, ending: str = ".safetensors") -> dict[str, str]:
    """The file that an index names for each tensor.

    Args:
        index: The index.
        ending: How the name of each file must end.

    Raises:
        CheckpointFormatError: The index is not a JSON object with a ``weight_map`` of names, or
            gives two places for one tensor. Or a file that it
            names is not beside it, or ends otherwise.
    """
    try:
        fields = json.loads(read_text(index), object_pairs_hook=_unique)
        weight_map: dict[str, str] = fields["weight_map"]
        names = sorted(set(weight_map.values()))
        if not names:
            raise ValueError("its weight_map is empty")
        for name in names:
            _check_shard_name(name, ending)
    except (KeyError, TypeError, AttributeError):
        raise CheckpointFormatError(
            f"{index} has no weight_map from tensors to files: it is not an index of shards"
        ) from None
    except RecursionError:
        raise CheckpointFormatError(f"{index} is nested too deep to be an index") from None
    except ValueError as error:
        raise CheckpointFormatError(f"{index} is not a sound index: {error}") from None
    return weight_map


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields: dict[str, object] = {}
    for key, value in pairs:
        if key in fields:
            raise ValueError(f"{key!r} is in it twice, as {fields[key]!r} and as {value!r}")
        fields[key] = value
    return fields


def _check_shard_name(name: str, ending: str) -> None:
    plain = PurePosixPath(name).name == name and PureWindowsPath(name).name == name
    if not (plain and name.isprintable() and name.endswith(ending)):
        kind = "safetensors file" if ending else "file"
        raise ValueError(f"shard {name!r} is not the plain name of a {kind} beside the index")


def check_inside(name: str, where: str) -> None:
    """Check that a file name, which may come from another file, stays inside the checkpoint.

    Raises:
        CheckpointFormatError: The name is absolute, contains ``..`` or is not a valid name.
    """
    if not _is_inside(name):
        raise CheckpointFormatError(f"{name!r} is not the name of a file inside {where}")


def _is_inside(name: str) -> bool:
    parts = name.removesuffix("/").split("/")
    return (
        name.isprintable()
        and "\\" not in name
        and not PureWindowsPath(name).drive
        and {"", ".", ".."}.isdisjoint(parts)
    )


def read_text(path: Path) -> str:
    """The text of a file of a checkpoint.

    Raises:
        CheckpointFormatError: The file is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise CheckpointFormatError(f"{path} is not text in UTF-8") from None


def json_value(text: str, where: str) -> Any:
    """A JSON value.

    Args:
        text: Its text.
        where: The file, for messages.

    Raises:
        CheckpointFormatError: It is not JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointFormatError(f"{where} is not JSON: {error}") from error


def json_object(text: str, where: str) -> dict[str, Any]:
    """A JSON object; see :func:`json_value`.

    Raises:
        CheckpointFormatError: It is not a JSON object.
    """
    value = json_value(text, where)
    if not isinstance(value, dict):
        raise CheckpointFormatError(f"{where} must hold a JSON object, not {type(value).__name__}")
    return value


def pickle_only(name: str, revision: str | None = None) -> PickleOnlyError:
    """The error for a checkpoint without safetensors files.

    Args:
        name: The repository or directory, as the command takes it.
        revision: Of the repository, if it is not the default.
    """
    words = ["fdl", "flodl-hf", "convert", name, *(["--revision", revision] if revision else [])]
    return PickleOnlyError(
        f"{name} has its weights only as a pickle, which could run any code and is never loaded "
        f"here. Convert it once:\n    {shlex.join(words)}"
    )


# --- Directories that are written ------------------------------------------------------------


def copy_files(files: dict[str, Path], out: Path) -> None:
    """Copy files, each under its name, into a directory; a file that is its own target is skipped.

    Raises:
        OSError: The system refused.
    """
    for name, path in files.items():
        target = out / name
        if target.exists() and target.samefile(path):
            continue
        put(target, path.read_bytes())


@contextmanager
def new_directory(path: Path) -> Iterator[None]:
    """Create a directory and its parents, and remove them again if the block fails.

    Existing files stay, and so do files that other processes add meanwhile. A directory that was
    created here is removed with everything the block put into it.

    Args:
        path: The directory; it may exist already.

    Raises:
        OSError: The system refused.
    """
    created = [one for one in (path, *path.parents) if not one.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        if created:
            shutil.rmtree(path, ignore_errors=True)
        for one in created[1:]:
            with suppress(OSError):  # it is not empty
                one.rmdir()
        raise
