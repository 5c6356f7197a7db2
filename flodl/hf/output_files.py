"""Directories made completely or not at all, and the files that are copied into them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fdl.base.files import replacing
from flodl.hf.source import Checkpoint

# The file is named after the family of the model; these are all families it was ever made for.
_SENTENCE_MODELS = ("bert", "roberta", "distilbert", "albert", "xlm-roberta", "camembert", "xlnet")

COMPANIONS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "sentencepiece.bpe.model",
    "spm.model",
    "spiece.model",
    "modules.json",
    "config_sentence_transformers.json",
    *(f"sentence_{family}_config.json" for family in _SENTENCE_MODELS),
    "1_Pooling/config.json",
)
"""The tokenizer's files, and those that say how sentence embeddings are made."""


def companions_of(source: Checkpoint, names: Iterable[str] = COMPANIONS) -> dict[str, Path]:
    """The files with these names in a checkpoint, downloaded if they are on the Hub.

    Raises:
        HubError: A file has to be downloaded and cannot be.
    """
    found = {name: source.file(name) for name in names}
    return {name: path for name, path in found.items() if path is not None}


def copy_files(files: dict[str, Path], out: Path) -> None:
    """Copy files, each under its name, into a directory; a file that is its own target is skipped.

    Raises:
        OSError: The system refused.
    """
    for name, path in files.items():
        target = out / name
        if target.exists() and target.samefile(path):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as file:
            file.write(path.read_bytes())


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
