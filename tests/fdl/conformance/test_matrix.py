"""Each kind of option of each library: by hand, and as fdl gives it to the program.

``UPDATE_SCREENS=1`` with ``-m 'slow or not slow'`` renews the tables of
docs/reference/foreign-programs.md.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import fork_server
from tests.conftest import typed_in
from tests.fdl.conformance.matrix import Driver, fault, table
from tests.fdl.conformance.tables import files, libraries
from tests.forked import LIGHT

PAGE = Path(__file__).parents[3] / "docs/reference/foreign-programs.md"
LIBRARIES = libraries()
FILES = files()
IMPORTS = {"HfArgumentParser": "import transformers.hf_argparser\n"}
# Of these, the first kind is tried each day; the others import for a second.
DAILY = ("argparse", "click", "Typer", "tyro", "absl", "Fire", "jsonargparse")


@pytest.fixture
def driver(project, tmp_path, request):
    """A driver; what takes long to import is imported once for all programs."""
    imports = IMPORTS.get(request.node.callspec.params["library"], "")
    path = fork_server.on_path("python", (), LIGHT + imports, os.environ)
    return Driver(project, typed_in(tmp_path, path), tmp_path)


@pytest.mark.parametrize("library", [name for name in DAILY if name in LIBRARIES])
def test_a_program_sees_the_same_values(driver, library):
    cell = LIBRARIES[library][0]
    assert fault(cell, driver.run(cell, beside=FILES[library])) == ""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("library", LIBRARIES)
def test_every_kind_arrives_or_is_refused_and_the_page_says_which(driver, library):
    cells = LIBRARIES[library]
    beside = FILES[library]
    rows = [(cell, driver.run(cell, str(place), beside)) for place, cell in enumerate(cells)]
    faults = "\n".join(filter(None, (fault(*row) for row in rows)))
    assert not faults, faults
    text = PAGE.read_text(encoding="utf-8")
    head, title, rest = text.partition(f"\n### {library}\n")
    old, following, after = rest.partition("\n### ")
    new = f"\n{table(rows)}\n"
    if os.environ.get("UPDATE_SCREENS"):
        title = title or f"\n### {library}\n"
        PAGE.write_text(f"{head}{title}{new}{following}{after}", encoding="utf-8")
    else:
        assert (title, old) == (f"\n### {library}\n", new)
