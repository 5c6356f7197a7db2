"""Which flodl a project uses: its pin, its lock file, its environment."""

import pytest

from fdl import __version__
from fdl.base.errors import ScaffoldError
from fdl.scaffold.add_version import host_version


def demand(*requirements, more=""):
    listed = ", ".join(f'"{one}"' for one in requirements)
    return f'[project]\nname = "x"\nversion = "1"\ndependencies = [{listed}]\n{more}'


def lock(version, name="uv.lock"):
    table = "packages" if name == "pylock.toml" else "package"
    return {name: f'[[{table}]]\nname = "flodl"\nversion = "{version}"\n'}


def installed(version):
    return {
        ".venv/pyvenv.cfg": "home = /usr/bin\n",
        f".venv/lib/python3.11/site-packages/flodl-{version}.dist-info/METADATA": "Name: flodl\n"
        f"Version: {version}\n",
    }


def version(project, files, variables=None):
    return host_version(project(files), variables or {})


@pytest.mark.parametrize("text", ["flodl==0.4.2", "flodl[train] == 0.4.2 ; os_name == 'posix'"])
def test_an_exact_pin_is_used_as_it_is(project, text):
    files = {"pyproject.toml": demand("torch", text), **lock("0.9"), **installed("0.8")}
    found = version(project, files)
    assert (found.version, found.requirement("hf")) == ("0.4.2", "flodl[hf]==0.4.2")


@pytest.mark.case("cli", 60)
@pytest.mark.parametrize("name", ["uv.lock", "poetry.lock", "pdm.lock", "pylock.toml"])
def test_a_range_becomes_the_locked_version(project, name):
    files = {"pyproject.toml": demand("flodl>=0.3"), **lock("0.5.1", name), **installed("0.6")}
    assert version(project, files).requirement("hf") == "flodl[hf]==0.5.1"


def test_a_range_without_a_lock_becomes_the_installed_version(project):
    files = {"pyproject.toml": demand("flodl>=0.3,<1"), **installed("0.6.0")}
    assert version(project, files).requirement("hf") == "flodl[hf]==0.6.0"


def test_what_the_range_does_not_allow_is_passed_over(project):
    files = {"pyproject.toml": demand("flodl~=0.3.0"), **lock("0.5"), **installed("0.3.9")}
    assert version(project, files).version == "0.3.9"


def test_a_lock_with_several_versions_says_nothing(project):
    text = lock("0.5")["uv.lock"] + lock("0.6")["uv.lock"]
    files = {"pyproject.toml": demand("flodl"), "uv.lock": text, **installed("0.3.9")}
    assert version(project, files).version == "0.3.9"


def test_the_activated_environment_counts_where_the_project_has_none(project):
    files = {"pyproject.toml": demand("flodl"), **installed("0.7.1")}
    folder = project({name.replace(".venv", "env"): text for name, text in files.items()})
    assert host_version(folder, {"VIRTUAL_ENV": str(folder / "env")}).version == "0.7.1"


def test_a_development_version_is_demanded_of_nobody(project):
    files = {"pyproject.toml": demand("flodl"), **installed("0.7.1.dev3")}
    found = version(project, files)
    assert (found.version, found.requirement("hf")) == ("0.7.1.dev3", "flodl[hf]")
    files = {"pyproject.toml": demand("flodl==0.7.1.dev3")}
    assert version(project, files).requirement("hf") == "flodl[hf]==0.7.1.dev3"


def test_with_nothing_installed_it_is_the_flodl_of_this_fdl(project):
    assert version(project, {"pyproject.toml": demand("flodl")}).version == __version__


def test_a_range_that_nothing_known_satisfies_is_refused_with_the_ways_out(project):
    with pytest.raises(
        ScaffoldError,
        match=r"the version of flodl that fits `flodl>=99` is not locked and not installed",
    ) as caught:
        version(project, {"pyproject.toml": demand("flodl>=99")})
    assert "uv lock" in caught.value.hint


@pytest.mark.parametrize(
    "more",
    [
        '[project.optional-dependencies]\ntrain = ["flodl==0.4"]',
        '[dependency-groups]\ndev = ["flodl==0.4", {include-group = "x"}]\nx = []',
        '[tool.uv]\ndev-dependencies = ["flodl==0.4"]',
        '[tool.poetry.dependencies]\nflodl = "0.4"',
        '[tool.poetry.group.dev.dependencies]\nflodl = {version = "0.4", extras = ["train"]}',
    ],
)
def test_extras_and_groups_count_where_the_project_itself_says_nothing(project, more):
    assert version(project, {"pyproject.toml": demand("torch", more=more)}).version == "0.4"


def test_a_requirements_file_counts_too(project):
    files = {"pyproject.toml": demand(), "requirements.txt": "torch\nflodl==0.4.1  # ours\n"}
    assert version(project, files).version == "0.4.1"


@pytest.mark.parametrize(
    ("text", "more", "place"),
    [
        ("flodl @ git+https://h.test/flodl@main", "", "git+https://h.test/flodl@main"),
        ("flodl @ file:///src/flodl", "", "file:///src/flodl"),
        ("flodl", '[tool.uv.sources]\nflodl = {git = "https://h.test/f"}', "git https://h.test/f"),
        ("flodl>=0.1", '[tool.uv.sources]\nflodl = {path = "../flodl"}', "path ../flodl"),
        ("torch", '[tool.poetry.dependencies]\nflodl = {path = "../flodl"}', "path ../flodl"),
    ],
)
def test_a_repository_or_a_folder_alone_is_refused_with_the_remedy(project, text, more, place):
    files = {"pyproject.toml": demand(text, more=more), **lock("0.5")}
    with pytest.raises(ScaffoldError, match="so no version is known") as caught:
        version(project, files)
    assert f"flodl comes from {place} here" in caught.value.message
    assert "hold it to a version" in caught.value.hint


def test_a_repository_in_a_requirements_file_is_refused_too(project):
    text = "-e git+https://h.test/flodl#egg=flodl\n"
    files = {"pyproject.toml": demand(), "requirements.txt": text}
    with pytest.raises(ScaffoldError, match=r"comes from git\+https://h\.test/flodl here"):
        version(project, files)


def test_a_pin_wins_over_the_source_it_is_taken_from(project):
    more = '[tool.uv.sources]\nflodl = {git = "https://h.test/f"}'
    assert version(project, {"pyproject.toml": demand("flodl==0.4", more=more)}).version == "0.4"


def test_a_workspace_is_followed_upward_to_the_member_that_is_flodl(project):
    root = project(
        {
            "pyproject.toml": '[tool.uv.workspace]\nmembers = ["libs/*", "apps/*"]\n',
            "libs/flodl/pyproject.toml": '[project]\nname = "flodl"\nversion = "0.9.3"\n',
            "apps/mine/pyproject.toml": demand(
                "flodl", more="[tool.uv.sources]\nflodl = {workspace = true}"
            ),
        }
    )
    assert host_version(root / "apps/mine", {}).requirement("hf") == "flodl[hf]==0.9.3"
    (root / "libs/flodl/pyproject.toml").write_text('[project]\nname = "flodl"\n')
    with pytest.raises(ScaffoldError, match="does not say its version"):
        host_version(root / "apps/mine", {})


def test_a_project_locked_by_its_workspace_uses_that_lock(project):
    root = project(
        {
            "pyproject.toml": '[tool.uv.workspace]\nmembers = ["apps/*"]\n',
            "apps/mine/pyproject.toml": demand("flodl>=0.2"),
            **lock("0.8.8"),
        }
    )
    assert host_version(root / "apps/mine", {}).version == "0.8.8"


def test_a_project_that_does_not_use_flodl_is_refused(project):
    files = {"pyproject.toml": demand("torch", "flodl-x"), **lock("0.5")}
    with pytest.raises(ScaffoldError, match="does not name flodl") as caught:
        version(project, files)
    assert 'add "flodl==' in caught.value.hint
