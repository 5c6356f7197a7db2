"""Hydra: values of a configuration, groups, new keys and removed ones."""

from __future__ import annotations

from tests.fdl.conformance.cell import Cell

LIBRARY = "Hydra"

FILES = {
    "conf/config.yaml": """
defaults: [_self_, {db: mysql}, {optional cache: null}]
x: 1
flag: true
name: a
nothing: null
list: [1, 2]
opt: {lr: 0.1, betas: [0.9, 0.99]}
link: ${x}
home: ${oc.env:PLACE,none}
must: ???
hydra: {output_subdir: null, run: {dir: .}}
""",
    "conf/db/mysql.yaml": "port: 3306\nuser: root\n",
    "conf/db/postgres.yaml": "port: 5432\n",
    "conf/db/old/sqlite.yaml": "file: a.db\n",
    "conf/cache/disk.yaml": "size: 1\n",
}
_PROGRAM = """
import hydra
from omegaconf import OmegaConf

@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    print(OmegaConf.to_container(cfg))

main()
"""
_STRUCTURED = """
import enum
from dataclasses import dataclass, field
import hydra
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

class Act(enum.Enum):
    RELU = "relu"
    GELU = "gelu"

@dataclass
class Small:
    size: int = 1

@dataclass
class Config:
    act: Act = Act.RELU
    steps: int | None = 3
    names: list[str] = field(default_factory=list)

store = ConfigStore.instance()
store.store(name="typed", node=Config)
store.store(group="db", name="stored", node=Small)

@hydra.main(version_base=None, config_path="conf", config_name="{}")
def main(cfg):
    print(OmegaConf.to_container(cfg))

main()
"""


def _cell(kind, by_hand, options, sweep=None, **more):
    return Cell(kind, _PROGRAM, by_hand, options, sweep, **more)


CELLS = [
    _cell("flag", "flag=false", {"flag": False}, "false"),
    _cell("number", "x=3", {"x": 3}, "3"),
    _cell("number where the file has a whole one", "x=0.5", {"x": 0.5}, "0.5"),
    _cell("text where the file has a number", "x=auto", {"x": "auto"}, "auto"),
    _cell("text where the file has a flag", "flag=auto", {"flag": "auto"}, "auto"),
    _cell("text", "name=b", {"name": "b"}, "b"),
    _cell("text like a number", "\"name='10'\"", {"name": "10"}),
    _cell("text like null", "\"name='null'\"", {"name": "null"}),
    _cell("text with signs", "\"name='a=b,c: {d}'\"", {"name": "a=b,c: {d}"}),
    _cell("empty text", "\"name=''\"", {"name": ""}),
    _cell("null", "name=null", {"name": None}, "null"),
    _cell("null where the file has a number", "x=null", {"x": None}, "null"),
    _cell("null where the file has a flag", "flag=null", {"flag": None}, "null"),
    _cell("list", "list=[3,4]", {"list": [3, 4]}),
    _cell("list of texts and nulls", "\"list=[a b,'1',null]\"", {"list": ["a b", "1", None]}),
    _cell("list of lists", "list=[[1,2],[3]]", {"list": [[1, 2], [3]]}),
    _cell("list of mappings", "list=[{a:1,b:[c]}]", {"list": [{"a": 1, "b": ["c"]}]}),
    _cell("empty list", "list=[]", {"list": []}),
    _cell("nested", "opt.lr=0.5", {"opt": {"lr": 0.5}}),
    _cell("nested, written with a dot", "opt.lr=0.5", {"opt.lr": 0.5}, "0.5"),
    _cell("list of a nested key", "opt.betas=[0.8,0.9]", {"opt": {"betas": [0.8, 0.9]}}),
    _cell("interpolation", "'name=${x}'", {"name": "$${x}"}),
    _cell("new key", "+new=1", {"+new": 1}, "1"),
    _cell("new mapping", "+new.a=1 +new.b=c", {"+new": {"a": 1, "b": "c"}}),
    _cell("new or changed key", "++x=5 ++new=2", {"++x": 5, "++new": 2}),
    _cell("removed key", "'~opt.lr'", {"~opt.lr": None}),
    _cell("group", "db=postgres", {"db": "postgres"}, "postgres"),
    _cell("group in a folder", "db=old/sqlite", {"db": "old/sqlite"}, "old/sqlite"),
    _cell("group and its key", "db=postgres db.port=1", {"db": "postgres", "db.port": 1}),
    _cell("group without a choice", "cache=disk", {"cache": "disk"}, "disk"),
    _cell("removed group", "'~db'", {"~db": None}),
    _cell(
        "new group at another place", "+db@backup=postgres", {"+db@backup": "postgres"}, "postgres"
    ),
    _cell("value that must be given", "must=1", {"must": 1}, "1"),
    _cell("setting of Hydra", "hydra.job.name=job", {"hydra.job.name": "job"}, "job"),
    _cell("environment", "PLACE=here x=2", {"x": 2}, "2"),
    _cell("date", "name=2026-01-02", {"name": "2026-01-02"}, "2026-01-02"),
    _cell("path", "name=a/b.txt", {"name": "a/b.txt"}, "a/b.txt"),
    Cell(
        "enum of a structured configuration",
        _STRUCTURED.replace("{}", "typed"),
        "act=GELU",
        {"act": "GELU"},
        "GELU",
    ),
    Cell(
        "null of a structured configuration",
        _STRUCTURED.replace("{}", "typed"),
        "steps=null",
        {"steps": None},
        "null",
    ),
    Cell(
        "list of a structured configuration",
        _STRUCTURED.replace("{}", "typed"),
        "names=[a,b]",
        {"names": ["a", "b"]},
    ),
    Cell(
        "group of the store",
        _STRUCTURED.replace("{}", "config"),
        "db=stored",
        {"db": "stored"},
        "stored",
    ),
]
