"""Finding, reading and checking ``fdl.yml``: path -> Node tree -> Manifest.

Importing this package does not load yaml: it comes in when a manifest has changed since it was
last read. Nothing here ever loads pydantic, which takes longer than everything else a first command
does.
"""

from fdl.manifest.discover import Found, find, find_in, settle
from fdl.manifest.load import Manifest, load
from fdl.manifest.node import Node, origin

__all__ = ["Found", "Manifest", "Node", "find", "find_in", "load", "origin", "settle"]
