"""What opening a repository would download, and how large that is."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fdl.base.units import size_text
from flodl.hf.output_files import COMPANIONS
from flodl.hf.source import CONFIG, INDEX, PICKLES, WEIGHTS
from flodl.hf.text.files import ADDED, OWN_NAMES, SETTINGS, SOURCES, SPECIAL, TOKENIZER

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
