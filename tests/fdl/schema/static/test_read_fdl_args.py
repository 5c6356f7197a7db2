"""Classes of FdlArgs are read as the program itself prints them, and the program never runs."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from fdl.manifest.discover import find_in
from fdl.manifest.select.level import enter
from fdl.manifest.select.project import Project
from fdl.programs.source import read
from tests import fork_server

COMMON = '''
"""What several programs share."""

import enum
from functools import partial
from typing import Literal, TypeAlias

from fdl.programs.args import FdlArgs, option as declare

SIZES = ("small", "big")
LAYERS = {"cnn": 3, "mlp": 2}
RATE = 1e-3
Size: TypeAlias = Literal["small", "big"]
Rates = list[float]
data_option = partial(declare, group="Data  loading", env="DATA")


class Speed(enum.Enum):
    SLOW = 1
    FAST = 2


class Mode(str, enum.Enum):
    TRAIN = "train"
    TEST = "test"


class Common(FdlArgs):
    """What every program takes."""

    collapsed = {"Data loading": "reading files"}

    seed: int = declare(default=42, help="Seed")
    workers: int = data_option(default=4, help=f"Processes; of {', '.join(SIZES)}")


class Left(Common):
    seed: int = declare(default=1)


class Right(Common):
    seed: int = declare(default=2, help="From the right")
    width: int | None = declare()
'''
DECLARATIONS = '''
"""Classes, each a program of its own."""

import pathlib
from pathlib import Path, PurePosixPath
from typing import Annotated, ClassVar, List, Literal, Optional, Union

import common
import fdl
from common import LAYERS, RATE, SIZES, Common, Left, Mode, Rates, Right, Size, Speed
from fdl import DdpArgs, FdlArgs, arg, option
from pydantic import field_validator

DATA = Path("data/")
NAMES = [f"resnet{depth}" for depth in (18, 50)]
ALL = [*NAMES, "vgg"]


class Empty(FdlArgs):
    pass


class Plain(FdlArgs):
    """Train a
    classifier.

    Needs no GPU.
    """

    version: ClassVar[str] = "3"
    data: Path = arg(help="Folder")
    note: str = arg(default="big", choices=SIZES)
    files: list[int] = arg(variadic=True)
    epochs: int = option(default=10, short="n", help="  Passes over   the data ")
    lr: float = option(default=1, env="LR")
    rate: float = option(default=-RATE * 2)
    dry: bool = option(help="Only look", short="d")
    token: str = option(default="hunter2")
    documented: int = option(default=1)
    """Said
    below."""


class Shapes(FdlArgs):
    bare: Path | None = option(default="./r.html", completer="ls")
    absent: Optional[float] = option()
    other: Union[None, int] = option(default=None)
    several: list[int] = option(default=(1, 2))
    words: List[str] = option(default=[])
    any_list: list = option()
    rates: Rates = option(default=[1, 0.5])
    where: PurePosixPath = option(default=pathlib.Path("a", "b/"))
    data: Annotated["Path", "where"] = option(default=DATA)
    paths: list[Path] = option(default=["x/"])
    _private: int = 3


class Choices(FdlArgs):
    size: Size = option(default=SIZES[0])
    plain: Literal[1, 2] = option(default=1)
    mode: Mode = option(default=Mode.TRAIN)
    same: Mode | None = option(default=common.Mode.TEST)
    speed: Speed = option(default=Speed.FAST)
    speeds: list[Speed] = option(default=[Speed.FAST])
    net: str = option(default="cnn", choices=list(LAYERS))
    sorted_net: str = option(default="cnn", choices=sorted([*LAYERS, "b"]))
    known: str = option(default="vgg", choices=ALL)
    number: int = option(default=2, choices=range(3))
    from_module: int = option(default=common.LAYERS["mlp"])


class Inherits(Common):
    batch_size: int = option(default=32)
    workers: int = common.data_option(default=0)
    more: int = fdl.option(default=0)

    @field_validator("batch_size")
    @classmethod
    def _even(cls, value: int) -> int:
        return value


class Diamond(Left, Right):
    """Both."""

    collapsed: ClassVar[dict[str, str]] = {"Mine": "other things"}
    mine: int = option(default=1, **{"group": "Mine", "help": "With ** in front"})


class Ranks(DdpArgs):
    epochs: int = option(default=3)
    timeline: bool = option(help="Replaced")
'''
COMPUTED = """
import os
from fdl import FdlArgs, arg, option

RATE = 0.1
if os.name:
    RATE = 0.2
NAMES = []

def register(name):
    NAMES.append(name)

class Args(FdlArgs):
    device: str = option(default=os.environ.get("DEVICE", "cpu"), help="Where")
    rate: float = option(default=RATE)
    name: str = option(default="a", choices=NAMES)
    text: str = option(default="", help=os.name)
    own: "os.PathLike" = option(default=1)
    last: str = arg(default=os.name)

def main(argv=None):
    Args.parse_or_schema(argv)

if __name__ == "__main__":
    main()
"""

TEMPLATES = Path(__file__).parents[4] / "templates"


@pytest.fixture
def document(tmp_path):
    """The document of a script: ``document(TEXT)``."""

    def of(script: str) -> dict | None:
        (tmp_path / "fdl.yml").write_text("commands: {t: }\n")
        folder = tmp_path / "t"
        folder.mkdir(exist_ok=True)
        (folder / "fdl.yml").write_text("entry: python main.py\n")
        (folder / "main.py").write_text(script)
        made = Project(find_in(str(tmp_path)))
        return read(enter(made.level(), "t", made.child))[0]

    return of


COMMANDS = ("Convert", "Export", "Info", "VerifyExport")
LIGHT = [
    *(("declarations", one) for one in ("Empty", "Plain", "Shapes", "Choices", "Inherits")),
    *(("declarations", one) for one in ("Diamond", "Ranks")),
    ("tests.fdl.args.test_program", "Everything"),
    ("tests.fdl.args.test_ddp_args", "Args"),
    ("tests.fdl.args.test_parse", "Train"),
    ("tests.fdl.args.test_parse", "Server"),
    ("tests.fdl.args.test_declare", "Seeded"),
    ("tests.fdl.schema.test_contract", "Train"),
]
WITH_TORCH = [
    ("flodl.ddp_bench.__main__", "Args"),
    *(("flodl.hf.commands", f"{one}Args") for one in COMMANDS),
]


@pytest.mark.parametrize("rows", [LIGHT, pytest.param(WITH_TORCH, marks=pytest.mark.slow)])
def test_the_source_says_what_the_class_says(document, tmp_path, monkeypatch, rows):
    (tmp_path / "t").mkdir()
    (tmp_path / "t/common.py").write_text(COMMON)
    (tmp_path / "t/declarations.py").write_text(DECLARATIONS)
    monkeypatch.syspath_prepend(str(tmp_path / "t"))
    for name in ("common", "declarations"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for module, name in rows:
        said = getattr(importlib.import_module(module), name).schema()
        found = document(f"from {module} import {name} as Own\nOwn.parse_or_schema()\n")
        assert json.dumps(found, indent=1) == json.dumps(said, indent=1), (module, name)


@pytest.mark.parametrize(
    "program",
    ["project/train/main.py", pytest.param("playground/main.py", marks=pytest.mark.slow)],
)
def test_the_programs_that_fdl_writes_are_read_whole(document, tmp_path, program):
    found = document((TEMPLATES / program).read_text())
    answer = fork_server.python(
        *("main.py", "--fdl-schema"), cwd=tmp_path / "t", torch=True, abrupt=True
    )
    assert found == json.loads(answer.stdout), answer.stderr


def test_what_the_source_computes_is_left_to_the_program(document):
    found = document(COMPUTED)
    assert {name: one.get("computed") for name, one in found["options"].items()} == {
        "device": ["default"],
        "rate": ["default"],
        "name": ["choices"],
        "text": ["help"],
        "own": ["type"],
    }
    (last,) = found["args"]
    assert (last["required"], last["computed"]) == (False, ["default"])
    # What decides more than one value leaves the rest to the program.
    for own, whole in (
        ("class Args(FdlArgs):\n    x: int = option(default=1)", True),
        ("class Args(make()):\n    x: int = option(default=1)", False),
        ("@change\nclass Args(FdlArgs):\n    x: int = option(default=1)", False),
        ("class Args(FdlArgs):\n    for one in 'x': pass\n    x: int = option(default=1)", False),
        ("class Args(FdlArgs):\n    x: int = own()", False),
        ("class Args(FdlArgs):\n    x: int = option(default=1, group=own())", False),
        ("class Args(FdlArgs):\n    def schema(cls): ...\n    x: int = option(default=1)", False),
        ("if own:\n    class Args(FdlArgs):\n        x: int = option(default=1)", False),
    ):
        text = f"from fdl import FdlArgs, option\n{own}\nArgs.parse_or_schema()\n"
        assert document(text)["strict"] is whole, own
    class_ = "from fdl import FdlArgs, option\nclass A(FdlArgs):\n    x: int = option(default=1)\n"
    words = "import sys\nA.parse_or_schema(sys.argv[1:])\n"
    assert document(f"{class_}{words}")["strict"]
    assert not document(class_ + words.replace("1:", "2:"))["strict"]
    for use in ("print(A.parse_or_schema().x)", "raise SystemExit(A.parse_or_schema().x)"):
        assert document(f"{class_}{use}\n")["strict"]
    # Which of two classes it is, only the program knows.
    two = "class B(A):\n    y: int = option(default=1)\nA.parse_or_schema()\nB.parse_or_schema()\n"
    assert document(class_ + two) is None
    assert document(f"{class_}def run(cls): cls.parse_or_schema()\nrun(A)\n") is None
