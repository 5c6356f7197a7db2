"""Loading by name in a process of its own, step by step, with any text in place of weights."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.flodl.hf.fake_hub import FakeHub

INDEX = "model.safetensors.index.json"

_LOAD = """
import json, sys, time, traceback
from flodl.hf.hub import locate
from flodl.hf.source import Access

time.sleep = lambda seconds: None  # what is asked again is asked at once

def load(src, access):
    checkpoint = locate(src, Access(**access))
    config = checkpoint.require("config.json").read_text()
    weights = checkpoint.weight_files()
    return {
        "commit": checkpoint.commit,
        "config": config,
        "weights": [file.read_text() for file in weights.files],
        "index": weights.index and weights.index.name,
        "vocabulary": checkpoint.text("vocab.txt"),
        "tokenizer": checkpoint.text("tokenizer.json"),
    }

def outcome(src, access):
    try:
        return load(src, access)
    except Exception as error:
        traceback.print_exc()
        return {"error": type(error).__name__, "message": str(error)}

print(json.dumps([outcome(*each) for each in json.loads(sys.argv[1])]))
"""


class Outcome(dict):
    """What one load gave, or the error that it ended with."""

    def __getattr__(self, name):
        return self[name]


class HubLoader:
    """Calls itself to load checkpoints; keeps what the last call printed.

    Attributes:
        output: All that was printed, tracebacks included.
        warnings: The lines of it that are warnings.
    """

    def __init__(self, hub: FakeHub, tmp_path: Path) -> None:
        self._hub = hub
        self._tmp_path = tmp_path
        self.output = ""
        self.warnings: list[str] = []

    def __call__(self, *each, **env):
        """Load repositories one after the other.

        Args:
            each: A repository, or one with the arguments of :class:`flodl.hf.source.Access`.
            env: More of the environment.

        Returns:
            The outcome, or a list of them for several.
        """
        calls = [(call, {}) if isinstance(call, str) else call for call in each]
        done = self._hub.python(_LOAD, self._tmp_path, json.dumps(calls), **env)
        assert done.returncode == 0, done.stderr
        self.output = done.stdout + done.stderr
        lines = done.stderr.splitlines()
        self.warnings = [line for line in lines if line.startswith("warning: ")]
        outcomes = [Outcome(each) for each in json.loads(done.stdout)]
        return outcomes if len(outcomes) > 1 else outcomes[0]


def write_folder(
    target: Path,
    files: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    *,
    without: Iterable[str] = (),
    weights: str = "weights",
) -> Path:
    """Write the files of a repository: the usual ones, but for some, and more."""
    usual = {"config.json": "{}", "model.safetensors": weights, "vocab.txt": "[PAD]"}
    for file, text in {**usual, **dict(files)}.items():
        if file not in without:
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            (target / file).write_text(text)
    return target


def index(*shards: str) -> str:
    """An index of shards with one tensor each."""
    return json.dumps({"weight_map": {name: f"{name}.safetensors" for name in shards}})
