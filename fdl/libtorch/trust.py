"""Trust on first use: a download must always equal the first download of the same file.

``libtorch.lock`` is in the root of the store. A project commits it, so all its users get the same
bytes. A digest of the catalog takes precedence over one in this file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple

from fdl.base.errors import LibtorchError
from fdl.base.output import note
from fdl.libtorch.active import LOCK_FILE
from fdl.libtorch.store import Store

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Trust:
    """The digests that one store relies on.

    Attributes:
        store: The store.
        records: Whether to record digests that are seen for the first time.
        locked: Whether to refuse them.
        seen: What was compared or recorded by this value: name -> SHA-256.
    """

    store: Store
    records: bool = True
    locked: bool = False
    seen: dict[str, str] = field(default_factory=dict)

    def holds(self, recorded: str) -> bool:
        """Whether every file in a text of :attr:`files` still has that digest in the lock file."""
        known = {f"{name} {entry.sha256}" for name, entry in self.read().items()}
        return bool(recorded) and known.issuperset(recorded.split("; "))

    @property
    def files(self) -> str:
        """:attr:`seen` as a text for ``.arch``."""
        return "; ".join(f"{name} {digest}" for name, digest in sorted(self.seen.items()))

    def check(self, name: str, sha256: str, url: str, *, proven: bool = False) -> None:
        """Compare a download with the earlier one; the first time, record its digest.

        The name does not depend on the server: a path below a base address, or a file name. The
        message contains the ``url``. If the catalog has ``proven`` the digest, it replaces another
        one, unless only recorded digests are taken.

        Raises:
            LibtorchError: The digest differs, or the file cannot be read or written.
        """
        known = self.read().get(name)
        self.seen[name] = sha256
        if known and known.sha256 == sha256:
            if self.locked or not proven:
                note(f"{name} is the file that was recorded {known.age()}")
            return
        if known and (self.locked or not proven):
            raise LibtorchError(
                f"{url} is not what it was before: its SHA-256 is {sha256}, "
                f"and {self._file} records {known.sha256} for {name}",
                hint="if its publisher has really replaced it, delete the entry from that file "
                "and type the command again",
            )
        if self.locked:
            raise LibtorchError(
                f"{self._file} has no digest of {name}",
                hint="install it once without --locked, and commit that file",
            )
        if self.records:
            self._record(name, _Entry(sha256, datetime.now(UTC).date()))

    def _record(self, name: str, entry: _Entry) -> None:
        with self.store.hold("trust", f"writing {self._file}"):
            entries = {**self.read(), name: entry}
            files = {one: entry.as_json() for one, entry in entries.items()}
            document = {"version": _VERSION, "files": files}
            self.store.write(self._file, json.dumps(document, indent=2, sort_keys=True) + "\n")

    @property
    def _file(self) -> Path:
        return self.store.root / LOCK_FILE

    def read(self) -> Mapping[str, _Entry]:
        """The recorded digests.

        Raises:
            LibtorchError: The lock file is invalid.
        """
        try:
            text = self._file.read_text(encoding="utf-8")
            document = json.loads(text)
            if document["version"] == _VERSION:
                self._require_sha256(text, document["files"])
                return {name: _entry(**entry) for name, entry in document["files"].items()}
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise LibtorchError(f"cannot read {self._file}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
        raise LibtorchError(
            f"{self._file} is not a list of digests",
            hint="restore it from version control, or delete it to trust what comes next",
        )

    def _require_sha256(self, text: str, files: Mapping[str, Mapping[str, Any]]) -> None:
        """Refuse an entry with a digest of another algorithm; the message names its line."""
        for name, entry in files.items():
            others = sorted(entry.keys() - {"sha256", "recorded"})
            if not others:
                continue
            after = text.index(f'"{others[0]}"', text.index(json.dumps(name)))
            line = text.count("\n", 0, after) + 1
            raise LibtorchError(
                f"{self._file}:{line}: {name} has `{others[0]}`, and fdl compares only `sha256`",
                hint="delete this entry, and record its SHA-256 again: fdl libtorch install",
            )


class _Entry(NamedTuple):
    """A recorded digest, and when it was recorded; None for a user's own entry."""

    sha256: str
    recorded: date | None

    def age(self) -> str:
        if self.recorded is None:
            return "earlier"
        days = (datetime.now(UTC).date() - self.recorded).days
        return "today" if days <= 0 else f"{days} day{'' if days == 1 else 's'} ago"

    def as_json(self) -> dict[str, str]:
        since = {"recorded": self.recorded.isoformat()} if self.recorded else {}
        return {"sha256": self.sha256, **since}


def _entry(sha256: str, recorded: str | None = None) -> _Entry:
    return _Entry(sha256.lower(), date.fromisoformat(recorded) if recorded else None)
