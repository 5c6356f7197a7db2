"""Get a model ready for a command: announce its download, or offer to convert or replace it.

Questions are asked on a terminal only. Elsewhere the error names the command to type.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from fdl.base import output
from fdl.base.terminal import Questions
from fdl.base.units import size_text
from flodl.hf.errors import HubOffline, PickleOnlyError
from flodl.hf.head_kind import HeadKind
from flodl.hf.hub import PICKLED, SENTENCE_FILES, Repository, locate
from flodl.hf.sentence_settings import COMPANIONS
from flodl.hf.source import Access

TINY = "tiny"
"""Typed instead of a repository: a tiny model with random weights, made in the project."""

_PLAYGROUND = "flodl-hf"


def ready_source(
    typed: str,
    head: HeadKind,
    *,
    again: str,
    words: Iterable[str] = (),
) -> str:
    """Find a model for a command; its weights are on this machine afterwards.

    Before a download begins, its size is printed. On a terminal, a user is asked whether to
    convert pickled weights, and without a network whether to use a tiny model.

    Args:
        typed: A repository, a directory, or :data:`TINY`.
        head: What the command predicts; an encoder without a head also reads the settings of
            sentence encoders.
        again: The command that tries the same with a tiny model.
        words: Texts whose words a tiny model knows.

    Returns:
        The repository or directory, for ``from_pretrained``.

    Raises:
        HubOffline: There is no connection, and the user wants no tiny model.
        PickleOnlyError: The weights are a pickle, and the user does not want to convert them.
        FlodlError, OSError: The model cannot be downloaded or read.
    """
    if typed == TINY:
        return _tiny(head, words)
    src = source(typed)
    try:
        _fetch(src, sentences=head is HeadKind.BASE)
    except HubOffline as problem:
        question = (
            f"{problem}\nUse a tiny model with random weights instead? Its answers mean nothing."
        )
        if Questions().confirm(question, default=True, unanswered=False):
            return _tiny(head, words)
        raise HubOffline(
            f"{problem}\nTo try the command without a network, use a tiny model with random "
            f"weights:\n    {again}"
        ) from None
    return src


def announce(
    src: str, access: Access | None = None, *, pickles: bool = False, companions: bool = False
) -> None:
    """Print what a command is about to download, with its size; nothing if it is here.

    Args:
        src: A repository or directory.
        access: How to reach a repository.
        pickles: Whether the command reads pickle files.
        companions: Whether it copies the files of the tokenizer and of sentence encoders.

    Raises:
        FlodlError, OSError: There is no such model.
    """
    if Path(src).is_file():
        return
    repository = locate(src, access)
    if not isinstance(repository, Repository):
        return
    more = COMPANIONS if companions else ()
    download = repository.download(pickles=pickles, tokenizer=False, more=more)
    if download is not None:
        output.note(download.as_text())


def _fetch(src: str, *, sentences: bool) -> None:
    """Download the weights of a model, and convert them if the user agrees."""
    checkpoint = locate(src)
    more = SENTENCE_FILES if sentences else ()
    download = checkpoint.download(more=more) if isinstance(checkpoint, Repository) else None
    pickled = download is not None and any(name in PICKLED for name in download.sizes)
    if download is not None and not pickled:
        output.note(download.as_text())
    try:
        checkpoint.weight_files()
    except PickleOnlyError:
        size = f" This downloads {size_text(download.size)}." if download is not None else ""
        question = f"{src} has its weights only as a pickle.{size} Convert them once?"
        if not Questions().confirm(question, default=True, unanswered=False):
            raise
        if download is not None:
            output.note(download.as_text())
        from flodl.hf.conversion import convert

        output.note(f"converted: {convert(src).path}")


def _tiny(head: HeadKind, words: Iterable[str]) -> str:
    """Make a tiny model in the playground, or in the project without one, and say so."""
    from flodl.hf.tiny_model import write_tiny_model

    root = anchored("")
    playground = root / _PLAYGROUND
    folder = (playground if playground.is_dir() else root) / TINY / f"bert-{head}"
    write_tiny_model(folder, head=head, words=words)
    output.note(f"{folder} is a tiny model with random weights: its answers mean nothing")
    return str(folder)


# --- What is typed and printed ---------------------------------------------------------------


ROOT_VARIABLE = "FDL_PROJECT_ROOT"


def anchored(path: str | os.PathLike[str]) -> Path:
    """A path; a relative path starts at the root of the project if fdl has set one.

    Args:
        path: As typed; ``~`` stands for the home directory.
    """
    typed = Path(path)
    with suppress(RuntimeError):  # ~user without a home directory
        typed = typed.expanduser()
    root = os.environ.get(ROOT_VARIABLE)
    return Path(root) / typed if root else typed


def source(typed: str, revision: str | None = None) -> str:
    """A checkpoint as typed: a path if it is one, else the repository unchanged.

    Args:
        typed: A repository, ``owner/name``, or the path of a directory or file.
        revision: The requested revision of a repository.

    Raises:
        ValueError: A revision was given and it is not a repository.
    """
    path = anchored(typed)
    if not path.exists() and not typed.startswith((".", "/", "~")):
        return typed
    if revision is not None:
        raise ValueError(f"{path} is a local path and has no revisions: remove --revision")
    return str(path)


def plain(text: str) -> str:
    """The text, which may come from anyone, with all invisible characters escaped, except newlines.

    Otherwise a key or label could move the cursor and overwrite earlier lines.
    """
    return "".join(
        char if char == "\n" or char.isprintable() else char.encode("unicode_escape").decode()
        for char in text
    )
