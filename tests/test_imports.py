"""What importing costs, and what the packages promise by name."""

import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import fdl
import flodl
import flodl.hf

ROOT = Path(__file__).parent.parent

HEAVY = [
    "torch",
    "flodl",
    "numpy",
    "httpx2",
    "pynvml",
    "pydantic",
    "typer",
    "rich",
    "yaml",
    "jinja2",
]

DRAWN = {"fdl.base.tables"}
"""What of the base is drawn by rich."""


def modules_of(statement: str) -> set[str]:
    """What is in sys.modules after a statement, in a fresh interpreter."""
    code = f"{statement}\nimport json, sys; print(json.dumps([*sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def loaded_by(statement: str) -> set[str]:
    """The same as top-level names."""
    return {name.split(".")[0] for name in modules_of(statement)}


def of_fdl(modules: set[str]) -> set[str]:
    """The modules of fdl among others, without those that flodl may use."""
    ours = {name for name in modules if name.split(".")[0] == "fdl"}
    return {
        name for name in ours - {"fdl", "fdl.version"} if not f"{name}.".startswith("fdl.base.")
    }


def test_importing_fdl_loads_nothing_heavy():
    assert loaded_by("import fdl, fdl.__main__, fdl.plan.value, fdl.manifest").isdisjoint(HEAVY)


def test_no_part_of_fdl_loads_torch_or_flodl():
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted((ROOT / "fdl").rglob("*.py"))
    ]
    assert len(modules) > 10
    assert loaded_by(f"import {', '.join(modules)}").isdisjoint({"torch", "flodl", "numpy"})


def test_the_library_of_flodl_loads_no_fdl_but_its_base():
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted((ROOT / "flodl").rglob("*.py"))
        # A program may read its arguments with fdl; nobody imports one, or its commands.
        if path.name != "__main__.py" and path.parent.name != "commands"
    ]
    assert len(modules) > 10
    loaded = modules_of(f"import {', '.join(modules)}")
    assert of_fdl(loaded) == set()
    assert loaded.isdisjoint(DRAWN)


def test_what_both_share_loads_nothing_else_and_nothing_heavy():
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted((ROOT / "fdl/base").rglob("*.py"))
    ]
    assert len(modules) > 2
    assert modules_of(f"import {', '.join(DRAWN)}") >= {"rich"}
    loaded = modules_of(f"import {', '.join({*modules} - DRAWN)}")
    assert of_fdl(loaded) == set()
    assert {name.split(".")[0] for name in loaded}.isdisjoint(HEAVY)


@pytest.mark.parametrize("package", [fdl, flodl])
def test_every_promised_name_exists_and_no_other_is_public(package):
    promised = set(package.__all__)
    assert all(getattr(package, name) is not None for name in promised)
    modules = {name for name in vars(package) if isinstance(getattr(package, name), type(sys))}
    public = {n for n in vars(package) if not n.startswith("_")} - modules - {"TYPE_CHECKING"}
    assert public <= promised


def test_importing_flodl_starts_no_launcher():
    code = "import json, sys, flodl; print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    # What starts ranks, and what is a program of its own.
    unwanted = {"torch.distributed.elastic", "flodl.train.run.verify"}
    assert not loaded & {*unwanted, "flodl.ranks.launch.start_ranks"}


def test_both_packages_have_one_version():
    assert flodl.__version__ == fdl.__version__


def test_no_public_name_is_that_of_a_module() -> None:
    """Which of the two an import gave would depend on what was imported before."""
    for package in (flodl, flodl.hf):
        modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
        assert len(modules) > 5
        assert modules & set(package.__all__) == set()
