"""Finding, reading and checking ``fdl.yml``: path -> Node tree -> Manifest.

Importing this package does not load yaml. yaml is loaded only when a manifest has changed since the
last read. This package never loads pydantic: its import takes longer than the rest of a first
command.
"""

from fdl.manifest.discover import Found, find, find_in
from fdl.manifest.load import Manifest, load, settle

__all__ = ["Found", "Manifest", "find", "find_in", "load", "settle"]
