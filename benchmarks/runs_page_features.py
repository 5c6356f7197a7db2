"""What the pages of the tools can do, each claim with its source."""

from __future__ import annotations

from benchmarks.measure import table

TOOLS = ("fdl", "TensorBoard", "Aim", "trackio", "MLflow")

SOURCES = {
    "fdl": "[guide of runs](../guide/runs-more.md#many-runs-on-one-page)",
    "fdl-page": "the program of its page, `fdl/base/page/scale.js`",
    "TB": "[TensorBoard, README](https://github.com/tensorflow/tensorboard/blob/master/README.md)",
    "TB-hp": (
        "[TensorBoard, the HParams dashboard](https://github.com/tensorflow/tensorboard/blob/"
        "master/docs/hyperparameter_tuning_with_hparams.ipynb)"
    ),
    "TB-215": (
        "[TensorBoard 2.15, notes of the release]"
        "(https://github.com/tensorflow/tensorboard/releases/tag/2.15.0)"
    ),
    "TB-page": "the program of the installed page, TensorBoard 2.21.0",
    "Aim": (
        "[Aim 3.16.2, explorers]"
        "(https://github.com/aimhubio/aim/blob/v3.16.2/docs/source/ui/pages/explorers.md)"
    ),
    "Aim-runs": (
        "[Aim 3.15.2, management of runs]"
        "(https://github.com/aimhubio/aim/blob/v3.15.2/docs/source/ui/pages/run_management.md)"
    ),
    "Aim-px": (
        "[Aim, explorers of params, images and scatters]"
        "(https://github.com/aimhubio/aim/blob/main/docs/source/ui/pages/explorers.md)"
    ),
    "Aim-page": "the installed page, Aim 3.29.1",
    "tr": "[trackio, tracking](https://huggingface.co/docs/trackio/track)",
    "tr-606": "[trackio, change 606](https://github.com/gradio-app/trackio/pull/606)",
    "tr-page": "the source of the installed page, trackio 0.43.0",
    "ML": (
        "[charts of MLflow, documentation of Databricks]"
        "(https://docs.databricks.com/mlflow/visualize-runs.html)"
    ),
    "ML-find": "[MLflow 2.15.1, search runs](https://mlflow.org/docs/2.15.1/search-runs.html)",
    "ML-page": "the program of the installed page, MLflow 3.17.2",
    "ML-host": "[MLflow, tracking server](https://mlflow.org/docs/latest/ml/tracking/server)",
}
"""Where a claim was read. Documentation is of the version named, else of the main branch."""

NO = ""
FEATURES: dict[str, tuple[str, str, str, str, str]] = {
    "curves of several runs in one chart": ("yes fdl", "yes TB", "yes Aim", "yes tr", "yes ML"),
    "smoothing": ("yes fdl", "yes TB-page", "yes Aim", "yes tr-page", "yes ML-page"),
    "limits of an axis without outliers": ("yes fdl-page", "yes TB-page", "yes Aim", NO, NO),
    "groups by a setting": ("yes fdl", NO, "yes Aim", "yes tr", "yes ML"),
    "mean of each group": ("with a band fdl", NO, "yes Aim", NO, NO),
    "table of settings, sorted and filtered": (
        "yes fdl",
        "yes TB-hp, beside the curves TB-215",
        "by a query Aim-runs",
        NO,
        "by a query ML-find",
    ),
    "only what differs": (
        "yes fdl",
        "settings with several values first TB-215",
        "yes Aim-page",
        "of 10 runs tr-page tr-606",
        "yes ML-page",
    ),
    "file and line of every setting": ("yes fdl", NO, NO, NO, NO),
    "parallel coordinates": ("yes fdl", "yes TB-hp", "yes Aim-px", NO, "yes ML"),
    "scatter of a setting against a metric": (
        "yes fdl",
        "yes TB-hp",
        "yes Aim-px",
        NO,
        "yes ML-page",
    ),
    "contour of two settings and a metric": (NO, NO, NO, NO, "yes ML-page"),
    "download of a table or a chart": (
        "table, CSV fdl",
        "data of a chart TB-page",
        "table, CSV Aim-runs",
        "data or picture of a chart tr-page",
        "chart ML",
    ),
    "images compared across runs": (NO, "yes TB", "yes Aim-px", NO, NO),
    "audio, and a projector of embeddings": (
        NO,
        "yes TB",
        "audio Aim-page",
        "audio tr-page",
        NO,
    ),
    "a server that a team shares": (NO, NO, NO, "on Hugging Face or your own tr", "yes ML-host"),
}
"""Each cell ends with names of :data:`SOURCES`; an empty one means that no source says so."""


def cell(text: str, numbers: dict[str, int]) -> str:
    """The words of a cell with the numbers of its sources.

    Raises:
        ValueError: It claims something without a source.
    """
    if not text:
        return "not found"
    words = []
    for word in text.split(" "):
        name = word.rstrip(",")
        mark = f"[{numbers[name]}]" + word[len(name) :] if name in numbers else word
        words.append(mark)
    if not any(word.rstrip(",") in numbers for word in text.split(" ")):
        raise ValueError(f"no source: {text}")
    return " ".join(words)


def features() -> str:
    """The table of features, and the list of its sources."""
    numbers = {name: number for number, name in enumerate(SOURCES, 1)}
    rows = [[name, *(cell(text, numbers) for text in FEATURES[name])] for name in FEATURES]
    listed = "\n".join(f"{numbers[name]}. {SOURCES[name]}" for name in SOURCES)
    return "\n\n".join(
        [
            "## Features",
            table(("feature", *TOOLS), rows),
            "*Not found* means that the sources below do not mention it. It may exist. For fdl it "
            "means that the page of many runs does not have it.",
            listed,
        ]
    )
