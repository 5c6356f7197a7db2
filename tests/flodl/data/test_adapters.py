from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data

from flodl.data import DataLoader
from flodl.data.memmap import MemmapDataSet
from flodl.errors import DataError
from tests.flodl.data.sources import orders
from tests.rows import each_row


def saved(folder: Path, name: str, array: np.ndarray[Any, Any]) -> Path:
    path = folder / f"{name}.npy"
    np.save(path, array)
    return path


@each_row("streaming", [True, False])
def test_files_larger_than_the_memory_are_mapped(tmp_path: Path, streaming: bool) -> None:
    images = np.arange(60, dtype=np.uint8).reshape(10, 2, 3)
    data = MemmapDataSet(
        saved(tmp_path, "images", images),
        str(saved(tmp_path, "labels", np.arange(10))),
        names=["image", "label"],
    )
    assert all(isinstance(array, np.memmap) for array in data.arrays)
    loader = DataLoader(data, 4, streaming=streaming)
    batches = list(loader.epoch(0))
    assert len(batches) == 2
    for batch in batches:
        assert (batch["image"].dtype, batch["image"].shape) == (torch.uint8, (4, 2, 3))
        for image, label in zip(batch["image"], batch["label"].tolist(), strict=True):
            assert np.array_equal(image.numpy(), images[label])


def test_rows_are_read_in_the_order_of_the_file_and_come_in_the_order_asked_for() -> None:
    class Watched(np.ndarray):  # type: ignore[type-arg]
        read: list[list[int]]

        def __getitem__(self, rows: Any) -> Any:
            self.read.append(rows.tolist())
            return np.asarray(self)[rows]

    array = np.arange(100, 110).view(Watched)
    array.read = []
    (rows,) = MemmapDataSet(array).get_batch([7, 2, 9, 2])
    assert rows.tolist() == [107, 102, 109, 102]
    assert array.read == [[2, 2, 7, 9]]


def test_writing_into_a_batch_changes_neither_the_file_nor_the_next_batch(tmp_path: Path) -> None:
    path = saved(tmp_path, "x", np.ones(4))
    loader = DataLoader(MemmapDataSet(path), 4, streaming=True)
    next(loader.epoch(0))[0].zero_()
    assert next(loader.epoch(0))[0].tolist() == [1, 1, 1, 1]
    assert np.load(path).tolist() == [1, 1, 1, 1]


def test_an_array_or_a_raw_memory_map_is_a_data_set_by_itself(tmp_path: Path) -> None:
    np.arange(12, dtype=np.int32).tofile(tmp_path / "tokens.bin")
    tokens = np.memmap(tmp_path / "tokens.bin", dtype=np.int32, mode="r", shape=(6, 2))
    for source in (tokens, np.arange(12, dtype=np.int32).reshape(6, 2)):
        loader = DataLoader(source, 3, shuffle=False)
        assert orders(loader, 0) == [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9], [10, 11]]]
        assert loader.names == ("0",)


def test_numbers_in_the_byte_order_of_another_machine_are_turned(tmp_path: Path) -> None:
    data = MemmapDataSet(saved(tmp_path, "x", np.array([1, 258], dtype=">i2")))
    (rows,) = data.get_batch([1, 0])
    assert (rows.dtype, rows.tolist()) == (torch.int16, [258, 1])


def test_a_pickle_holds_the_path_of_a_file_and_not_its_content(tmp_path: Path) -> None:
    data = MemmapDataSet(saved(tmp_path, "x", np.arange(100_000)), names=["x"])
    packed = pickle.dumps(data)
    assert len(packed) < 1000
    copy = pickle.loads(packed)
    assert copy.names == ("x",)
    assert isinstance(copy.arrays[0], np.memmap)
    assert copy.get_batch([99_999, 7])[0].tolist() == [99_999, 7]


@each_row(
    "content",
    [b"", b"\x93NUMPY", b"\x93NUMPY\x01\x00v\x00\xd7'descr': '<f8', 'shape': (4" + b" " * 99],
)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(DataError, match=r"x\.npy: cannot be mapped as a \.npy file"):
        MemmapDataSet(tmp_path / "x.npy")


def test_what_cannot_be_mapped_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "text.npy").write_text("no array")
    np.savez(tmp_path / "several.npz", a=np.zeros(2))
    with pytest.raises(DataError, match=r"text\.npy: cannot be mapped as a \.npy file"):
        MemmapDataSet(tmp_path / "text.npy")
    with pytest.raises(DataError, match=r"absent\.npy: cannot be mapped"):
        MemmapDataSet(tmp_path / "absent.npy")
    with pytest.raises(DataError, match=r"several\.npz: an archive of several arrays"):
        MemmapDataSet(tmp_path / "several.npz")
    (tmp_path / "several.npz").write_bytes(b"PK and no archive")
    with pytest.raises(DataError, match=r"several\.npz: an archive of several arrays"):
        MemmapDataSet(tmp_path / "several.npz")
    with pytest.raises(DataError, match=r"common length in dimension 0, got \[3, 4\]"):
        MemmapDataSet(np.zeros(3), np.zeros(4))
    with pytest.raises(DataError, match="array 0: a single value"):
        MemmapDataSet(np.array(1.0))
    with pytest.raises(DataError, match=r"array 0: torch has no tensor for <U1 values"):
        MemmapDataSet(np.array(["a"]))
    with pytest.raises(DataError, match=r"objects\.npy: cannot be mapped.*Python objects"):
        MemmapDataSet(saved(tmp_path, "objects", np.array([{}], dtype=object)))
    for index in (2, -1):
        with pytest.raises(IndexError, match=f"index {index} is outside of a data set of 2"):
            MemmapDataSet(np.zeros(2)).get_batch([0, index])


def test_data_without_an_index_is_refused_with_a_way_out() -> None:
    class Stream(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    with pytest.raises(TypeError, match=r"Stream can only be iterated.*MemmapDataSet"):
        DataLoader(Stream(), 1)


class Feature:
    def __init__(self, dtype: str) -> None:
        self.dtype = dtype


class Sequences:
    def __init__(self, feature: Feature) -> None:
        self.feature = feature


class Table:
    """What a table of the ``datasets`` library does: NumPy columns, small integers widened."""

    def __init__(self, columns: dict[str, Any], features: dict[str, Any]) -> None:
        self.columns = columns
        self.features = features
        self.column_names = list(columns)
        self.format: dict[str, Any] = {"type": None}

    def with_format(self, kind: str, columns: list[str]) -> Table:
        table = Table(self.columns, self.features)
        table.format = {"type": kind, "columns": columns}
        return table

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, rows: Sequence[int]) -> dict[str, Any]:
        assert self.format["type"] == "numpy"
        return {name: np.array([column[i] for i in rows]) for name, column in self.columns.items()}


def test_a_table_is_read_by_columns_which_keep_their_declared_dtypes() -> None:
    table = Table(
        {
            "image": [[i, i] for i in range(6)],
            "label": list(range(6)),
            "x": [i / 2 for i in range(6)],
        },
        {"image": Sequences(Feature("uint8")), "label": Feature("int64"), "x": Feature("float32")},
    )
    for streaming in (True, False):
        loader = DataLoader(table, 3, shuffle=False, streaming=streaming)
        assert loader.names == ("image", "label", "x")
        batch = next(loader.epoch(0))
        assert [tensor.dtype for tensor in batch] == [torch.uint8, torch.int64, torch.float32]
        assert batch["image"].tolist() == [[0, 0], [1, 1], [2, 2]]
        assert batch["x"].tolist() == [0.0, 0.5, 1.0]


def test_columns_that_are_no_numbers_or_of_different_lengths_are_named() -> None:
    with pytest.raises(DataError, match=r"column 'text' holds <U1 values.*remove_columns"):
        next(DataLoader(Table({"text": ["a", "b"]}, {"text": Feature("string")}), 1).epoch(0))


def test_the_real_library_gives_the_same() -> None:
    datasets = pytest.importorskip("datasets", reason="needs the datasets library")
    features = datasets.Features(
        {
            "image": datasets.Array2D((2, 2), "uint8"),
            "tokens": datasets.List(datasets.Value("int32")),
            "label": datasets.ClassLabel(names=["cat", "dog"]),
        }
    )
    table = datasets.Dataset.from_dict(
        {
            "image": [np.full((2, 2), i, np.uint8) for i in range(6)],
            "tokens": [[i, i + 1] for i in range(6)],
            "label": [i % 2 for i in range(6)],
        },
        features=features,
    )
    for streaming in (True, False):
        loader = DataLoader(table, 4, shuffle=False, streaming=streaming)
        batch = next(loader.epoch(0))
        assert batch.names == ("image", "tokens", "label")
        assert [tensor.dtype for tensor in batch] == [torch.uint8, torch.int32, torch.int64]
        assert batch["tokens"].tolist() == [[0, 1], [1, 2], [2, 3], [3, 4]]
        assert batch["image"][3].flatten().tolist() == [3, 3, 3, 3]
    with pytest.raises(DataError, match="rows of column 'tokens' differ in length"):
        next(DataLoader(datasets.Dataset.from_dict({"tokens": [[1], [1, 2]]}), 2).epoch(0))
    with pytest.raises(TypeError, match="can only be iterated"):
        DataLoader(table.to_iterable_dataset(), 1)
    with pytest.raises(TypeError, match="pass one of its members, 'train'"):
        DataLoader(datasets.DatasetDict(train=table), 1)


def test_the_format_of_a_table_chooses_its_columns_and_a_transform_its_members() -> None:
    datasets = pytest.importorskip("datasets", reason="needs the datasets library")
    table = datasets.Dataset.from_dict({"text": ["a", "b"], "x": [[1, 2], [3, 4]], "y": [5, 6]})
    for kind in (None, "numpy", "torch", "arrow"):
        loader = DataLoader(table.with_format(kind, columns=["y", "x"]), 2, shuffle=False)
        assert loader.names == ("x", "y")
        batch = next(loader.epoch(0))
        assert (batch["x"].tolist(), batch["y"].tolist()) == ([[1, 2], [3, 4]], [5, 6])
    everything = table.with_format("torch", columns=["x"], output_all_columns=True)
    with pytest.raises(DataError, match="column 'text' holds <U1 values"):
        next(DataLoader(everything, 2).epoch(0))
    doubled = table.with_transform(lambda rows: {"z": [2 * y for y in rows["y"]]})
    batch = next(DataLoader(doubled, 2, shuffle=False).epoch(0))
    assert (batch.names, batch["z"].tolist()) == (("z",), [10, 12])
