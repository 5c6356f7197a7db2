"""What people ask of a running training, between the threads that hear it and the training."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Answer: TypeAlias = Mapping[str, Any]
    """A JSON object: ``ok``, and ``text`` or ``error`` for people."""

ACTS = ("lr", "set", "checkpoint", "pause", "continue", "stop")
FORMAT = 1
_LONGEST = 1000


@final
@dataclass(frozen=True, slots=True)
class Wish:
    """What somebody asks for.

    Attributes:
        act: One of :data:`ACTS`.
        key: Name of the setting, for ``set``.
        value: Text of the new value, for ``lr`` and ``set``.
        by: The user.
    """

    act: str
    key: str = ""
    value: str = ""
    by: str = ""

    @classmethod
    def read(cls, form: Any, by: str) -> Wish:
        """Read a request, a JSON object with ``flodl``, ``act``, and ``key`` and ``value``.

        Raises:
            ValueError: It has another form.
        """
        if not isinstance(form, dict) or form.get("flodl") != FORMAT:
            raise ValueError(
                f"the request is not of format {FORMAT}; use the fdl of the same release"
            )
        act, key, value = (form.get(name, "") for name in ("act", "key", "value"))
        if act not in ACTS:
            raise ValueError(f"{act!r} is not an act; use one of {', '.join(ACTS)}")
        if not (isinstance(key, str) and isinstance(value, str)):
            raise ValueError("key and value of a request must be texts")
        if len(key) + len(value) > _LONGEST:
            raise ValueError(f"key and value together are longer than {_LONGEST} characters")
        return cls(act, key, value, by)


@final
@dataclass(frozen=True, slots=True)
class Letter:
    """A wish, and where its answer goes."""

    wish: Wish
    reply: Callable[[Answer], object]


@final
class Mailbox:
    """Keeps letters until the training takes them; threads may share it.

    Args:
        wake: Called when a letter has arrived, so that the training looks soon.

    Attributes:
        waiting: Whether there are letters. The training reads it, which costs nothing else.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self.waiting = False
        self._wake = wake
        self._letters: deque[Letter] = deque()
        self._changed = threading.Condition()
        self._closed = ""

    def post(self, wish: Wish, reply: Callable[[Answer], object]) -> None:
        """Leave a letter; ``reply`` is called once, on another thread.

        After :meth:`close`, it is called at once.
        """
        with self._changed:
            closed = self._closed
            if not closed:
                self._letters.append(Letter(wish, reply))
                self.waiting = True
                self._changed.notify_all()
        if closed:
            reply(refused(closed))
        else:
            self._wake()

    def take(self) -> list[Letter]:
        """Take all letters."""
        with self._changed:
            letters = list(self._letters)
            self._letters.clear()
            self.waiting = False
        return letters

    def wait(self, seconds: float) -> None:
        """Wait for a letter, at most this long."""
        with self._changed:
            if not self._letters:
                self._changed.wait(seconds)

    def close(self, why: str) -> None:
        """Refuse the letters that were not taken, and all later ones, for this reason."""
        with self._changed:
            self._closed = self._closed or why
        for letter in self.take():
            letter.reply(refused(why))


def refused(error: str) -> Answer:
    """Return the answer to a wish that was not carried out."""
    return {"ok": False, "error": error}
