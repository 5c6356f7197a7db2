"""Finding, reading and checking ``fdl.yml``: path -> Node tree -> Manifest.

Importing this package does not load yaml. yaml is loaded only when a manifest has changed since the
last read. This package never loads pydantic: its import takes longer than the rest of a first
command.
"""

from fdl.manifest.discover import Found, find, find_in, settle
from fdl.manifest.load import Manifest, load
from fdl.manifest.node import Node, origin

__all__ = ["Found", "Manifest", "Node", "find", "find_in", "load", "origin", "settle"]
