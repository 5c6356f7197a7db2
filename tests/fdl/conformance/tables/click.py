"""Options of click."""

from __future__ import annotations

from tests.fdl.conformance.cell import Cell

LIBRARY = "click"
_HEAD = """
import click, enum, json
class Kind(enum.Enum):
    A = "alpha"
    B = "beta"
class Words(click.ParamType):
    name = "words"
    def convert(self, value, param, ctx): return value.split(",")
"""


def _one(*declared: str, kind: str = "option", command: str = "", main: str = "") -> str:
    lines = "".join(f"@click.{kind}({one})\n" for one in declared)
    return (
        f"{_HEAD}@click.command({command})\n{lines}def main(**given): print(given)\nmain({main})\n"
    )


def _argument(*declared: str) -> str:
    return _one(*declared, kind="argument")


_VALUE = _one('"--x", is_flag=False, flag_value="f", default="d"')
_CASE = _one('"--x", type=click.Choice(["Fast", "Slow"], case_sensitive=False)')
_PAIR = _one('"--x/--no-x", default=True')
_SWITCH = _one('"--up", "way", flag_value="up", default="up"', '"--down", "way", flag_value="down"')
_TUPLE = _one('"--x", type=(str, int), multiple=True')
_FILES = (
    f"{_HEAD}@click.command()\n@click.option('--x', multiple=True)\n"
    "@click.argument('files', nargs=-1)\ndef main(**given): print(given)\nmain()\n"
)
_GROUP = (
    f"{_HEAD}@click.group()\n@click.option('--seed', type=int)\ndef main(seed): print(seed)\n"
    "@main.command()\n@click.option('--lr', type=float)\n@click.option('--amp', is_flag=True)\n"
    "def fit(lr, amp): print(lr, amp)\nmain()\n"
)

CELLS = [
    Cell("flag", _one('"--x", is_flag=True'), "--x", {"x": True}, "true"),
    Cell("negatable flag", _PAIR, "--no-x", {"x": False}, "false"),
    Cell("negatable flag, on", _one('"--x/--no-x"'), "--x", {"x": True}, "true"),
    Cell(
        "flag with another negative",
        _one('"--on/--off", default=True'),
        "--off",
        {"on": False},
        "false",
    ),
    Cell("flag value", _SWITCH, "--down", {"down": True}, "true"),
    Cell("optional value", _VALUE, "--x g", {"x": "g"}, "g"),
    Cell("optional value, bare", _VALUE, "--x", {"x": True}, "true"),
    Cell("count", _one('"-x", "--xs", count=True'), "-xx", {"xs": 2}, "2"),
    Cell("choice", _one('"--x", type=click.Choice(["a", "b"])'), "--x b", {"x": "b"}, "b"),
    Cell("choice without case", _CASE, "--x slow", {"x": "slow"}, "slow"),
    Cell("enum by name", _one('"--x", type=click.Choice(Kind)'), "--x B", {"x": "B"}, "B"),
    Cell(
        "enum by name without case",
        _one('"--x", type=click.Choice(Kind, case_sensitive=False)'),
        *("--x b", {"x": "b"}, "b"),
    ),
    Cell("list by repetition", _one('"--x", multiple=True'), "--x a --x b", {"x": ["a", "b"]}),
    Cell(
        "list of choices",
        _one('"--x", multiple=True, type=click.Choice(["a", "b"])'),
        "--x a --x b",
        {"x": ["a", "b"]},
    ),
    Cell(
        "list by comma",
        _one('"--x", type=Words()'),
        *("--x a,b", {"x": ["a", "b"]}),
        reason="The program splits the word itself: fdl passes commas, and says so.",
    ),
    Cell(
        "list of words with commas",
        _one('"--x", multiple=True'),
        "--x a,b --x c",
        {"x": ["a,b", "c"]},
    ),
    Cell("tuple by `nargs=2`", _one('"--x", nargs=2, type=int'), "--x 1 2", {"x": [1, 2]}),
    Cell("tuple by `type`", _one('"--x", type=(str, int)'), "--x a 2", {"x": ["a", 2]}),
    Cell("list of tuples", _TUPLE, "--x a 1 --x b 2", {"x": [["a", 1], ["b", 2]]}),
    Cell("`type=bool`", _one('"--x", type=bool'), "--x false", {"x": False}, "false"),
    Cell(
        "`type=json.loads`", _one('"--x", type=json.loads'), """--x '{"a": 1}'""", {"x": {"a": 1}}
    ),
    Cell("range", _one('"--x", type=click.IntRange(0, 9)'), "--x 3", {"x": 3}, "3"),
    Cell(
        "date",
        _one('"--x", type=click.DateTime()'),
        "--x 2026-01-02",
        {"x": "2026-01-02"},
        "2026-01-02",
    ),
    Cell("path", _one('"--x", type=click.Path()'), "--x a/b", {"x": "a/b"}, "a/b"),
    Cell(
        "name of the parameter",
        _one('"--learning-rate", "lr", type=float'),
        "--learning-rate 0.5",
        {"learning_rate": 0.5},
        "0.5",
    ),
    Cell("variable", _one('"--x", envvar="LR"'), "LR=2", {"x": 3}),
    Cell(
        "variable by prefix", _one('"--x"', main="auto_envvar_prefix='MINE'"), "MINE_X=2", {"x": 3}
    ),
    Cell("positional", _argument('"x", type=int'), "3", {"x": 3}, "3"),
    Cell("optional positional", _argument('"x", required=False'), "a", {"x": "a"}, "a"),
    Cell("positional list", _argument('"x", nargs=-1, type=int'), "1 2", {"x": [1, 2]}),
    Cell("positionals by `nargs=2`", _argument('"x", nargs=2'), "a b", {"x": ["a", "b"]}),
    Cell("positionals behind a list", _FILES, "--x a --x b c", {"x": ["a", "b"], "files": ["c"]}),
    Cell("option of a subcommand", _GROUP, "fit --lr 0.5", {"lr": 0.5}, "0.5", "subcommand: fit"),
    Cell(
        "options before and behind a subcommand",
        _GROUP,
        *("--seed 3 fit --lr 0.5 --amp", {"lr": 0.5, "amp": True, "seed": 3}, "0.5"),
        "subcommand: fit",
    ),
    Cell(
        "unknown option",
        _one('"--x"', command="context_settings={'ignore_unknown_options': True}").replace(
            "def main", "@click.argument('rest', nargs=-1, type=click.UNPROCESSED)\ndef main"
        ),
        *("--y 3", {"y": 3}, "3"),
        reason="The program passes on what it does not declare: fdl does too, and says so.",
    ),
]
