"""``fdl init --with-hf``: a new project with a playground for Hugging Face models."""

import pytest
import yaml

from fdl.cli.entry import main
from fdl.scaffold.render import is_released
from fdl.version import __version__

FILES = [".gitignore", "README.md", "fdl.yml", "main.py", "pyproject.toml"]


@pytest.mark.parametrize("flags", [[], ["--docker"], ["--native"]])
def test_a_new_project_can_have_a_playground(fdl, tmp_path, flags):
    done = fdl("init", "demo", *flags, "--with-hf")
    assert done.exit == 0, done.err
    made = tmp_path / "demo"
    assert sorted(path.name for path in (made / "flodl-hf").iterdir()) == FILES
    assert "Created demo/flodl-hf/ with 5 files:\n  demo/flodl-hf/.gitignore\n" in done.out
    steps = [line.partition("#")[0].strip() for line in done.out.splitlines()]
    assert steps.index("fdl flodl-hf build") < steps.index("fdl flodl-hf classify")
    assert done.err.count("is a development version") == (0 if is_released(__version__) else 1)
    commands = yaml.safe_load((made / "fdl.yml").read_text())["commands"]
    assert list(commands)[-1] == "flodl-hf"
    assert commands["flodl-hf"]["path"] == "./flodl-hf/"
    in_container = "docker: dev" in (made / "flodl-hf/fdl.yml").read_text()
    assert in_container is (flags == ["--docker"])
    assert "flodl-hf" in fdl("list", cwd="demo").out


@pytest.mark.parametrize("flags", [[], ["--docker"], ["--native"]])
def test_a_new_project_has_none_unasked(fdl, tmp_path, flags):
    done = fdl("init", "demo", *flags)
    assert done.exit == 0
    assert "flodl-hf" not in done.out
    assert not (tmp_path / "demo/flodl-hf").exists()


def test_a_dry_run_names_the_playground(fdl, tmp_path):
    done = fdl("init", "demo", "--native", "-n", "--with-hf")
    assert done.exit == 0
    assert "and demo/flodl-hf/, a playground" in done.out
    assert not (tmp_path / "demo").exists()


def test_where_the_playground_fails_the_project_is_whole_all_the_same(project, monkeypatch, capsys):
    # A release would be pinned, and then it does not matter where flodl comes from.
    monkeypatch.setattr("fdl.cli.commands.init.__version__", "0.2.0.dev0")
    root = project(
        {
            "pyproject.toml": """
                [tool.uv.workspace]
                members = ["demo"]
                [tool.uv.sources]
                flodl = {git = "https://h.test/flodl"}
                """
        }
    )
    monkeypatch.chdir(root)
    assert main(["init", "demo", "--native", "--with-hf"]) == 0
    done = capsys.readouterr()
    assert "warning: the playground was not added: flodl comes from git https://h.test" in done.err
    assert "hint: hold it to a version" in done.err
    assert "fdl flodl-hf" not in done.out
    assert not (root / "demo/flodl-hf").exists()
    assert "flodl-hf" not in (root / "demo/fdl.yml").read_text()
    assert (root / "demo/train/main.py").is_file()
