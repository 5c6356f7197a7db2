"""Programs of published packages: read, driven by a preset, and compared with their own help.

``UPDATE_SCREENS=1`` renews the first part of docs/reference/foreign-programs.md. The other part
belongs to tests/fdl/conformance/test_matrix.py.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[4] / "docs/reference/foreign-programs.md"

# Package, entry, settings of a preset, the arguments that drive the program.
PROGRAMS = [
    (
        *("gensim", "python -m gensim.scripts.word2vec_standalone"),
        *({"train": "a.txt", "min_count": 1}, ["-min_count", "1", "-train", "a.txt"]),
    ),
    (
        *("accelerate", "python -m accelerate.test_utils.scripts.external_deps.test_performance"),
        *({"num_epochs": 3, "output_dir": "out"}, ["--num_epochs", "3", "--output_dir", "out"]),
    ),
    (
        "accelerate",
        "python -m accelerate.test_utils.scripts.external_deps.test_checkpointing",
        {"num_epochs": 2, "resume_from_checkpoint": "a"},
        ["--num_epochs", "2", "--resume_from_checkpoint", "a"],
    ),
    (
        *("onnxruntime", "python -m onnxruntime.transformers.optimizer"),
        *({"num_heads": 12, "use_gpu": True}, ["--num_heads", "12", "--use_gpu"]),
    ),
    (
        *("onnxruntime", "python -m onnxruntime.transformers.models.gpt2.convert_to_onnx"),
        *({"model_name_or_path": "gpt2", "precision": "fp16"},),
        ["--model_name_or_path", "gpt2", "--precision", "fp16"],
    ),
    (
        *("onnxruntime", "python -m onnxruntime.transformers.benchmark"),
        *({"batch_sizes": [1, 8], "models": ["a"]}, ["--batch_sizes", "1", "8", "--models", "a"]),
    ),
    (
        *("onnxruntime", "python -m onnxruntime.quantization.static_quantize_runner"),
        *({"per_channel": True}, ["--per_channel"]),
    ),
    (
        "transformers",
        "python -m transformers.convert_slow_tokenizers_checkpoints_to_fast",
        {"dump_path": "out", "force_download": True},
        ["--dump_path", "out", "--force_download"],
    ),
    ("torch", "torchrun", {"nproc-per-node": 2}, ["--nproc-per-node", "2"]),
    (
        *("torch", "python -m torch.utils.model_dump"),
        *({"style": "json", "model": "m.pt"}, ["--style", "json", "m.pt"]),
    ),
    (
        *("pytorch-lightning", "python -m pytorch_lightning.utilities.upgrade_checkpoint"),
        *({"extension": ".pt", "path": "a"}, ["--extension", ".pt", "a"]),
    ),
    (
        *("lightning-fabric", "python -m lightning_fabric.cli run"),
        *({"devices": 2, "accelerator": "cpu"}, ["--accelerator", "cpu", "--devices", "2"]),
    ),
    (
        *("python-dotenv", "dotenv"),
        *({"quote": "never", "file": ".env"}, ["--file", ".env", "--quote", "never"]),
    ),
    ("accelerate", "accelerate env", {"config_file": "a.yml"}, ["--config_file", "a.yml"]),
]
PACKAGES = {"lightning-fabric": "pytorch-lightning"}


@pytest.fixture
def opened(project):
    """A project around an entry with a preset: its level, for reading."""

    def make(entry, options):
        from fdl.manifest.discover import find_in
        from fdl.manifest.select.level import enter
        from fdl.manifest.select.project import Project

        folder = project(
            {
                "fdl.yml": "commands: {t: }\n",
                "t/fdl.yml": json.dumps({"entry": entry, "commands": {"p": {"options": options}}}),
            }
        )
        made = Project(find_in(str(folder)))
        return enter(made.level(), "t", made.child)

    return make


def row(package, entry, options, level) -> str:
    from fdl.programs.schema import known

    schema = known(level)
    everything = [schema, *schema.commands.values()]
    unknown = sum(bool(one.computed) for part in everything for one in part.parameters)
    commands = ", ".join(f"`{name}`" for name in schema.commands) or ""
    count = sum(len(part.parameters) for part in everything)
    driven = f"`{json.dumps(options)}`"
    release = version(PACKAGES.get(package, package)).partition("+")[0]
    return f"| {package} {release} | `{entry}` | {count} | {commands} | {unknown} | {driven} |"


@pytest.mark.slow
def test_the_page_lists_what_is_read_of_real_programs(opened):
    rows = [row(package, entry, options, opened(entry, options))
            for package, entry, options, _ in PROGRAMS]  # fmt: skip
    text = "\n".join(
        [
            "# Programs of other packages",
            "",
            "`fdl` reads the arguments of these programs from their source and drives them by a",
            "preset. The tests read them where they are installed. *Computed* counts arguments",
            "with a type, default or choice that only the running program knows.",
            "",
            "| package | entry | arguments | subcommands | computed | driven by `options` |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )
    shown, title, rest = PAGE.read_text(encoding="utf-8").partition("\n## Kinds of options\n")
    if os.environ.get("UPDATE_SCREENS"):
        PAGE.write_text(f"{text}{title}{rest}", encoding="utf-8")
    else:
        assert shown == text
    assert len(rows) >= 12


DRIVEN = [program[1:] for program in PROGRAMS]


@pytest.mark.parametrize(("entry", "options", "words"), DRIVEN)
def test_a_preset_drives_a_real_program(opened, fdl, entry, options, words):
    opened(entry, options)
    session = fdl("--dry-run", "--json", "t", "p")
    assert session.exit == 0, session.err
    argv = json.loads(session.out)["argv"]
    assert argv[len(entry.split()) :] == words


@pytest.mark.slow
@pytest.mark.parametrize("entry", [program[1] for program in PROGRAMS])
def test_the_program_itself_has_every_option_that_was_read(opened, entry):
    from fdl.programs.schema import known, select

    schema = known(opened(entry, {}))
    schema, _ = select(schema, entry.split())
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shown = subprocess.run(
        [*entry.split(), "--help"], capture_output=True, text=True, env={**os.environ, "PATH": path}
    )
    if shown.returncode:
        pytest.skip(f"the program cannot start here: {shown.stderr[-200:]}")
    flags = set(re.findall(r"(?<![\w-])--?\w[\w.-]*", shown.stdout))
    for one in schema.options.values():
        assert flags.intersection(one.spellings), (one.spellings, shown.stdout[-500:])
