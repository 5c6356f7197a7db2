"""``fdl api-ref``: what it says about flodl, and about a small package that holds every case."""

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from fdl.base.errors import FdlError, UsageError
from fdl.cli.entry import main
from fdl.scaffold.api_ref.scan import category, scan
from fdl.scaffold.api_ref.select import as_json
from fdl.scaffold.api_ref.source import find
from fdl.version import __version__
from tests.rows import each_row

ROOT = Path(__file__).resolve().parents[3]

PACKAGE = {
    "zoo/__init__.py": '''
        """Animals."""
        from .graph.build import Builder as Builder
        from zoo.keeper import feed
        from zoo.keeper import _secret
        if TYPE_CHECKING:
            from zoo.keeper import late
        __version__ = "3.2.1"
        ''',
    "zoo/graph/__init__.py": "from zoo.graph.build import Builder, Kind\n",
    "zoo/graph/build.py": '''
        import abc, enum, functools
        from dataclasses import KW_ONLY, dataclass, field
        from typing import ClassVar, overload

        def _fluent(method: "Callable[Concatenate[Builder, P], None]") -> (
            Callable[Concatenate[_B, P], _B]
        ):
            return method

        class Kind(enum.Enum):
            """What it is."""
            CAT = "cat"
            DOG = "dog"

        class Builder(abc.ABC, _Private):
            """Builds one.

            Example:
                >>> Builder.of("cat").with_tail(2).build()
                <Cat>

            In a file::

            ```python
            Builder(1)
            ```
            """

            def __init__(self, legs: int, /, *rest: str, tail: "Tail | None" = None, **more):
                """Begin with legs."""

            @classmethod
            def of(cls, name: str = "cat") -> "Builder":
                """Begin with a name."""

            @classmethod
            def names(cls) -> list[str]: ...

            @staticmethod
            def count(a, b=2, *, c) -> int: ...

            @_fluent
            def with_tail(self, length: float) -> None:
                """Add a tail."""

            @overload
            def look(self, x: int) -> int: ...
            @overload
            def look(self, x: str) -> str: ...
            def look(self, x): ...

            @property
            def size(self) -> "int": ...
            @size.setter
            def size(self, value: int) -> None: ...
            @functools.cached_property
            def plain(self): ...

            async def wait(self) -> None: ...
            def build(self) -> "Cat": ...
            def _hidden(self): ...
            def __len__(self): ...

        @dataclass(frozen=True, kw_only=True)
        class Food:
            """What it eats."""
            name: str
            amount: float = 1.5
            tags: list[str] = field(default_factory=list)
            secret: int = field(init=False)
            shared: ClassVar[int] = 3

        @dataclass
        class Bowl:
            size: int
            _: KW_ONLY
            color: str = field(default="red")

        class Empty: ...
        class _Hidden:
            """Nobody sees it."""
        ''',
    "zoo/keeper.py": '''
        """Who feeds them."""
        if TYPE_CHECKING:
            class Whistle:
                """Only for types."""
        try:
            import fast
        except ImportError:
            def slow() -> None:
                """Without fast."""
        def feed(animal: str, *, times: int = 1) -> bool:
            """Feed one.

            >>> feed("cat")
            True

            Nothing else.
            """
        def late() -> int:
            """Loaded when it is asked for."""
        def _secret(): ...
        ''',
    "zoo/_private.py": "class Unseen:\n    '''No.'''\n",
    "zoo/tests/test_it.py": "class Unseen:\n    '''No.'''\n",
    "zoo/test_keeper.py": "class Unseen:\n    '''No.'''\n",
    "zoo/_inner/deep.py": "class Unseen:\n    '''No.'''\n",
}


@pytest.fixture
def zoo(project):
    """Write the package, with files on top of it, and return what is said about it."""

    def read(**more):
        return document(scan(project({**PACKAGE, **more}) / "zoo"))

    return read


def document(reference):
    """The document of a reference."""
    return json.loads(as_json(reference))


def by_name(said):
    return {entry["name"]: entry for entry in said["types"]}


def sigs(members):
    return [one["sig"] for one in members]


def docs(members):
    return [one["doc"] for one in members]


@pytest.mark.case("cli", 63)
def test_the_reference_is_json_and_torch_is_never_loaded():
    program = (
        "import sys; from fdl.cli.entry import main; code = main(['api-ref', '--json'])\n"
        'sys.stderr.write(f\'{code} {sorted({"torch", "flodl"} & set(sys.modules))}\')'
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stderr == "0 []"
    document = json.loads(done.stdout)
    assert document["version"] == __version__
    types = {one["name"]: one for one in document["types"]}
    assert types["FlowBuilder"]["category"] == "graph"
    assert types["FlowBuilder"]["file"] == "flodl/graph/builder.py"
    assert types["FlowBuilder"]["module"] == "flodl"
    assert types["FlowBuilder"]["builder_methods"] == ["build"]
    signatures = {one["name"]: one["sig"] for one in types["FlowBuilder"]["methods"]}
    assert (
        signatures["through"] == "through(module: ModuleLike, *, name: str | None = None) -> Self"
    )
    assert [one["sig"] for one in types["MergeOp"]["constructors"]] == [
        "MergeOp.ADD",
        "MergeOp.MEAN",
    ]


@pytest.fixture(scope="module")
def flodl_reference():
    """What a scan of flodl finds, which takes seconds."""
    return scan(ROOT / "flodl")


@pytest.fixture
def shown(flodl_reference, monkeypatch, capsys):
    """What ``fdl api-ref ARGS`` prints in this checkout, without another scan."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("fdl.cli.commands.self.scan", {ROOT / "flodl": flodl_reference}.__getitem__)

    def run(*args):
        assert main(["api-ref", *args]) == 0
        return capsys.readouterr().out

    return run


def test_every_public_class_that_flodl_exports_is_there(flodl_reference):
    import flodl

    entries = document(flodl_reference)["types"]
    classes = {name for name in flodl.__all__ if isinstance(getattr(flodl, name), type)}
    assert len(classes) > 30
    shown = {(one["module"], one["name"]) for one in entries}
    assert {("flodl", name) for name in classes} <= shown
    of_modules = [one for one in entries if "functions" in one["name"]]
    functions = {sig["name"] for one in of_modules for sig in one["methods"]}
    assert {"digits", "entry", "save_checkpoint", "record_scalar", "verify_run"} <= functions


def test_entries_are_sorted_by_category_and_name_and_stay_so(zoo):
    reference = zoo()
    assert [(one["category"], one["name"]) for one in reference["types"]] == [
        ("graph", "Bowl"),
        ("graph", "Builder"),
        ("graph", "Food"),
        ("graph", "Kind"),
        ("other", "Whistle"),
        ("other", "zoo.keeper (functions)"),
    ]
    assert reference["version"] == "3.2.1"
    assert zoo() == reference


def test_a_class_with_everything(zoo):
    entry = by_name(zoo())["Builder"]
    assert entry["module"] == "zoo"
    assert (entry["file"], entry["doc"]) == ("zoo/graph/build.py", "Builds one.")
    lines = PACKAGE["zoo/graph/build.py"].strip("\n").splitlines()
    assert "class Builder" in lines[entry["line"] - 1]
    assert entry["traits"] == ["abc.ABC"]
    assert sigs(entry["constructors"]) == [
        "Builder(legs: int, /, *rest: str, tail: Tail | None = None, **more)",
        "Builder.of(name: str = 'cat') -> Builder",
    ]
    assert docs(entry["constructors"]) == ["Begin with legs.", "Begin with a name."]
    assert sigs(entry["methods"]) == [
        "Builder.names() -> list[str]",
        "Builder.count(a, b=2, *, c) -> int",
        "with_tail(length: float) -> Self",
        "look(x)",
        "size: int",
        "plain",
        "async wait() -> None",
        "build() -> Cat",
    ]
    assert entry["builder_methods"] == ["with_tail", "build"]
    assert entry["examples"] == [
        '>>> Builder.of("cat").with_tail(2).build()\n<Cat>',
        "Builder(1)",
    ]


def test_enums_and_data_classes_have_constructors(zoo):
    entries = by_name(zoo())
    made = {name: sigs(entries[name]["constructors"]) for name in ("Kind", "Food", "Bowl")}
    assert made == {
        "Kind": ["Kind.CAT", "Kind.DOG"],
        "Food": ["Food(*, name: str, amount: float = 1.5, tags: list[str] = list())"],
        "Bowl": ["Bowl(size: int, *, color: str = 'red')"],
    }


def test_the_functions_of_a_module_are_one_entry(zoo):
    entry = by_name(zoo())["zoo.keeper (functions)"]
    assert entry["doc"] == "Who feeds them."
    assert [(one["sig"], one["doc"]) for one in entry["methods"]] == [
        ("slow() -> None", "Without fast."),
        ("zoo.feed(animal: str, *, times: int = 1) -> bool", "Feed one."),
        ("zoo.late() -> int", "Loaded when it is asked for."),
    ]
    assert entry["examples"] == ['>>> feed("cat")\nTrue']


@each_row(
    ("file", "expected"),
    [
        ("flodl/graph/builder.py", "graph"),
        ("flodl/data/loader.py", "data"),
        ("flodl/distributed/plan.py", "distributed"),
        ("flodl/nn/losses.py", "losses"),
        ("flodl/nn/optim.py", "optimizers"),
        ("flodl/nn/schedule.py", "schedulers"),
        ("flodl/nn/clip.py", "modules"),
        ("flodl/train/step/learning_rate.py", "schedulers"),
        ("flodl/trainer.py", "other"),
        ("flodl/autograd.py", "autograd"),
        ("flodl/tensor/views.py", "tensor"),
        ("flodl/log.py", "other"),
    ],
)
def test_the_category_comes_from_the_path(file, expected):
    assert category(file) == expected


def test_a_broken_file_costs_its_own_entries_alone(fdl, project):
    folder = project({**PACKAGE, "zoo/broken.py": "x = 1\nclass Half(:\n"})
    (folder / "zoo/latin.py").write_bytes(b"class Odd:\n    '''\xff'''\n")
    done = fdl("api-ref", "--json", "--path", str(folder / "zoo"))
    assert done.exit == 0
    assert "warning: zoo/broken.py:2: invalid syntax" in done.err
    assert "warning: zoo/latin.py:" in done.err
    assert [one["name"] for one in json.loads(done.out)["types"]][:2] == ["Bowl", "Builder"]


def test_without_griffe_the_error_says_how_to_install_it(fdl, project):
    folder = project({**PACKAGE, "hidden/griffe.py": "raise ImportError"})
    away = {"PYTHONPATH": str(folder / "hidden")}
    done = fdl("api-ref", "--path", str(folder / "zoo"), env=away)
    assert (done.exit, done.out) == (1, "")
    assert "`fdl api-ref` needs griffe, which is not installed" in done.err
    assert "pip install 'flodl[api-ref]'" in done.err


def test_without_a_name_the_public_names_are_listed_with_their_first_lines(fdl, project):
    folder = project({**PACKAGE, "zoo/graph/inner.py": "class Inside:\n    '''No.'''\n"})
    done = fdl("api-ref", "--path", str(folder / "zoo"))
    assert (done.exit, done.err) == (0, "")
    assert done.out.splitlines() == [
        f"zoo 3.2.1, read from {folder / 'zoo'}",
        "",
        "graph",
        "  zoo.Builder     Builds one.",
        "  zoo.graph.Kind  What it is.",
        "",
        "other",
        "  zoo.feed        Feed one.",
        "  zoo.late        Loaded when it is asked for.",
    ]


def test_a_package_that_exports_nothing_is_listed_whole(fdl, project):
    folder = project(
        {"own/__init__.py": "", "own/model.py": "class Net:\n    '''A net.'''\ndef run(): ...\n"}
    )
    lines = fdl("api-ref", "--path", str(folder / "own")).out.splitlines()
    assert lines[2:] == ["other", "  own.model.Net  A net.", "  own.model.run"]


def test_the_list_of_flodl_fits_a_reader_and_holds_what_it_exports(shown):
    import flodl

    lines = shown().splitlines()
    names = {line.split()[0] for line in lines if line.startswith("  ")}
    # Some losses are torch's own functions.
    own = {
        f"flodl.{name}"
        for name in flodl.__all__
        if str(getattr(getattr(flodl, name), "__module__", "")).startswith("flodl")
    }
    assert len(own) > 150
    assert own - names == set()
    assert "flodl.hf.AutoModel" in names
    assert all(name.count(".") <= 2 for name in names)
    assert len(lines) < 600


@pytest.mark.parametrize("typed", ["Builder", "zoo.Builder", "zoo.graph.Builder", "graph.Builder"])
def test_a_class_is_shown_with_its_docstring_and_its_members(fdl, project, typed):
    folder = project(PACKAGE)
    done = fdl("api-ref", typed, "--path", str(folder / "zoo"))
    assert (done.exit, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == "zoo.Builder(abc.ABC)  zoo/graph/build.py:15"
    assert "    Builds one." in lines
    assert '        >>> Builder.of("cat").with_tail(2).build()' in lines
    assert "    with_tail(length: float) -> Self" in lines
    assert "        Add a tail." in lines
    assert "Kind" not in done.out


@pytest.mark.parametrize("typed", ["feed", "zoo.feed", "zoo.keeper.feed"])
def test_a_function_is_shown_with_its_docstring(fdl, project, typed):
    folder = project(PACKAGE)
    done = fdl("api-ref", typed, "--path", str(folder / "zoo"))
    title, _, *text = done.out.splitlines()
    assert title.startswith("zoo.feed(animal: str, *, times: int = 1) -> bool  zoo/keeper.py:")
    assert text == [
        "    Feed one.",
        "",
        '    >>> feed("cat")',
        "    True",
        "",
        "    Nothing else.",
    ]


@pytest.mark.parametrize("typed", ["Builder.with_tail", "zoo.graph.Builder.with_tail"])
def test_a_method_is_shown_alone(fdl, project, typed):
    folder = project(PACKAGE)
    done = fdl("api-ref", typed, "--path", str(folder / "zoo"))
    title, _, *text = done.out.splitlines()
    assert title.startswith("zoo.Builder.with_tail(length: float) -> Self  zoo/graph/build.py:")
    assert text == ["    Add a tail."]
    document = json.loads(fdl("api-ref", typed, "--json", "--path", str(folder / "zoo")).out)
    (one,) = document["types"]
    assert (one["name"], one["constructors"]) == ("Builder", [])
    assert [method["name"] for method in one["methods"]] == ["with_tail"]


def test_each_definition_stands_with_its_own_line(fdl, project):
    folder = project(PACKAGE)
    lines = PACKAGE["zoo/keeper.py"].strip("\n").splitlines()
    for name, line in (("late", "def late() -> int:"), ("feed", "def feed(")):
        title = fdl("api-ref", name, "--path", str(folder / "zoo")).out.splitlines()[0]
        assert line in lines[int(title.rpartition(":")[2]) - 1]


def test_a_constructor_is_shown_alone(fdl, project):
    folder = project(PACKAGE)
    done = fdl("api-ref", "Bowl.__init__", "--path", str(folder / "zoo"))
    title = "zoo.graph.build.Bowl.__init__(size: int, *, color: str = 'red')  zoo/graph/build.py:"
    assert done.out.startswith(title)


def test_what_a_class_inherits_from_a_private_one_is_listed(zoo):
    own = """
        from dataclasses import dataclass
        @dataclass
        class _Base:
            name: str
            def speak(self): ...
        @dataclass
        class Bird(_Base):
            wings: int = 2
        """
    bird = by_name(zoo(**{"zoo/birds.py": own}))["Bird"]
    assert sigs(bird["constructors"]) == ["Bird(name: str, wings: int = 2)"]
    assert (sigs(bird["methods"]), bird["traits"]) == (["speak()"], [])


def test_a_package_that_cannot_be_read_is_an_error(fdl, project):
    folder = project({"zoo/__init__.py": "def (\n"})
    done = fdl("api-ref", "--path", str(folder / "zoo"))
    assert (done.exit, done.out) == (1, "")
    assert done.err.startswith(f"error: {folder / 'zoo'} cannot be read: ")
    assert len(done.err.splitlines()) == 1


def test_a_module_lists_its_names(fdl, project):
    folder = project(PACKAGE)
    done = fdl("api-ref", "zoo.graph", "--path", str(folder / "zoo"))
    shown = [line.split()[0] for line in done.out.splitlines() if line.startswith("  ")]
    assert shown == ["zoo.Builder", "zoo.graph.Kind"]


def test_what_is_not_exported_can_be_shown_too(fdl, project):
    folder = project(PACKAGE)
    done = fdl("api-ref", "Food", "--path", str(folder / "zoo"))
    assert done.out.startswith("zoo.graph.build.Food  zoo/graph/build.py:")


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("Bulider", "fdl api-ref Builder"),
        ("Builder.with_tial", "fdl api-ref Builder.with_tail"),
        ("zoo.graph.Knd", "fdl api-ref Kind"),
        ("Nothing.at_all", "`fdl api-ref` lists the public names"),
    ],
)
def test_an_unknown_name_is_an_error_that_suggests(fdl, project, typed, hint):
    folder = project(PACKAGE)
    done = fdl("api-ref", typed, "--path", str(folder / "zoo"))
    assert (done.exit, done.out) == (2, "")
    assert done.err == f"error: there is no `{typed}` in zoo 3.2.1\nhint: {hint}\n"


def test_the_trainer_of_flodl_is_shown_on_a_page(shown):
    page = shown("Trainer")
    assert page.startswith("flodl.Trainer")
    assert len(page.splitlines()) < 100
    assert shown("flodl.nn.Adam").startswith("flodl.Adam")
    settings = shown("DdpRunConfig")
    assert "anchor: int = 10, min_anchor: int | None = None" in " ".join(settings.split())


def test_methods_of_a_base_belong_to_a_class(shown, zoo):
    page = shown("TrainerBuilder")
    for name in ("early_stop", "keep_best", "num_epochs", "ranks"):
        assert f"    {name}(" in page
        assert shown(f"TrainerBuilder.{name}").startswith(f"flodl.train.TrainerBuilder.{name}(")
    assert shown("early_stop") == shown("TrainerBuilder.early_stop")
    animals = """
        class Base(Last):
            def both(self) -> int: ...
            def legs(self): ...
        class Last(Base):
            def both(self) -> str: ...
            def tail(self): ...
        class Cat(Base, Generic[T]):
            def legs(self) -> int: ...
        """
    found = by_name(zoo(**{"zoo/cats.py": animals}))["Cat"]["methods"]
    assert sigs(found) == ["legs() -> int", "both() -> int", "tail()"]


def test_the_nearest_checkout_is_read_up_to_five_levels_above(fdl, project):
    own = 'class Own:\n    """Of this checkout."""\n'
    folder = project(
        {
            "pyproject.toml": '[project]\nname = "flodl"\n',
            "flodl/__init__.py": f'__version__ = "9.9"\n{own}',
            "a/b/c/d/e/f/here.txt": "",
        }
    )
    assert json.loads(fdl("api-ref", "--json", cwd=folder / "a/b/c/d/e").out)["version"] == "9.9"
    assert find(None, folder / "a/b/c/d/e", {}) == folder / "flodl"
    assert find(None, folder / "a/b/c/d/e/f", {}) == ROOT / "flodl"
    (folder / "pyproject.toml").write_text('[project]\nname = "another"\n')
    assert find(None, folder, {}) == ROOT / "flodl"


def test_the_flodl_of_the_project_is_read_before_our_own(fdl, project):
    site = ".venv/lib/python3.11/site-packages"
    project(
        {
            ".venv/pyvenv.cfg": "home = /usr/bin\n",
            f"{site}/flodl-7.0.dist-info/METADATA": "",
            f"{site}/flodl/__init__.py": '__version__ = "7.0"\n',
        }
    )
    assert json.loads(fdl("api-ref", "--json").out)["version"] == "7.0"


@pytest.mark.parametrize("given", ["checkout", "checkout/flodl", "src-layout", "mine", "flat"])
def test_path_takes_a_project_or_a_package(fdl, project, given):
    project(
        {
            "mine/src/pkg/__init__.py": '__version__ = "1.5"\n',
            "mine/tests/__init__.py": "",
            "flat/pkg/__init__.py": '__version__ = "1.5"\n',
            "flat/tests/__init__.py": "",
            "checkout/flodl/__init__.py": '__version__ = "1.5"\n',
            "src-layout/src/flodl/__init__.py": '__version__ = "1.5"\n',
        }
    )
    assert json.loads(fdl("api-ref", "--json", "--path", given).out)["version"] == "1.5"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("nowhere", ": there is no such folder"),
        ("empty", ": it has no Python package"),
        ("two", " has several packages: a, b"),
    ],
)
def test_a_path_without_source_is_an_error(fdl, project, given, reason):
    project({"empty/readme.txt": "", "two/src/a/__init__.py": "", "two/src/b/__init__.py": ""})
    done = fdl("api-ref", "--path", given)
    assert (done.exit, done.out) == (2, "")
    assert f"{given}{reason}" in done.err
    assert "hint: " in done.err


def test_an_installation_without_flodl_says_so(monkeypatch, tmp_path):
    module = importlib.import_module("fdl.scaffold.api_ref.source")

    monkeypatch.setattr(module, "__file__", str(tmp_path / "site/fdl/scaffold/api_ref/source.py"))
    with pytest.raises(FdlError, match="neither in a checkout around here nor installed"):
        module.find(None, tmp_path, {"VIRTUAL_ENV": str(tmp_path)})
    with pytest.raises(UsageError):
        module.find(tmp_path, tmp_path, {})


def test_what_is_printed_as_a_signature_is_python(flodl_reference):
    entries = document(flodl_reference)["types"]
    used = [sig for entry in entries for sig in sigs(entry["methods"])]
    calls = [sig for sig in used if "(" in sig.split(":")[0]]
    assert len(calls) > 200
    for sig in calls:
        text, _, arrow = sig.removeprefix("async ").rpartition(" -> ")
        name, _, rest = (text or arrow).partition("(")
        ast.parse(f"def {name.rpartition('.')[2]}({rest} -> {arrow if text else None}: ...")
