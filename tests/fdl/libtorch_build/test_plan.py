"""What a build would do: printed by a dry run, and refused when it makes no sense."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from fdl.base.errors import UsageError
from fdl.libtorch.active import is_id
from fdl.libtorch.build.plan import BuildPlan, Request, Tools, plan
from fdl.libtorch.catalog import parse
from fdl.libtorch.store import Store
from tests.conftest import Fdl
from tests.fdl.hardware.fake_nvml import card, nvidia, without_nvidia

TOOLS = Tools("/usr/bin:/bin", (), has_ninja=True)


def planned(archs: str, back_end: str = "native", tools: Tools = TOOLS) -> BuildPlan:
    request = Request(parse(archs), "2.10.0", jobs=4)
    store = Store(Path("/home/ada/my project"), "project")
    return plan(request, back_end, store, tools)  # type: ignore[arg-type]


@pytest.mark.case("cli", 58)
@pytest.mark.parametrize("flag", ["--dry-run", "-n"])
@pytest.mark.parametrize("archs", ["12.0;6.1", "12.0 6.1,6.1", "6.1,12.0"])
def test_dry_run_names_the_variant_and_needs_nothing(
    fdl: Fdl, tmp_path: Path, archs: str, flag: str
) -> None:
    env = {"FLODL_HOME": str(tmp_path / "home"), "PATH": "", "CUDA_HOME": "", "CUDA_PATH": ""}

    done = fdl("libtorch", "build", "--archs", archs, flag, env=env)

    assert (done.exit, done.err) == (0, "")
    assert "builds/sm61-sm120" in done.out
    assert "TORCH_CUDA_ARCH_LIST=6.1;12.0" in done.out
    assert list(tmp_path.iterdir()) == [], "nothing is written"


def test_dry_run_of_a_native_build_prints_commands_for_a_shell(fdl: Fdl, tmp_path: Path) -> None:
    home = tmp_path / "my home"
    env = {"FLODL_HOME": str(home)}

    done = fdl("libtorch", "build", "--archs", "8.6+PTX", "--native", "-n", env=env)

    cache = home / "libtorch" / ".cache"
    assert done.exit == 0
    assert f"mkdir -p '{cache / 'pytorch'}' && cd '{cache / 'pytorch'}'\n" in done.out
    assert (
        "    # if there is a requirements.txt and if there is no requirements-build.txt" in done.out
    )
    assert "git fetch --depth 1 --force origin refs/tags/v2.10.0:refs/tags/v2.10.0\n" in done.out
    assert (
        "TORCH_CUDA_ARCH_LIST=8.6+PTX MAX_JOBS=6 USE_CUDA=1 BUILD_PYTHON=0 BUILD_TEST=0" in done.out
    )
    assert f"PATH='{cache / 'build-python' / 'bin'}':\"$PATH\"" in done.out
    assert f"'{cache / 'pytorch' / 'tools' / 'build_libtorch.py'}'\n" in done.out
    commands = "\n".join(line for line in done.out.splitlines() if line.startswith("  "))
    subprocess.run(["sh", "-n"], input=commands, text=True, check=True)
    assert not home.exists()


@pytest.mark.parametrize("name", ["pytorch", "build-sm86", "build-sm86.log", "build-python"])
def test_a_link_among_the_files_of_builds_leads_nowhere(
    fdl: Fdl, tmp_path: Path, name: str
) -> None:
    """A clone may have put it there."""
    link = tmp_path / "home" / "libtorch" / ".cache" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path)
    env = {"FLODL_HOME": str(tmp_path / "home")}

    done = fdl("libtorch", "build", "--archs", "8.6", "--native", "-n", env=env)

    assert (done.exit, done.out) == (1, "")
    assert f"{link}: it is a link to {tmp_path}" in done.err


def test_the_cards_of_the_machine_are_built_for(fdl: Fdl, tmp_path: Path) -> None:
    cards = [card("12.0"), card("6.1", bus=2), card("6.1", bus=3), card("8.6", bus=4)]
    env = {**nvidia(tmp_path / "nvidia", cards), "FLODL_HOME": str(tmp_path / "home")}

    all_of_them = fdl("libtorch", "build", "-n", env=env)
    # The order is that of the PCI bus.
    visible = fdl("libtorch", "build", "-n", env={**env, "CUDA_VISIBLE_DEVICES": "0,1"})
    hidden = fdl("libtorch", "build", "-n", env={**env, "CUDA_VISIBLE_DEVICES": ""})

    assert "builds/sm61-sm86-sm120 " in all_of_them.out
    assert "builds/sm61-sm120 " in visible.out
    assert "builds/sm61-sm86-sm120 " in hidden.out


def test_without_cards_the_architectures_have_to_be_named(fdl: Fdl, tmp_path: Path) -> None:
    done = fdl("libtorch", "build", env=without_nvidia(tmp_path / "nvidia"))

    assert (done.exit, done.out) == (1, "")
    assert "no NVIDIA GPU is found here to take the architectures from" in done.err
    assert 'hint: name them: fdl libtorch build --archs "6.1;12.0"' in done.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--archs", "8.6", "--jobs", "0"), "--jobs is 0"),
        (("--archs", "8.6", "--jobs", "-2"), "--jobs is -2"),
        (("--archs", "8.6", "--docker", "--native"), "--docker and --native exclude each other"),
        (("--archs", "sm_86"), "`sm_86` is not a GPU architecture"),
        (("--archs", "8.6;../x"), "`../x` is not a GPU architecture"),
        (("--archs", ""), "`` is not a GPU architecture"),
        (("--archs", "8.6", "--torch", "../2"), "`../2` is not a version of torch"),
        (
            ("--archs", "8.6", "--repository", "https://ada:pass@example.org/torch"),
            "the address of --repository holds a password",
        ),
    ],
)
@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_arguments_that_make_no_sense_are_refused(
    fdl: Fdl, tmp_path: Path, arguments: tuple[str, ...], words: str, dry: tuple[str, ...]
) -> None:
    env = {"FLODL_HOME": str(tmp_path / "home")}

    done = fdl("libtorch", "build", *arguments, *dry, env=env)

    assert (done.exit, done.out) == (2, "")
    assert words in done.err
    assert "hint: " in done.err
    assert not (tmp_path / "home").exists()


def test_a_folder_of_sources_is_named_from_where_one_stands(fdl: Fdl, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()

    done = fdl("libtorch", "build", "--archs", "8.6", "--native", "-n", "--repository", "mine")

    assert f"git config remote.origin.url {tmp_path / 'mine'}\n" in done.out


def test_nothing_to_build_for_is_refused() -> None:
    with pytest.raises(UsageError, match="no GPU architectures"):
        Request((), "2.10.0")


def test_a_plan_is_a_value() -> None:
    assert planned("6.1;12.0") == planned("12.0 6.1")
    assert planned("6.1") != planned("6.1+PTX")
    assert planned("6.1").tree == planned("6.1+PTX").tree


def test_every_variant_has_a_tree_of_its_own_and_shares_the_sources() -> None:
    one, other = planned("6.1"), planned("9.0a")

    assert one.sources == other.sources
    assert one.tree != other.tree
    assert other.request.id == "builds/sm90a"


def test_ninja_comes_with_the_python_packages_where_the_machine_has_none() -> None:
    def packages(tools: Tools) -> list[tuple[str, ...]]:
        return [step.argv[1:] for step in planned("8.6", tools=tools).phases[1].steps]

    ninja = ("-m", "pip", "install", "ninja")
    assert ninja not in packages(TOOLS)
    assert ninja in packages(Tools("/bin", (), has_ninja=False))


_ARCHITECTURES = st.from_regex(r"[1-9][0-9]?\.[0-9][af]?(\+PTX)?", fullmatch=True)


@given(st.lists(_ARCHITECTURES, min_size=1, max_size=6), st.randoms())
def test_names_are_ids_and_do_not_depend_on_the_order(words: list[str], random) -> None:
    request = Request(parse(";".join(words)), "2.10.0")
    shuffled = [*words, *words]
    random.shuffle(shuffled)

    assert is_id(request.id)
    assert Request(parse(" ".join(shuffled)), "2.10.0") == request


def test_planning_loads_nothing_that_a_dry_run_does_not_need(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom fdl.cli.entry import main\n"
        "code = main(['libtorch', 'build', '--archs', '8.6', '--docker', '-n'])\n"
        "heavy = {'torch', 'httpx2', 'pynvml', 'elftools', 'jinja2', 'filelock'}\n"
        # Typer loads pydantic to convert values; fdl's own modules take nothing from it.
        "def home(one): return getattr(one, '__module__', None) or getattr(one, '__name__', '')\n"
        "own = [name for name, module in sys.modules.items() if name.split('.')[0] == 'fdl'\n"
        "       and any(str(home(one)).startswith('pydantic') for one in vars(module).values())]\n"
        "sys.exit(code or ' '.join([*(heavy & set(sys.modules)), *own]) or 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "FLODL_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_the_commands_for_pytorch_2_13_are_the_recorded_ones(fdl: Fdl, tmp_path: Path) -> None:
    ninja = tmp_path / "ninja"
    ninja.write_text("#!/bin/sh\n")
    ninja.chmod(0o755)
    path = os.pathsep.join((str(tmp_path), os.environ["PATH"]))
    env = {"FLODL_HOME": str(tmp_path), "PATH": path, "CUDA_HOME": ""}
    words = ("--archs", "6.1;12.0", "--torch", "2.13.0", "--native", "-n", "--global")

    done = fdl("libtorch", "build", *words, env=env)

    cache = tmp_path / "libtorch" / ".cache"
    commands = [line.strip() for line in done.out.splitlines() if line.startswith("  ")]
    known = {str(cache): "STORE", sys.executable: "PYTHON"}
    shown = "\n".join(commands)
    for text, name in known.items():
        shown = shown.replace(text, name)
    recorded = (Path(__file__).parent / "pytorch-2.13.txt").read_text(encoding="utf-8")
    assert shown == recorded.partition("\n\n")[2].rstrip()
