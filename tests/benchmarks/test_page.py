"""What the benchmarks of the page make of their measurements."""

import json

from benchmarks.page import main
from benchmarks.runs_listed import COMMAND, PAGE, VALUES, figures

FRAMES = {
    "where": "a machine, 2026-05-04",
    "shown": [["1,000", "at rest", "16.7", "33.4", "16.7", "16.7", "1.00"]],
    "worked": [["1,000", "5.2", "5.5", "6.6"]],
}
STEPS = {
    "where": "a machine, 2026-05-05",
    "block": 1.0,
    "clients": 300,
    "rounds": 20,
    "rows": [
        ["nobody", "690.00", "1.000", "1.000 … 1.000"],
        ["300 clients", "710.00", "1.029", "1.010 … 1.040"],
    ],
}


def test_what_a_call_does_not_measure_stays_on_the_page(tmp_path):
    target = tmp_path / "page.md"
    target.with_suffix(".json").write_text(json.dumps({"frames": FRAMES, "steps": STEPS}))
    main(["--points", "--rounds", "0", "--output", str(target)])
    told = target.read_text(encoding="utf-8")
    assert "| 1,000 | at rest | 16.7 | 33.4 | 16.7 | 16.7 | 1.00 |" in told
    assert "a machine, 2026-05-04" in told
    assert "| 300 clients | 710.00 | 1.029 | 1.010 … 1.040 | 1.010 MISSED |" in told
    kept = json.loads(target.with_suffix(".json").read_text())
    assert kept == {"frames": FRAMES, "steps": STEPS}


def test_listed_runs_have_a_row_for_cold_and_for_warm_files():
    taken = [((1.8, 9.0), (0.5, 1.0)), ((2.0, 11.0), (1.5, 2.0))]
    pages = [tuple({PAGE: listed, VALUES: read} for listed, read in pair) for pair in taken]
    commands = [({COMMAND: 3.0}, {COMMAND: 1.0}), ({COMMAND: 5.0}, {COMMAND: 2.0})]
    assert figures([*commands, *pages]) == [
        ["`fdl runs list`", "cold", "4.00", "3.00 … 5.00", "2.00 MISSED"],
        ["`fdl runs list`", "warm", "1.50", "1.00 … 2.00", "2.00 PASS"],
        ["the page", "cold", "1.90", "1.80 … 2.00", "2.00 PASS"],
        ["the page", "warm", "1.00", "0.50 … 1.50", "2.00 PASS"],
        ["the page, with all values", "cold", "10.00", "9.00 … 11.00", "2.00 MISSED"],
        ["the page, with all values", "warm", "1.50", "1.00 … 2.00", "2.00 PASS"],
    ]
