"""`fdl warm` is mentioned once, where trainings start often and a person looks."""

import sys
import time

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="`fdl warm` needs Linux")

LINE = "`fdl warm` keeps torch loaded"


def on_terminal(project, count):
    texts = []
    for _ in range(count):
        with project.terminal("t") as terminal:
            assert terminal.finish() == 0
            texts.append(terminal.text)
    return [LINE in text for text in texts]


def test_it_is_offered_once_at_the_fifth_start(cold):
    cold.write("t/main.py", "import os  # torch\n")
    assert on_terminal(cold, 6) == [False, False, False, False, True, False]


@pytest.mark.parametrize("times", ["1\n1\n1\n1", ""], ids=["long ago", "never"])
def test_rare_starts_are_not_worth_a_line(cold, times):
    cold.write("t/main.py", "import os  # torch\n")
    cold.write(".fdl/starts", times)
    assert on_terminal(cold, 1) == [False]


def test_other_programs_and_pipes_see_no_line(cold):
    recent = "\n".join([f"{time.time():.0f}"] * 4)
    cold.write(".fdl/starts", recent)
    cold.write("t/main.py", "import os\n")
    assert on_terminal(cold, 1) == [False]
    cold.write(".fdl/starts", recent)
    cold.write("t/main.py", "import os  # torch\n")
    assert LINE not in cold.fdl("t").stderr
    assert (cold.root / ".fdl/starts").read_text() == recent
