"""The tools whose pages ``benchmarks.runs_page`` opens: how they write, serve and are clicked."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from benchmarks.many_runs import losses, make_runs, settings

WRITERS = Path(__file__).parent / "runners/runs_page/write.py"
SILENT = {"GRADIO_ANALYTICS_ENABLED": "False", "MLFLOW_DISABLE_TELEMETRY": "true"}
"""Variables that keep the other tools from the network."""

WRITE_SECONDS = 550.0
"""The most that a tool may take to write its runs."""


class Click(NamedTuple):
    """Something to click.

    Attributes:
        name: What a person sees there.
        script: Clicks it, and says whether it was there.
    """

    name: str
    script: str


def _clicks(text: str) -> Click:
    """A click on the smallest element with a text, in any case."""
    script = (
        "(() => { const all = [...document.querySelectorAll('*')].filter(one => "
        f"one.textContent.trim().toLowerCase() === {json.dumps(text.lower())} "
        "&& one.checkVisibility()); const one = all[all.length - 1]; "
        "if (!one) return false; one.click(); return true })()"
    )
    return Click(text, script)


class Subject(NamedTuple):
    """One tool in one form.

    Attributes:
        tool: The package that is installed; ``fdl`` for this project.
        serve: From the folder of the runs and a port to the command of its server.
        path: The address of the page with curves.
        begin: What must be clicked before a curve appears.
        differ: What is clicked from there to the settings of the runs.
    """

    tool: str
    serve: Callable[[Path, int], list[str]]
    path: str = "/"
    begin: tuple[Click, ...] = ()
    differ: tuple[Click, ...] = ()


def aim_word(state: object) -> str:
    """A part of the state of Aim's explorer, as its address keeps it: base 64 of quoted JSON."""
    quoted = quote(json.dumps(state), safe="~()*!.'#$&+,/:;=?@-_")
    return "O-" + base64.urlsafe_b64encode(quoted.encode()).decode().rstrip("=")


_AIM_SELECT = {
    "options": [
        {
            "label": "loss",
            "group": "loss",
            "color": "#7A4CE0",
            "value": {"option_name": "loss", "context": None},
            "key": "loss",
        }
    ],
    "query": "",
    "advancedMode": True,
    "advancedQuery": "metric.name == 'loss'",
}
AIM_PAGE = f"/metrics?select={aim_word(_AIM_SELECT)}"

_MLFLOW_TABLE = Click(
    "the table",
    """(() => {
  const choice = document.querySelector("input[type=radio][value=TABLE]");
  if (!choice) return false;
  choice.click();
  return true;
})()""",
)

_MLFLOW_PARAMETERS = Click(
    "the box of all parameters",
    """(() => {
  const isName = (one) =>
    /^Parameters( \\(\\d+\\))?$/.test(one.textContent.trim()) && one.checkVisibility();
  const name = [...document.querySelectorAll("*")].filter(isName).pop();
  const row = name?.closest("[class*=treenode], [role=treeitem]");
  const box = row?.querySelector("[class*=tree-checkbox], input[type=checkbox], [role=checkbox]");
  if (!box) return false;
  box.click();
  return true;
})()""",
)

_CHECK_ALL = Click(
    "the box of all runs",
    """(() => {
  const box = document.querySelector("runs-data-table mat-checkbox input");
  if (!box) return false;
  if (!box.checked) box.click();
  return true;
})()""",
)


def _tensorboard(fast: str) -> Subject:
    def serve(runs: Path, port: int) -> list[str]:
        words = ["--logdir", str(runs), "--port", str(port), f"--load_fast={fast}"]
        return ["tensorboard", *words]

    return Subject("tensorboard", serve, "/#timeseries", (_CHECK_ALL,), (_clicks("HPARAMS"),))


def _aim(runs: Path, port: int) -> list[str]:
    return ["aim", "up", "--repo", str(runs), "--host", "127.0.0.1", "--port", str(port), "--yes"]


def _mlflow(runs: Path, port: int) -> list[str]:
    store = f"sqlite:///{runs}/mlflow.db"
    return ["mlflow", "ui", "--backend-store-uri", store, "--port", str(port)]


def _fdl(runs: Path, port: int) -> list[str]:
    return ["fdl", "runs", "ui", str(runs), "--no-open", "--no-token", "--port", str(port)]


SUBJECTS = {
    "fdl": Subject("fdl", _fdl),
    "fdl, full length": Subject("fdl", _fdl),
    "TensorBoard": _tensorboard("auto"),
    "TensorBoard, load_fast=false": _tensorboard("false"),
    "Aim": Subject("aim", _aim, AIM_PAGE, differ=(_clicks("Show Table Diff"),)),
    "MLflow": Subject(
        "mlflow",
        _mlflow,
        "/#/experiments/1/runs?compareRunsMode=CHART",
        # Its button "Show more columns" is hidden unless the table leaves room beside it.
        differ=(_MLFLOW_TABLE, _clicks("Columns"), _MLFLOW_PARAMETERS),
    ),
    "trackio": Subject(
        "trackio",
        lambda _runs, _port: ["trackio", "show", "--project", "runs"],
        "/?project=runs",
        differ=(_clicks("Show run comparer"),),
    ),
}


def environment_of(tool: str, folder: Path) -> Path:
    """The programs of a tool, in an environment of its own, which is made at the first use."""
    if tool == "fdl":
        return Path(sys.executable).parent
    home = folder / tool
    if not (home / "installed").exists():
        venv.create(home, with_pip=True, clear=True)
        pip = [str(home / "bin/python"), "-m", "pip", "install", "--quiet", tool]
        subprocess.run(pip, check=True)
        (home / "installed").touch()
    return home / "bin"


def version_of(tool: str, programs: Path) -> str:
    """Name and version of the installed tool."""
    name = "flodl" if tool == "fdl" else tool
    code = f"from importlib.metadata import version; print(version({name!r}))"
    done = subprocess.run(
        [programs / "python", "-c", code], capture_output=True, text=True, check=True
    )
    return f"{tool} {done.stdout.strip()}"


class Store(NamedTuple):
    """The written runs of a tool.

    Attributes:
        folder: Where they are.
        seconds: What writing took.
        load: Average number of busy processes of the machine at its end.
    """

    folder: Path
    seconds: float
    load: float


def written(tool: str, programs: Path, stores: Path, runs: int, points: int) -> Store:
    """The store of a tool with its runs.

    A store that an earlier call has kept in the folder ``stores`` is used again.
    """
    stores.mkdir(parents=True, exist_ok=True)
    folder = stores / f"{tool}-{runs}x{points}"
    facts = stores / f"{folder.name}.json"  # exists once all runs are written
    if not facts.exists():
        shutil.rmtree(folder, ignore_errors=True)
        seconds = write(tool, programs, folder, runs, points)
        facts.write_text(json.dumps([seconds, os.getloadavg()[0]]), encoding="utf-8")
    return Store(folder, *json.loads(facts.read_text(encoding="utf-8")))


def write(tool: str, programs: Path, folder: Path, runs: int, points: int) -> float:
    """Write the runs in the tool's format; the seconds that it took."""
    began = time.perf_counter()
    if tool == "fdl":
        make_runs(folder, runs, points)
        return time.perf_counter() - began
    rows = [
        {
            "name": f"run-{number:03}",
            "settings": {name: value for name, (value, _) in settings(number).items()},
            "loss": losses(number, points).tolist(),
        }
        for number in range(runs)
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as source:
        json.dump(rows, source)
        source.flush()
        began = time.perf_counter()
        subprocess.run(
            [programs / "python", WRITERS, tool, source.name, folder],
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, **SILENT},
            timeout=WRITE_SECONDS,
        )
    return time.perf_counter() - began
