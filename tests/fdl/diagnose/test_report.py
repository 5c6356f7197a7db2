"""``fdl diagnose``: what it prints, as text and as JSON, and its exit codes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from fdl.machine.findings import CODES
from scripts import diagnose_schema
from tests.fdl.diagnose.conftest import SCHEMA, activate, environment, validator, variant
from tests.fdl.hardware.fake_nvml import GIB, card, without_nvidia

CU128 = {
    "cuda": "12.8",
    "torch": "2.10.0",
    "archs": "7.0 7.5 8.0 8.6 8.9 9.0 10.0 12.0",
    "source": "precompiled",
    "variant": "cu128",
}


@pytest.mark.case("cli", 62)
def test_without_a_gpu_the_json_is_valid_and_lists_none(tmp_path, fdl):
    here = {**without_nvidia(tmp_path / "nvidia"), "FLODL_HOME": str(tmp_path / "home")}
    done = fdl("diagnose", "--json", env=here)
    assert done.exit == 0
    report = json.loads(done.out)
    validator().validate(report)
    assert report["gpus"] == []
    assert report["cuda"]["devices"] == []
    assert report["libtorch"] is None
    assert report["compatible"] is None


def test_every_key_that_programs_rely_on_is_there(machine):
    here = machine([card("8.6", "NVIDIA GeForce RTX 3090")])
    folder = variant(here.root, "precompiled/cu128", **CU128)
    variant(here.root, "precompiled/cpu", cuda="none", torch="2.10.0", archs="cpu")
    activate(here.root, "precompiled/cu128")
    environment(here.root, "__version__ = '2.13.0+cu128'\ncuda: Optional[str] = '12.8'\n")
    report = here.report()
    assert report["schema_version"] == 1
    assert report["context"] == {"mode": "project", "root": str(here.root)}
    assert {"cpu", "threads", "ram_gb", "os", "docker"} <= set(report["system"])
    (gpu,) = report["gpus"]
    assert gpu["index"] == 0
    assert (gpu["name"], gpu["sm"]) == ("NVIDIA GeForce RTX 3090", "sm_86")
    assert (gpu["vram_bytes"], gpu["arch_compatible"]) == (24 * GIB, True)
    assert report["cuda"]["devices"] == report["gpus"]
    assert (report["cuda"]["driver"], report["cuda"]["version"]) == ("570.86.10", "12.8")
    assert report["libtorch"] == {
        "path": str(folder),
        "variant": "precompiled/cu128",
        "version": "2.10.0",
        "cuda": "12.8",
        "archs": CU128["archs"],
        "source": "precompiled",
    }
    assert [(one["variant"], one["active"]) for one in report["libtorch_variants"]] == [
        ("precompiled/cpu", False),
        ("precompiled/cu128", True),
    ]
    assert report["python"]["version"] == "3.12.4"
    assert report["python"]["executable"] == str(here.root / ".venv/bin/python")
    assert report["torch"] == {"version": "2.13.0+cu128", "cuda": "12.8"}
    assert report["compatible"] is True


def test_the_text_has_its_sections_and_a_verdict_per_card(machine):
    cards = [
        card("6.1", "NVIDIA GeForce GTX 1080", bus=1, memory=8 * GIB),
        card("8.6", "NVIDIA GeForce RTX 3090", bus=2),
        card("12.0", "NVIDIA GeForce RTX 5090", bus=3, memory=32 * GIB),
    ]
    here = machine(cards)
    folder = variant(here.root, "builds/own", cuda="12.8", torch="2.10.0", archs="8.6+PTX")
    activate(here.root, "builds/own")
    done = here.run(env={"CUDA_VISIBLE_DEVICES": "0,1,2", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert (done.exit, done.err) == (1, "")
    sections = {
        block.partition("\n")[0]: block.partition("\n")[2].rstrip("\n").split("\n")
        for block in done.out.split("\n\n")
    }
    assert list(sections) == [
        "Context",
        "System",
        "CUDA",
        "libtorch",
        "Compatibility",
        "Findings",
    ]
    assert sections["Context"] == ["  Mode  project", f"  Root  {here.root}"]
    assert f"  Python  3.12.4 ({here.root}/.venv/bin/python)" in sections["System"]
    assert sections["CUDA"] == [
        "  Driver   570.86.10, runs CUDA up to 12.8",
        "  Visible  CUDA_VISIBLE_DEVICES=0,1,2",
        "  [0] NVIDIA GeForce GTX 1080 -- sm_61, 8 GB",
        "  [1] NVIDIA GeForce RTX 3090 -- sm_86, 24 GB",
        "  [2] NVIDIA GeForce RTX 5090 -- sm_120, 32 GB",
    ]
    assert sections["libtorch"] == [
        "  Active     builds/own",
        f"  Path       {folder}",
        "  Version    2.10.0",
        "  CUDA       12.8",
        "  Archs      8.6+PTX",
        "  Installed  builds/own (active)",
    ]
    assert sections["Compatibility"] == [
        "  [0] NVIDIA GeForce GTX 1080 (sm_61): MISSING (no code runs on it)",
        "  [1] NVIDIA GeForce RTX 3090 (sm_86): OK (its machine code is there)",
        "  [2] NVIDIA GeForce RTX 5090 (sm_120): JIT (compiled from PTX when it is loaded)",
        "  builds/own does not serve every GPU",
    ]
    assert sections["Findings"][:2] == [
        "  error FDL304 gpu-uncovered: builds/own has no code for GPU 0 (NVIDIA GeForce GTX "
        "1080, sm_61); it is made for 8.6+PTX",
        '    hint: fdl libtorch build --archs "6.1;8.6;12.0"',
    ]
    assert "info FDL305 gpu-jit: builds/own has no machine code for GPU 2" in done.out


def test_it_fails_when_a_card_is_uncovered(machine):
    here = machine([card("6.1")])
    variant(here.root, "precompiled/cu128", **CU128)
    activate(here.root, "precompiled/cu128")
    assert here.run().exit == 1
    assert here.run("--json").exit == 1


def test_it_fails_when_no_variant_is_active(machine):
    here = machine()
    variant(here.root, "precompiled/cpu", archs="cpu")
    assert here.run().exit == 1


def test_it_passes_when_every_card_is_served(machine):
    here = machine([card("8.6")])
    variant(here.root, "precompiled/cu128", **CU128)
    activate(here.root, "precompiled/cu128")
    done = here.run()
    assert (done.exit, done.err) == (0, "")
    assert "precompiled/cu128 serves every GPU that counts" in done.out


def test_a_machine_without_cards_is_served_by_the_cpu_variant(machine):
    here = machine()
    variant(here.root, "precompiled/cpu", cuda="none", archs="cpu")
    activate(here.root, "precompiled/cpu")
    assert here.run().exit == 0
    assert here.report()["compatible"] is True


def test_outside_a_project_the_store_of_the_user_counts(machine, tmp_path):
    here = machine([card("8.6")])
    (here.root / "fdl.yml").unlink()
    variant(tmp_path / "home", "precompiled/cu128", **CU128)
    activate(tmp_path / "home", "precompiled/cu128")
    report = here.report()
    assert report["context"] == {"mode": "global", "root": str(tmp_path / "home")}
    assert report["libtorch"]["variant"] == "precompiled/cu128"


def test_from_a_folder_of_the_project_its_root_counts(machine):
    here = machine()
    deep = here.root / "src/deep"
    deep.mkdir(parents=True)
    done = here.fdl("diagnose", "--json", cwd=deep, env=here.environ)
    assert json.loads(done.out)["context"] == {"mode": "project", "root": str(here.root)}


def test_colour_marks_what_is_wrong(machine):
    here = machine([card("6.1")])
    variant(here.root, "precompiled/cpu", archs="cpu")
    activate(here.root, "precompiled/cpu")
    done = here.fdl("--ansi", "diagnose", cwd=here.root, env=here.environ)
    assert "\x1b[1mCompatibility\x1b[0m" in done.out
    assert "\x1b[1;31mMISSING\x1b[0m" in done.out
    assert "\x1b[1;31merror\x1b[0m FDL304" in done.out


def test_torch_is_not_imported(machine):
    here = machine()
    environment(here.root, "__version__ = '2.13.0+cpu'\ncuda = None\nraise SystemExit(3)\n")
    assert here.report()["torch"] == {"version": "2.13.0+cpu", "cuda": None}


def test_an_activated_environment_counts_where_the_project_has_none(machine, tmp_path):
    here = machine()
    (here.root / ".venv").rename(tmp_path / "elsewhere")
    report = here.report({"VIRTUAL_ENV": str(tmp_path / "elsewhere")})
    assert report["python"]["executable"] == str(tmp_path / "elsewhere/bin/python")


def test_without_any_environment_it_is_that_of_fdl(machine, tmp_path):
    here = machine()
    (here.root / ".venv").rename(tmp_path / "elsewhere")
    report = here.report({"VIRTUAL_ENV": ""})
    assert report["python"]["version"] == ".".join(map(str, sys.version_info[:3]))
    # An environment has several names for its interpreter.
    named, running = Path(report["python"]["executable"]), Path(sys.executable)
    assert named.parent == running.parent
    assert named.samefile(running)


def test_a_broken_torch_is_told_as_far_as_it_can_be(machine):
    here = machine()
    environment(here.root, "__version__ = '2.13.0+cpu'\ndef (\n")
    assert here.report()["torch"] == {"version": "", "cuda": None}


def test_the_schema_of_the_reference_is_made_from_the_code():
    assert SCHEMA.read_text(encoding="utf-8") == diagnose_schema.as_json()


def test_the_schema_explains_every_key():
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    for record in (schema, *schema["$defs"].values()):
        assert record["additionalProperties"] is False
        assert set(record["required"]) == set(record["properties"])
        for name, rule in record["properties"].items():
            assert "description" in rule or "$ref" in rule, name


def test_the_reference_explains_every_finding():
    page = SCHEMA.with_name("diagnose.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| FDL")]
    assert rows == [
        f"| {one.id} | `{one.name}` | {one.severity} | {one.meaning} |" for one in CODES.values()
    ]


def test_the_reference_shows_what_the_command_prints(machine):
    page = SCHEMA.with_name("diagnose.md").read_text(encoding="utf-8")
    shown = page.partition("```text\n")[2].partition("```")[0]
    cards = [
        card("6.1", "NVIDIA GeForce GTX 1060 6GB", bus=1, memory=6 * GIB),
        card("12.0", "NVIDIA GeForce RTX 5060 Ti", bus=2, memory=16 * GIB),
    ]
    here = machine(cards)
    variant(here.root, "precompiled/cu128", **CU128)
    variant(here.root, "precompiled/cpu", cuda="none", torch="2.10.0", archs="cpu")
    activate(here.root, "precompiled/cu128")
    environment(here.root, "__version__ = '2.13.0+cu128'\ncuda = '12.8'\n")
    printed = here.run().out.replace(str(here.root), "/home/you/project")
    for title in ("Context", "CUDA", "libtorch", "Compatibility", "Findings"):
        assert block(shown, title) == block(printed, title)


def block(text: str, title: str) -> list[str]:
    (found,) = [one for one in text.strip().split("\n\n") if one.startswith(f"{title}\n")]
    return [line for line in found.splitlines() if "FDL231" not in line]


def test_nothing_is_left_behind(machine):
    here = machine([card("8.6")])
    before = sorted(here.root.rglob("*"))
    here.report()
    assert sorted(here.root.rglob("*")) == before
