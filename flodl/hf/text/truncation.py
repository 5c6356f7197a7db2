"""Choose the tokens of a too long text that stay: the first ones, or overlapping windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Positions: TypeAlias = npt.NDArray[np.int64]
Strategy: TypeAlias = Literal["longest_first", "only_first", "only_second"]

STRATEGIES: tuple[Strategy, ...] = ("longest_first", "only_first", "only_second")
_WHICH = ("first", "second")


@dataclass(frozen=True, slots=True)
class Truncation:
    """How rows are truncated to a length.

    Attributes:
        max_length: Tokens a row may have, special tokens included.
        strategy: The text of a pair that is truncated. ``longest_first`` truncates the longer text
            until both are equally long, then both.
        stride: None drops what does not fit. A number makes as many rows (windows) as needed. Each
            window begins with the last ``stride`` tokens of the window before.
    """

    max_length: int
    strategy: Strategy = "longest_first"
    stride: int | None = None

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ValueError(
                f"truncation is False, True or one of {', '.join(STRATEGIES)}, "
                f"not {self.strategy!r}"
            )
        if self.max_length < 1:
            raise ValueError(f"max_length must be at least 1, got {self.max_length}")
        if self.stride is not None and self.stride < 0:
            raise ValueError(f"stride must not be negative, got {self.stride}")

    def windows(self, sequence_ids: Positions, pair: bool, where: str) -> list[Positions]:
        """Positions of the tokens that each row of one encoding keeps, in order.

        Args:
            sequence_ids: For every token of the whole encoding, the text that it is from; -1 for
                the special tokens around the texts, which every row has.
            pair: Whether there is a second text, which may have no tokens.
            where: The name of the input, for messages.

        Raises:
            ValueError: There is no space for a single token of the truncated text, or the windows
                would not advance.
        """
        special = np.flatnonzero(sequence_ids < 0)
        texts = [np.flatnonzero(sequence_ids == text) for text in range(2)]
        room = self.max_length - len(special)
        if pair and self.strategy == "longest_first":
            return [self._both(special, texts, room, where)]
        cut = int(self.strategy == "only_second")
        if cut and not pair:
            raise ValueError(f"{where} has no second text to cut; use only_first or longest_first")
        kept = np.concatenate((special, texts[1 - cut]))
        room = self._room(room - len(texts[1 - cut]), where, f"the {_WHICH[cut]} text")
        return [
            np.sort(np.concatenate((kept, texts[cut][start : start + room])))
            for start in self._starts(len(texts[cut]), room, where)
        ]

    def _both(self, special: Positions, texts: list[Positions], room: int, where: str) -> Positions:
        if self.stride is not None:
            raise ValueError(
                f"{where} is a pair: windows need truncation='only_first' or 'only_second'"
            )
        room = self._room(room, where, "either text")
        shorter, longer = sorted(len(text) for text in texts)
        # The shorter text keeps its tokens, up to half the room; an odd place goes to the longer.
        least = min(shorter, room // 2)
        most = min(longer, room - least)
        keep = (most, least) if len(texts[0]) > len(texts[1]) else (least, most)
        return np.sort(np.concatenate((special, texts[0][: keep[0]], texts[1][: keep[1]])))

    def _room(self, room: int, where: str, text: str) -> int:
        if room < 1:
            raise ValueError(
                f"{where}: max_length {self.max_length} leaves no space for {text}; raise it or "
                "choose another truncation strategy"
            )
        return room

    def _starts(self, tokens: int, room: int, where: str) -> list[int]:
        if self.stride is None or tokens <= room:
            return [0]
        if self.stride >= room:
            raise ValueError(
                f"{where}: a stride of {self.stride} is not smaller than the {room} tokens "
                f"of a window; lower stride or raise max_length ({self.max_length})"
            )
        step = room - self.stride
        return list(range(0, tokens - room + step, step))
