"""Every command with ``--json`` prints what docs/reference/documents.schema.json says.

After a change that the changelog names, write the file again:

    UPDATE_DOCUMENTS=1 pytest -m slow tests/test_documents.py
"""

import json
import os
from contextlib import ExitStack
from functools import partial, reduce
from pathlib import Path
from textwrap import dedent

import jsonschema
import pytest
import torch
from torch import nn

from fdl.cli.builtin_table import TABLE
from flodl import RunDirectory, TensorDataSet, Trainer
from tests.conftest import training_path, typed_in
from tests.fdl.libtorch.test_use import variant
from tests.fdl.run_directory.test_import import mlflow_store
from tests.fdl.run_directory.test_tell import Training, folder_for_sockets, running
from tests.fdl.run_directory.trails import trail
from tests.fdl.sweeps.conftest import MANIFEST, SCORE, TRAIN
from tests.fdl.test_rehearse import PROGRAM
from tests.flodl.distributed.recorded_runs import recorded_run

FILE = Path(__file__).parent.parent / "docs/reference/documents.schema.json"

COMMANDS = {
    "fdl --dry-run --json": [["--dry-run", "--json", "train", "quick"]],
    "fdl list": [["list"]],
    "fdl config show": [["config", "show", "train", "quick"]],
    "fdl config show (no command)": [["config", "show"]],
    "fdl why": [["why", "training.epochs", "train", "quick"]],
    "fdl why --run": [["why", "--run", "train", "quick"], ["why", "--run", "count"]],
    "fdl plan": [["plan", "train"]],
    "fdl plan --simulate": [["plan", "train", "--simulate", "40,100", "--batches", "9"]],
    "fdl self schema list": [["self", "schema", "list"]],
    "fdl runs list": [["runs", "list"]],
    "fdl runs show": [["runs", "show", "FIRST"]],
    "fdl runs compare": [["runs", "compare", "FIRST", "SECOND"]],
    "fdl runs diff": [["runs", "diff", "FIRST", "SECOND"]],
    "fdl runs tag": [["runs", "tag", "FIRST", "good"], ["runs", "tag", "SECOND"]],
    "fdl runs note": [["runs", "note", "FIRST", "a note"]],
    "fdl sweep list": [["sweep", "list"]],
    "fdl libtorch list": [["libtorch", "list"]],
    "fdl self api-ref": [["self", "api-ref", "Rng"]],
}
"""Command -> calls of it, without ``--json``. Together they show each form of the document."""

UNVERSIONED = {
    *("fdl config show (no command)", "fdl libtorch list", "fdl self schema list"),
}
"""Documents without ``schema_version``: they are arrays."""

ELSEWHERE = {"diagnose": "diagnose.schema.json", "libtorch check": "libtorch-check.md"}
"""Commands whose document another page describes."""

OPEN = {
    *("args", "best", "config", "env", "environment", "exchange", "files", "metrics"),
    *("settings", "slurm", "values", "variables"),
}
"""Keys whose value is a mapping with names of the project or the run."""

ANY = {"left", "right", "value"}
"""Keys whose value has the type of a setting or metric."""


def describe(value, key=""):
    """The JSON Schema of one value. Below the top, every value may be null."""
    if isinstance(value, dict):
        if key in OPEN:
            return {"type": {"object"}}
        return {"type": {"object"}, "properties": {k: describe(v, k) for k, v in value.items()}}
    if isinstance(value, list):
        schema = {"type": {"array"}}
        for one in map(describe, value):
            schema["items"] = join(schema["items"], one) if "items" in schema else one
        return schema
    if value is None or key in ANY:
        return {"type": set()}
    return {"type": {{bool: "boolean", int: "number", float: "number", str: "string"}[type(value)]}}


def join(first, second):
    """The schema that both values meet."""
    both = {"type": first["type"] | second["type"]}
    if "properties" in first or "properties" in second:
        one, other = first.get("properties", {}), second.get("properties", {})
        both["properties"] = {
            key: join(one[key], other[key]) if key in one and key in other else (one | other)[key]
            for key in [*one, *(key for key in other if key not in one)]
        }
    items = [part["items"] for part in (first, second) if "items" in part]
    if items:
        both["items"] = join(*items) if len(items) == 2 else items[0]
    return both


def written(schema, top=True):
    """The schema as JSON."""
    kinds = sorted(schema["type"])
    made = {"type": kinds if top else [*kinds, "null"]} if kinds else {}
    if "properties" in schema:
        below = schema["properties"].items()
        made["properties"] = {key: written(one, top=False) for key, one in below}
    if "items" in schema:
        made["items"] = written(schema["items"], top=False)
    return made


def closed(schema):
    """The same schema, which refuses keys that it does not know."""
    made = dict(schema)
    if "properties" in made:
        made["properties"] = {key: closed(one) for key, one in made["properties"].items()}
        made["additionalProperties"] = False
    if "items" in made:
        made["items"] = closed(made["items"])
    return made


@pytest.fixture
def printed(fdl, fixture_project, tmp_path):
    """Command -> the documents that it prints, in a project with two real runs."""
    root = fixture_project("vision")
    data = TensorDataSet(torch.arange(8.0).reshape(8, 1), names=["x"])

    def step(model, batch):
        return model(batch["x"]).square().mean()

    names = []
    for rate in (0.01, 0.02):
        torch.manual_seed(0)
        trainer = Trainer.builder(
            lambda device: nn.Linear(1, 1).to(device), partial(torch.optim.SGD, lr=rate), step
        )
        trainer.dataset(data).batch_size(4).num_epochs(2).engine("eager")
        run = RunDirectory.create(root / "runs", config={"training": {"lr": rate}})
        trainer.run_dir(run).run().join()
        names.append(run.path.name)
    first, second = names

    def ask(words):
        words = [word.replace("FIRST", first).replace("SECOND", second) for word in words]
        done = fdl(*(words if "--json" in words else [*words, "--json"]), cwd=root)
        return json.loads(done.out) if done.out else pytest.fail(f"{words}: {done.err}")

    documents = {name: [ask(words) for words in calls] for name, calls in COMMANDS.items()}
    return documents | {name: [asked(name, tmp_path / name.split()[-1])] for name in PREPARATIONS}


def asked(name, folder):
    """The document of a command of :data:`PREPARATIONS`, in a folder of its own."""
    _, *words = name.split()
    folder.mkdir()
    fdl = typed_in(folder, training_path(os.environ) if name == "fdl plan --try" else None)
    with ExitStack() as stack:
        words, more = PREPARATIONS[name](folder, words, fdl, stack)
        done = fdl(*words, **more)
    # A rehearsal prints what the program prints, and then its document.
    return json.loads(done.out[done.out.index("{") :]) if "{" in done.out else pytest.fail(done.err)


def write(folder, files):
    for file, text in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(dedent(text).lstrip("\n"))


def libtorch(folder, words, _fdl, _stack):
    store = folder / "home/libtorch"
    variant(store, "precompiled/cpu", "cuda=none", "torch=2.10.0", "archs=cpu")
    (store / ".active").write_text("precompiled/cpu\n")
    return [*words, "--json"], {"env": {"FLODL_HOME": str(folder / "home")}}


def rehearsal(folder, words, _fdl, _stack):
    write(folder, {"fdl.yml": "commands: {train: {path: train}}\n"})
    write(folder, {"train/fdl.yml": "entry: python main.py\n", "train/main.py": PROGRAM})
    return [*words, "--json", "train"], {}


def imported(folder, words, _fdl, _stack):
    write(folder, {"fdl.yml": "entry: python main.py\n"})
    mlflow_store(folder / "mlruns")
    return [*words, "mlruns", "--json"], {}


def told(folder, words, _fdl, stack):
    write(folder, {"fdl.yml": "entry: python main.py\noutput: {dir: out}\n"})
    training = Training(stack.enter_context(folder_for_sockets()), folder / "out")
    stack.callback(training.close)
    training.answer = {"ok": True, "act": "lr", "step": 7, "value": 0.01, "old": 0.1, "text": "lr"}
    running(folder / "out", socket=str(training.path))
    return [*words, "last", "lr=1e-2", "--json"], {}


def swept(folder, words, fdl, _stack):
    write(folder, {"fdl.yml": MANIFEST, "train/fdl.yml": TRAIN, "train/score.py": SCORE})
    fdl("train", "--each", "seed=1,13")
    return [*words, "--json"], {}


def verified(folder, words, _fdl, _stack):
    recorded = recorded_run(folder / "recorded")
    run = trail(folder / "2026-01-31T10-00-00", epochs=recorded.facts.epochs, ledger=recorded.mark)
    for file in (recorded.ledger, recorded.path / "last.fdl"):
        file.rename(run / file.name)
    return [*words, run.name, "--json"], {}


PREPARATIONS = {
    "fdl libtorch info": libtorch,
    "fdl plan --try": rehearsal,
    "fdl runs import": imported,
    "fdl runs tell": told,
    "fdl sweep show": swept,
    "fdl runs verify": verified,
}
"""Command -> what it needs beside a project with two runs; returns the words of the call."""


def with_unseen(made, known):
    """New schemas, with what this machine cannot show, such as a GPU, as it was known before."""
    if not isinstance(made, dict) or not isinstance(known, dict):
        return made
    if made == {} or ("array" in made.get("type", ()) and "items" not in made):
        return known
    return {key: with_unseen(part, known.get(key)) for key, part in made.items()}


# Thirty programs and three trainings take too long for every change.
@pytest.mark.slow
def test_every_command_prints_the_document_of_its_schema(printed):
    if os.environ.get("UPDATE_DOCUMENTS") == "1":
        made = {}
        for name, documents in printed.items():
            joined = reduce(join, map(describe, documents))
            keys = {}
            if isinstance(documents[0], dict):
                keys["required"] = sorted(set.intersection(*map(set, documents)))
            made[name] = written(joined) | keys
        known = json.loads(FILE.read_text(encoding="utf-8"))["$defs"]
        text = json.dumps({"$defs": with_unseen(made, known)}, indent=1, ensure_ascii=False)
        FILE.write_text(text + "\n", encoding="utf-8")
    schemas = json.loads(FILE.read_text(encoding="utf-8"))["$defs"]
    assert set(schemas) == set(printed)
    for name, documents in printed.items():
        for document in documents:
            # What the schema does not name would be no promise, so nothing may be missing in it.
            jsonschema.validate(document, closed(schemas[name]))
            version = document.get("schema_version") if isinstance(document, dict) else None
            assert version == (None if name in UNVERSIONED else 1), name


def test_every_command_with_json_is_described():
    with_json = {name for name, about in TABLE.items() if "json" in about.get("options", {})}
    here = {name.removeprefix("fdl ").partition(" --")[0] for name in {*COMMANDS, *PREPARATIONS}}
    here -= {"--dry-run", "config show (no command)"}
    assert with_json == here | set(ELSEWHERE)
