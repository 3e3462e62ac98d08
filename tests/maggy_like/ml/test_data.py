"""DataFrames as Parquet files: none is written twice, none is taken for another, none is left behind."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from maggy_like.errors import ConfigError
from maggy_like.ml.data import PreparedData, prepare_data
from maggy_like.ml.loader.parquet_loader import ParquetLoader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def files(spark_local: SparkSession, tmp_path: Path) -> DataFrame:
    """Ten rows in Parquet files."""
    spark_local.range(10).selectExpr("id", "id * 2.0D as x", "cast(id % 2 as string) as s").write.parquet(
        f"{tmp_path}/in"
    )
    return spark_local.read.parquet(f"{tmp_path}/in")


def ids(urls: tuple[str, ...]) -> list[int]:
    return sorted(value for url in urls for value in pq.read_table(url.removeprefix("file://"))["id"].to_pylist())


def read(prepared: PreparedData) -> list[dict[str, Any]]:
    """The rows as a training gets them, in a network of double precision."""
    loader = ParquetLoader(list(prepared.train), prepared.columns, batch_size=7, fractions="float64")
    return [
        {name: value.tolist() for name, value in zip(batch, row, strict=True)}
        for batch in loader
        for row in zip(*batch.values(), strict=True)
    ]


DTYPES = {"tinyint": "int8", "smallint": "int16", "int": "int32", "bigint": "int64", "boolean": "bool"}

COLUMNS = st.sampled_from(
    [  # a type of a file, one that Spark may be told to read it as, and values
        (pa.uint8(), "smallint", [0, 3, 255]),
        (pa.uint16(), "int", [0, 65535]),
        (pa.uint32(), "bigint", [7, 2**32 - 1]),
        (pa.int32(), "double", [-1, 0, 2**31 - 1]),
        (pa.int32(), "bigint", [-5, 2**31 - 1]),
        (pa.float32(), "double", [0.5, 0.1]),
        (pa.float64(), "double", [0.1, 1e300, 2.0**53]),
        (pa.bool_(), "boolean", [True, False]),
        (pa.decimal128(12, 2), "decimal(12,2)", [1, 250]),
        (pa.list_(pa.uint16()), "array<int>", [[1, 2], [65535, 0]]),
        (pa.list_(pa.float32()), "array<float>", [[0.1, 2.0], [0.0, -1.0]]),
        (pa.dictionary(pa.int8(), pa.int64()), "bigint", [4, 5]),
    ]
)


@settings(max_examples=12)
@given(
    columns=st.lists(COLUMNS, min_size=1, max_size=3),
    files=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3)), min_size=1, max_size=3),
    has_schema=st.booleans(),
    change=st.sampled_from(["none", "none", "filter", "union"]),
)
@example(columns=[(pa.uint8(), "smallint", [0, 3, 255])], files=[(3, 1)], has_schema=False, change="none")
@example(columns=[(pa.int32(), "bigint", [-5, 2**31 - 1])], files=[(2, 1)], has_schema=True, change="none")
def test_what_is_read_is_what_the_dataframe_has(
    spark_local: SparkSession,
    columns: list[tuple[pa.DataType, str, list[Any]]],
    files: list[tuple[int, int]],
    has_schema: bool,
    change: str,
) -> None:
    """Values, how often they come, and their types: whatever the files' types, and however often a path is named."""
    names = ["x", "x.y", "z"][: len(columns)]
    with tempfile.TemporaryDirectory() as directory:
        paths = []
        for number, (rows, times) in enumerate(files):
            made = {
                name: pa.array([values[row % len(values)] for row in range(number, number + rows)], kind)
                for name, (kind, _, values) in zip(names, columns, strict=True)
            }
            Path(f"{directory}/{number}").mkdir()
            pq.write_table(pa.table(made), f"{directory}/{number}/part.parquet")
            paths += [f"{directory}/{number}"] * times
        reader = spark_local.read
        if has_schema:
            reader = reader.schema(", ".join(f"`{name}` {it[1]}" for name, it in zip(names, columns, strict=True)))
        df = reader.parquet(*paths)
        df = df.where("`x` is not null") if change == "filter" else df.unionByName(df) if change == "union" else df
        prepared = prepare_data(df, names, f"{directory}/out")
        expected = [row.asDict() for row in df.collect()]
        if not expected:
            return
        numbers = [{name: float(it) if type(it) is Decimal else it for name, it in row.items()} for row in expected]
        assert sorted(map(repr, read(prepared))) == sorted(map(repr, numbers))
        for column in ParquetLoader(list(prepared.train), names, batch_size=1).columns:
            told = df.schema[column.name].dataType.simpleString().removeprefix("array<").removesuffix(">")
            assert column.dtype == DTYPES.get(told, "float32")
        prepared.delete()


def test_what_is_in_parquet_files_is_left_there(files: DataFrame, tmp_path: Path) -> None:
    for df in (files, files.select("x", "id")):
        prepared = prepare_data(df, ["id", "x"], tmp_path / "out")
        assert prepared.copy is None
        assert ids(prepared.train) == list(range(10))
    assert not (tmp_path / "out").exists()


def test_vectors_in_parquet_files_are_left_there(spark_local: SparkSession, tmp_path: Path) -> None:
    from pyspark.ml.linalg import Vectors

    vectors = [(Vectors.dense([1.0, 2.0]),), (Vectors.sparse(2, [0], [3.0]),)]
    spark_local.createDataFrame(vectors, ["v"]).write.parquet(f"{tmp_path}/in")
    assert prepare_data(spark_local.read.parquet(f"{tmp_path}/in"), ["v"], tmp_path / "out").copy is None


@pytest.mark.parametrize("fraction", [0.0, 0.5])
def test_a_copy_is_written_below_the_directory_whatever_its_name(
    files: DataFrame, tmp_path: Path, fraction: float
) -> None:
    directory = tmp_path / "my runs, jörg #1" / "50%20? [a] {b,c} *"
    rows = files.where("id > 3")
    prepared = prepare_data(rows, ["id", "x"], directory, validation_fraction=fraction)
    assert {path.name for path in tmp_path.iterdir()} == {"in", "my runs, jörg #1"}
    assert len(list(directory.iterdir())) == 1
    assert sorted(ids(prepared.train) + ids(prepared.validation)) == list(range(4, 10))
    assert ParquetLoader(list(prepared.train), ["x"], batch_size=1).rows == len(ids(prepared.train))
    assert prepared.rows(rows).count() == 6
    prepared.delete()
    assert not list(directory.iterdir())


def test_what_is_filtered_computed_or_renamed_is_written_once(files: DataFrame, tmp_path: Path) -> None:
    plans = {
        "filter": lambda: files.where("id > 3"),
        "computed": lambda: files.withColumn("x", files.x + 1),
        "renamed": lambda: files.select("id", files.s.alias("x")),
        "limited": lambda: files.orderBy("id").limit(3),
    }
    made: dict[str, PreparedData] = {}
    for name, plan in plans.items():
        made[name] = prepare_data(plan(), ["id", "x"], tmp_path / "out")
        written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("out/**/*.parquet")}
        assert prepare_data(plan(), ["id", "x"], tmp_path / "out") == made[name]
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("out/**/*.parquet")} == written
    assert len({prepared.copy for prepared in made.values()}) == len(plans)
    assert ids(made["filter"].train) == list(range(4, 10))
    for prepared in made.values():
        prepared.delete()
    assert not any(tmp_path.rglob("out/**/*.parquet"))


def test_a_column_that_only_directories_name_is_written(spark_local: SparkSession, tmp_path: Path) -> None:
    df = spark_local.range(4).selectExpr("id", "id % 2 as d", "struct(id as d) as inner")
    df.write.partitionBy("d").parquet(f"{tmp_path}/in")
    read = spark_local.read.parquet(f"{tmp_path}/in")
    copied = prepare_data(read, ["id", "inner", "d"], tmp_path / "out")
    assert copied.copy is not None
    assert pq.read_schema(copied.train[0].removeprefix("file://")).names == ["id", "inner", "d"]


def test_other_content_by_the_same_plan_is_written_anew(
    files: DataFrame, spark_local: SparkSession, tmp_path: Path
) -> None:
    first = prepare_data(files.where("id > 3"), ["id"], tmp_path / "out")
    spark_local.range(20).selectExpr("id", "0.0D as x", "'' as s").write.mode("append").parquet(f"{tmp_path}/in")
    spark_local.catalog.refreshByPath(f"{tmp_path}/in")
    second = prepare_data(spark_local.read.parquet(f"{tmp_path}/in").where("id > 3"), ["id"], tmp_path / "out")
    assert second.copy != first.copy
    assert len(ids(second.train)) == 22


def clock(spark: SparkSession, _: Path) -> Iterator[DataFrame]:
    for _ in range(2):
        yield spark.sql("select unix_micros(current_timestamp()) as x")


def setting(spark: SparkSession, files: Path) -> Iterator[DataFrame]:
    zone = spark.conf.get("spark.sql.session.timeZone")
    for it in ("UTC", "Asia/Tokyo"):
        spark.conf.set("spark.sql.session.timeZone", it)
        yield spark.sql(f"select hour(timestamp_seconds(id)) as x from parquet.`{files}`")
    assert zone is not None
    spark.conf.set("spark.sql.session.timeZone", zone)


def variable(spark: SparkSession, files: Path) -> Iterator[DataFrame]:
    spark.sql("declare or replace variable threshold int default 0")
    for it in (5, 9):
        spark.sql(f"set var threshold = {it}")
        yield spark.sql(f"select id + threshold as x from parquet.`{files}`")


def python(spark: SparkSession, files: Path) -> Iterator[DataFrame]:
    from pyspark.sql import functions as F

    lookup = {}
    for it in (1, 7):
        lookup["a"] = it
        yield spark.read.parquet(str(files)).select(F.udf(lambda _: lookup["a"], "int")("id").alias("x"))


def subquery(spark: SparkSession, files: Path) -> Iterator[DataFrame]:
    other = f"{files}-other"
    for it in (5, 9):
        spark.range(it).write.mode("overwrite").parquet(other)
        spark.catalog.refreshByPath(other)
        yield spark.sql(f"select id + (select max(id) from parquet.`{other}`) as x from parquet.`{files}`")


def cached(spark: SparkSession, files: Path) -> Iterator[DataFrame]:
    df = spark.read.parquet(str(files)).selectExpr("id + 1 as x").cache()
    df.count()
    for file in files.iterdir():  # by another program: Spark drops what it has cached of files that it writes itself
        file.unlink()
    pq.write_table(pa.table({"id": range(3)}), files / "part.parquet")
    yield df
    df.unpersist()
    yield spark.read.parquet(str(files)).selectExpr("id + 1 as x")


def path_named_twice(spark: SparkSession, files: Path) -> Iterator[DataFrame]:
    spark.range(2).write.parquet(f"{files}-other")
    for paths in ([files, f"{files}-other"], [files, files, f"{files}-other"], [files, f"{files}-other"] * 2):
        yield spark.read.parquet(*map(str, paths)).selectExpr("id + 1 as x")


@pytest.mark.parametrize(
    "plans",
    [
        clock,
        variable,
        cached,
        *(pytest.param(it, marks=pytest.mark.long) for it in (setting, python, subquery, path_named_twice)),
    ],
)
def test_a_plan_that_gives_other_rows_is_computed_anew(
    plans: Callable[[SparkSession, Path], Iterator[DataFrame]], spark_local: SparkSession, tmp_path: Path
) -> None:
    spark_local.range(8).write.parquet(f"{tmp_path}/in")
    found = []
    for df in plans(spark_local, tmp_path / "in"):
        found.append(read(prepare_data(df, ["x"], tmp_path / "out")))
        if plans is not clock:
            assert sorted(row["x"] for row in found[-1]) == sorted(row["x"] for row in df.collect())
    assert all(one != other for one, other in itertools.pairwise(found))


@pytest.mark.parametrize(
    "conf",
    [
        {"spark.sql.sources.partitionOverwriteMode": "dynamic"},
        {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"},
    ],
)
def test_spark_need_not_mark_what_is_complete(conf: dict[str, str], spark_local: SparkSession, tmp_path: Path) -> None:
    df = spark_local.range(40).selectExpr("id", "id % 4 = 0 as held")
    for name, value in conf.items():
        spark_local.conf.set(name, value)
    try:
        for options in ({}, {"validation_column": "held"}, {"validation_fraction": 0.5}):
            for _ in range(2):
                prepared = prepare_data(df, ["id"], tmp_path / "out", **options)
                assert sorted(ids(prepared.train) + ids(prepared.validation)) == list(range(40))
    finally:
        for name in conf:
            spark_local.conf.unset(name)
    assert len(list((tmp_path / "out").iterdir())) == 3


def test_a_directory_that_this_process_does_not_see_is_told(
    files: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from maggy_like.ml import data as module

    monkeypatch.setattr(module, "fsspec_url", lambda url: url.replace(str(tmp_path), f"{tmp_path}/elsewhere"))
    with pytest.raises(
        ConfigError, match=r"must be shared by Spark's executors and this process, got .*, which Spark wrote"
    ):
        prepare_data(files.where("id > 3"), ["id"], tmp_path / "out")


def test_sparse_vectors_stay_sparse(spark_local: SparkSession, tmp_path: Path) -> None:
    from pyspark.ml.linalg import Vectors

    length = 1 << 24
    rows = [(Vectors.sparse(length, [row, length - 1], [0.1, row]),) for row in range(8)]
    df = spark_local.createDataFrame(rows, ["v"])
    df.write.parquet(f"{tmp_path}/in")
    stored = spark_local.read.parquet(f"{tmp_path}/in")
    for vectors in (df, stored):
        prepared = prepare_data(vectors, ["v"], tmp_path / "out")
        assert (prepared.copy is None) == (vectors is stored)
        assert sum(Path(part.removeprefix("file://")).stat().st_size for part in prepared.train) < 100_000
        (batch, *_) = ParquetLoader(list(prepared.train), batch_size=8, shuffle=False)
        assert batch["v"].shape == (8, length)
        assert sorted(batch["v"][:, -1].tolist()) == list(range(8))
        written = prepared.rows(vectors)
        assert written.selectExpr("max(v.size)", "sum(size(v.values))").first() == (length, 16)


def test_rows_of_python_are_known_by_their_content(spark_local: SparkSession, tmp_path: Path) -> None:
    made = [
        prepare_data(spark_local.createDataFrame(rows, "id int, x double"), ["id", "x"], tmp_path).copy
        for rows in ([(1, None), (2, 3.0)], [(2, 3.0), (1, None)], [(1, 3.0), (2, None)])
    ]
    assert made[0] == made[1] != made[2]


def test_rows_to_validate_on_are_set_apart(spark_local: SparkSession, files: DataFrame, tmp_path: Path) -> None:
    df = spark_local.range(100).selectExpr("id", "if(id = 7, null, id % 10 = 0) as held")
    by_column = prepare_data(df, ["id"], tmp_path, validation_column="held")
    assert ids(by_column.validation) == list(range(0, 100, 10))
    shares = [prepare_data(df, ["id"], tmp_path, validation_fraction=0.3, seed=seed) for seed in (1, 1, 2)]
    assert shares[0] == shares[1]
    assert ids(shares[0].validation) != ids(shares[2].validation)
    more = prepare_data(df, ["id"], tmp_path, validation_fraction=0.8, seed=1)
    for it in (by_column, *shares, more):
        assert sorted(ids(it.train) + ids(it.validation)) == list(range(100))
    assert 10 < len(ids(shares[0].validation)) < 50 < len(ids(more.validation)) < 100
    stored = prepare_data(files, ["id"], tmp_path / "out", validation_fraction=0.5)
    assert len(ids(stored.train)) < 10 == len(ids(stored.train) + ids(stored.validation))
    assert prepare_data(df.where("id < 0"), ["id"], tmp_path, validation_fraction=0.3).train == ()


def test_what_nobody_keeps_goes_when_the_process_ends(files: DataFrame, tmp_path: Path) -> None:
    from maggy_like.ml import data as module

    kept = prepare_data(files.where("id > 1"), ["id"], tmp_path / "out", keep=True)
    other = prepare_data(files.where("id > 2"), ["id"], tmp_path / "out")
    module._clean_up()
    assert ids(kept.train) == list(range(2, 10))
    assert prepare_data(files.where("id > 1"), ["id"], tmp_path / "out") == kept
    assert other.copy is not None
    assert not Path(other.copy.removeprefix("file://")).exists()


def test_a_process_neither_removes_nor_reads_the_copy_of_another(
    files: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from maggy_like.ml import data as module

    mine = prepare_data(files.where("id > 7"), ["id"], tmp_path / "out")
    monkeypatch.setattr(module, "_OWN", "another")
    prepare_data(files.where("id > 7"), ["id"], tmp_path / "out").delete()
    assert ids(mine.train) == [8, 9]


@pytest.mark.parametrize("reason", ["No space left on device", "Permission denied"])
def test_a_directory_that_takes_no_more_is_told_in_a_line(
    files: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    from pyspark.sql import DataFrameWriter

    def fail(self: DataFrameWriter, path: str) -> None:
        Path(path.removeprefix("file://"), "_temporary").mkdir(parents=True)
        raise RuntimeError(f"Job aborted\n\tat java.io.FileOutputStream.writeBytes\nCaused by: IOException: {reason}")

    monkeypatch.setattr(DataFrameWriter, "parquet", fail)
    with pytest.raises(
        ConfigError, match=f"cannot be written to .*out.*: {reason}; free space or allow writing there, or use another"
    ):
        prepare_data(files.where("id > 8"), ["id"], tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("url", "told"),
    [("s3a://bucket/out", "FileSystem not found; add this file system to Spark"), ("hdfs://none.invalid/out", "host")],
)
def test_a_store_that_spark_cannot_reach_is_told_in_a_line(files: DataFrame, url: str, told: str) -> None:
    with pytest.raises(ConfigError, match=f"the DataFrame cannot be written to {url}/.*: .*{told}"):
        prepare_data(files.where("id > 8"), ["id"], url)
