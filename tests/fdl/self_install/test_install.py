"""``fdl install``: what it puts into ``~/.local/bin``, and how it brings newer releases."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pip
import pytest

import fdl as package
from fdl import __version__
from fdl.self_install.launcher import text
from tests.fdl.package_index import serve
from tests.fdl.terminal import Terminal

SITE = Path(f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages")
OWN_SCRIPT = Path(sys.executable).parent / "fdl"


@pytest.fixture
def home(tmp_path):
    """A home with a PATH that holds its ``bin``, as variables for a session."""
    folder = tmp_path / "home"
    folder.mkdir()
    (tmp_path / "elsewhere").mkdir()
    path = os.pathsep.join([str(folder / ".local/bin"), os.environ["PATH"]])
    return folder, {"HOME": str(folder), "PATH": path, "FDL_NO_UPDATE_CHECK": "1"}


@pytest.fixture
def install(fdl, home):
    """Type ``fdl install ARGS`` in that home."""
    return lambda *args, env=None: fdl("install", *args, env={**home[1], **(env or {})})


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def started(program, cwd):
    done = subprocess.run([program, "--version"], cwd=cwd, capture_output=True, text=True)
    return done.stdout


# The launcher


def test_the_launcher_starts_this_fdl_from_anywhere(install, home, tmp_path):
    done = install()
    assert (done.exit, done.err) == (0, "")
    program = home[0] / ".local/bin/fdl"
    assert done.out == (
        f"Wrote ~/.local/bin/fdl, which starts fdl {__version__} with {sys.executable}.\n"
    )
    (tmp_path / "elsewhere/fdl").mkdir()
    (tmp_path / "elsewhere/fdl/__init__.py").write_text("raise SystemExit('the wrong fdl')\n")
    assert started(program, tmp_path / "elsewhere") == f"flodl-cli {__version__}\n"
    assert names(program.parent) == ["fdl"]


def test_arguments_reach_fdl_as_they_were_typed(install, home, project):
    install()
    project({"fdl.yml": "commands: {show: {run: 'printf \"<%s>\" \"$@\" _', append: ''}}\n"})
    words = ["show", "--", "it's $HOME", "", "*"]
    done = subprocess.run(
        [home[0] / ".local/bin/fdl", *words],
        cwd=home[0].parent,
        capture_output=True,
        text=True,
    )
    assert "it's $HOME" in done.stdout


def test_the_same_version_again_is_a_notice(install, home):
    install()
    program = home[0] / ".local/bin/fdl"
    before = program.stat().st_mtime_ns
    done = install()
    assert (done.exit, done.err) == (0, "")
    assert done.out == f"fdl {__version__} is installed in ~/.local/bin/fdl already.\n"
    assert program.stat().st_mtime_ns == before


def test_a_launcher_of_another_interpreter_is_replaced(install, home):
    program = home[0] / ".local/bin/fdl"
    program.parent.mkdir(parents=True)
    program.write_text(text("/gone/bin/python"))
    assert install().exit == 0
    assert program.read_text() == text(sys.executable)


def test_a_dry_run_writes_nothing(install, home):
    done = install("--dry-run")
    assert done.exit == 0
    assert done.out.startswith("Would write ~/.local/bin/fdl")
    assert ".local" not in names(home[0])
    done = install("--dev", "-n")
    assert done.out == f"Would link ~/.local/bin/fdl to {OWN_SCRIPT}.\n"
    assert ".local" not in names(home[0])


@pytest.mark.parametrize("kind", ["script", "link", "folder"])
@pytest.mark.parametrize("flags", [[], ["--dev"]])
def test_what_is_not_ours_stays_as_it_is(install, home, kind, flags):
    program = home[0] / ".local/bin/fdl"
    program.parent.mkdir(parents=True)
    if kind == "script":
        program.write_text("#!/bin/sh\necho mine\n")
    elif kind == "link":
        (home[0] / "mine").write_text("mine")
        program.symlink_to(home[0] / "mine")
    else:
        program.mkdir()
    done = install(*flags)
    assert (done.exit, done.out) == (1, "")
    assert f"error: {program} is " in done.err
    assert "stays as it is" in done.err
    assert "hint: move it away and try again: mv ~/.local/bin/fdl ~/.local/bin/fdl.old" in done.err
    assert program.is_dir() if kind == "folder" else "mine" in program.read_text()


def test_a_folder_that_cannot_be_written_is_an_error(install, home):
    (home[0] / ".local").write_text("a file\n")
    done = install()
    assert done.exit == 1
    assert "error: " in done.err
    assert "Traceback" not in done.err
    assert (home[0] / ".local").read_text() == "a file\n"


def test_a_launcher_that_would_not_start_is_not_installed(home, tmp_path):
    """fdl found through PYTHONPATH alone is gone in the next shell."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    libraries = Path(sys.prefix) / SITE
    done = subprocess.run(
        [bare / "bin/python", "-m", "fdl", "install"],
        cwd=tmp_path,
        env={
            **os.environ,
            **home[1],
            "CI": "1",
            "PYTHONPATH": f"{Path(package.__file__).parents[1]}:{libraries}",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "would not start" in done.stderr
    assert f"hint: {bare}/bin/python -m pip install flodl" in done.stderr
    assert names(home[0] / ".local/bin") == []


def test_without_a_home_it_says_what_to_set(install):
    for args in ([], ["--dev"], ["--check"]):
        done = install(*args, env={"HOME": ""})
        assert (done.exit, done.out) == (1, "")
        assert done.err == "error: there is no home folder to install into\nhint: set HOME\n"


def test_launchers_of_windows_double_what_cmd_would_expand():
    assert text(r"C:\100% me\python.exe", windows=True).splitlines()[-1] == (
        r'"C:\100%% me\python.exe" -P -m fdl %*'
    )
    assert text("/a b/python").splitlines()[-1] == "exec '/a b/python' -P -m fdl \"$@\""


# PATH


@pytest.mark.parametrize(
    ("shell", "typed", "file"),
    [
        ("/bin/zsh", "export PATH=", ".zshrc"),
        ("/bin/bash", "export PATH=", ".bashrc"),
        ("/usr/bin/fish", "fish_add_path", ""),
    ],
)
def test_a_missing_path_entry_is_explained_for_the_shell(install, home, shell, typed, file):
    done = install(env={"PATH": os.environ["PATH"], "SHELL": shell, "ZDOTDIR": ""})
    assert done.exit == 0
    assert f"{home[0]}/.local/bin is not on your PATH." in done.out
    line = done.out.splitlines()[-1]
    assert typed in line
    assert line.endswith(f"{home[0]}/{file}" if file else f"{home[0]}/.local/bin")


def test_in_another_shell_no_line_is_made_up(install, home):
    done = install(env={"PATH": os.environ["PATH"], "SHELL": "/bin/tcsh"})
    assert done.out.splitlines()[-1] == (
        f"{home[0]}/.local/bin is not on your PATH. Add it in the start-up file of your shell."
    )


def test_the_line_for_bash_does_what_it_says(install, home):
    line = install(env={"PATH": os.environ["PATH"], "SHELL": "/bin/bash"}).out.splitlines()[-1]
    subprocess.run(["bash", "-c", line.strip()], check=True, env={**os.environ, **home[1]})
    shell = ["bash", "-c", ". ~/.bashrc; command -v fdl"]
    found = subprocess.run(
        shell, env={"HOME": str(home[0]), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True
    )
    assert found.stdout == f"{home[0]}/.local/bin/fdl\n"


# For working on fdl


def test_dev_links_to_the_running_fdl_and_back(install, home):
    program = home[0] / ".local/bin/fdl"
    done = install("--dev")
    assert (done.exit, done.out) == (0, f"Linked ~/.local/bin/fdl to {OWN_SCRIPT}.\n")
    assert program.readlink() == OWN_SCRIPT
    assert install("--dev").out == f"~/.local/bin/fdl is a link to {OWN_SCRIPT} already.\n"
    assert install().out.endswith(f"in the place of a link to {OWN_SCRIPT}.\n")
    assert not program.is_symlink()
    assert install("--dev").exit == 0
    assert program.is_symlink()


def test_a_link_whose_environment_is_gone_may_be_replaced(install, home):
    program = home[0] / ".local/bin/fdl"
    program.parent.mkdir(parents=True)
    program.symlink_to(home[0] / "deleted/.venv/bin/fdl")
    assert install().exit == 0
    assert program.read_text() == text(sys.executable)


def test_a_link_to_itself_is_refused(home, environment):
    """The fdl that runs stands in ``~/.local/bin``, as after ``pip install --user``."""
    prefix = environment(home[0] / ".local")
    done = environment.fdl(prefix, "install", "--dev", env=home[1])
    assert (done.returncode, done.stdout) == (1, "")
    assert "would be a link to itself" in done.stderr
    assert "hint: " in done.stderr
    assert (prefix / "bin/fdl").is_file()
    assert not (prefix / "bin/fdl").is_symlink()
    # And what pip has put there is the installed one.
    done = environment.fdl(prefix, "install", env=home[1])
    assert done.stdout == f"fdl {__version__} is installed in ~/.local/bin/fdl already.\n"


def test_check_and_dev_exclude_each_other(install):
    done = install("--check", "--dev")
    assert done.exit == 2
    assert "choose one" in done.err


# Newer releases


def wheel(folder, version):
    """A release that does nothing but tell its version."""
    folder.mkdir(exist_ok=True)
    name = f"flodl-{version}.dist-info"
    with zipfile.ZipFile(folder / f"flodl-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr("fdl/__init__.py", "")
        archive.writestr("fdl/__main__.py", f"print('flodl-cli {version}')\n")
        archive.writestr(
            f"{name}/METADATA", f"Metadata-Version: 2.1\nName: flodl\nVersion: {version}\n"
        )
        archive.writestr(
            f"{name}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{name}/RECORD", "")
    return folder


def needed_by(name):
    """The packages, modules and facts that a distribution and those it needs have installed."""
    from importlib.metadata import distribution, requires

    found, waiting = {}, [name]
    while waiting:
        one = waiting.pop()
        if one in found:
            continue
        files = distribution(one).files or ()
        tops = {
            one.parts[0] for one in files if one.suffix in (".py", ".so") or one.name == "METADATA"
        }
        found[one] = [Path(distribution(one).locate_file(top)) for top in tops - {".."}]
        needs = [need for need in requires(one) or () if "extra ==" not in need]
        waiting += [re.split(r"[^\w.-]", need)[0] for need in needs if "platform" not in need]
    return sorted({module for modules in found.values() for module in modules})


class Environment:
    """Makes environments that hold a copy of fdl, as an installer leaves it."""

    def __call__(self, prefix):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(prefix)], check=True)
        site = prefix / SITE
        copy = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(package.__file__).parent, site / "fdl", ignore=copy)
        info = site / f"flodl-{__version__}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: flodl\nVersion: {__version__}\n"
        )
        (info / "INSTALLER").write_text("pip\n")
        files = [path for path in (*site.glob("fdl/**/*"), *info.iterdir()) if path.is_file()]
        shown = [path.relative_to(site) for path in (*files, info / "RECORD")]
        (info / "RECORD").write_text("".join(f"{path},,\n" for path in shown))
        # The tests' own pip, and nothing else of what the tests have: it must not see our checkout.
        (site / "pip").symlink_to(Path(pip.__file__).parent)
        needed = ("typer", "httpx2", "certifi", "packaging", "platformdirs")
        for module in {one for name in needed for one in needed_by(name)}:
            (site / module.name).symlink_to(module)
        script = prefix / "bin/fdl"
        script.write_text(
            f"#!{prefix}/bin/python\nimport sys\nfrom fdl.__main__ import main\nsys.exit(main())\n"
        )
        script.chmod(0o755)
        return prefix

    def variables(self, env):
        quiet = {"CI": "", "FDL_NO_UPDATE_CHECK": "", "PIP_CONFIG_FILE": os.devnull}
        return {**os.environ, **quiet, **env}

    def fdl(self, prefix, *words, env):
        return subprocess.run(
            [prefix / "bin/fdl", *words],
            cwd=prefix.parent,
            env=self.variables(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )


@pytest.fixture
def environment():
    return Environment()


def offline(folder):
    """What makes pip look at a folder of wheels and nowhere else."""
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PIP_NO_DEPS": "1"}


def test_yes_upgrades_with_pip_and_the_launcher_starts_the_new_one(environment, home, tmp_path):
    prefix = environment(tmp_path / "env")
    variables = {
        **home[1],
        **offline(wheel(tmp_path / "wheels", "99.0.0")),
        "FDL_NO_UPDATE_CHECK": "",
    }
    done = environment.fdl(prefix, "-y", "install", env=variables)
    assert done.returncode == 0, done.stderr
    assert "Successfully installed flodl-99.0.0" in done.stdout
    program = home[0] / ".local/bin/fdl"
    assert started(program, tmp_path) == "flodl-cli 99.0.0\n"


ON_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.parametrize(("answer", "version"), [("\r", "99.0.0"), ("n\r", __version__)])
def test_on_a_terminal_the_upgrade_is_a_question(environment, home, tmp_path, answer, version):
    prefix = environment(tmp_path / "env")
    variables = {
        **home[1],
        **offline(wheel(tmp_path / "wheels", "99.0.0")),
        "FDL_NO_UPDATE_CHECK": "",
    }
    program = str(prefix / "bin/fdl")
    with Terminal(program, "install", cwd=tmp_path, env=variables, program=ON_TERMINAL) as terminal:
        terminal.read_until("[Y/n]")
        assert f"flodl 99.0.0 is available; {__version__} is installed" in terminal.text
        assert f"Run `{prefix}/bin/python -m pip install --upgrade flodl`?" in terminal.text
        terminal.press(answer)
        assert terminal.finish() == 0
    assert ("To upgrade later:" in terminal.text) is (version == __version__)
    assert started(home[0] / ".local/bin/fdl", tmp_path) == f"flodl-cli {version}\n"


def test_a_terminal_where_nobody_can_answer_upgrades_nothing(environment, home, tmp_path):
    """As under setsid: what appears is seen, and there is no keyboard."""
    prefix = environment(tmp_path / "env")
    wheels = wheel(tmp_path / "wheels", "99.0.0")
    variables = {**home[1], **offline(wheels), "FDL_NO_UPDATE_CHECK": ""}
    becomes = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
    program = str(prefix / "bin/fdl")
    with Terminal(program, "install", cwd=tmp_path, env=variables, program=becomes) as terminal:
        assert terminal.finish() == 0
    assert "To upgrade later:" in terminal.text
    assert started(home[0] / ".local/bin/fdl", tmp_path) == f"flodl-cli {__version__}\n"


@pytest.mark.parametrize(
    ("receipt", "typed"),
    [
        ("uv-receipt.toml", "uv tool upgrade flodl"),
        ("pipx_metadata.json", "pipx upgrade flodl"),
    ],
)
@pytest.mark.parametrize("code", [0, 3])
def test_the_tool_that_installed_it_upgrades_it(environment, home, tmp_path, receipt, typed, code):
    prefix = environment(tmp_path / "env")
    (prefix / receipt).write_text("")
    tool = tmp_path / "tools" / typed.split()[0]
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\necho "called with $*"\nexit {code}\n')
    tool.chmod(0o755)
    variables = {
        **home[1],
        **offline(wheel(tmp_path / "wheels", "99.0.0")),
        "FDL_NO_UPDATE_CHECK": "",
        "PATH": f"{tool.parent}:{home[1]['PATH']}",
    }
    seen = environment.fdl(prefix, "-y", "install", "--dry-run", env=variables)
    assert seen.stdout.endswith(f"Would run: {typed}\n")
    assert not (home[0] / ".local").exists()
    done = environment.fdl(prefix, "-y", "install", env=variables)
    assert f"called with {typed.partition(' ')[2]}\n" in done.stdout
    assert done.returncode == (1 if code else 0)
    assert (f"error: `{typed}` failed with exit code 3" in done.stderr) is bool(code)


def test_a_link_of_uv_is_the_installed_one(environment, home, tmp_path):
    prefix = environment(tmp_path / "env")
    (prefix / "uv-receipt.toml").write_text("")
    program = home[0] / ".local/bin/fdl"
    program.parent.mkdir(parents=True)
    program.symlink_to(prefix / "bin/fdl")
    done = environment.fdl(prefix, "install", env=home[1])
    assert done.stdout == f"fdl {__version__} is installed in ~/.local/bin/fdl already.\n"
    assert program.readlink() == prefix / "bin/fdl"


def test_that_link_is_foreign_to_another_fdl(environment, install, home, tmp_path):
    prefix = environment(tmp_path / "env")
    (prefix / "uv-receipt.toml").write_text("")
    program = home[0] / ".local/bin/fdl"
    program.parent.mkdir(parents=True)
    program.symlink_to(prefix / "bin/fdl")
    assert install().exit == 1
    assert program.readlink() == prefix / "bin/fdl"


def test_nobody_there_means_nobody_is_asked_and_no_index_either(install, home):
    with serve({"flodl": ["99.0.0"]}) as index:
        done = install(env={**index.variables, "FDL_NO_UPDATE_CHECK": "", "CI": ""})
        assert done.exit == 0
        assert "99.0.0" not in done.out + done.err
        assert index.asked == []
    assert (home[0] / ".local/bin/fdl").is_file()


# --check


@pytest.mark.parametrize(
    ("versions", "latest", "verdict"),
    [
        (["0.0.1", "99.0.0", "99.1.0rc1"], "99.0.0", "99.0.0 is newer; to upgrade: git -C "),
        (["0.1.0"], "0.1.0", "up to date"),
        (["0.0.1"], "0.0.1", "newer than the newest release"),
        ([], "could not check", "the index could not be asked"),
    ],
)
def test_check_compares_and_changes_nothing(install, home, versions, latest, verdict):
    with serve({"flodl": versions}) as index:
        done = install("--check", env=index.variables)
    assert (done.exit, done.err) == (0, "")
    rows = dict(line.split(":", 1) for line in done.out.splitlines())
    assert list(rows) == ["Installed", "Latest", "Verdict"]
    assert rows["Installed"].strip() == (
        f"{__version__}, not in ~/.local/bin/fdl; this one runs from {sys.prefix}"
    )
    assert rows["Latest"].strip() == latest
    assert rows["Verdict"].strip().startswith(verdict)
    assert ".local" not in names(home[0])


def test_check_tells_about_a_development_link(install):
    install("--dev")
    with serve({}) as index:
        done = install("--check", env=index.variables)
    assert done.exit == 0
    assert f"Installed: {__version__}, in ~/.local/bin/fdl\n" in done.out
    assert f"Mode:      dev, a link to {OWN_SCRIPT}\n" in done.out
