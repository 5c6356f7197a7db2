"""``fdl init``: all of a project, or nothing of it."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fdl.scaffold.render import is_released
from fdl.version import __version__
from tests.fdl.terminal import Terminal

# `python` in a manifest is the one that runs the tests.
_PATH = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}

NATIVE = [
    ".gitignore",
    "README.md",
    "fdl",
    "fdl.yml",
    "pyproject.toml",
    "tests/test_train.py",
    "train/fdl.yml",
    "train/main.py",
]
CONTAINERS = [".dockerignore", "Dockerfile.cuda", "docker-compose.yml"]
EXPECTED = {
    "mounted": sorted([*NATIVE, *CONTAINERS, "Dockerfile"]),
    "docker": sorted([*NATIVE, *CONTAINERS, "Dockerfile.cpu"]),
    "native": NATIVE,
}
FLAGS = {"mounted": ["--mount-libtorch"], "docker": ["--docker"], "native": []}


def tree(folder):
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("mode", EXPECTED)
def test_init_writes_a_complete_project_in_every_mode(fdl, tmp_path, mode):
    done = fdl("init", "my-model_2", *FLAGS[mode])
    assert done.exit == 0, done.err
    made = tmp_path / "my-model_2"
    assert tree(made) == EXPECTED[mode]
    title, *listed = done.out.splitlines()
    assert title.startswith("Created my-model_2/ (")
    assert title.endswith(f") with {len(EXPECTED[mode])} files:")
    assert listed[: len(EXPECTED[mode])] == [f"  my-model_2/{name}" for name in EXPECTED[mode]]
    assert 'name = "my-model_2"' in (made / "pyproject.toml").read_text()
    assert "description: my-model_2" in (made / "fdl.yml").read_text()
    assert not [name for name in tree(made) if "{%" in (made / name).read_text()]
    assert len((made / "train/main.py").read_text().splitlines()) < 90
    everything = 0o777 & ~current_umask()
    assert stat.S_IMODE(made.stat().st_mode) == everything
    assert stat.S_IMODE((made / "fdl").stat().st_mode) == everything
    assert [path.name for path in tmp_path.iterdir()] == ["my-model_2"]


def test_an_untouched_project_knows_its_options_and_nothing_runs(fdl, tmp_path):
    assert fdl("init", "demo").exit == 0
    made = tmp_path / "demo"
    main = made / "train/main.py"
    main.write_text(f"open('ran', 'w').close()\n{main.read_text()}")
    for words in (("train", "--"), ("train", "quick", "--")):
        offered = fdl("__complete", "bash", "--", *words, cwd="demo").out.splitlines()
        assert {"--epochs", "--batch-size", "--lr", "--seed", "--resume"} <= {*offered}
    assert "--epochs INT" in fdl("train", "--help", cwd="demo").out
    done = fdl("check", cwd="demo")
    assert (done.exit, done.err) == (0, "")
    assert "8 options known" in done.out
    wrong = fdl("train", "--epohcs", "3", cwd="demo")
    assert "unknown option `--epohcs`" in wrong.err
    assert "did you mean `--epochs`?" in wrong.err

    manifest = made / "train/fdl.yml"
    manifest.write_text(manifest.read_text().replace("options: {}", "options: {epohcs: 3}"))
    (line,) = [
        number
        for number, text in enumerate(manifest.read_text().splitlines(), 1)
        if "epohcs" in text
    ]
    done = fdl("check", cwd="demo")
    assert done.exit == 1
    assert f"train/fdl.yml:{line}:" in done.err
    assert "the program has no option `epohcs`" in done.err
    assert "did you mean `epochs`?" in done.err
    assert not list(made.rglob("ran"))


@pytest.mark.case("cli", 59)
def test_a_native_project_knows_no_docker_and_what_cannot_be_is_refused(fdl, tmp_path):
    assert fdl("init", "p", "--native").exit == 0
    made = tree(tmp_path / "p")
    assert not [name for name in made if "docker" in name.lower()]
    assert not [name for name in made if "docker" in (tmp_path / "p" / name).read_text().lower()]
    shutil.rmtree(tmp_path / "p")

    assert fdl("init", "a b").exit == 1
    for flag in ("--docker", "--mount-libtorch"):
        both = fdl("init", "p", flag, "--native")
        assert both.exit == 1
        assert f"error: `{flag}` and `--native` exclude each other; nothing was written" in both.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", EXPECTED)
def test_a_dry_run_lists_the_files_and_writes_none(fdl, tmp_path, mode):
    done = fdl("init", "demo", *FLAGS[mode], "-n")
    assert done.exit == 0
    title, *listed = done.out.splitlines()
    assert title.startswith("Would create demo/ (")
    assert listed == [f"  demo/{name}" for name in EXPECTED[mode]]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("mode", "first"),
    [
        ("mounted", "fdl setup "),
        ("docker", "docker compose build dev "),
    ],
)
def test_the_next_steps_are_those_of_the_mode(fdl, mode, first):
    *_, change, step, quick, whole, page = fdl("init", "demo", *FLAGS[mode]).out.splitlines()
    assert change == "  cd demo"
    assert step.strip().startswith(first)
    commands = [line.partition("  #")[0].strip() for line in (quick, whole, page)]
    assert commands == ["fdl train quick", "fdl train", "fdl --help"]


@pytest.mark.parametrize("torch", [True, False])
def test_a_native_project_without_torch_names_the_command_that_installs_it(fdl, tmp_path, torch):
    packages = tmp_path / ".venv/lib/python3.12/site-packages"
    packages.mkdir(parents=True)
    (tmp_path / ".venv/pyvenv.cfg").write_text("home = /usr/bin\n")
    if torch:
        (packages / "torch").mkdir()
        (packages / "torch/version.py").write_text("__version__ = '2.10.0'\n")
    done = fdl("init", "demo", "--native")
    following = done.out.partition("Next:\n")[2].splitlines()
    commands = [line.partition("  #")[0].strip() for line in following]
    assert commands == [
        "cd demo",
        *([] if torch else ["pip install 'flodl[train]'"]),
        "fdl train quick",
        "fdl train",
        "fdl --help",
    ]


def test_a_release_is_pinned_and_a_development_version_says_that_it_is_not(fdl, tmp_path):
    done = fdl("init", "demo", "--native")
    released = is_released(__version__)
    said = "development version, so pyproject.toml has no pin" in done.err
    assert said is not released
    pin = f"=={__version__}" if released else ""
    assert f'dependencies = ["flodl[train]{pin}"]' in (tmp_path / "demo/pyproject.toml").read_text()


def test_quiet_prints_one_line(fdl):
    done = fdl("-q", "init", "demo", "--native")
    assert (done.exit, done.err) == (0, "")
    assert done.out == f"Created demo/ (no containers) with {len(NATIVE)} files\n"


@pytest.mark.parametrize("name", ["a b", "", "ü", "a/b", "..", "a.b"])
def test_a_name_that_is_no_name_is_refused_and_nothing_written(fdl, tmp_path, name):
    done = fdl("init", name, "--native")
    assert done.exit == 1
    assert done.err.startswith(f"error: `{name}` is not a project name: use letters, digits")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "package"), [("_x_", "x"), ("__", "project"), ("A-b", "A-b")])
def test_a_name_becomes_one_that_packages_may_have(fdl, tmp_path, name, package):
    assert fdl("init", name, "--native").exit == 0
    assert f'name = "{package}"' in (tmp_path / name / "pyproject.toml").read_text()


def test_an_existing_target_is_refused_and_left_alone(fdl, project, tmp_path):
    project({"demo/keep.txt": "mine\n"})
    for words in (["--docker"], [], ["-n"]):
        done = fdl("init", "demo", *words)
        assert done.exit == 1
        assert f"error: {tmp_path / 'demo'} exists already; nothing was written" in done.err
    assert tree(tmp_path) == ["demo/keep.txt"]


def test_a_dangling_link_is_an_existing_target_too(fdl, tmp_path):
    (tmp_path / "demo").symlink_to(tmp_path / "nowhere")
    assert fdl("init", "demo", "--native").exit == 1
    assert (tmp_path / "demo").readlink() == tmp_path / "nowhere"


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_that_cannot_be_written_is_named(fdl, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    done = fdl("init", "demo", cwd="locked")
    assert done.exit == 1
    assert f"error: cannot write {tmp_path / 'locked/demo'}" in done.err


def test_missing_and_surplus_arguments_exit_with_2(fdl, tmp_path):
    assert fdl("init", "--native").exit == 2
    assert fdl("init", "a", "b", "--native").exit == 2
    assert fdl("init", "a", "--nativ").exit == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [[], ["--docker"], ["--mount-libtorch", "--with-hf"]])
def test_nothing_is_asked_on_a_terminal(tmp_path, words):
    with Terminal("init", "demo", *words, cwd=tmp_path) as terminal:
        assert terminal.finish() == 0
    assert "?" not in terminal.text
    has_containers = (tmp_path / "demo/docker-compose.yml").exists()
    assert has_containers is bool(words)
    assert (tmp_path / "demo/flodl-hf/main.py").is_file() is ("--with-hf" in words)


@pytest.mark.parametrize("flag", ["--docker", "--mount-libtorch"])
def test_without_docker_the_way_without_containers_is_named(fdl, flag):
    done = fdl("init", "demo", flag, env={"PATH": str(Path(sys.executable).parent)})
    assert done.exit == 0
    assert (
        "warning: docker is not found on this machine\nhint: without containers: fdl init demo\n"
    ) in done.err


# What was made --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", EXPECTED)
def test_the_project_lists_its_commands(fdl, mode):
    fdl("init", "demo", *FLAGS[mode])
    page = fdl("--help", cwd="demo")
    assert (page.exit, page.err) == (0, "")
    names = {line.split()[0] for line in page.out.splitlines() if line.startswith("  ")}
    assert {"train", "test", "build", "lint", "cuda-build"} <= names
    contained = {"shell", "cuda-shell", "cuda-train", "cuda-test"}
    assert names & contained == (set() if mode == "native" else contained)


def test_the_manifests_of_a_new_project_pass_the_check(fdl):
    fdl("init", "demo")
    done = fdl("check", cwd="demo")
    assert (done.exit, done.err) == (0, "")
    assert "train/fdl.yml  2 commands" in done.out


@pytest.mark.parametrize("name", ["2024", "true"])
def test_a_name_that_yaml_reads_as_another_value_stays_a_name(fdl, name):
    assert fdl("init", name).exit == 0
    assert fdl("--help", cwd=name).out.startswith(f"fdl - {name}\n")


def test_a_native_project_shows_what_training_would_run(fdl, tmp_path):
    fdl("init", "demo", "--native")
    plan = fdl("--dry-run", "train", "quick", "--lr", "0.01", cwd="demo")
    assert plan.exit == 0
    assert "python main.py --epochs 3" in plan.out
    assert "train/fdl.yml:" in plan.out
    assert not (tmp_path / "demo/.fdl").exists()


def test_the_first_command_asks_and_says_nothing_about_manifests(fdl, tmp_path):
    fdl("init", "demo")
    made = tmp_path / "demo"
    with Terminal("train", "quick", "--epochs", "1", cwd=made, env=_PATH) as terminal:
        assert terminal.finish() == 0, terminal.text
    assert " on held-out digits" in terminal.text
    assert "fdl.yml" not in terminal.text
    assert [path.name for path in (made / "runs").iterdir()] == ["quick"]


@pytest.mark.slow
def test_the_projects_own_checks_pass(fdl, tmp_path):
    fdl("init", "demo", "--native")
    # Of the project alone, not of the folders above it.
    (tmp_path / "demo/ruff.toml").write_text("")
    for word, said in (("lint", "All checks passed!"), ("test", " passed")):
        done = fdl(word, cwd="demo", env={"PYTHONDONTWRITEBYTECODE": "1"}, timeout=120)
        assert done.exit == 0, done.out + done.err
        assert said in done.out


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
@pytest.mark.parametrize("mode", EXPECTED)
def test_git_keeps_what_was_made_and_forgets_what_work_leaves(fdl, tmp_path, mode):
    fdl("init", "demo", *FLAGS[mode])
    made = tmp_path / "demo"

    def git(*words):
        return subprocess.run(["git", *words], cwd=made, capture_output=True, text=True)

    assert git("init", "-q").returncode == 0
    kept = git("ls-files", "--others", "--exclude-standard").stdout.split()
    assert sorted(kept) == EXPECTED[mode]
    left = [
        *(
            "fdl.local.yml",
            "train/fdl.local.yml",
            "fdl.local.json",
            ".fdl/x",
            ".venv/x",
            "venv/x",
            "runs/train/x",
        ),
        *("last.fdl", "train/last.fdl", "out.log", "libtorch/precompiled/cpu/lib/x"),
    ]
    ignored = git("check-ignore", *left).stdout.split()
    if mode == "docker":
        left.pop()
    assert ignored == left


def test_calls_at_once_make_one_project(tmp_path):
    calls = [
        subprocess.Popen(
            [sys.executable, "-m", "fdl", "init", "demo", "--native"],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    said = [call.communicate(timeout=60)[1] for call in calls]
    assert sorted(call.returncode for call in calls) == [0, 1, 1, 1]
    refusal = f"error: {tmp_path / 'demo'} exists already; nothing was written\n"
    assert sum(refusal in one for one in said) == 3
    assert "Traceback" not in "".join(said)
    assert tree(tmp_path / "demo") == NATIVE
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]


def test_a_project_is_not_called_like_a_package_that_it_needs(project, fdl):
    folder = project({})
    refused = fdl("init", "Flodl")
    assert (refused.exit, list(folder.iterdir())) == (1, [])
    assert "`Flodl` is the name of a package that the project needs" in refused.err
