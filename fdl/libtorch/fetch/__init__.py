"""Download a zip archive to disk, resumably, and unpack it safely.

``download`` fills a part file from a server; ``answer`` asks for ranges of it. A killed call leaves
the part file and its journal (``part``) for the next one. ``archive`` checks the members that
:mod:`zipfile` lists and unpacks them.
"""

from fdl.libtorch.fetch.archive import Unpacked as Unpacked, unpack_file as unpack_file
from fdl.libtorch.fetch.digest import (
    ALGORITHMS as ALGORITHMS,
    Algorithm as Algorithm,
    Digest as Digest,
)
from fdl.libtorch.fetch.options import Options as Options
