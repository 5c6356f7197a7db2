"""Remedies that are commands of fdl: each is run, and does what its finding needs."""

from __future__ import annotations

import shlex

import pytest

from tests.fdl.diagnose.conftest import activate, environment, variant
from tests.fdl.hardware.fake_nvml import card


def no_active_variant(here):
    (here.root / "libtorch.lock").write_text("{}", encoding="utf-8")


def active_variant_missing(here):
    activate(here.root, "precompiled/cu126")


def gpu_uncovered(here):
    variant(here.root, "precompiled/cpu", cuda="none", torch="2.10.0", archs="cpu")
    activate(here.root, "precompiled/cpu")


def driver_too_old(here):
    variant(here.root, "precompiled/cu130", cuda="13.0", torch="2.13.0", archs="8.6")
    activate(here.root, "precompiled/cu130")


def torch_without_cuda(here):
    environment(here.root, "__version__ = '2.13.0+cpu'\ncuda = None\n")


@pytest.mark.parametrize(
    ("bring_about", "gpus", "does"),
    [
        (no_active_variant, ["8.6"], "cu128"),
        (active_variant_missing, ["8.6"], "cu128"),
        (gpu_uncovered, ["6.1"], "cu126"),
        (gpu_uncovered, ["6.1", "12.0"], "builds/sm61-sm120"),
        (driver_too_old, ["8.6"], "cu126"),
        (torch_without_cuda, ["8.6"], "--force-reinstall"),
    ],
)
def test_a_dry_run_of_the_remedy_does_what_the_finding_needs(machine, bring_about, gpus, does):
    here = machine([card(one, bus=bus) for bus, one in enumerate(gpus, start=1)])
    bring_about(here)
    name = bring_about.__name__.replace("_", "-")
    remedy = next(one["remedy"] for one in here.report()["findings"] if one["name"] == name)
    program, *words = shlex.split(remedy)
    done = here.fdl(*words, "--dry-run", cwd=here.root, env=here.environ)
    assert (program, done.exit) == ("fdl", 0), done.err
    assert does in done.out


def test_activating_an_installed_variant_ends_the_finding(machine):
    here = machine([card("8.6")])
    variant(here.root, "builds/own", cuda="12.8", torch="2.10.0", archs="8.6")
    activate(here.root, "")
    program, *words = shlex.split(here.finding("no-active-variant")["remedy"])
    assert program == "fdl"
    assert here.fdl(*words, cwd=here.root, env=here.environ).exit == 0
    assert here.names() == []
