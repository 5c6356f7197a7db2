"""Flags of absl: lists in one word or by repetition, enumerations in any case."""

from __future__ import annotations

FLAGS = """
import enum
from absl import app, flags

class Act(enum.Enum):
    RELU = 1
    GELU = 2

flags.DEFINE_list("names", ["a"], "names")
flags.DEFINE_spaceseplist("words", ["a"], "words")
flags.DEFINE_multi_enum("modes", ["fit"], ["fit", "eval"], "modes")
flags.DEFINE_multi_integer("sizes", [1], "sizes")
flags.DEFINE_enum("kind", "Fast", ["Fast", "Slow"], "kind", case_sensitive=False)
flags.DEFINE_enum_class("act", Act.RELU, Act, "act")
flags.DEFINE_multi_enum_class("acts", [Act.RELU], Act, "acts")
flags.DEFINE_bool("amp", True, "amp")
flags.DEFINE(flags.FloatParser(), "lr", 0.1, "lr")
f = flags.FLAGS

def main(argv):
    print(f.names, f.words, f.modes, f.sizes, f.kind, f.act.name, [a.name for a in f.acts], f.amp)
    print(f.lr, argv[1:])

app.run(main)
"""
USUAL = "['a'] ['a'] ['fit'] [1] Fast RELU ['RELU'] True\n0.1 []"


def test_lists_are_written_as_absl_reads_them(driven):
    call = driven(
        FLAGS,
        """
        p: {options: {lr: 0.1}}
        two: {options: {names: [x, "y,z"]}}
        words: {options: {words: [x, y]}}
        blank: {options: {words: ["x y"]}}
        modes: {options: {modes: [fit, eval], sizes: [2, 3]}}
        acts: {options: {act: gelu, acts: [gelu, RELU], kind: slow, amp: false, lr: 0.5}}
        wrong: {options: {modes: [fit, test]}}
        """,
    )
    assert call("p") == USUAL
    assert call("two") == USUAL.replace("['a']", "['x', 'y,z']", 1)
    assert call("words") == USUAL.replace("['a'] ['a']", "['a'] ['x', 'y']")
    assert call("modes") == USUAL.replace("['fit'] [1]", "['fit', 'eval'] [2, 3]")
    assert call("acts").startswith("['a'] ['a'] ['fit'] [1] Slow GELU ['GELU', 'RELU'] False\n0.5")
    assert "invalid value `test` for `--modes` -- allowed: fit, eval" in call("wrong")
    assert "`x y` has a blank, and `--words` takes blanks as the end of a value" in call("blank")
    assert call("p", "--verbosity", "1", "--names", "x,y").startswith("['x', 'y']")
