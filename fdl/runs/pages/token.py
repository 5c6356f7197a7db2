"""The token in the addresses of pages: one per user, in a file that only this user can read."""

from __future__ import annotations

import os
import re
import secrets
from contextlib import suppress

from fdl.base.cache_folder import cache_folder
from fdl.base.files import put_own

_FILE = "page-token"


def page_token() -> str:
    """The token of this user; a new one if there is none, or if others could have read it.

    Where it cannot be kept, each call gives another token.
    """
    file = cache_folder() / _FILE
    with suppress(OSError, ValueError):
        if file.stat().st_mode & 0o077 == 0 or os.name == "nt":
            known = file.read_text(encoding="ascii").strip()
            if re.fullmatch(r"[\w-]{22,}", known):
                return known
    made = secrets.token_urlsafe(16)
    with suppress(OSError):
        put_own(file.parent, file, f"{made}\n".encode(), 0o600)
    return made
