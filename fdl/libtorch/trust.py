"""Trust on first use: what a download was the first time, it has to be ever after.

``libtorch.lock`` stands in the root of the store; a project commits it, so that everybody who
works on it gets the same bytes. A digest of the catalog counts more than one in this file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fdl.errors import LibtorchError
from fdl.libtorch.store import Store

LOCK_FILE = "libtorch.lock"

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Trust:
    """The digests that one store relies on.

    Attributes:
        store: Whose they are.
        records: Whether what is seen for the first time is written down.
    """

    store: Store
    records: bool = True

    def check(self, name: str, sha256: str, url: str) -> None:
        """Compare a download with what it was before; the first time, remember it.

        Args:
            name: What names it, wherever it comes from: a path below a base address, a file name.
            sha256: Its digest, in hexadecimal.
            url: Where it came from, for the message.

        Raises:
            LibtorchError: It is not what it was, or the file cannot be read or written.
        """
        known = self.known(name)
        if known is not None and known != sha256:
            raise LibtorchError(
                f"{url} is not what it was before: it has the SHA-256 digest {sha256}, "
                f"and {self.store.root / LOCK_FILE} records {known} for {name}",
                hint="if its publisher has really replaced it, delete the entry from that file "
                "and type the command again",
            )
        if known is None:
            self.record(name, sha256)

    def known(self, name: str) -> str | None:
        """The digest that was recorded; None for none.

        Raises:
            LibtorchError: The file makes no sense.
        """
        entry = self._read().get(name)
        return None if entry is None else str(entry["sha256"])

    def record(self, name: str, sha256: str) -> None:
        """Write a digest down, in the place of another.

        Raises:
            LibtorchError: The file cannot be read or written.
        """
        if not self.records:
            return
        file = self.store.root / LOCK_FILE
        with self.store.hold("trust", f"writing {file}"), self.store.staging() as folder:
            files = {**self._read(), name: {"sha256": sha256}}
            document = {"version": _VERSION, "files": files}
            text = json.dumps(document, indent=2, sort_keys=True) + "\n"
            try:
                (folder / LOCK_FILE).write_text(text, encoding="utf-8")
                (folder / LOCK_FILE).replace(file)
            except OSError as error:
                raise LibtorchError(f"cannot write {file}: {error.strerror}") from None

    def _read(self) -> Mapping[str, Mapping[str, Any]]:
        file = self.store.root / LOCK_FILE
        try:
            document = json.loads(file.read_text(encoding="utf-8"))
            files: Mapping[str, Mapping[str, Any]] = document["files"]
            if document["version"] == _VERSION and all("sha256" in one for one in files.values()):
                return files
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
