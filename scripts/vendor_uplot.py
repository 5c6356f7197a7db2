#!/usr/bin/env python3
"""Renew the library that draws the charts of all pages.

    python scripts/vendor_uplot.py VERSION

It asks npm for the package with npm's own settings, and writes one file. A comment holds the
version, the digest and the licence. The minified library follows as it was published, without its
first line: pages name no address.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

TARGET = Path(__file__).resolve().parent.parent / "fdl" / "base" / "page" / "uplot.js"


def packed(version: str, folder: Path) -> Path:
    """The archive of one version, as npm delivers it."""
    command = ["npm", "pack", f"uplot@{version}", "--silent", "--pack-destination", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    [archive] = folder.glob("*.tgz")
    return archive


def member(archive: tarfile.TarFile, name: str) -> str:
    """The text of a file of the package."""
    stream = archive.extractfile(f"package/{name}")
    if stream is None:
        raise SystemExit(f"the package has no file {name}")
    return stream.read().decode()


def written(version: str, licence: str, library: str) -> str:
    """The content of the vendored file."""
    library = library.partition("\n")[2]
    digest = hashlib.sha256(library.encode()).hexdigest()
    head = f"uPlot {version}, sha256 of what follows this comment: {digest}\n\n{licence.strip()}"
    return f"/*\n{head}\n*/\n{library}"


def main() -> None:
    """Write the file, or say what is missing."""
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    with (
        tempfile.TemporaryDirectory() as folder,
        tarfile.open(packed(sys.argv[1], Path(folder))) as archive,
    ):
        licence = member(archive, "LICENSE")
        library = member(archive, "dist/uPlot.iife.min.js")
    TARGET.write_text(written(sys.argv[1], licence, library), encoding="utf-8")
    sys.stdout.write(f"{TARGET.name}: uPlot {sys.argv[1]}, {TARGET.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main()
