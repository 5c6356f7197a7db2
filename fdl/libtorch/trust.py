"""Trust on first use: a download must always equal the first download of the same file.

``libtorch.lock`` is in the root of the store. A project commits it, so all its users get the same
bytes. A digest of the catalog takes precedence over one in this file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fdl.errors import LibtorchError
from fdl.fetch import ALGORITHMS, Algorithm, Digest
from fdl.libtorch.active import LOCK_FILE
from fdl.libtorch.store import Store

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Trust:
    """The digests that one store relies on.

    Attributes:
        store: The store.
        records: Whether to record digests that are seen for the first time.
    """

    store: Store
    records: bool = True

    def check(self, name: str, digest: Digest, url: str) -> None:
        """Compare a download with the earlier one; the first time, record its digest.

        The name does not depend on the server: a path below a base address, or a file name. The
        digest has the algorithm of :meth:`algorithm`, and the message contains the ``url``.

        Raises:
            LibtorchError: The digest differs, or the file cannot be read or written.
        """
        known = self._read().get(name)
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
        return known.algorithm if known else "blake3"

    def record(self, name: str, digest: Digest) -> None:
        """Record a digest; it replaces an earlier one.

        Raises:
            LibtorchError: The file cannot be read or written.
        """
        if not self.records:
            return
        file = self.store.root / LOCK_FILE
        with self.store.hold("trust", f"writing {file}"):
            digests = {**self._read(), name: digest}
            files = {one: {known.algorithm: known.value} for one, known in digests.items()}
            document = {"version": _VERSION, "files": files}
            self.store.write(file, json.dumps(document, indent=2, sort_keys=True) + "\n")

    def _read(self) -> Mapping[str, Digest]:
        file = self.store.root / LOCK_FILE
        try:
            document = json.loads(file.read_text(encoding="utf-8"))
            if document["version"] == _VERSION:
                return {name: _digest(entry) for name, entry in document["files"].items()}
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise LibtorchError(f"cannot read {file}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
        raise LibtorchError(
            f"{file} makes no sense as a list of digests",
            hint="restore it from version control, or delete it to trust what comes next",
        )


def _digest(entry: Mapping[str, Any]) -> Digest:
    """The digest in an entry: ``{"blake3": …}``, or ``{"sha256": …}`` if a user wrote that."""
    ((named, value),) = entry.items()
    (algorithm,) = (one for one in ALGORITHMS if one == named)
    return Digest(algorithm, str(value).lower())
