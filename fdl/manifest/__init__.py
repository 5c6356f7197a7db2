"""Finding, reading and checking ``fdl.yml``: path -> Node tree -> Manifest.

Importing this package loads neither yaml nor pydantic. They are loaded only when a manifest has
changed since the last read.
"""

from fdl.manifest.discover import Found, find, find_in
from fdl.manifest.load import Manifest, load, settle

__all__ = ["Found", "Manifest", "find", "find_in", "load", "settle"]
