"""Finding, reading and checking ``fdl.yml``: path -> Node tree -> Manifest.

Importing this package loads neither yaml nor pydantic: they come in when a manifest has changed
since it was last read.
"""

from fdl.manifest.discover import Found, find, find_in, settle
from fdl.manifest.load import Manifest, load
from fdl.manifest.node import Node, origin

__all__ = ["Found", "Manifest", "Node", "find", "find_in", "load", "origin", "settle"]
