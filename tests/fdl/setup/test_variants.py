"""Which libtorch a machine gets: one row per machine, and what people answer."""

import sys
from dataclasses import replace

import pytest

from fdl.base.errors import LibtorchError
from fdl.base.hardware import Gpu, Trouble
from fdl.machine.setup_plan import decide
from tests.fdl.setup.machines import BUILD, CPU, CU128, NOBODY, Typed, machine, variant
from tests.rows import each_row

GET_CPU = "fdl libtorch download --cpu --no-activate"
USE_CPU = "fdl libtorch install cpu"
USE_CU126 = "fdl libtorch install cu126"
USE_CU128 = "fdl libtorch install cu128"
PICK_CPU = "fdl libtorch activate precompiled/cpu"
PICK_BUILD = "fdl libtorch activate builds/sm61-sm120"
MIXED = ("6.1", "12.0")
PARTIAL = variant("builds/sm61", cuda="12.8", torch="2.10.0", archs="6.1")


def typed(outcome):
    return [step.typed for step in outcome.steps]


@each_row(
    ("facts", "force", "steps", "cuda"),
    [
        # A machine that has nothing yet.
        (machine(), False, [USE_CPU], None),
        (machine("7.5"), False, [GET_CPU, USE_CU128], "12.8"),
        (machine("12.0"), False, [GET_CPU, USE_CU128], "12.8"),
        (machine("6.1"), False, [GET_CPU, USE_CU126], "12.6"),
        (machine("6.1", "8.6"), False, [GET_CPU, USE_CU126], "12.6"),
        (machine(*MIXED), False, [GET_CPU, USE_CU126], "12.6"),
        # The CPU variant is there: it is not fetched again, and used when nothing else is.
        (machine(installed=(CPU,)), False, [PICK_CPU], None),
        (machine(installed=(CPU,), active=CPU), False, [], None),
        (machine("8.6", installed=(CPU,), active=CPU), False, [USE_CU128], "12.8"),
        (machine(installed=(CPU,)), True, [USE_CPU], None),
        # A CUDA variant in use stays, whatever the GPUs are, unless --force.
        (machine("6.1", installed=(CU128,), active=CU128), False, [], "12.8"),
        (machine("6.1", installed=(CU128,), active=CU128), True, [GET_CPU, USE_CU126], "12.6"),
        (machine(installed=(CU128,), active=CU128), True, [GET_CPU], "12.8"),
        (machine(*MIXED, installed=(BUILD,), active=BUILD), False, [], "12.8"),
        # One's own build is used where no archive serves all GPUs, if it does.
        (machine(*MIXED, installed=(BUILD, CPU)), False, [PICK_BUILD], "12.8"),
        (machine(*MIXED, installed=(BUILD, CPU), active=CPU), False, [PICK_BUILD], "12.8"),
        (machine(*MIXED, installed=(PARTIAL, CPU)), False, [USE_CU126], "12.6"),
        (machine("8.6", installed=(BUILD, CPU)), False, [USE_CU128], "12.8"),
        # Platforms and drivers.
        (machine("8.6", platform="macos-arm64"), False, [USE_CPU], None),
        (machine("8.6", driver="450.80.02"), False, [USE_CPU], None),
        (machine("8.6", driver="570.86.10"), False, [GET_CPU, USE_CU128], "12.8"),
    ],
)
def test_without_anybody_to_ask(facts, force, steps, cuda):
    outcome = decide(facts, NOBODY, force=force)
    assert (typed(outcome), outcome.cuda) == (steps, cuda)


def test_what_is_left_out_is_told_with_the_remedy():
    outcome = decide(machine(*MIXED), NOBODY, force=False)
    assert outcome.hint == 'fdl libtorch build --archs "6.1;12.0"'
    (note,) = outcome.notes
    assert note == "no archive has code for all GPUs; cu126 leaves out [1] GPU 12.0 (sm_120)"


def test_a_driver_that_is_too_old_is_told():
    outcome = decide(machine("8.6", driver="450.80.02"), NOBODY, force=False)
    assert "driver 450.80.02 is too old" in outcome.notes[0]
    assert outcome.hint.startswith("update the driver")


def test_hidden_cards_do_not_count():
    facts = machine("8.6", "6.1")
    shown, hidden = facts.nvidia.gpus
    hidden = Gpu(1, hidden.name, hidden.capability, visible=False)
    facts = replace(facts, nvidia=replace(facts.nvidia, gpus=(shown, hidden)))
    assert typed(decide(facts, NOBODY, force=False)) == [GET_CPU, USE_CU128]


@each_row(
    ("answers", "steps"),
    [
        (["y"], [GET_CPU, USE_CU126]),
        (["maybe", "YES"], [GET_CPU, USE_CU126]),
        (["n"], []),
        ([""], []),
    ],
)
def test_a_person_may_have_a_cuda_variant_installed_afresh(answers, steps):
    person = Typed(*answers)
    outcome = decide(machine("6.1", installed=(CU128,), active=CU128), person, force=False)
    assert typed(outcome) == steps
    assert person.left == []


def test_force_asks_nothing():
    assert decide(machine("6.1", active=CU128), Typed(), force=True).cuda == "12.6"


@each_row(
    ("answers", "active", "steps", "cuda"),
    [
        ([""], None, [USE_CPU], None),
        (["4"], None, [USE_CPU], None),
        (["4"], CPU, [GET_CPU], None),
        (["0", "5", "x", "3"], None, [GET_CPU, USE_CU126], "12.6"),
        (["2"], None, [GET_CPU, USE_CU128], "12.8"),
        (["1"], CPU, [GET_CPU, "BUILD"], "12.6"),
        # Until the build is there, something has to be in use.
        (["1"], None, [USE_CPU, "BUILD"], "12.6"),
    ],
)
def test_a_person_with_mixed_cards_chooses(answers, active, steps, cuda):
    outcome = decide(machine(*MIXED, active=active), Typed(*answers), force=False)
    build = f"{sys.executable} -P -m fdl libtorch build --archs '6.1;12.0'"
    assert typed(outcome) == [build if step == "BUILD" else step for step in steps]
    assert outcome.cuda == cuda


def test_the_menu_says_whom_each_variant_serves(capsys):
    decide(machine(*MIXED), Typed(""), force=False)
    assert capsys.readouterr().err.splitlines() == [
        "No archive of libtorch has code for all of your GPUs.",
        "  1  build libtorch for 6.1;12.0: serves every GPU, takes hours",
        "  2  install cu128: leaves out GPU 6.1",
        "  3  install cu126: leaves out GPU 12.0",
        "  4  leave it for now",
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="torch's package serves Linux alone")
@each_row(
    ("capabilities", "active", "steps"),
    [
        ((), None, ["fdl libtorch install cpu --source wheel"]),
        (("9.0",), None, ["fdl libtorch install auto --source wheel"]),
        (("9.0",), CPU, []),
    ],
)
def test_where_there_are_no_archives_the_python_package_serves(capabilities, active, steps):
    none = LibtorchError("no archive", hint="fdl libtorch install --source wheel")
    facts = machine(*capabilities, active=active, no_archives=none)
    assert typed(decide(facts, NOBODY, force=False)) == steps


def broken(**more):
    """A machine with a GPU whose driver fails."""
    facts = machine(**more)
    trouble = Trouble("driver-mismatch", "the driver has been updated", "sudo reboot")
    return replace(facts, nvidia=replace(facts.nvidia, present=True, troubles=(trouble,)))


def test_a_driver_that_fails_chooses_nothing():
    with pytest.raises(LibtorchError, match="cannot choose a libtorch: the driver has been") as no:
        decide(broken(), NOBODY, force=False)
    assert "repair the driver (sudo reboot)" in no.value.hint
    assert "fdl libtorch install cpu, then fdl setup" in no.value.hint
    with pytest.raises(LibtorchError):
        decide(broken(), Typed(""), force=False)


def test_a_user_may_take_the_cpu_build_beside_a_driver_that_fails():
    assert typed(decide(broken(), Typed("y"), force=False)) == [USE_CPU]
    # Who has installed it before has decided already.
    assert typed(decide(broken(installed=(CPU,), active=CPU), NOBODY, force=False)) == []


def test_without_archives_a_driver_that_fails_chooses_nothing_either():
    none = LibtorchError("no archive", hint="fdl libtorch install --source wheel")
    with pytest.raises(LibtorchError, match="cannot choose a libtorch: the driver has been"):
        decide(broken(no_archives=none), NOBODY, force=False)


def test_a_driver_that_fails_is_not_called_a_machine_without_gpus():
    outcome = decide(broken(installed=(CPU,), active=CPU), NOBODY, force=True)
    assert outcome.notes == ("the GPUs are left out, because the driver has been updated",)
    assert outcome.hint == "sudo reboot"
