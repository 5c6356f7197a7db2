"""A checkpoint on the Hub, downloaded into the cache that all Hub tools share.

All access goes through huggingface_hub, which is imported at the first use of a repository. It
reads these environment variables, so set them before: ``HF_HOME``, ``HF_HUB_CACHE``,
``HF_ENDPOINT``, ``HF_TOKEN``, ``HF_HUB_OFFLINE``.

Layout of the cache: https://huggingface.co/docs/huggingface_hub/guides/manage-cache
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, final

from fdl.base.files import write_text
from fdl.base.units import size_text
from flodl import log
from flodl.hf import hub_errors
from flodl.hf.errors import CheckpointFormatError, FileNotFoundOnHub, HubError, HubOffline, need
from flodl.hf.hub_errors import Unreachable
from flodl.hf.sentence_settings import COMPANIONS
from flodl.hf.source import (
    CONFIG,
    INDEX,
    PICKLES,
    WEIGHTS,
    Access,
    Checkpoint,
    Directory,
    WeightFiles,
    check_inside,
    find_weights,
    path_is,
    pickle_only,
)
from flodl.hf.text.files import ADDED, OWN_NAMES, SETTINGS, SOURCES, SPECIAL, TOKENIZER

_T = TypeVar("_T")

_DEFAULT_BRANCH = "main"
_REPO_ID = re.compile(r"(?=.{1,96}\Z)(?:\w[\w.-]*/)?\w[\w.-]*", re.ASCII)
_FULL_COMMIT = re.compile(r"[0-9a-f]{40}")
_COMMIT = re.compile(r"\w+", re.ASCII)  # safe as a folder name, even from a wrong server
_PAUSES_SECONDS = (0.5, 1.0)  # between tries if the cache holds no commit to use instead


def locate(src: str | os.PathLike[str], access: Access | None = None) -> Checkpoint:
    """Find a checkpoint.

    An existing directory is used as it is. Otherwise a string like ``name`` or ``owner/name`` is a
    repository on the Hub, and its commit is resolved now. A string that can only be a path is not
    looked up on the network.

    Args:
        src: Directory or repository.
        access: How to reach the repository.

    Raises:
        FileNotFoundError: The path does not exist.
        NotADirectoryError: The path is a file.
        HubError: The repository or revision does not exist, or cannot be reached.
        MissingDependencyError: It is a repository, and huggingface_hub is not installed.
    """
    access = access or Access()
    path = Path(src)
    with contextlib.suppress(RuntimeError):  # ~user without a home directory
        path = path.expanduser()
    if os.fspath(src) and path_is(Path.is_dir, path):
        return Directory(path, access.subfolder)
    if path_is(Path.is_file, path):
        raise NotADirectoryError(
            f"{path} is a file: give the directory that holds {CONFIG} and the weights, "
            f"probably {path.parent}"
        )
    if not isinstance(src, str) or not _REPO_ID.fullmatch(src):
        hint = (
            "; of an address, give only the repository: owner/name"
            if "://" in os.fspath(src)
            else "; a repository of the Hub is written owner/name"
        )
        raise FileNotFoundError(f"there is no directory {os.fspath(src)!r}{hint}")
    return Repository(src, access)


def converted_file(repo: str, commit: str | None, subfolder: str = "") -> Path:
    """The path of the weights that were converted from the pickle files of a repository.

    Args:
        repo: ``owner/name``.
        commit: The commit they were converted from; None for the path that older versions used for
            the default branch.
        subfolder: The folder inside the repository.

    Raises:
        MissingDependencyError: huggingface_hub, which knows its home folder, is not installed.
    """
    home = Path(need("huggingface_hub.constants").HF_HOME)
    return home / "flodl-converted" / repo / (commit or "") / subfolder / WEIGHTS


@final
class Repository(Checkpoint):
    """One commit of a repository. The commit is resolved when the object is made.

    Args:
        repo: ``owner/name``, or only a name.
        access: How to reach it.

    Raises:
        RepoNotFound: The repository does not exist, or the token has no access to it.
        RevisionNotFound: The repository has no such branch, tag or commit.
        GatedRepo: Its terms have to be accepted first.
        HubOffline: The Hub cannot be reached, and the cache does not know the revision.
        HubError: The Hub gave another error.
        MissingDependencyError: huggingface_hub is not installed.
    """

    is_local = False

    def __init__(self, repo: str, access: Access) -> None:
        self._hub = need("huggingface_hub")
        self._settings = need("huggingface_hub.constants")
        self.name = repo
        self._access = access
        self._cache_dir = os.fspath(access.cache_dir or self._settings.HF_HUB_CACHE)
        self._endpoint = hub_errors.without_credentials(self._settings.ENDPOINT)
        self._revision = access.revision or _DEFAULT_BRANCH
        self._why_offline: str | None = None  # why the Hub is not asked
        if access.local_files_only or self._settings.HF_HUB_OFFLINE:
            reason = "local_files_only" if access.local_files_only else "HF_HUB_OFFLINE"
            self._why_offline = f"{reason} forbids to fetch it"
        cached = self._cached_commit()
        self.commit: str = self._resolved(cached)
        # If the Hub stops answering, only a snapshot from an earlier load may be used instead.
        self._had_snapshot = self.commit == cached and self._in_cache(self._inside(CONFIG))

    def __repr__(self) -> str:
        return f"Repository({self.name!r}, commit={self.commit!r})"

    def file(self, name: str) -> Path | None:
        """See :meth:`flodl.hf.source.Checkpoint.file`.

        Without a connection, a file that is not in the cache counts as missing, unless every
        checkpoint must have it.
        """
        check_inside(name, self.name)
        full = self._inside(name)
        cached = self._look_up(full)
        if isinstance(cached, str):
            return Path(cached)
        if cached is not None:  # the cache knows that this commit has no such file
            return None
        if self._why_offline is None:
            try:
                return self._fetched(full, self.commit)
            except FileNotFoundOnHub:
                return None
            except Unreachable as failure:
                self._fall_back(failure, full)
        if name == CONFIG or (name.endswith(".safetensors") and name != WEIGHTS):
            raise self._offline(full)
        return None

    def require(self, name: str) -> Path:
        """See :meth:`flodl.hf.source.Checkpoint.require`."""
        path = self.file(name)
        if path is not None:
            return path
        full = self._inside(name)
        if self._why_offline is not None and self._look_up(full) is None:
            raise self._offline(full)
        raise hub_errors.no_such_file(self.name, self.commit, full)

    def weight_files(self) -> WeightFiles:
        """See :meth:`flodl.hf.source.Checkpoint.weight_files`.

        Weights that were converted from the repository's pickle files come first.
        """
        converted = self._converted()
        if converted is not None:
            log.verbose(f"{self.name}: using the converted weights {converted}")
            return WeightFiles((converted,))
        found = find_weights(self.file)
        if found is not None:
            return found
        if any(self._has(self._inside(name)) for name in PICKLES):
            raise pickle_only(self.name, self._access.revision)
        if self._why_offline is not None:
            raise self._offline(self._inside(WEIGHTS))
        raise FileNotFoundOnHub(
            f"{self.name} at {self.commit} has no weights: neither {self._inside(WEIGHTS)} nor "
            f"{self._inside(INDEX)}"
        )

    def download(
        self, *, pickles: bool = False, tokenizer: bool = True, more: Iterable[str] = ()
    ) -> Download | None:
        """What opening the repository would fetch; None for nothing, or if the Hub does not say.

        If the repository has only pickle files, these count, because a conversion fetches them.

        Args:
            pickles: Whether pickle files are fetched even if there are safetensors.
            tokenizer: Whether the tokenizer is read.
            more: Files that are read too, if they exist.
        """
        sizes = self._sizes() if self._why_offline is None else {}
        kinds = (PICKLED,) if pickles else (SAFETENSORS, PICKLED) if not self._converted() else ()
        names = needed(sizes, kinds, tokenizer=tokenizer, more=more)
        lacking = {
            name: sizes[name] for name in sorted(names) if not self._in_cache(self._inside(name))
        }
        return Download(self.name, lacking, self._endpoint, self._cache_dir) if lacking else None

    def headers(self) -> list[Mapping[str, Any]] | None:
        """The tensors of each weight file, described by its header alone.

        None without a connection, and if the repository has only pickle files.

        Raises:
            CheckpointFormatError: A header is broken.
            HubError: The Hub gave an error, or cannot be reached.
        """
        if self._why_offline is not None:
            return None
        api = self._hub.HfApi(token=self._access.token, library_name="flodl")
        errors = self._hub.errors
        try:
            told = api.get_safetensors_metadata(self.name, revision=self.commit)
        except errors.NotASafetensorsRepoError:
            return None
        # Besides its own error, the errors that its parser raises for a header of another form.
        except (errors.SafetensorsParsingError, AttributeError, TypeError, RecursionError):
            raise CheckpointFormatError(f"{self.name}: {WEIGHTS} has no sound header") from None
        except Exception as error:
            failure = self._translated(error, WEIGHTS)
            gone = isinstance(failure, Unreachable)
            raise (self._offline(WEIGHTS) if gone else failure) from None
        return [header.tensors for header in told.files_metadata.values()]

    def _inside(self, name: str) -> str:
        folder = self._access.subfolder.rstrip("/")
        return f"{folder}/{name}" if folder else name

    # Resolving the commit

    def _resolved(self, cached: str | None) -> str:
        if _FULL_COMMIT.fullmatch(self._revision):
            return self._revision
        if self._why_offline is None:
            try:
                return self._asked(cached)
            except Unreachable as failure:
                self._why_offline = self._silent(failure)
                if cached is not None:
                    self._warn(failure, cached)
        if cached is None:
            raise self._offline(self._inside(CONFIG))
        return cached

    def _asked(self, cached: str | None) -> str:
        """The current commit of the revision, as the Hub says; it is also noted in the cache."""
        full = self._inside(CONFIG)
        commit = self._persistently(lambda: self._commit_of(full), tries_again=cached is None)
        if commit != cached:
            # Fetch by commit, because the branch may have moved since.
            with contextlib.suppress(FileNotFoundOnHub):
                self._fetched(full, commit)
            self._remember(commit)
        return commit

    def _commit_of(self, full: str) -> str:
        try:
            commit = self._metadata(full, self._revision).commit_hash
        except FileNotFoundOnHub as missing:
            # The file is missing, but the response still tells the commit of the revision.
            commit = hub_errors.header(missing.__context__, "X-Repo-Commit")
            if commit is None:
                raise
        if commit is None:
            raise Unreachable("the endpoint is not a Hugging Face Hub: no X-Repo-Commit")
        if not _COMMIT.fullmatch(commit):
            raise HubError(
                f"{self._endpoint} returned an invalid commit for {self.name}: {commit!r}"
            )
        return str(commit)

    def _persistently(self, ask: Callable[[], _T], *, tries_again: bool) -> _T:
        for pause in _PAUSES_SECONDS if tries_again else ():
            try:
                return ask()
            except Unreachable:
                time.sleep(pause)
        return ask()

    # Reading the cache

    def _repo_cache(self) -> Path:
        return Path(self._cache_dir) / ("models--" + self.name.replace("/", "--"))

    def _cached_commit(self) -> str | None:
        """The commit that the revision had when the Hub was last asked."""
        if _FULL_COMMIT.fullmatch(self._revision):
            return self._revision
        try:
            noted = (self._repo_cache() / "refs" / self._revision).read_text().strip()
        except (OSError, UnicodeDecodeError):
            return None
        return noted if _COMMIT.fullmatch(noted) else None

    def _remember(self, commit: str) -> None:
        """Note the commit of the revision where all tools look for it when offline."""
        note = self._repo_cache() / "refs" / self._revision
        with contextlib.suppress(OSError):  # the cache may be writable for others only
            write_text(note, commit)

    def _look_up(self, full: str) -> str | object | None:
        """The cached path; None if unknown; another object if the file is known not to exist."""
        known: str | object | None = self._hub.try_to_load_from_cache(
            self.name, full, cache_dir=self._cache_dir, revision=self.commit
        )
        return known

    def _in_cache(self, full: str) -> bool:
        return isinstance(self._look_up(full), str)

    def _converted(self) -> Path | None:
        commits: list[str | None] = [self.commit]
        if self._revision == _DEFAULT_BRANCH:
            commits.append(None)
        for commit in commits:
            path = converted_file(self.name, commit, self._access.subfolder)
            if path.is_file():
                return path
        return None

    # Requests to the Hub

    def _metadata(self, full: str, revision: str) -> Any:
        def metadata() -> Any:
            url = self._hub.hf_hub_url(self.name, full, revision=revision)
            token = self._access.token
            return self._hub.get_hf_file_metadata(url, token=token, library_name="flodl")

        return self._ask(full, metadata)

    def _sizes(self) -> dict[str, int]:
        """Bytes of every file of the commit; empty if the Hub does not list them."""
        api = self._hub.HfApi(token=self._access.token, library_name="flodl")
        folder = self._access.subfolder.rstrip("/")
        start = len(folder) + 1 if folder else 0

        def sizes() -> dict[str, int]:
            tree = api.list_repo_tree(
                self.name, folder or None, recursive=True, revision=self.commit
            )
            return {one.path[start:]: one.size for one in tree if hasattr(one, "size")}

        try:
            return self._ask(folder, sizes)
        except (HubError, Unreachable):
            return {}

    def _has(self, full: str) -> bool:
        """Whether the file exists, without downloading it."""
        if self._in_cache(full):
            return True
        if self._why_offline is not None:
            return False
        try:
            self._metadata(full, self.commit)
        except FileNotFoundOnHub:
            return False
        except Unreachable as failure:
            self._fall_back(failure, full)
            return False
        return True

    def _fetched(self, full: str, revision: str) -> Path:
        def download() -> str:
            path: str = self._hub.hf_hub_download(
                self.name,
                full,
                revision=revision,
                cache_dir=self._cache_dir,
                token=self._access.token,
                library_name="flodl",
            )
            return path

        return Path(self._ask(full, download))

    def _ask(self, full: str, call: Callable[[], _T]) -> _T:
        """Ask the Hub about a file; its errors become those of flodl."""
        try:
            return call()
        except Exception as error:
            raise self._translated(error, full) from None

    # Errors and warnings

    def _translated(self, error: Exception, full: str) -> Exception:
        where = hub_errors.Asked(self.name, self._revision, full, self._endpoint, self._cache_dir)
        return hub_errors.translated(error, where)

    def _silent(self, failure: Unreachable) -> str:
        return f"{self._endpoint} cannot be reached ({failure})"

    def _warn(self, failure: Unreachable, commit: str) -> None:
        log.warning(
            f"{self.name}: {self._silent(failure)}; using the cached commit {commit} of "
            f"{self._revision}"
        )

    def _fall_back(self, failure: Unreachable, full: str) -> None:
        """Continue with the cache alone, if it has a snapshot from an earlier load."""
        self._why_offline = self._silent(failure)
        if not self._had_snapshot:
            raise self._offline(full) from None
        self._warn(failure, self.commit)

    def _offline(self, full: str) -> HubOffline:
        return HubOffline(
            f"{self.name} ({self._revision}): {full} is not in the cache {self._cache_dir}, and "
            f"{self._why_offline}. Fetch it once with a connection: hf download {self.name}"
        )


# --- What opening a repository downloads -------------------------------------------------------


_SHARDS: Mapping[str, re.Pattern[str]] = {
    INDEX: re.compile(r"model-\d+-of-\d+\.safetensors"),
    PICKLES[1]: re.compile(r"pytorch_model-\d+-of-\d+\.bin"),
}


@dataclass(frozen=True, slots=True)
class Download:
    """The files that opening a repository fetches into the cache.

    Attributes:
        repo: The repository.
        sizes: Bytes of each file that the cache lacks.
        endpoint: The Hub.
        cache: The folder of the cache.
    """

    repo: str
    sizes: Mapping[str, int]
    endpoint: str
    cache: str

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(self.sizes.values())

    def as_text(self) -> str:
        """The download in one line."""
        count = f"{len(self.sizes)} file" + "s" * (len(self.sizes) != 1)
        return (
            f"downloading {self.repo}: {count}, {size_text(self.size)}, from {self.endpoint} to "
            f"{self.cache}"
        )


Kind = tuple[str, str]
"""The names of weights in one file, and of the index of weights in several files."""

SENTENCE_FILES = frozenset(COMPANIONS) - OWN_NAMES
"""The files with the settings of a sentence encoder."""

SAFETENSORS: Kind = (WEIGHTS, INDEX)
PICKLED: Kind = PICKLES


def needed(
    names: Collection[str],
    kinds: Sequence[Kind],
    *,
    tokenizer: bool = True,
    more: Iterable[str] = (),
) -> set[str]:
    """The files that opening a repository reads.

    Args:
        names: All files of the repository.
        kinds: The kinds of weights that may be read; the first that exists is read.
        tokenizer: Whether the tokenizer is read.
        more: Files that are read too, if they exist.
    """
    wanted = {CONFIG, *_weights(names, kinds), *(_tokenizer(names) if tokenizer else ())}
    return (wanted | set(more)) & set(names)


def _weights(names: Collection[str], kinds: Sequence[Kind]) -> set[str]:
    for single, index in kinds:
        if single in names:
            return {single}
        if index in names:
            return {index, *(name for name in names if _SHARDS[index].fullmatch(name))}
    return set()


def _tokenizer(names: Collection[str]) -> set[str]:
    kind = next((kind for kind in SOURCES if all(name in names for name in kind)), ())
    return {*kind, SETTINGS, SPECIAL, *([] if TOKENIZER in kind else [ADDED])}
