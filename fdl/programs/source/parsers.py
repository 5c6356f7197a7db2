"""Stand-ins for argparse parsers, and for the parsers that build on them."""

from __future__ import annotations

from fdl.programs.parameters.parameter import UNSET
from fdl.programs.source.interpret import Thing
from fdl.programs.source.rows import COMPUTED, Program, fitting
from fdl.programs.source.source import given

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ast
    from typing import Any

    from fdl.programs.source.interpret import Call
    from fdl.programs.source.source import Module

_TYPES = {"str": "string", "int": "int", "float": "float"}
_EVALUATED = {
    "json.loads": "json",
    "yaml.safe_load": "json",
    "ast.literal_eval": "eval",
    "eval": "eval",
}
_PATHS = ("pathlib.Path", "Path", "argparse.FileType")
_SWITCHES = ("store_true", "store_false", "store_const", "count", "append_const")
_QUIET = ("help", "version")
_SUPPRESS = "==SUPPRESS=="


class Parser(Thing):
    """An ``argparse.ArgumentParser``.

    Attributes:
        program: What it declares.
        rank: How surely it is the program's own: 2 if it parses, 1 if it is not a part of another.
    """

    def __init__(self, program: Program, rank: int = 1) -> None:
        self.program = program
        self.rank = rank

    def do_add_argument(self, call: Call, group: object = "") -> object:
        """Declare one argument."""
        program = self.program
        flags = list(call.arguments)
        if not call.whole or any(not isinstance(one, str) for one in flags):
            program.strict = False
            return COMPUTED
        if not flags:
            flags = [str(call.named.get("dest", ""))]
        action = _action(call)
        if action in _QUIET:
            return COMPUTED
        said = {**_said(call, action), "group": group}
        if flags[0].startswith(("-", "+")):
            if said["help"] == _SUPPRESS:
                said["help"] = ""
            program.option(flags, **said)
        else:
            _positional(program, flags[0], call, said)
        return COMPUTED

    def do_add_argument_group(self, call: Call) -> Thing:
        """A heading."""
        return Group(self, call.get(0, "title", ""))

    def do_add_mutually_exclusive_group(self, _: Call) -> Thing:
        """Options of which only one may be given."""
        return Group(self, "")

    def do_add_subparsers(self, _: Call) -> Thing:
        """The place of the subcommands."""
        return _Subparsers(self.program)

    def do_set_defaults(self, call: Call) -> object:
        """Defaults that replace the declared ones."""
        for name, value in call.named.items():
            for key in (name, name.replace("_", "-")):
                if (one := self.program.options.get(key)) is not None:
                    fits = fitting(value, one.type, many=one.shape == "list")
                    one.default = UNSET if fits in (None, COMPUTED) else fits
                    others = {*one.computed} - {"default"}
                    one.computed = sorted(others | {"default"} if fits is COMPUTED else others)
        return COMPUTED

    def do_parse_args(self, _: Call) -> object:
        """Mark the parser as the program's own."""
        self.rank = 2
        return COMPUTED

    def do_parse_known_args(self, call: Call) -> object:
        """Mark the parser as the program's own; it passes unknown flags on."""
        self.program.strict = False
        return self.do_parse_args(call)

    do_parse_intermixed_args = do_parse_args
    do_parse_args_into_dataclasses = do_parse_args
    do_parse_known_intermixed_args = do_parse_known_args


class Group(Thing):
    """A group of options of a parser."""

    def __init__(self, parser: Parser, title: object) -> None:
        self._parser = parser
        self._title = title if title not in ("options", "optional arguments") else ""

    def do_add_argument(self, call: Call) -> object:
        """Declare one argument under this heading."""
        return self._parser.do_add_argument(call, self._title)

    def do_add_mutually_exclusive_group(self, _: Call) -> Thing:
        """The same heading."""
        return Group(self._parser, self._title)

    do_add_argument_group = do_add_mutually_exclusive_group


class _Subparsers(Thing):
    """The subcommands of a parser."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def do_add_parser(self, call: Call) -> object:
        """Declare one subcommand."""
        name = call.get(0, "name")
        if not isinstance(name, str):
            self._program.strict = False
            return Parser(Program(), rank=0)
        parser = new_parser(call, rank=0, description=call.named.get("help", ""))
        self._program.commands[name] = parser.program
        aliases = call.named.get("aliases")
        for alias in aliases if isinstance(aliases, list) else ():
            self._program.commands[str(alias)] = parser.program
        return parser


def new_parser(call: Call, *, rank: int = 1, description: object = "") -> Parser:
    """A parser with the arguments of its ``parents``."""
    program = Program(call.named.get("description") or description)
    if call.named.get("add_help") is False:
        # A parent, most likely; it may still be the only one.
        rank = 0
    program.strict = not {"fromfile_prefix_chars", "prefix_chars"} & call.named.keys()
    parents = call.named.get("parents")
    for parent in parents if isinstance(parents, list) else ():
        if isinstance(parent, Parser):
            program.options.update(parent.program.options)
            program.arguments += parent.program.arguments
            program.strict = program.strict and parent.program.strict
        else:
            program.strict = False
    program.strict = program.strict and parents is not COMPUTED
    return Parser(program, rank)


def _action(call: Call) -> str:
    """The name of an action; that of a class counts as what its name says."""
    action = call.named.get("action", "store")
    if isinstance(action, str):
        return action
    keyword = given(call.node, "action")
    name = call.module.origin(keyword).rpartition(".")[2] if keyword else ""
    return {"BooleanOptionalAction": "pair"}.get(name, "own")


def _said(call: Call, action: str) -> dict[str, Any]:
    """What an action other than those of help and version says about its argument."""
    named = call.named
    type_, doubtful = _type_of(call)
    nargs = named.get("nargs")
    several = nargs in ("*", "+", "...", "A...") or (isinstance(nargs, int) and nargs >= 1)
    flag = action in _SWITCHES or action == "pair" or nargs == 0
    words = "*" if nargs in ("...", "A...") else nargs if several and nargs != 1 else None
    if nargs == "?":
        words = nargs
    if nargs is COMPUTED:
        words = COMPUTED
    text = named.get("help")
    said = {
        "default": named.get("default"),
        "help": _filled(text, named) if isinstance(text, str) else "",
        "counted": action == "count",
        "once": several and action not in ("append", "extend", "own"),
        "required": named.get("required", False),
        "place": call.place,
    }
    if not flag:
        return {
            **said,
            "type": type_,
            "choices": named.get("choices", ()),
            "many": several or action in ("append", "extend"),
            "nargs": words,
            "doubtful": doubtful or action == "own",
            "words": _words_of(call),
            "literal": literal_of(given(call.node, "type"), call.module),
        }
    if action in _SWITCHES:
        # What such a flag means when it is absent is not a value to type.
        said["default"] = None
    names = [one for one in call.arguments if isinstance(one, str) and one.startswith("--")]
    negatives = [f"--no-{one[2:]}" for one in names] if action == "pair" else []
    return {**said, "type": "bool", "negatives": negatives}


def _words_of(call: Call) -> dict[str, str]:
    """How true and false are written: ``bool`` makes True of every word but the empty one."""
    type_ = given(call.node, "type")
    name = call.module.origin(type_) if type_ is not None else ""
    words = {"false": ""} if name == "bool" else {}
    if _reads_booleans(name):
        words["false"] = "false"
    if call.named.get("nargs") == "?" and call.named.get("const") is None:
        words["true"] = "true"
    return words


def _type_of(call: Call) -> tuple[str, bool]:
    """The schema's word for ``type=``, and whether it is the program's own converter."""
    keyword = given(call.node, "type")
    if keyword is None:
        return "string", False
    dotted = call.module.origin(keyword) or call.module.origin(getattr(keyword, "func", keyword))
    if dotted in _TYPES:
        return _TYPES[dotted], False
    if _reads_booleans(dotted):
        return "string", False
    return ("path", False) if dotted in _PATHS else ("string", True)


def _reads_booleans(converter: str) -> bool:
    """Whether a converter takes the words true and false: ``str2bool``, ``strtobool``."""
    return "bool" in converter.lower() and converter != "bool"


def literal_of(node: ast.expr | None, module: Module) -> str:
    """How a converter evaluates its word, in the words of a schema."""
    return _EVALUATED.get(module.origin(node), "") if node is not None else ""


def _positional(program: Program, name: str, call: Call, said: dict[str, Any]) -> None:
    nargs = call.named.get("nargs")
    if nargs in ("...", "A...") or isinstance(nargs, int) or nargs is COMPUTED:
        program.strict = False
    variadic = nargs in ("*", "+", "...", "A...") or isinstance(nargs, int)
    # A positional without `nargs` must be given, whatever its default.
    required = nargs in (None, "+", "A...") or isinstance(nargs, int)
    said |= {"required": required, "variadic": variadic}
    program.argument(name.replace("_", "-"), **said)


def _filled(text: str, named: dict[str, Any]) -> str:
    """A help text with its ``%(default)s`` filled in, as far as the values are known."""
    facts = {key: value for key, value in named.items() if value is not COMPUTED}
    if "%(" not in text:
        return text.replace("%%", "%")
    try:
        return text % {"default": "computed", "prog": "program", "type": "", **facts}
    except (KeyError, TypeError, ValueError):
        return text
