"""Trust on first use: a download must always equal the first download of the same file.

``libtorch.lock`` is in the root of the store. A project commits it, so all its users get the same
bytes. A digest of the catalog takes precedence over one in this file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

from fdl.base.errors import LibtorchError
from fdl.base.output import note
from fdl.libtorch.active import LOCK_FILE
from fdl.libtorch.archive import ALGORITHMS, Algorithm, Digest
from fdl.libtorch.store import Store

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Trust:
    """The digests that one store relies on.

    Attributes:
        store: The store.
        records: Whether to record digests that are seen for the first time.
        locked: Whether to refuse them.
        seen: What was compared or recorded by this value: name -> digest.
    """

    store: Store
    records: bool = True
    locked: bool = False
    seen: dict[str, Digest] = field(default_factory=dict)

    def holds(self, recorded: str) -> bool:
        """Whether every file in a text of :attr:`files` still has that digest in the lock file."""
        known = {f"{name} {entry.digest}" for name, entry in self._read().items()}
        return bool(recorded) and known.issuperset(recorded.split("; "))

    @property
    def files(self) -> str:
        """:attr:`seen` as a text for ``.arch``."""
        return "; ".join(f"{name} {digest}" for name, digest in sorted(self.seen.items()))

    @property
    def names(self) -> list[str]:
        """What has a recorded digest.

        Raises:
            LibtorchError: The lock file is invalid.
        """
        return list(self._read())

    def check(self, name: str, digest: Digest, url: str) -> None:
        """Compare a download with the earlier one; the first time, record its digest.

        The name does not depend on the server: a path below a base address, or a file name. The
        digest has the algorithm of :meth:`algorithm`, and the message contains the ``url``.

        Raises:
            LibtorchError: The digest differs, or the file cannot be read or written.
        """
        found = self._read().get(name)
        known = found.digest if found else None
        self.seen[name] = digest
        if known is None and self.locked:
            raise LibtorchError(
                f"{self.store.root / LOCK_FILE} has no digest of {name}",
                hint="install it once without --locked, and commit that file",
            )
        if found and known == digest:
            note(f"{name} is the file that was recorded {found.age()}")
        if known is not None and known != digest:
            raise LibtorchError(
                f"{url} is not what it was before: its digest is {digest}, "
                f"and {self.store.root / LOCK_FILE} records {known} for {name}",
                hint="if its publisher has really replaced it, delete the entry from that file "
                "and type the command again",
            )
        if known is None:
            self.record(name, digest)

    def algorithm(self, name: str) -> Algorithm:
        """The algorithm of the digest, so that it can be compared with the recorded one.

        Raises:
            LibtorchError: The lock file is invalid.
        """
        known = self._read().get(name)
        return known.digest.algorithm if known else "blake3"

    def record(self, name: str, digest: Digest) -> None:
        """Record a digest; it replaces an earlier one.

        Raises:
            LibtorchError: The file cannot be read or written.
        """
        self.seen[name] = digest
        if self.locked:
            self.check(name, digest, name)
        if self.locked or not self.records:
            return
        file = self.store.root / LOCK_FILE
        with self.store.hold("trust", f"writing {file}"):
            known = self._read()
            today = datetime.now(UTC).date()
            same = name in known and known[name].digest == digest
            entries = known if same else {**known, name: _Entry(digest, today)}
            files = {one: entry.as_json() for one, entry in entries.items()}
            document = {"version": _VERSION, "files": files}
            self.store.write(file, json.dumps(document, indent=2, sort_keys=True) + "\n")

    def _read(self) -> Mapping[str, _Entry]:
        file = self.store.root / LOCK_FILE
        try:
            document = json.loads(file.read_text(encoding="utf-8"))
            if document["version"] == _VERSION:
                return {name: _entry(entry) for name, entry in document["files"].items()}
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise LibtorchError(f"cannot read {file}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
        raise LibtorchError(
            f"{file} is not a list of digests",
            hint="restore it from version control, or delete it to trust what comes next",
        )


class _Entry(NamedTuple):
    """A recorded digest, and when it was recorded; None for a user's own entry."""

    digest: Digest
    recorded: date | None

    def age(self) -> str:
        if self.recorded is None:
            return "earlier"
        days = (datetime.now(UTC).date() - self.recorded).days
        return "today" if days <= 0 else f"{days} day{'' if days == 1 else 's'} ago"

    def as_json(self) -> dict[str, str]:
        since = {"recorded": self.recorded.isoformat()} if self.recorded else {}
        return {self.digest.algorithm: self.digest.value, **since}


def _entry(entry: Mapping[str, Any]) -> _Entry:
    """An entry: ``{"blake3": …}``, or ``{"sha256": …}`` if a user wrote that, with its date."""
    kept = dict(entry)
    since = kept.pop("recorded", None)
    ((named, value),) = kept.items()
    (algorithm,) = (one for one in ALGORITHMS if one == named)
    recorded = date.fromisoformat(since) if since else None
    return _Entry(Digest(algorithm, str(value).lower()), recorded)
