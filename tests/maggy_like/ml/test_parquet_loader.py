"""ParquetLoader: what is yielded, by which rank, in which order, and again after a resume."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import signal
import tempfile
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from maggy_like import run
from maggy_like.distributed.loader import is_stand_in
from maggy_like.distributed.parallel import prepare
from maggy_like.errors import ConfigError, DataError
from maggy_like.ml import Column, ParquetLoader
from maggy_like.ml.loader.windows import Buffers, WindowPlan


def table(rows: int) -> pa.Table:
    """Rows whose columns say which row it is."""
    number = np.arange(rows)
    return pa.table(
        {
            "row": number,
            "x": pa.array([[row, -row] for row in range(rows)], pa.list_(pa.float64())),
            "name": [str(row).encode() for row in range(rows)],
        }
    )


def write(directory: Path, files: list[tuple[int, int]]) -> int:
    """Files of so many rows, in row groups of so many; returns the rows of all."""
    whole, start = table(sum(rows for rows, _ in files)), 0
    for number, (rows, group) in enumerate(files):
        pq.write_table(whole.slice(start, rows), directory / f"part-{number:03}.parquet", row_group_size=group)
        start += rows
    return start


def rows_of(loader: ParquetLoader) -> list[int]:
    """The rows of the next epoch, in order, without stand-ins."""
    return [row for batch in loader if not is_stand_in() for row in batch["row"].tolist()]


FILES = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 15)), min_size=1, max_size=4)
LOADERS = st.fixed_dictionaries(
    {"batch_size": st.integers(4, 25), "buffer_rows": st.integers(1, 60), "shuffle": st.booleans()}
)


@pytest.mark.slow
@given(files=FILES, ranks=st.integers(1, 4), options=LOADERS, epoch=st.integers(0, 2))
def test_every_row_comes_once_an_epoch_in_equal_steps(
    files: list[tuple[int, int]], ranks: int, options: dict[str, Any], epoch: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        rows = write(Path(directory), files)
        if rows < ranks:
            return
        loaders = [ParquetLoader(directory, rank=rank, ranks=ranks, **options) for rank in range(ranks)]
        for loader in loaders:
            loader.set_epoch(epoch)
        read = [rows_of(loader) for loader in loaders]
        assert sorted(itertools.chain(*read)) == list(range(rows))
        assert len({len(loader) for loader in loaders}) == 1
        assert all(sum(1 for _ in loader) == len(loader) for loader in loaders)
        if ranks == 1 and not options["shuffle"]:
            assert read[0] == list(range(rows))


@pytest.mark.slow
@given(files=FILES, options=LOADERS, ranks=st.integers(1, 3), share=st.floats(0, 1), threads=st.integers(1, 3))
def test_a_resume_loses_and_repeats_nothing(
    files: list[tuple[int, int]], options: dict[str, Any], ranks: int, share: float, threads: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        if write(Path(directory), files) < ranks:
            return
        rank = ranks - 1
        whole = ParquetLoader(directory, rank=rank, ranks=ranks, **options)
        expected = [batch["row"].tolist() for _ in range(2) for batch in whole]
        first = ParquetLoader(directory, rank=rank, ranks=ranks, **options)
        stop = round(share * len(first))
        seen = [batch["row"].tolist() for batch in itertools.islice(first, stop)]
        again = ParquetLoader(directory, rank=rank, ranks=ranks, prefetch=threads, **options)
        again.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))
        while len(seen) < len(expected):
            seen += [batch["row"].tolist() for batch in again]
        assert seen == expected


def test_columns_of_a_row_stay_together(tmp_path: Path) -> None:
    write(tmp_path, [(100, 9), (50, 50)])
    for batch in ParquetLoader(str(tmp_path), batch_size=16, buffer_rows=32):
        assert batch["x"].dtype == torch.float32
        assert torch.equal(batch["x"][:, 0], batch["row"].float())
        assert torch.equal(batch["x"][:, 1], -batch["row"].float())
        assert batch["name"] == [str(row).encode() for row in batch["row"].tolist()]


def test_only_the_columns_asked_for_are_yielded_in_their_order(tmp_path: Path) -> None:
    write(tmp_path, [(10, 10)])
    loader = ParquetLoader(tmp_path, ["x", Column("row", (), "float32")], batch_size=5)
    assert loader.columns == (Column("x", (2,), "float32"), Column("row", (), "float32"))
    assert [(name, values.dtype) for name, values in next(iter(loader)).items()] == [
        ("x", torch.float32),
        ("row", torch.float32),
    ]


def test_the_seed_alone_says_the_order(tmp_path: Path) -> None:
    write(tmp_path, [(200, 10)])
    same = [rows_of(ParquetLoader(tmp_path, batch_size=8, seed=3, prefetch=ahead)) for ahead in (1, 2)]
    assert same[0] == same[1] != rows_of(ParquetLoader(tmp_path, batch_size=8, seed=4))
    loader = ParquetLoader(tmp_path, batch_size=8, seed=3)
    assert rows_of(loader) == same[0] != rows_of(loader)  # the second is of the next epoch
    loader.set_epoch(0)
    assert rows_of(loader) == same[0]


def test_row_groups_are_shuffled_and_rows_in_the_buffer(tmp_path: Path) -> None:
    write(tmp_path, [(1000, 10)])
    rows = np.array(rows_of(ParquetLoader(tmp_path, batch_size=10, buffer_rows=100)))
    groups = [set(rows[start : start + 100] // 10) for start in range(0, 1000, 100)]
    assert all(len(there) == 10 for there in groups)  # ten whole row groups in a buffer
    assert not any(np.array_equal(np.sort(rows[start : start + 10]), rows[start : start + 10]) for start in (0, 500))


def test_a_table_in_memory_is_read_as_a_file_is() -> None:
    whole = table(10_000)
    for data in (whole, whole.to_pandas()):
        loader = pickle.loads(pickle.dumps(ParquetLoader(data, ["x", "row"], batch_size=64)))
        assert loader.columns[0].shape == (2,)
        assert sorted(rows_of(loader)) == list(range(10_000))


VECTOR = pa.struct(
    {"type": pa.int8(), "size": pa.int32(), "indices": pa.list_(pa.int32()), "values": pa.list_(pa.float64())}
)
"""How Spark stores its vectors."""


def vector(is_sparse: bool, values: list[float]) -> dict[str, Any]:
    if not is_sparse:
        return {"type": 1, "size": None, "indices": None, "values": values}
    places = [place for place, value in enumerate(values) if value]
    return {"type": 0, "size": len(values), "indices": places, "values": [values[place] for place in places]}


@pytest.mark.slow
@given(
    vectors=st.lists(
        st.tuples(st.booleans(), st.lists(st.sampled_from([0.0, 0.0, 0.0, 0.1, -2.0]), min_size=6, max_size=6)),
        min_size=1,
        max_size=40,
    ),
    options=LOADERS,
    group=st.integers(1, 15),
    shape=st.sampled_from([None, (6,), (2, 3)]),
)
def test_vectors_are_the_rows_that_they_stand_for(
    vectors: list[tuple[bool, list[float]]], options: dict[str, Any], group: int, shape: tuple[int, ...] | None
) -> None:
    made = pa.table({"v": pa.array([vector(*it) for it in vectors], VECTOR), "row": range(len(vectors))})
    column = "v" if shape is None else Column("v", shape, "float64")
    with tempfile.TemporaryDirectory() as directory:
        pq.write_table(made, f"{directory}/part.parquet", row_group_size=group)
        for data in (directory, made):
            loader = ParquetLoader(data, [column, "row"], fractions="float64", **options)
            assert loader.columns[0] == Column("v", shape or (6,), "float64")
            read = {row: v for batch in loader for row, v in zip(batch["row"].tolist(), batch["v"], strict=True)}
            assert [read[row].flatten().tolist() for row in range(len(vectors))] == [values for _, values in vectors]


def test_long_vectors_are_filled_up_batch_by_batch(tmp_path: Path) -> None:
    length = 1 << 22
    rows = [{"type": 0, "size": length, "indices": [row, length - 1], "values": [1.0, row]} for row in range(2000)]
    pq.write_table(pa.table({"v": pa.array(rows, VECTOR)}), tmp_path / "part.parquet")  # 32 GB of floats
    (batch, *_) = itertools.islice(ParquetLoader(tmp_path, ["v"], batch_size=2, shuffle=False), 1)
    assert batch["v"].shape == (2, length)
    assert [batch["v"][1, 1].item(), batch["v"][1, -1].item(), batch["v"].sum().item()] == [1, 1, 3]


def test_a_batch_that_no_memory_holds_is_refused(tmp_path: Path) -> None:
    rows = [{"type": 0, "size": 1 << 30, "indices": [1], "values": [1.0]}] * 4096
    pq.write_table(pa.table({"v": pa.array(rows, VECTOR)}), tmp_path / "part.parquet")
    message = r"got 16384\.0 GiB for 4096 rows with 1073741824 numbers in column 'v'; use smaller batches"
    with pytest.raises(DataError, match=message):
        ParquetLoader(tmp_path, ["v"], batch_size=4096)


def test_memory_is_used_again_once_no_batch_refers_to_it() -> None:
    buffers = Buffers()
    tensor = torch.from_numpy(buffers.take((4, 2), "float32"))
    address = tensor.data_ptr()
    batch, array = tensor[:2], tensor.numpy()
    del tensor
    others = [buffers.take((4, 2), "float32")]
    del batch
    others.append(buffers.take((4, 2), "float32"))  # the array still refers to the tensor's memory
    assert address not in [it.ctypes.data for it in others]
    del array
    assert buffers.take((4, 2), "float64").ctypes.data != address
    assert buffers.take((4, 2), "float32").ctypes.data == address


@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_that_are_kept_do_not_change(shuffle: bool, tmp_path: Path) -> None:
    write(tmp_path, [(500, 100)])
    loader = ParquetLoader(str(tmp_path), ["row", "x"], batch_size=10, buffer_rows=20, shuffle=shuffle)
    kept = [batch for number, batch in enumerate(loader) if number % 3 == 0]  # the memory of the others is used again
    rows = torch.cat([batch["row"] for batch in kept])
    assert len(set(rows.tolist())) == len(rows) == 170
    assert torch.equal(torch.cat([batch["x"] for batch in kept]), torch.stack([rows, -rows], dim=1).float())
    assert shuffle or rows[::10].tolist() == list(range(0, 500, 30))


@pytest.mark.parametrize("names", [["x"], ["x.y"], ["x", "x.y"], ["x.y", "row", "x"]])
def test_a_name_that_begins_another_behind_a_dot_means_itself(names: list[str], tmp_path: Path) -> None:
    made = {"x": [[1.0, 2.0, 3.0]] * 4, "x.y": [0.5] * 4, "s": [{"x": 1, "y": [2]}] * 4, "row": range(4)}
    pq.write_table(pa.table(made), tmp_path / "part.parquet")
    loader = ParquetLoader(tmp_path, names, batch_size=4)
    shapes = {"x": (3,), "x.y": (), "row": ()}
    assert [column.shape for column in loader.columns] == [shapes[name] for name in names]
    assert {name: values.shape[1:] for name, values in next(iter(loader)).items()} == {it: shapes[it] for it in names}


def test_fractions_come_as_they_are_asked_for() -> None:
    made = pa.table({"x": [16_777_217.0], "n": pa.array([3], pa.int16())})
    batch = next(iter(ParquetLoader(made, batch_size=1, fractions="float64")))
    assert (batch["x"].item(), batch["n"].dtype) == (16_777_217.0, torch.int16)
    assert next(iter(ParquetLoader(made, batch_size=1)))["x"].dtype == torch.float32


def test_files_of_a_file_system_by_url() -> None:
    import fsspec

    with fsspec.open("memory://loader/a/part.parquet", "wb") as file:
        pq.write_table(table(30), file)
    with fsspec.open("memory://loader/a/_SUCCESS", "wb"):
        pass
    assert sorted(rows_of(ParquetLoader("memory://loader/a", batch_size=4))) == list(range(30))


def test_prepare_gives_this_rank_its_share(tmp_path: Path) -> None:
    write(tmp_path, [(10, 10)])
    loader = ParquetLoader(tmp_path, batch_size=4)
    assert prepare(loader) is loader  # one rank on the CPU
    shared = [loader.share_out(torch.device("cpu"), rank, 3) for rank in range(3)]
    assert sorted(row for it in shared for row in rows_of(it)) == list(range(10))
    with pytest.raises(ValueError, match=r"prepare\(\*them\)"):
        prepare([loader])


def test_a_loop_that_is_left_leaves_no_thread(tmp_path: Path) -> None:
    write(tmp_path, [(500, 10)])
    for _ in ParquetLoader(tmp_path, batch_size=4, buffer_rows=8):
        assert [it for it in threading.enumerate() if it.name.startswith("parquet-loader")]
        break
    assert not [it for it in threading.enumerate() if it.name.startswith("parquet-loader")]


def test_a_state_of_another_loader_is_refused(tmp_path: Path) -> None:
    write(tmp_path, [(100, 10)])
    loader = ParquetLoader(tmp_path, batch_size=4)
    for other in ({"batch_size": 5}, {"batch_size": 4, "seed": 1}, {"batch_size": 4, "ranks": 2}):
        with pytest.raises(ConfigError, match="the state must be of a loader with"):
            loader.load_state_dict(ParquetLoader(tmp_path, **other).state_dict())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"x": [1.0, None]}, r"column 'x' must not have nulls or empty lists, got 1;.*na.drop\(subset=\['x'\]\)"),
        ({"x": pa.array([], pa.int64())}, "enough rows for .*, got 0"),
        ({"x": ["a"]}, "column 'x' must have a type that tensors can have, got string.*StringIndexer"),
        ({"z": [1]}, "there is no column 'x'; the columns are: z"),
    ],
)
def test_what_cannot_be_read_is_told_before(made: dict[str, Any], message: str, tmp_path: Path) -> None:
    pq.write_table(pa.table(made), tmp_path / "a.parquet")
    for data in (tmp_path, pa.table(made)):
        with pytest.raises(DataError, match=message):
            ParquetLoader(data, ["x"], batch_size=1)


def test_a_column_that_only_directories_name_is_told(tmp_path: Path) -> None:
    (tmp_path / "day=3").mkdir()
    pq.write_table(pa.table({"x": [1.0]}), tmp_path / "day=3" / "a.parquet")
    assert len(ParquetLoader(tmp_path, batch_size=1)) == 1
    with pytest.raises(
        DataError,
        match=r"column 'day' must be in the files, got it only in names of directories \(day=...\).*without part",
    ):
        ParquetLoader(tmp_path, ["x", "day"], batch_size=1)


def test_rows_of_several_lengths_are_told_with_the_column(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [[1.0], [1.0, 2.0], [3.0]]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="column 'x' must have rows of one length"):
        list(ParquetLoader(tmp_path, batch_size=3))


def test_files_must_agree_on_types(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": [1.0]}), tmp_path / "b.parquet")
    with pytest.raises(
        DataError, match=r"column 'x' must have one type, got double in .*b.parquet and int64 in .*a.parquet"
    ):
        ParquetLoader(tmp_path, batch_size=1)


def test_directories_that_are_no_plain_tables_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there are no Parquet files at"):
        ParquetLoader(tmp_path, batch_size=1)
    (tmp_path / "bad.parquet").write_text("nothing")
    with pytest.raises(DataError, match=r"bad.parquet must be a Parquet file"):
        ParquetLoader(tmp_path, batch_size=1)
    (tmp_path / "_delta_log").mkdir()
    with pytest.raises(DataError, match=r"got a Delta table, .* write it: df\.write\.parquet"):
        ParquetLoader(tmp_path, batch_size=1)


def test_a_file_that_is_written_anew_is_not_read_by_its_old_footer(tmp_path: Path) -> None:
    write(tmp_path, [(20, 5)])
    loader = ParquetLoader(tmp_path, ["row"], batch_size=5)
    assert sorted(rows_of(loader)) == list(range(20))
    write(tmp_path, [(30, 5)])
    with pytest.raises(DataError, match=r"part-000\.parquet has changed since the loader was created"):
        rows_of(loader)


def test_what_is_no_data_in_a_directory_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path, [(7, 5)])
    for name in ("_SUCCESS", "_temporary/part.parquet", ".part.parquet", "part-000.parquet.crc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("nothing")
    assert sorted(rows_of(ParquetLoader(tmp_path, ["row"], batch_size=5))) == list(range(7))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 2, "seed": -1}, "seed"),
        ({"batch_size": 2, "rank": 2, "ranks": 2}, "rank must be less than ranks=2, got 2"),
        ({"batch_size": 2, "columns": "x"}, r"columns must be a list, got 'x'; use \['x'\]"),
        ({"batch_size": 2, "columns": []}, "columns must be a list"),
        ({"batch_size": 2, "columns": ["row", "row"]}, "columns must have different names, got 'row' 2 times"),
    ],
)
def test_arguments_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ParquetLoader(table(5), **options)


def test_columns_of_plain_numbers_keep_their_types_and_places(tmp_path: Path) -> None:
    rows = 50
    kinds = ["float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool", "float16"]
    data = {f"{of}_{twin}": (np.arange(rows) * (twin + 1) % 100).astype(of) for twin in range(2) for of in kinds}
    table = pa.table({**data, "array": [[float(row), 1.0] for row in range(rows)], "id": np.arange(rows)})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=16)
    loader = ParquetLoader(tmp_path / "rows.parquet", batch_size=8, fractions="float64", buffer_rows=20)
    batches = list(loader)
    together = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
    order = together["id"].numpy()
    assert sorted(order) == list(range(rows))
    for name, values in data.items():
        assert np.array_equal(together[name].numpy(), values[order].astype(together[name].numpy().dtype)), name
        assert together[name].is_contiguous()
    assert np.array_equal(together["array"][:, 0].numpy(), order)


def test_a_null_among_columns_of_one_type_is_found_in_its_column(tmp_path: Path) -> None:
    table = pa.table({"a": [1.0, 2.0, 3.0], "b": [1.0, None, 3.0], "c": [1.0, 2.0, 3.0]})
    pq.write_table(table, tmp_path / "rows.parquet", write_statistics=False)
    with pytest.raises(DataError, match=r"column 'b' must not have nulls, got 1 .* the first in row 1"):
        list(ParquetLoader(tmp_path / "rows.parquet", batch_size=2, shuffle=False))


# -- the plan of an epoch ----------------------------------------------------------------------------


GROUPS = st.lists(st.integers(0, 30), min_size=1, max_size=12)


@given(
    groups=GROUPS,
    ranks=st.integers(1, 7),
    more=st.integers(0, 20),
    drop_last=st.booleans(),
    least_share=st.integers(0, 3),
    seed=st.none() | st.integers(0, 5),
)
def test_each_row_is_read_once_by_one_rank(
    groups: list[int], ranks: int, more: int, drop_last: bool, least_share: int, seed: int | None
) -> None:
    batch_size = ranks + more
    assume(sum(groups) >= (batch_size if drop_last else ranks))
    plan = WindowPlan(groups, batch_size, ranks, drop_last, least_share)
    order = plan.order(seed, epoch=3)
    assert sorted(order) == list(range(len(groups)))
    runs = [plan.run(rank) for rank in range(ranks)]
    assert [start for start, _ in runs] == [0, *(stop for _, stop in runs[:-1])]
    assert runs[-1][1] == plan.rows == (sum(groups) // batch_size * batch_size if drop_last else sum(groups))
    rows = [(piece.group, row) for run in runs for piece in plan.pieces(order, *run) for row in range(*piece[1:])]
    assert len(set(rows)) == len(rows) == plan.rows
    assert all(0 <= row < groups[group] for group, row in rows)


@given(
    rows=st.integers(1, 200),
    ranks=st.integers(1, 7),
    more=st.integers(0, 20),
    least_share=st.integers(0, 3),
    buffer=st.integers(1, 50),
)
def test_steps_and_windows_are_the_same_on_all_ranks(
    rows: int, ranks: int, more: int, least_share: int, buffer: int
) -> None:
    assume(rows >= ranks)
    plan = WindowPlan([rows], ranks + more, ranks, least_share=least_share)
    for step in range(plan.steps):
        shares = [plan.share(step, rank) for rank in range(ranks)]
        assert sum(share.samples for share in shares) == shares[0].total > 0
        assert max(shares).samples - min(shares).samples <= 1
        if min(rows, ranks + more) >= least_share * ranks:
            assert min(shares).samples >= least_share
    windows = plan.windows(buffer)
    assert [*itertools.chain(*windows)] == list(range(plan.steps))
    for window, rank in itertools.product(windows, range(ranks)):
        assert plan.rows_before(window.stop, rank) > plan.rows_before(window.start, rank)  # so a stand-in is at hand


def test_epochs_have_orders_of_their_own() -> None:
    plan = WindowPlan([1] * 20, batch_size=4, ranks=1)
    assert plan.order(0, 1) == plan.order(0, 1) != plan.order(0, 2)
    assert plan.order(None, 7) == list(range(20))


def test_too_few_rows_are_told() -> None:
    with pytest.raises(DataError, match="enough rows for 3 ranks, got 2"):
        WindowPlan([2], batch_size=8, ranks=3)
    with pytest.raises(DataError, match=r"enough rows for .*, got 0"):
        WindowPlan([], batch_size=8, ranks=1)
    with pytest.raises(DataError, match=r"enough rows for a batch of 8 \(drop_last=True\), got 5"):
        WindowPlan([5], batch_size=8, ranks=2, drop_last=True)
    with pytest.raises(
        ConfigError, match=r"batch_size, which is that of all ranks together, must be at least 4, got 3"
    ):
        WindowPlan([5], batch_size=3, ranks=4)


# -- several ranks -----------------------------------------------------------------------------------


ROWS, BATCH, EPOCHS = 21, 4, 2
"""The last batch has one row, of which the second rank has none."""
KILLED = 8
"""Step, over both epochs, in which the second rank is killed, once."""


def train(data: str, seen: Path, *, reporter: Any) -> None:
    """Adds up the rows by a linear model's gradients, and writes down which rows this rank has got."""
    model, loader = nn.Linear(1, 1), ParquetLoader(data, ["row"], batch_size=BATCH, buffer_rows=4)
    model, loader = reporter.prepare(model, loader)
    if (state := reporter.restore()) is not None:
        loader.load_state_dict(state)
    rank, killed = os.environ["RANK"], seen / "killed"
    for epoch in range(loader.epoch, EPOCHS):
        loader.set_epoch(epoch)
        for batch in loader:
            state = loader.state_dict()
            step = state["epoch"] * len(loader) + state["step"]
            if step == KILLED and rank == "1" and not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            model(batch["row"].float()[:, None]).sum().backward()
            rows = [] if reporter.is_stand_in else batch["row"].tolist()
            (seen / f"{step}-{rank}").write_text(json.dumps(rows))
            reporter.checkpoint(state)
            reporter.report(len(rows), step=step)


@pytest.mark.e2e
def test_a_rank_is_killed_in_mid_epoch_and_no_row_is_lost_or_repeated(tmp_path: Path) -> None:
    pq.write_table(pa.table({"row": torch.arange(ROWS).numpy()}), tmp_path / "rows.parquet")  # one row group
    seen = tmp_path / "seen"
    seen.mkdir()
    run(partial(train, str(tmp_path / "rows.parquet"), seen), workers=2, directory=tmp_path / "runs", progress=False)
    assert (seen / "killed").exists()
    steps = -(-ROWS // BATCH)
    for first in (1, 1 + steps):
        shares = {
            (step, rank): json.loads((seen / f"{step}-{rank}").read_text())
            for step in range(first, first + steps)
            for rank in range(2)
        }
        assert sorted(row for rows in shares.values() for row in rows) == list(range(ROWS))
        assert shares[first + steps - 1, 1] == []
