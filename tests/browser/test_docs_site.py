"""The documentation site, built strictly: its pages, its reference, and its search in a browser."""

import os
import re
import shutil
import subprocess
import sys
from threading import Thread

import pytest

from fdl.cli.commands import docs
from tests.pages import ROOT

from .chromium import Browser

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built strictly."""
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_site_has_every_page_and_needs_no_other_host(site):
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS).with_suffix(".html")
        name = name.with_name("index.html") if page.stem == "README" else name
        assert (site / name).is_file(), name
    loaded = re.compile(r"<(?:script|img|iframe|link)[^>]*(?:src|href)=\"?(?:https?:)?//[^>]*>")
    for page in site.rglob("*.html"):
        assert loaded.findall(page.read_text(encoding="utf-8")) == [], page
    for style in site.rglob("*.css"):
        assert "url(http" not in style.read_text(encoding="utf-8"), style


@pytest.mark.slow
def test_the_site_describes_the_python_names_and_finds_them(site):
    trainer = (site / "reference/api/train.html").read_text(encoding="utf-8")
    assert 'id="flodl.Trainer.builder"' in trainer
    index = (site / "search/search_index.json").read_text(encoding="utf-8")
    for word in ("flodl.Trainer.builder", "keep_best", "fdl plan --try"):
        assert word in index, word


@pytest.mark.slow
def test_the_build_stops_at_a_broken_link(tmp_path):
    copy = tmp_path / "copy"
    ignored = shutil.ignore_patterns(".*", "site", "__pycache__", "tests")
    for name in ("docs", "scripts", "fdl", "flodl", "examples"):
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    (copy / "benchmarks").mkdir()
    for name in ("mkdocs.yml", "CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/README.md"):
        shutil.copy(ROOT / name, copy / name)
    with (copy / "docs/get-started.md").open("a") as page:
        page.write("\n[broken](tutorials/training.md#no-such-heading)\n")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    env = {**os.environ, "PYTHONPATH": str(copy), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=copy, env=env, capture_output=True, text=True)
    assert done.returncode != 0
    assert "no-such-heading" in done.stderr


@pytest.mark.slow
def test_the_search_finds_a_word_without_another_host(site, browser: Browser):
    with docs.serve(site, 0) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        own = f"http://{docs.ADDRESS}:{server.server_port}/"
        browser.open(f"{own}index.html")
        browser.wait_for("document.querySelector('[data-md-component=search-query]')")
        browser.evaluate(
            "document.querySelector('[data-md-toggle=search]').click();"
            "const field = document.querySelector('[data-md-component=search-query]');"
            "field.focus(); field.value = 'keep_best';"
            "field.dispatchEvent(new Event('keyup'));"
        )
        browser.wait_for("document.querySelectorAll('.md-search-result__link').length > 0")
        found = browser.evaluate(
            "[...document.querySelectorAll('.md-search-result__link')].map(one => one.href)"
        )
        assert any("training.html" in one or "api/train.html" in one for one in found)
        asked = [one for one in browser.requests if not one.startswith((own, "data:"))]
        assert asked == []
        browser.open("about:blank")
        server.shutdown()
