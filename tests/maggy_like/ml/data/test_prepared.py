"""DataFrames as Parquet files: none is written twice, none is taken for another, none is left behind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from maggy_like.errors import ConfigError
from maggy_like.ml.data.prepared import PreparedData, prepare_data

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


def test_what_is_in_parquet_files_is_left_there(files: DataFrame, tmp_path: Path) -> None:
    for df in (files, files.select("x", "id")):
        prepared = prepare_data(df, ["id", "x"], tmp_path / "out")
        assert prepared.copy is None
        assert ids(prepared.train) == list(range(10))
    assert not (tmp_path / "out").exists()


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


def test_a_column_that_only_folders_name_is_written(spark_local: SparkSession, tmp_path: Path) -> None:
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


def test_rows_of_python_are_known_by_their_content(spark_local: SparkSession, tmp_path: Path) -> None:
    made = [
        prepare_data(spark_local.createDataFrame(rows, "id int, x double"), ["id", "x"], tmp_path).copy
        for rows in ([(1, None), (2, 3.0)], [(2, 3.0), (1, None)], [(1, 3.0), (2, None)])
    ]
    assert made[0] == made[1] != made[2]


def test_rows_to_validate_on_are_set_apart(spark_local: SparkSession, tmp_path: Path) -> None:
    df = spark_local.range(100).selectExpr("id", "if(id = 7, null, id % 10 = 0) as held")
    by_column = prepare_data(df, ["id"], tmp_path, validation_column="held")
    assert ids(by_column.validation) == list(range(0, 100, 10))
    shares = [prepare_data(df, ["id"], tmp_path, validation_fraction=0.3, seed=seed) for seed in (1, 1, 2)]
    assert shares[0] == shares[1]
    assert ids(shares[0].validation) != ids(shares[2].validation)
    for it in (by_column, *shares):
        assert sorted(ids(it.train) + ids(it.validation)) == list(range(100))
    assert 10 < len(ids(shares[0].validation)) < 50


def test_what_nobody_keeps_goes_when_the_process_ends(files: DataFrame, tmp_path: Path) -> None:
    from maggy_like.ml.data import prepared as module

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
    from maggy_like.ml.data import prepared as module

    mine = prepare_data(files.where("id > 7"), ["id"], tmp_path / "out")
    monkeypatch.setattr(module, "_OWN", "another")
    prepare_data(files.where("id > 7"), ["id"], tmp_path / "out").delete()
    assert ids(mine.train) == [8, 9]


@pytest.mark.parametrize("reason", ["No space left on device", "Permission denied"])
def test_a_folder_that_takes_no_more_is_told_in_a_line(
    files: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    from pyspark.sql import DataFrameWriter

    def fail(self: DataFrameWriter, path: str) -> None:
        raise RuntimeError(f"Job aborted\n\tat java.io.FileOutputStream.writeBytes\nCaused by: IOException: {reason}")

    monkeypatch.setattr(DataFrameWriter, "parquet", fail)
    with pytest.raises(ConfigError, match=f"cannot be written to .*out.*: {reason}; make room there, or name another"):
        prepare_data(files.where("id > 8"), ["id"], tmp_path / "out")
