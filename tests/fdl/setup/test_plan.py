"""What a project is prepared with: images, a virtual environment, or both."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fdl.base.errors import FdlError, LibtorchError
from fdl.base.hardware import Trouble
from fdl.machine.setup_plan import Program, ProjectFacts, plan
from tests.fdl.setup.machines import BUILD, CPU, CU128, NOBODY, ROOT, Typed, machine
from tests.rows import each_row

PROJECT = ProjectFacts(ROOT, services=("dev", "cuda"), is_package=True)
NATIVE = replace(PROJECT, services=())
PYTHON = ".venv/bin/python"
VENV = f"{sys.executable} -m venv .venv"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def torch_from(index, pip=f"{PYTHON} -m pip install"):
    return f"{pip} --no-deps --index-url {index} torch"


def rest(pip=f"{PYTHON} -m pip install"):
    return f"{pip} --editable . torch"


def steps(facts, questions=NOBODY, environ=None):
    """The steps behind those of libtorch."""
    found = plan(facts, questions, environ or {})
    return [step.typed for step in found.steps if isinstance(step, Program)]


def test_without_docker_and_without_venvs_there_are_instructions():
    with pytest.raises(FdlError) as refused:
        plan(machine(makes_venvs=False), NOBODY, {})
    assert "neither Docker nor a Python" in refused.value.message
    assert "python3-venv" in refused.value.hint
    assert refused.value.exit_code == 1
    with pytest.raises(FdlError):
        plan(machine(makes_venvs=False, docker="container"), NOBODY, {})
    assert plan(machine(makes_venvs=False, docker="27.0"), NOBODY, {}).steps
    assert plan(machine(makes_venvs=False, tools={"uv": "0.5"}), NOBODY, {}).steps


def test_a_machine_without_a_project_gets_libtorch_alone():
    found = plan(machine("8.6", docker="27.0"), NOBODY, {})
    assert steps(machine("8.6", docker="27.0")) == []
    assert [typed for typed, _ in found.next] == [
        "fdl libtorch env",
        "fdl init NAME",
        "fdl diagnose",
    ]


@each_row(
    ("capabilities", "active", "services", "built"),
    [
        ((), None, ("dev", "cuda"), ["dev"]),
        (("8.6",), None, ("dev", "cuda"), ["dev", "cuda"]),
        (("8.6",), CU128, ("dev", "cuda"), ["dev", "cuda"]),
        (("8.6",), None, ("dev",), ["dev"]),
        (("8.6",), None, ("cuda",), ["cuda"]),
        ((), CU128, ("dev", "cuda"), ["dev"]),
        (("6.1", "12.0"), BUILD, ("dev", "cuda"), ["dev", "cuda"]),
    ],
)
def test_with_docker_the_images_are_built(capabilities, active, services, built):
    project = replace(PROJECT, services=services)
    facts = machine(*capabilities, active=active, docker="27.0", project=project)
    assert steps(facts) == [f"docker compose build {service}" for service in built]
    assert all(
        step.optional and step.images for step in plan(facts, NOBODY, {}).steps[-len(built) :]
    )


@each_row(
    ("answer", "docker", "native"),
    [("", True, False), ("1", True, False), ("2", False, True), ("3", True, True)],
)
def test_a_person_chooses_between_docker_and_native(answer, docker, native):
    found = steps(machine(docker="27.0", project=PROJECT), Typed(answer))
    assert ("docker compose build dev" in found) is docker
    assert (VENV in found) is native


@each_row(
    ("docker", "project", "makes_venvs", "first"),
    [
        ("", PROJECT, True, VENV),
        ("container", PROJECT, True, VENV),
        ("27.0", NATIVE, True, VENV),
        ("27.0", PROJECT, False, "docker compose build dev"),
    ],
)
def test_what_is_missing_is_not_offered(docker, project, makes_venvs, first):
    facts = machine(docker=docker, project=project, makes_venvs=makes_venvs)
    assert steps(facts, Typed())[0] == first


@each_row(("docker", "word"), [("", "not installed"), ("container", "container")])
def test_a_compose_file_that_nothing_can_build_is_told(docker, word):
    notes = plan(machine(docker=docker, project=PROJECT), NOBODY, {}).notes
    assert any(word in note for note in notes)
    notes = plan(machine(docker=docker, project=NATIVE), NOBODY, {}).notes
    assert not any(word in note for note in notes)


@each_row(
    ("capabilities", "active", "index"),
    [
        ((), None, CPU_INDEX),
        ((), CPU, CPU_INDEX),
        (("8.6",), None, "https://download.pytorch.org/whl/cu128"),
        (("6.1",), CPU, "https://download.pytorch.org/whl/cu126"),
        (("6.1", "12.0"), BUILD, "https://download.pytorch.org/whl/cu128"),
    ],
)
def test_torch_comes_from_the_index_of_the_variant(capabilities, active, index):
    facts = machine(*capabilities, active=active, project=NATIVE)
    assert steps(facts) == [VENV, torch_from(index), rest()]


@each_row(
    ("capabilities", "more", "folder"),
    [
        ((), {}, "cpu"),
        (("8.6",), {}, "cu128"),
        (("6.1", "12.0"), {}, "cu126"),
        (("8.6",), {"driver": "450.80.02"}, "cpu"),
    ],
)
def test_a_project_without_libtorch_gets_torch_alone(capabilities, more, folder):
    facts = machine(*capabilities, project=NATIVE, needs_libtorch=False, **more)
    for one in (facts, replace(facts, archives=(), no_archives=LibtorchError("no archives"))):
        found = plan(one, Typed(), {}, force=True)
        index = f"https://download.pytorch.org/whl/{'cpu' if one.no_archives else folder}"
        assert [step.typed for step in found.steps] == [VENV, torch_from(index), rest()]
        assert found.hint == ""


def broken(**more):
    """A machine with a GPU whose driver fails, and a project that uses torch alone."""
    facts = machine(project=NATIVE, needs_libtorch=False, **more)
    trouble = Trouble("driver-mismatch", "the driver has been updated", "sudo reboot")
    return replace(facts, nvidia=replace(facts.nvidia, present=True, troubles=(trouble,)))


def test_a_driver_that_fails_does_not_bring_a_torch_for_the_processor():
    with pytest.raises(LibtorchError, match="cannot choose a torch: the driver has been") as no:
        plan(broken(), NOBODY, {})
    assert no.value.hint == (
        "repair the driver (sudo reboot), or decide yourself: "
        "FLODL_TORCH_INDEX=https://download.pytorch.org/whl/cpu fdl setup"
    )
    decided = {"FLODL_TORCH_INDEX": CPU_INDEX}
    assert steps(broken(), environ=decided) == [VENV, torch_from(CPU_INDEX), rest()]
    assert steps(broken(), Typed("y")) == [VENV, torch_from(CPU_INDEX), rest()]


def test_a_torch_that_is_there_needs_no_choice():
    facts = broken()
    there = replace(NATIVE, has_venv=True, venv_has_pip=True, venv_has_torch=True)
    assert steps(replace(facts, project=there)) == [rest()]


def test_the_index_of_torch_can_be_another():
    environ = {"FLODL_TORCH_INDEX": "http://mirror/whl"}
    assert torch_from("http://mirror/whl") in steps(machine(project=NATIVE), environ=environ)


def test_what_is_there_is_not_made_again():
    there = replace(NATIVE, has_venv=True, venv_has_pip=True, venv_has_torch=True)
    assert steps(machine(project=there)) == [rest()]


def test_a_project_that_is_no_package_gets_torch_alone():
    bare = replace(NATIVE, is_package=False)
    assert steps(machine(project=bare))[-1] == f"{PYTHON} -m pip install torch"


UV = f"uv pip install --python {PYTHON}"
OWN = f"{sys.executable} -m pip --python {PYTHON} install"


@each_row(
    ("facts", "expected"),
    [
        # Debian without python3-venv, with uv.
        (
            {"makes_venvs": False, "tools": {"uv": "0.5"}},
            ["uv venv --seed .venv", torch_from(CPU_INDEX), rest()],
        ),
        # An environment that uv has made holds no pip.
        ({"has_venv": True}, [torch_from(CPU_INDEX, OWN), rest(OWN)]),
        (
            {"has_venv": True, "own_pip": False, "tools": {"uv": "0.5"}},
            [torch_from(CPU_INDEX, UV), rest(UV)],
        ),
    ],
)
def test_environments_without_pip(facts, expected):
    more = {key: value for key, value in facts.items() if key != "has_venv"}
    project = replace(NATIVE, has_venv=facts.get("has_venv", False))
    assert steps(machine(project=project, **more)) == expected


def test_every_step_of_a_project_runs_in_its_folder():
    found = plan(machine(docker="27.0", project=PROJECT), Typed("3"), {})
    assert {step.cwd for step in found.steps if hasattr(step, "cwd")} == {Path("/home/me/project")}
