"""The library that draws charts is the file that was published, with its licence."""

import hashlib
import re

from fdl.base.page_assets import asset


def test_uplot_is_the_published_file_with_its_licence():
    head, _, library = asset("uplot.js").partition("\n*/\n")
    found = re.match(r"/\*\nuPlot (\S+), sha256 of what follows this comment: (\w{64})\n", head)
    assert found is not None, "renew the file: python scripts/vendor_uplot.py VERSION"
    assert hashlib.sha256(library.encode()).hexdigest() == found.group(2)
    assert library.startswith("var uPlot=")
    assert "The MIT License" in head
    assert "Copyright (c)" in head
