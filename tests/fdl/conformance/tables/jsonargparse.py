"""jsonargparse: type hints, dataclasses, classes by name, and configuration files."""

from __future__ import annotations

from tests.fdl.conformance.cell import Cell

LIBRARY = "jsonargparse"

FILES = {"more.yaml": "steps: 7\n"}
_TOP = """
import enum
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Literal, Optional, Union
from jsonargparse import ActionYesNo, ArgumentParser, Namespace, auto_cli

class Act(enum.Enum):
    RELU = "relu"
    GELU = "gelu"

@dataclass
class Adam:
    lr: float = 1e-3
    betas: list[float] = field(default_factory=list)

class Model:
    def __init__(self, size: int = 1):
        self.size = size

class Deep(Model):
    def __init__(self, size: int = 1, layers: Optional[list[int]] = None, fast_mode: bool = False):
        pass
"""
_PARSER = (
    _TOP
    + """
p = ArgumentParser(prog="main", env_prefix="APP", default_env=True)
p.add_argument("--config", action="config")
p.add_argument("--steps", type=int, default=10)
p.add_argument("--x", {})
seen = p.parse_args()
print({name: value for name, value in sorted(seen.as_dict().items()) if name != "config"})
"""
)


def _option(declared: str) -> str:
    return _PARSER.replace("{}", declared, 1)


_MODEL = _PARSER.replace(
    'p.add_argument("--x", {})', 'p.add_subclass_arguments(Model, "x", required=False)'
)
_SUBCOMMANDS = (
    _TOP
    + """
fit = ArgumentParser()
fit.add_argument("--lr", type=float, default=0.1)
fit.add_argument("--layers", type=list[int], default=[1])
p = ArgumentParser(prog="main")
p.add_argument("--seed", type=int, default=0)
commands = p.add_subcommands()
commands.add_subcommand("fit", fit)
print(p.parse_args())
"""
)
_FUNCTION = (
    _TOP
    + """
def main(lr: float, layers: list[int] = [1], opt: Adam = Adam(), name: str = "a"):
    print(lr, layers, opt, repr(name))

auto_cli(main)
"""
)
_CLASS = (
    _TOP
    + """
class Job:
    def __init__(self, seed: int = 0):
        self.seed = seed

    def fit(self, lr: float = 0.1, fast_mode: bool = False):
        print("fit", self.seed, lr, fast_mode)

    def test(self):
        print("test", self.seed)

auto_cli(Job)
"""
)

_OPEN = "Only the program knows which parameters the class has: fdl passes them, and says so."

CELLS = [
    Cell("flag", _option('action="store_true"'), "--x", {"x": True}, "true"),
    Cell(
        "flag with a negation",
        _option("action=ActionYesNo, default=True"),
        "--no_x",
        {"x": False},
        "false",
    ),
    Cell(
        "flag with a value", _option("type=bool, default=True"), "--x false", {"x": False}, "false"
    ),
    Cell(
        "flag or null",
        _option("type=Optional[bool], default=True"),
        "--x null",
        {"x": None},
        "null",
    ),
    Cell("number", _option("type=float"), "--x -1.5", {"x": -1.5}, "-1.5"),
    Cell(
        "number or null", _option("type=Optional[int], default=3"), "--x null", {"x": None}, "null"
    ),
    Cell("text", _option("type=str"), "--x 'a b'", {"x": "a b"}, "a b"),
    Cell("text like a number", _option("type=str"), "--x 1.10", {"x": "1.10"}),
    Cell("text like null", _option("type=str"), "--x null", {"x": "null"}, "null"),
    Cell(
        "text or null", _option('type=Optional[str], default="a"'), "--x null", {"x": None}, "null"
    ),
    Cell("choice", _option('type=Literal["a", "b"], default="a"'), "--x b", {"x": "b"}, "b"),
    Cell(
        "choice or null",
        _option('type=Optional[Literal["a", "b"]], default="a"'),
        "--x null",
        {"x": None},
    ),
    Cell("choice of argparse", _option('choices=["a", "b"]'), "--x b", {"x": "b"}, "b"),
    Cell("enum by name", _option("type=Act, default=Act.RELU"), "--x GELU", {"x": "GELU"}, "GELU"),
    Cell("enum or null", _option("type=Optional[Act], default=Act.RELU"), "--x null", {"x": None}),
    Cell("list", _option("type=list[int]"), "--x '[1,2]'", {"x": [1, 2]}),
    Cell("list of texts", _option("type=list[str]"), """--x '["a,b","1"]'""", {"x": ["a,b", "1"]}),
    Cell("list of bools", _option("type=list[bool]"), "--x '[true,false]'", {"x": [True, False]}),
    Cell("list of enums", _option("type=list[Act]"), "--x '[GELU]'", {"x": ["GELU"]}),
    Cell(
        "list of lists", _option("type=list[list[int]]"), "--x '[[1],[2,3]]'", {"x": [[1], [2, 3]]}
    ),
    Cell("empty list", _option("type=list[int], default=[1]"), "--x '[]'", {"x": []}),
    Cell("list or null", _option("type=Optional[list[int]], default=[1]"), "--x null", {"x": None}),
    Cell("list by nargs", _option('type=int, nargs="+"'), "--x 1 2", {"x": [1, 2]}),
    Cell(
        "list that grows",
        _option("type=list[int], default=[1]"),
        "--x+ 2",
        {"--x+": 2},
    ),
    Cell("tuple", _option("type=tuple[int, str]"), """--x '[1,"a"]'""", {"x": [1, "a"]}),
    Cell(
        "dict", _option("type=dict[str, int]"), """--x '{"a":1,"b":2}'""", {"x": {"a": 1, "b": 2}}
    ),
    Cell(
        "dict of lists",
        _option("type=dict[str, list[int]]"),
        """--x '{"a.b":[1]}'""",
        {"x": {"a.b": [1]}},
    ),
    Cell("union", _option("type=Union[int, str], default=1"), "--x a", {"x": "a"}, "a"),
    Cell("union, the number", _option("type=Union[int, str], default=1"), "--x 7", {"x": 7}, "7"),
    Cell("path", _option("type=Path"), "--x a/b", {"x": "a/b"}, "a/b"),
    Cell("date", _option("type=str"), "--x 2026-01-02", {"x": "2026-01-02"}, "2026-01-02"),
    Cell(
        "anything",
        _option("type=Any"),
        """--x '{"a":[1,null]}'""",
        {"x": {"a": [1, None]}},
    ),
    Cell(
        "dataclass",
        _option("type=Adam, default=Adam()"),
        "--x.lr 0.5 --x.betas '[0.9]'",
        {"x": {"lr": 0.5, "betas": [0.9]}},
    ),
    Cell(
        "dataclass, written with a dot",
        _option("type=Adam, default=Adam()"),
        "--x.lr 0.5",
        {"x.lr": 0.5},
        "0.5",
    ),
    Cell(
        "class by name",
        _MODEL,
        "--x __main__.Deep --x.layers '[1,2]' --x.fast_mode true",
        {"x": "__main__.Deep", "x.layers": [1, 2], "x.fast_mode": True},
        reason=_OPEN,
    ),
    Cell(
        "class by its path",
        _MODEL,
        "--x.class_path __main__.Deep --x.init_args.size 3",
        {"x": {"class_path": "__main__.Deep", "init_args": {"size": 3}}},
        reason=_OPEN,
    ),
    Cell(
        "configuration file",
        _option("type=int, default=1"),
        "--config more.yaml --x 2",
        {"config": "more.yaml", "x": 2},
    ),
    Cell("environment", _option("type=int, default=1"), "APP_X=5 --steps 2", {"steps": 2}, "2"),
    Cell(
        "subcommand",
        _SUBCOMMANDS,
        "--seed 3 fit --lr 0.5 --layers '[2]'",
        {"seed": 3, "lr": 0.5, "layers": [2]},
        rest="subcommand: fit",
    ),
    Cell(
        "function",
        _FUNCTION,
        "0.5 --layers '[2]' --opt.lr 0.1",
        {"lr": 0.5, "layers": [2], "opt": {"lr": 0.1}},
    ),
    Cell(
        "method of a class",
        _CLASS,
        "--seed 3 fit --lr 0.5 --fast_mode true",
        {"seed": 3, "lr": 0.5, "fast_mode": True},
        rest="subcommand: fit",
    ),
]
