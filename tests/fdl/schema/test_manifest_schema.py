"""The JSON Schema of fdl.yml says what fdl says."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from jinja2 import Environment, FileSystemLoader

from fdl.base.errors import ManifestError
from fdl.manifest.check import check
from fdl.manifest.json_schema import DIALECT, document
from fdl.manifest.kinds import Mapping, Section
from fdl.manifest.models import keys
from fdl.manifest.read import read
from fdl.programs.parameters.contract import ContractError, parse
from tests.fdl.schema.test_contract import REFUSED as REFUSED_CONTRACTS, Train
from tests.rows import each_row

REPOSITORY = Path(__file__).parents[3]
COPY = REPOSITORY / "docs/reference/fdl.schema.json"

MANIFESTS = [
    path
    for folder in ("tests/projects", "templates", ".")
    for path in sorted((REPOSITORY / folder).glob("*" if folder == "." else "**/*"))
    if path.name.startswith("fdl.") and ".json" not in path.suffixes and path.is_file()
]


@pytest.fixture(scope="module")
def validator() -> Any:
    jsonschema.Draft202012Validator.check_schema(document())
    return jsonschema.Draft202012Validator(document())


def plain(tmp_path: Path, text: str) -> object:
    file = tmp_path / "fdl.yml"
    file.write_text(text)
    return read(str(file)).plain()


def is_accepted(tmp_path: Path, text: str, *, whole: bool = True) -> bool:
    file = tmp_path / "fdl.yml"
    file.write_text(text)
    try:
        check(read(str(file)), whole=whole)
    except ManifestError:
        return False
    return True


def test_the_printed_schema_is_the_committed_copy(fdl):
    printed = fdl("self", "schema", "manifest")
    assert (printed.exit, printed.err) == (0, "")
    assert json.loads(printed.out)["$schema"] == DIALECT
    assert printed.out == COPY.read_text(encoding="utf-8"), (
        "renew it: python -m fdl self schema manifest > docs/reference/fdl.schema.json"
    )


@each_row("path", MANIFESTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_manifests_of_the_repository_fit(path, validator, tmp_path):
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".j2":
        loader = FileSystemLoader(REPOSITORY / "templates")
        text = (
            Environment(autoescape=False, loader=loader)
            .from_string(text)
            .render(name="x", requirement="y")
        )
    assert is_accepted(tmp_path, text, whole=False)
    validator.validate(plain(tmp_path, text))


def test_there_are_manifests_to_try():
    names = {path.name for path in MANIFESTS}
    assert {"fdl.yml", "fdl.yml.j2"} <= names


ACCEPTED = [
    "",
    "~",
    "commands: {t: , u: {run: echo}, v: {description: x, env: {A: 1, B: true, C: ~, D: x}}}",
    "commands: {p: {options: {a: 1, b: [1, x], c: ~, d: true, e: 1.5}}}",
    "commands: {p: {options: {a: {b: {c: 1}, d: [x]}, -lr: 1}, subcommand: fit}}",
    "commands: {p: {options: {a: [[1, [x]], {b: [true]}]}}}",
    "{entry: python x.py, style: hydra, training: {optimizer: {lr: 0.1, name: ~}}}",
    "inherit-from: ../fdl.yml",
    "inherit-from: ~",
    "{arg-name: recipe, compile: true, docker: dev, entry: python main.py}",
    "env_file: .env",
    "env_file: [.env, {path: .env.local, required: false}, {path: x}]",
    "ddp: {mode: solo-0, anchor: auto, progressive: auto, speed_hint: {slow_rank: 1, ratio: 2.5}}",
    "ddp: {mode: nccl-async, anchor: 3, progressive: false, partition_ratios: [1, 0.5]}",
    "ddp: {mode: ~, policy: sync, backend: cpu, max_batch_diff: 0}",
    "training: {epochs: 1, batch_size: 2, lr: 1e-3, seed: 0, batches_per_epoch: 9}",
    "output: {dir: runs, monitor: 0, timeline: true}",
    f"schema: {json.dumps(Train.schema())}",
    "schema: {strict: true, options: {a-b: {type: 'list[int]', default: '1,2', choices: [1, 2]}}}",
]


@each_row("text", ACCEPTED)
def test_what_fdl_accepts_fits(text, validator, tmp_path):
    assert is_accepted(tmp_path, text)
    validator.validate(plain(tmp_path, text))


REFUSED = [
    "comands: {}",
    "commands: []",
    "commands: {t: echo}",
    "commands: {t: {rn: echo}}",
    "commands: {t: {run: [a]}}",
    "commands: {t: {run: 3}}",
    "commands: {t: {env: {A: [1]}}}",
    "commands: {t: {options: {a: {b: [~]}}}}",
    "commands: {t: {options: {a: [~]}}}",
    "commands: {t: {compile: true}}",
    "inherit-from: 42",
    "inherit-from: ''",
    "env_file: 3",
    "env_file: [{file: x}]",
    "env_file: [{path: x, required: maybe}]",
    "ddp: {mode: fast}",
    "ddp: {mode: solo-x}",
    "ddp: {mode: sync, policy: async}",
    "ddp: {mode: sync, backend: cpu}",
    "ddp: {policy: sometimes}",
    "ddp: {anchor: 1.5}",
    "ddp: {max_anchor: -1}",
    "ddp: {progressive: 2}",
    "ddp: {speed_hint: {slow_rank: -1, ratio: 1}}",
    "ddp: {speed_hint: {slow_rank: 1, ratio: 0}}",
    "ddp: {speed_hint: {slow: 1, ratio: 1}}",
    "ddp: {partition_ratios: 0.5}",
    "training: {epochs: many}",
    "training: {epochs: 1.5}",
    "training: {batch_size: 0}",
    "training: {lr: fast}",
    "training: {learning_rate: 1}",
    "output: {dir: 3}",
    "output: {monitor: 65536}",
    "output: {timeline: 1}",
    "compile: 1",
    "description: [a]",
    "schema: [a]",
]


@each_row("text", REFUSED)
def test_what_fdl_refuses_does_not_fit(text, validator, tmp_path):
    assert not is_accepted(tmp_path, text)
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(plain(tmp_path, text))


# Rules over several keys, and what one layer may leave to another.
BEYOND = ("needs a", "repeats", "has already", "cannot follow", "beside", "which is no", "of type")


@each_row(("made", "message"), [(getattr(one, "values", one)) for one in REFUSED_CONTRACTS])
def test_a_schema_in_the_manifest_is_judged_as_by_the_contract(made, message, validator):
    with pytest.raises(ContractError):
        parse(made)
    if not any(words in message for words in BEYOND):
        with pytest.raises(jsonschema.ValidationError):
            validator.validate({"schema": made})


def test_a_schema_in_the_manifest_may_hold_the_keys_of_the_contract():
    inline = document()["$defs"]["Arguments"]
    rows = {
        "": inline,
        "args": inline["properties"]["args"]["items"],
        "options": inline["properties"]["options"]["additionalProperties"],
    }
    known = {"": "", "args": {"name": "x", "type": "int"}, "options": {"type": "int"}}
    for where, row in rows.items():
        one = {**known[where], "unheard-of": 1} if where else {}
        shape = {"unheard-of": 1, "args": [one], "options": {"x": one}}
        made = shape if not where else {where: shape[where]}
        with pytest.raises(ContractError) as caught:
            parse(made, closed=True)
        listed = str(caught.value).partition("known here: ")[2]
        assert set(row["properties"]) == set(listed.split(", "))


def below(model):
    """The models that inherit from one, at any distance."""
    for one in model.__subclasses__():
        yield one
        yield from below(one)


def test_every_key_tells_an_editor_what_it_is_for():
    made = document()
    definitions = {
        name: one
        for name, one in made["$defs"].items()
        if name not in ("Arguments", "Item", "Settings")
    }
    shown = {"Root": made, **definitions}
    sections = {one.__name__: one for one in below(Mapping) if one is not Section}
    assert set(shown) == set(sections)
    for name, section in sections.items():
        properties = shown[name]["properties"]
        assert list(properties) == keys(section)
        assert shown[name]["additionalProperties"] is False or name == "Training"
        for key, one in properties.items():
            assert len(one.get("description", "")) > 10, f"{name}.{key}"
    modes = made["$defs"]["Ddp"]["properties"]["mode"]["anyOf"][0]["enum"]
    assert "nccl-cadence" in modes


def test_a_manifest_that_names_the_editors_copy_gets_it_and_keeps_it_current(project, fdl):
    header = "# yaml-language-server: $schema=.fdl/manifest.schema.json\n"
    folder = project({"fdl.yml.example": f"{header}commands: {{hi: {{run: echo hi}}}}\n"})
    copy = folder / ".fdl/manifest.schema.json"
    assert fdl("hi", "--help").exit == 0
    assert not (folder / ".fdl").exists()
    assert fdl("hi").out == "hi\n"
    assert json.loads(copy.read_text()) == document()
    assert (folder / ".fdl/.gitignore").read_text() == "*\n"
    copy.write_text("of another version")
    (folder / "fdl.yml").write_text(f"{header}commands: {{ho: {{run: echo ho}}}}\n")
    assert fdl("ho").out == "ho\n"
    assert json.loads(copy.read_text()) == document()
    assert not list((folder / ".fdl").glob("*.tmp"))


def test_a_manifest_without_the_header_gets_no_editors_copy(project, fdl):
    folder = project({"fdl.yml": "commands: {hi: {run: echo hi}}\n"})
    assert fdl("hi").out == "hi\n"
    assert not (folder / ".fdl/manifest.schema.json").exists()


def test_new_projects_name_the_editors_copy_in_every_manifest(fdl, tmp_path):
    assert fdl("init", "demo", "--native").exit == 0
    root = (tmp_path / "demo/fdl.yml").read_text().splitlines()[0]
    child = (tmp_path / "demo/train/fdl.yml").read_text().splitlines()[0]
    assert root == "# yaml-language-server: $schema=.fdl/manifest.schema.json"
    assert child == "# yaml-language-server: $schema=../.fdl/manifest.schema.json"
