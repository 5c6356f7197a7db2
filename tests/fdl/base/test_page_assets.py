"""The scripts of pages: the library that draws charts, and names that no file replaces."""

import hashlib
import re
from collections import Counter

from fdl.base import page_assets
from fdl.base.page_assets import asset


def test_uplot_is_the_published_file_with_its_licence():
    head, _, library = asset("uplot.js").partition("\n*/\n")
    found = re.match(r"/\*\nuPlot (\S+), sha256 of what follows this comment: (\w{64})\n", head)
    assert found is not None, "renew the file: python scripts/vendor_uplot.py VERSION"
    assert hashlib.sha256(library.encode()).hexdigest() == found.group(2)
    assert library.startswith("var uPlot=")
    assert "The MIT License" in head
    assert "Copyright (c)" in head


def test_no_script_of_the_page_replaces_a_function_of_another_one():
    page = page_assets.page("", {}, served=True)
    found = Counter(re.findall(r"^(?:async )?(?:function|class|const|let) (\w+)", page, re.M))
    assert len(found) > 200
    assert [name for name, count in found.items() if count > 1] == []
