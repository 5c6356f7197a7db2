"""Text as windows of characters; the target of each character is the next one."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from flodl.data.dataset import TensorDataSet
from flodl.data.download import RemoteFile, fetch
from flodl.errors import DataError
from flodl.setting import whole

_TEXT = RemoteFile(
    name="input.txt",
    folders=("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/",),
    sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
)
REMOTE_FILES = (_TEXT,)
"""The file that :meth:`Shakespeare.download` may fetch."""


@final
class Shakespeare(TensorDataSet):
    """Windows ``[N, seq_len]`` of character numbers and their targets, one character later.

    Made by :meth:`parse` or :meth:`download`.

    Args:
        data: ``[N, seq_len]`` int64.
        targets: ``[N, seq_len]`` int64.
        vocabulary: All characters of the text, sorted; the number of a character is its place here.
    """

    def __init__(self, data: Tensor, targets: Tensor, vocabulary: tuple[str, ...]) -> None:
        super().__init__(data, targets, names=("data", "target"))
        self.vocabulary = vocabulary

    @property
    def data(self) -> Tensor:
        """``[N, seq_len]`` int64."""
        return self.tensors[0]

    @property
    def targets(self) -> Tensor:
        """``[N, seq_len]`` int64: the window moved by one character."""
        return self.tensors[1]

    @property
    def vocab_size(self) -> int:
        """Number of different characters."""
        return len(self.vocabulary)

    def decode(self, numbers: Tensor | Iterable[int]) -> str:
        """Return the text of some character numbers.

        Raises:
            IndexError: A number does not belong to a character.
        """
        text = []
        for number in map(int, numbers):
            if not 0 <= number < self.vocab_size:
                raise IndexError(
                    f"no character has the number {number}; the vocabulary has 0 to "
                    f"{self.vocab_size - 1}"
                )
            text.append(self.vocabulary[number])
        return "".join(text)

    @classmethod
    def parse(cls, text: str | bytes | os.PathLike[str], seq_len: int) -> Shakespeare:
        """Cut a text into windows that do not overlap; the remainder at the end is not used.

        Args:
            text: The text itself, as ``str`` or as UTF-8 ``bytes``, or the path of its file.
            seq_len: Characters per window.

        Raises:
            DataError: The text is shorter than ``seq_len + 1`` characters, or is not UTF-8.
            ValueError: ``seq_len`` is below 1.
        """
        whole("seq_len", seq_len)
        characters = _read(text)
        if len(characters) < seq_len + 1:
            raise DataError(
                f"the text has {len(characters)} characters; one window of seq_len={seq_len} and "
                f"the character behind it need {seq_len + 1}"
            )
        vocabulary = tuple(sorted(set(characters)))
        number_of = {character: number for number, character in enumerate(vocabulary)}
        numbers = torch.tensor([number_of[one] for one in characters], device="cpu")
        used = (len(characters) - 1) // seq_len * seq_len
        return cls(
            numbers[:used].reshape(-1, seq_len),
            numbers[1 : used + 1].reshape(-1, seq_len),
            vocabulary,
        )

    @classmethod
    def download(
        cls, root: str | os.PathLike[str], seq_len: int, *, mirror: str | None = None
    ) -> Shakespeare:
        """Read "tiny Shakespeare" (1,115,394 characters) from ``root``; download it if missing.

        Args:
            root: Folder of the text, ``input.txt``.
            seq_len: Characters per window.
            mirror: Address of a folder to download from instead.

        Raises:
            DataError: The text cannot be downloaded, or is not the expected one.
        """
        return cls.parse(fetch(_TEXT, root, mirror=mirror), seq_len)


def _read(text: str | bytes | os.PathLike[str]) -> str:
    if isinstance(text, str):
        return text
    try:
        content = text if isinstance(text, bytes) else Path(text).read_bytes()
        return content.decode("utf-8")
    except OSError as error:
        raise DataError(f"{text!r}: cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        what = "the text" if isinstance(text, bytes) else str(text)
        raise DataError(f"{what}: not UTF-8 at byte {error.start}; convert it first") from error
