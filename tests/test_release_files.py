"""What a package index and a code host show: metadata, long description, licences, forms."""

import importlib.util
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt

from tests.fdl.scaffold.test_containers import hadolint, instructions
from tests.rows import each_row

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def script(name: str):
    """A module of the folder of scripts, which is not a package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"scripts/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def addresses(text: str) -> list[str]:
    """Targets of all links and images of a Markdown text, as a renderer finds them."""
    found = []
    for block in MarkdownIt("commonmark").enable("table").parse(text):
        for part in block.children or []:
            found += [value for key, value in part.attrs.items() if key in ("href", "src")]
    return found


@pytest.fixture(scope="module")
def description():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return script("long_description").absolute(text, PROJECT["urls"]["Source"], "v0.1.0")


def test_the_metadata_is_complete():
    assert PROJECT["authors"] == [{"name": "flodl contributors"}]
    assert {"Homepage", "Documentation", "Source", "Issues", "Changelog"} == set(PROJECT["urls"])
    assert len(PROJECT["keywords"]) >= 5
    topics = {one.split(" :: ")[0] for one in PROJECT["classifiers"]}
    assert {"Development Status", "Operating System", "Programming Language", "Typing"} <= topics
    assert all((ROOT / name).is_file() for name in PROJECT["license-files"])
    assert "flodl contributors" in (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_every_link_of_the_long_description_is_absolute(description):
    links = addresses(description)
    assert len(links) > 40
    assert [one for one in links if not one.startswith("https://")] == []


def test_links_of_the_long_description_lead_to_files(description):
    source = PROJECT["urls"]["Source"]
    own = [one.partition("/v0.1.0/") for one in addresses(description) if one.startswith(source)]
    assert len(own) > 30
    for view, _, path in own:
        assert (ROOT / path).exists(), path
        shown = path.endswith((".png", ".svg"))
        assert view == f"{source}/{'raw' if shown else 'blob'}", path


def test_code_absolute_links_and_anchors_stay_as_they_are():
    text = "[a](https://b) [c](#d)\n```\n[e](f.md)\n```\n[g](h.md) ![i](j.png)\n"
    assert script("long_description").absolute(text, "https://k", "main") == (
        "[a](https://b) [c](#d)\n```\n[e](f.md)\n```\n"
        "[g](https://k/blob/main/h.md) ![i](https://k/raw/main/j.png)\n"
    )


@each_row(("version", "ref"), [("0.1.0", "v0.1.0"), ("0.1.0.dev0", "main"), ("0.2.0rc1", "main")])
def test_a_release_links_to_its_own_tag(version, ref):
    assert script("long_description").reference(version) == ref


def test_the_placeholder_of_the_address_stands_in_one_file():
    host = re.match(r"https://([^/]+)", PROJECT["urls"]["Source"])[1]
    assert host.endswith(".invalid"), "the repository has an address: drop this test"
    files = [
        file
        for folder in (".github", "docs", "fdl", "flodl", "scripts", "examples")
        for file in (ROOT / folder).rglob("*")
        if file.suffix in (".md", ".py", ".toml", ".yml", ".cff", ".html")
    ]
    files += [*ROOT.glob("*.md"), *ROOT.glob("*.cff"), *ROOT.glob("*.toml")]
    assert len(files) > 500
    assert [file.name for file in files if host in file.read_text("utf-8")] == ["pyproject.toml"]


def test_the_list_of_licences_is_up_to_date_and_complete():
    page = (ROOT / "LICENCES.md").read_text(encoding="utf-8")
    assert page == script("licences").page(), "run: python scripts/licences.py"
    assert "not stated" not in page
    direct = {re.match(r"[\w-]+", one)[0].lower() for one in PROJECT["dependencies"]}
    assert direct <= set(re.findall(r"^\| ([\w-]+) \|", page, re.MULTILINE))


def test_installed_packages_are_free_of_copyleft_for_programs():
    page = (ROOT / "LICENCES.md").read_text(encoding="utf-8")
    runtime = page.partition("## Installed with flodl")[2].partition("\n## ")[0]
    assert "torch" in runtime
    assert re.findall(r"\bA?GPL\b|\bLGPL\b", runtime) == []


def test_the_citation_names_what_the_metadata_names():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["authors"] == PROJECT["authors"]
    assert citation["license"] in PROJECT["license"]


def test_the_forms_for_issues_have_what_a_code_host_requires():
    forms = [one for one in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if one.stem != "config"]
    assert {one.stem for one in forms} == {"bug", "feature"}
    for form in forms:
        told = yaml.safe_load(form.read_text(encoding="utf-8"))
        assert {"name", "description", "body"} <= set(told)
        fields = [field for field in told["body"] if field["type"] != "markdown"]
        assert len({field["id"] for field in fields}) == len(fields) >= 3
        assert all(field["attributes"]["label"] for field in fields)


@each_row("page", ["SECURITY.md", ".github/pull_request_template.md"])
def test_links_of_pages_beside_the_documentation_lead_to_files(page):
    file = ROOT / page
    for target in addresses(file.read_text(encoding="utf-8")):
        assert (file.parent / target).exists(), target


def test_the_changelog_keeps_its_form():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert versions[0] == "Unreleased"
    for one in versions[1:]:
        assert re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d", one), one
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    for release in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        found = re.findall(r"^### (.*)$", release, re.MULTILINE)
        assert set(found) <= kinds
        assert len(found) == len(set(found))


IMAGES = ["Dockerfile", "Dockerfile.cuda"]


@pytest.mark.parametrize("name", IMAGES)
def test_the_linter_of_images_has_nothing_to_say(name):
    program = hadolint()
    if program is None:
        pytest.skip("hadolint does not run here")
    done = subprocess.run([program, "--no-color", ROOT / name], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@each_row("name", IMAGES)
def test_an_image_has_the_tested_versions_and_no_root(name):
    steps = instructions(ROOT / name)
    installs = [rest for word, rest in steps if word == "RUN" and "pip install" in rest]
    assert len(installs) == 2
    assert all("constraints.txt" in one and "--no-cache-dir" in one for one in installs)
    assert ("USER", "1001") in steps
    assert [rest for word, rest in steps if word == "ENTRYPOINT"] == ['["fdl"]']


def test_the_context_of_images_has_all_that_the_wheel_is_built_from():
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    sent = {line[1:] for line in lines if line.startswith("!")}
    assert all((ROOT / one).exists() for one in sent)
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]
    wheel = build["build"]["targets"]["wheel"]
    needed = {*wheel["packages"], *wheel["force-include"], "README.md", "LICENSE", "pyproject.toml"}
    assert needed | {build["metadata"]["hooks"]["custom"]["path"], "constraints.txt"} == sent
