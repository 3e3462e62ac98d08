"""The Estimator by the public contracts of pyspark.ml."""

from __future__ import annotations

import gc
import math
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from pyspark.ml import Estimator, Model
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from maggy_like import Confirmation, Float, Integer, LocalEngine
from maggy_like.errors import ConfigError, DataError, MaggyError, TrainingError, UserError
from maggy_like.ml import TorchEstimator, TorchModel
from optimizers.core.events import AttemptEnded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def network(hidden: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, 3))


@pytest.fixture(scope="module")
def df(spark_local: SparkSession) -> Iterator[DataFrame]:
    """120 rows of three classes that a line each tells apart, with a vector, an array and scalars."""
    from pyspark.ml.linalg import Vectors

    random = np.random.default_rng(0)
    x = random.normal(size=(120, 4))
    labels = (x @ random.normal(size=(4, 3))).argmax(1)
    rows = [
        (
            Vectors.dense(row) if i % 2 else Vectors.sparse(4, range(4), row),
            row.tolist(),
            float(label),
            float(row[0]),
            1.0,
        )
        for i, (row, label) in enumerate(zip(x, labels, strict=True))
    ]
    frame = spark_local.createDataFrame(rows, ["features", "array", "label", "number", "weight"]).cache()
    yield frame
    frame.unpersist()


@pytest.fixture
def estimator(tmp_path: Path) -> TorchEstimator:
    return TorchEstimator(
        model=network,
        loss="cross_entropy",
        learningRate=0.05,
        epochs=3,
        engine="inline",
        directory=str(tmp_path / "runs"),
        runOptions={"progress": False},
    )


class Wide(nn.Module):
    """Three inputs, of which one is decoded, and an output for each of two labels."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4 + 1 + 2, 8)
        self.classes, self.number = nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor, number: torch.Tensor, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.relu(self.body(torch.cat([x, number[:, None], image], 1)))
        return self.classes(hidden), self.number(hidden)


def decode(content: bytes) -> Any:
    return np.frombuffer(content, np.uint8).astype(np.float32) / 255


def test_several_inputs_and_labels_weights_and_a_validation_column(estimator: TorchEstimator, df: DataFrame) -> None:
    from pyspark.sql import functions as F

    df = df.withColumn("image", F.when(F.col("number") > 0, F.lit(b"\xff\x00")).otherwise(F.lit(b"\x00\xff")))
    df = df.withColumn("doubled", F.col("number") * 2).withColumn("later", F.col("number") > 1)
    estimator.setParams(
        model=Wide,
        loss=["cross_entropy", "mse"],
        featuresCol=["features", "number", "image"],
        labelCol=["label", "doubled"],
        decode={"image": decode},
        weightCol="weight",
        validationIndicatorCol="later",
        epochs=40,
        patience=1,
        minDelta=0.2,
        freeze=["classes"],
        errorCol="error",
    )
    model = estimator.fit(df)
    assert {"loss", "accuracy_label", "validation_loss", "validation_accuracy_label"} < set(model.history[0])
    assert model.best_epoch == len(model.history) - 1 < 39  # the epoch after the best was not better by minDelta
    missing = df.withColumn("number", F.when(F.col("number") < 0, F.col("number")))
    rows = model.transform(missing).collect()
    known = [row for row in rows if row["number"] is not None]
    x = torch.tensor([row["array"] for row in known], dtype=torch.float32)
    numbers = torch.tensor([row["number"] for row in known], dtype=torch.float32)
    with torch.no_grad():
        classes, doubled = model.network(x, numbers, torch.tensor([[0.0, 1.0]] * len(known)))
    assert [row["prediction_label"] for row in known] == classes.argmax(1).tolist()
    assert [row["prediction_doubled"] for row in known] == pytest.approx(doubled.flatten().tolist(), abs=1e-5)
    lost = [row for row in rows if row["number"] is None]
    assert lost
    assert all(row["prediction_label"] is None and "number" in row["error_label"] for row in lost)


def test_params_are_those_of_pyspark(estimator: TorchEstimator) -> None:
    text = estimator.explainParams()
    assert "epochs: maximum number of passes over the rows (default: 10, current: 3)" in text
    other = estimator.copy({estimator.epochs: 9})
    assert (other.getOrDefault("epochs"), estimator.getOrDefault("epochs")) == (9, 3)
    assert (other.uid, other.getOrDefault("loss")) == (estimator.uid, "cross_entropy")
    assert estimator.getOrDefault("featuresCol") == ["features"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"epochs": "2"}, "epochs must be an integer of at least 1, got '2'; use 2"),
        ({"epochs": "few"}, "epochs must be an integer of at least 1, got 'few'; use 1 or more"),
        ({"learningRate": -1.0}, "learningRate must be a number above 0"),
        ({"validationFraction": 1.0}, "validationFraction must be from 0 to less than 1"),
        ({"keepWeights": "first"}, "keepWeights must be one of 'best', 'last', got 'first'"),
        ({"featuresCol": ["a", "a"]}, "featuresCol must have different columns"),
        ({"classWeights": "equal"}, "classWeights"),
        ({"classWeights": [math.nan, 1.0]}, "classWeights must be 'balanced' or a list of finite numbers"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"minDelta": -0.5}, "minDelta must be a number of at least 0, got -0.5"),
    ],
)
def test_a_wrong_value_is_told_at_once(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TorchEstimator(**given)


def test_it_is_saved_and_loaded(estimator: TorchEstimator, spark_local: SparkSession, tmp_path: Path) -> None:
    estimator.setParams(
        optimizer=torch.optim.SGD, classWeights=[1, 2, 3], modelParams={"act": nn.ReLU, "sizes": (4, 2)}
    )
    estimator.save(f"{tmp_path}/estimator")
    again = TorchEstimator.load(f"{tmp_path}/estimator")
    assert again.uid == estimator.uid
    mine, its = ({p.name: v for p, v in it.extractParamMap().items()} for it in (estimator, again))
    assert its.pop("model")(4)[0].out_features == mine.pop("model")(4)[0].out_features
    assert its == mine


def test_a_pipeline_is_fitted_applied_saved_and_loaded(
    estimator: TorchEstimator, df: DataFrame, tmp_path: Path
) -> None:
    from pyspark.ml import Pipeline, PipelineModel
    from pyspark.ml.feature import StandardScaler

    estimator.setParams(featuresCol="scaled", epochs=15, validationFraction=0.2, classWeights="balanced")
    fitted = Pipeline(stages=[StandardScaler(inputCol="features", outputCol="scaled"), estimator]).fit(df)
    model = fitted.stages[1]
    assert isinstance(model, TorchModel)
    assert model.uid == estimator.uid
    assert (model.getOrDefault("batchSize"), estimator.getOrDefault("batchSize")) == (1024, 32)
    assert model.history[-1]["validation_loss"] < model.history[0]["validation_loss"]
    rows = fitted.transform(df).select("label", "prediction", "scaled").collect()
    assert sum(row["label"] == row["prediction"] for row in rows) > 90
    fitted.save(f"{tmp_path}/model")
    again = PipelineModel.load(f"{tmp_path}/model")
    loaded = again.stages[1]
    assert isinstance(loaded, TorchModel)
    assert loaded.history == model.history
    assert again.transform(df).select("label", "prediction", "scaled").collect() == rows
    with torch.no_grad():
        x = torch.tensor(np.array([row["scaled"].toArray() for row in rows]), dtype=torch.float32)
        assert [row["prediction"] for row in rows] == loaded.network(x).argmax(1).tolist()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:unclosed running multiprocessing pool:ResourceWarning")  # pyspark leaves them
def test_a_cross_validator_chooses_among_params(estimator: TorchEstimator, df: DataFrame) -> None:
    from pyspark.ml.evaluation import MulticlassClassificationEvaluator
    from pyspark.ml.tuning import CrossValidator, ParamGridBuilder, TrainValidationSplit

    grid = ParamGridBuilder().addGrid(estimator.learningRate, [1e-6, 0.1]).build()
    evaluator = MulticlassClassificationEvaluator(metricName="accuracy")
    options: dict[str, Any] = {"estimator": estimator, "estimatorParamMaps": grid, "evaluator": evaluator, "seed": 1}
    for chooser in (
        CrossValidator(numFolds=2, **options),
        TrainValidationSplit(**options | {"estimatorParamMaps": grid[1:]}),
    ):
        best = chooser.fit(df).bestModel
        assert isinstance(best, TorchModel)
        assert evaluator.evaluate(best.transform(df)) > 0.6
    gc.collect()


def test_one_fit_searches_and_trains_the_best(estimator: TorchEstimator, df: DataFrame) -> None:
    estimator.setParams(
        search={"hidden": Integer(4, 16), "learningRate": Float(1e-3, 1e-1, log=True), "weight_decay": [0.0, 0.1]},
        runOptions={"progress": False, "n_trials": 4, "optimizer": "random"},
        epochs=2,
    )
    model = estimator.fit(df)
    assert model.result is not None
    assert len(model.result.trials) == 4
    assert model.config == model.result.best_config
    assert model.network[0].out_features == model.config["hidden"]
    assert model.result.training is not None
    assert model.history[-1]["epoch"] == 2


class Lucky(nn.Module):
    """A network that learns slowly, or one that learns fast unless its seed is one of a confirmation."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layers = network(4 if kind == "lucky" else 8)
        is_unlucky = kind == "lucky" and torch.initial_seed() >= 1000
        self.factor = 0.0 if is_unlucky else 1.0 if kind == "lucky" else 0.2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.factor * self.layers(x)
        return out


def test_the_confirmed_configuration_is_trained_and_not_the_lucky_one(estimator: TorchEstimator, df: DataFrame) -> None:
    estimator.setParams(
        model=Lucky,
        search={"kind": ["lucky", "steady"]},
        confirm=Confirmation(top=2, repeats=2),
        runOptions={"progress": False, "n_trials": 2, "optimizer": "grid"},
    )
    model = estimator.fit(df)
    assert model.result is not None
    assert model.result.best_config == {"kind": "lucky"}
    assert model.result.confirmed is not None
    assert [it.trial.config["kind"] for it in model.result.confirmed.candidates] == ["steady", "lucky"]
    assert {*model.result.confirmed.candidates[0].values} == {1000, 1001}
    assert model.config == {"kind": "steady"}
    assert model.network.layers[0].out_features == 8


@pytest.mark.e2e
def test_ctrl_c_ends_a_fit_and_the_next_goes_on(estimator: TorchEstimator, df: DataFrame) -> None:
    def interrupt(event: object) -> None:
        if isinstance(event, AttemptEnded):
            signal.raise_signal(signal.SIGINT)

    options = {"progress": False, "n_trials": 3, "optimizer": "random", "name": "august"}
    estimator.setParams(engine="local", workers=1, search={"hidden": Integer(4, 16)}, epochs=1)
    estimator.setParams(runOptions={**options, "callbacks": [interrupt]})
    with pytest.raises(KeyboardInterrupt, match=r"use runOptions=\{'name': 'august', 'resume': True\} to resume it"):
        estimator.fit(df)
    model = estimator.setParams(engine="inline", runOptions={**options, "resume": True}).fit(df)
    assert model.result is not None
    assert len(model.result.trials) == 3
    assert model.history


def test_a_search_that_ends_early_says_how_to_go_on(estimator: TorchEstimator, df: DataFrame) -> None:
    estimator.setParams(search={"hidden": [4, 8]}, runOptions={"progress": False, "timeout": 1e-3, "name": "short"})
    with pytest.raises(TrainingError, match=r"ended \(timeout\) before .*'name': 'short', 'resume': True") as caught:
        estimator.fit(df)
    assert caught.value.result is not None
    assert caught.value.result.ending == "timeout"


@pytest.mark.parametrize("wrong", [1, 3])
def test_a_training_that_fails_after_a_search_gives_no_model_and_the_search_s_result(
    estimator: TorchEstimator, df: DataFrame, tmp_path: Path, wrong: int
) -> None:
    def fill_the_disk(epoch: int, metrics: Any, network: nn.Module) -> None:
        with Path(tmp_path, "epochs").open("a+") as file:
            file.write(".")
        if Path(tmp_path, "epochs").stat().st_size > 2 * 3 and epoch == wrong and not Path(tmp_path, "freed").exists():
            raise OSError(28, "No space left on device")

    options = {"progress": False, "n_trials": 2, "optimizer": "random", "name": "august"}
    estimator.setParams(search={"hidden": [4, 8]}, callbacks=[fill_the_disk], runOptions=options)
    with pytest.raises(TrainingError, match="No space left on device") as caught:
        estimator.fit(df)
    assert caught.value.result is not None
    assert len(caught.value.result.trials) == 2
    Path(tmp_path, "freed").touch()
    model = estimator.setParams(runOptions={**options, "resume": True}).fit(df)
    assert [row["epoch"] for row in model.history] == [1, 2, 3]


def test_a_training_that_is_cut_off_gives_no_model(estimator: TorchEstimator, df: DataFrame, tmp_path: Path) -> None:
    def interrupt(epoch: int, metrics: Any, network: nn.Module) -> None:
        with Path(tmp_path, "epochs").open("a+") as file:
            file.write(".")
        if Path(tmp_path, "epochs").stat().st_size == 2 * 3 + 2:  # in the training's second epoch
            signal.raise_signal(signal.SIGINT)

    options = {"progress": False, "n_trials": 2, "optimizer": "random", "name": "august"}
    estimator.setParams(search={"hidden": [4, 8]}, callbacks=[interrupt], runOptions=options)
    with pytest.raises(KeyboardInterrupt, match=r"before the best configuration was trained; .*'resume': True"):
        estimator.fit(df)
    model = estimator.setParams(runOptions={**options, "resume": True}).fit(df)
    assert [row["epoch"] for row in model.history] == [1, 2, 3]


def test_what_fails_after_a_search_has_its_result(estimator: TorchEstimator, df: DataFrame, tmp_path: Path) -> None:
    def lose_the_states(event: object) -> None:
        if isinstance(event, AttemptEnded) and event.trial == 2:
            shutil.rmtree(tmp_path / "runs" / "august" / "checkpoints")

    options = {"progress": False, "n_trials": 2, "optimizer": "random", "name": "august"}
    estimator.setParams(search={"hidden": [4, 8]}, runOptions={**options, "callbacks": [lose_the_states]})
    with pytest.raises(MaggyError, match="checkpoint") as caught:
        estimator.fit(df)
    assert caught.value.result is not None
    assert len(caught.value.result.trials) == 2


class Positions(nn.Module):
    """Two classes at each of three positions."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).reshape(-1, 2, 3)


@pytest.mark.parametrize(
    ("model", "loss"), [(nn.Linear(4, 3), "bce_with_logits"), (Positions(), "cross_entropy")], ids=["labels", "places"]
)
def test_of_several_answers_a_row_the_output_is_the_prediction(
    estimator: TorchEstimator, df: DataFrame, model: nn.Module, loss: str
) -> None:
    from pyspark.sql import functions as F

    bits = F.array(*(F.col("label") == number for number in range(3)))
    rows = df.withColumn("bits", bits.cast("array<double>" if loss == "bce_with_logits" else "array<long>"))
    fitted = estimator.setParams(model=model, loss=loss, labelCol="bits", featuresCol="array").fit(rows)
    assert fitted.outputs == {"bits": "other"}
    (row,) = fitted.transform(rows.limit(1)).collect()
    with torch.no_grad():
        expected = fitted.network(torch.tensor([row.array])).flatten().tolist()
    assert row.prediction == pytest.approx(expected, abs=1e-5)


@pytest.mark.long
def test_rows_are_read_from_files_of_any_name_and_columns_of_any(
    estimator: TorchEstimator, df: DataFrame, spark_local: SparkSession, tmp_path: Path
) -> None:
    from pyspark.sql import functions as F

    for name in ("a b", "a%20b", "a[1]", "{a}"):
        df.select("array", "label").write.parquet(f"{tmp_path}/{name}")
        stored = spark_local.read.parquet(f"{tmp_path}/{name}".replace("[", r"\[").replace("{", r"\{"))
        whole = estimator.copy({estimator.featuresCol: ["array"], estimator.epochs: 1})
        for rows in (stored, stored.where("label >= 0")):  # as they lie, and as a copy
            assert math.isfinite(whole.fit(rows).history[0]["loss"])
    cities = df.withColumn("city", F.when(F.col("label") == 1, "New York").otherwise("a:b"))
    cities.select("array", "label", "city").write.partitionBy("city").parquet(f"{tmp_path}/cities")
    assert whole.fit(spark_local.read.parquet(f"{tmp_path}/cities")).history
    odd = df.select(F.col("array").alias("a`b.c"), "label", (F.col("number") > 0).alias("v`"))
    estimator.setParams(featuresCol="a`b.c", validationIndicatorCol="v`", predictionCol="p`", epochs=1)
    assert "p`" in estimator.fit(odd).transform(odd).columns


class Shifted(nn.Module):
    """What is left of the seconds since a moment, of which float32 could tell no two apart."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def forward(self, seconds: torch.Tensor) -> torch.Tensor:
        return (seconds.reshape(len(seconds)) - 1_764_000_000.0) * self.weight


@pytest.mark.parametrize("column", ["t", "array(t)", "vector"])
def test_doubles_reach_a_network_of_double_precision_as_they_are(
    estimator: TorchEstimator, spark_local: SparkSession, column: str
) -> None:
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql import functions as F

    rows = spark_local.range(40).selectExpr("1764000000.0D + 10 * id as t", "10.0D * id as label")
    made = array_to_vector(F.array("t")) if column == "vector" else F.expr(column)
    rows = rows.select(made.alias("features"), "label")
    estimator.setParams(model=Shifted, loss="l1", optimizer="sgd", learningRate=1e-12, epochs=1, batchSize=40)
    model = estimator.fit(rows)
    assert model.history[0]["loss"] == 0
    assert model.inputs[0].dtype == "float64"
    found = model.transform(rows).collect()
    assert [row.prediction for row in found] == pytest.approx([row.label for row in found], rel=1e-6)


def test_labels_reach_a_network_of_double_precision_as_they_are(
    estimator: TorchEstimator, spark_local: SparkSession
) -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.value = nn.Parameter(torch.tensor(16_777_216.0, dtype=torch.float64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.value + 0 * x[:, 0]

    rows = spark_local.range(8).selectExpr("array(0.0D) as features", "16777217.0D as label", "0.5D as weight")
    estimator.setParams(model=Constant, loss="l1", optimizer="sgd", learningRate=1e-9, epochs=1, weightCol="weight")
    assert estimator.fit(rows).history[0]["loss"] == 1


def test_hashed_words_are_trained_on_and_applied_without_their_zeros(
    estimator: TorchEstimator, spark_local: SparkSession
) -> None:
    from pyspark.ml.feature import HashingTF

    words = spark_local.range(64).selectExpr("array(concat('word', id % 2), 'and') as words", "id % 2 as label")
    rows = HashingTF(inputCol="words", outputCol="features").transform(words)
    estimator.setParams(model=nn.Linear(1 << 18, 2), optimizer="adam", epochs=2, batchSize=16)
    model = estimator.fit(rows)
    found = model.transform(rows).collect()
    assert [row.prediction for row in found] == [row.label for row in found]
    estimator.setParams(batchSize=1 << 30)
    with pytest.raises(
        DataError, match=r"a batch must fit in .* for 1073741824 rows with 262144 numbers in column 'features'"
    ):
        estimator.fit(rows)
    other = HashingTF(numFeatures=16, inputCol="words", outputCol="features").transform(words)
    with pytest.raises(DataError, match="column 'features' must have vectors of 262144 numbers, got 16"):
        model.transform(other)


def test_a_training_without_a_finite_loss_gives_no_model(estimator: TorchEstimator, df: DataFrame) -> None:
    estimator.setParams(loss="mse", labelCol="number", model=nn.Linear(4, 1), optimizer="sgd", learningRate=1e30)
    with pytest.raises(
        TrainingError,
        match=r"loss must be finite in some epoch, got nan after 3 epochs, .* no model; lower learningRate, or scale",
    ):
        estimator.fit(df)
    estimator.setParams(search={"learningRate": [1e29, 1e30]}, epochs=1)
    with pytest.raises(TrainingError, match=r"\(completed\) before .*; no trial has a finite loss: lower learningRate"):
        estimator.fit(df)


WRONG: list[tuple[dict[str, Any], type[UserError], str]] = [
    (
        {"featuresCol": "feature"},
        ConfigError,
        "featuresCol must be a column of the DataFrame, got 'feature'.*'features'",
    ),
    ({"labelCol": "features"}, ConfigError, "'features' must have one role, got featuresCol and labelCol; copy it"),
    ({"featuresCol": "text"}, DataError, "column 'text' must have a type that tensors can have, got string"),
    ({"featuresCol": "bytes"}, ConfigError, "for the bytes of column 'bytes', got none"),
    ({"validationIndicatorCol": "number"}, DataError, "validationIndicatorCol 'number' must be boolean, got double"),
    (
        {"validationIndicatorCol": "held_out"},
        DataError,
        "the training rows must be at least 1, got 0 of 120; set fewer rows apart to validate on",
    ),
    ({"search": {"hiden": Integer(4, 16)}}, ConfigError, "search must have Params.*got 'hiden'.*'hidden'"),
    ({"featuresCol": "gaps"}, DataError, "'gaps' must not be or contain null, got 120 such rows of 120"),
    (
        {"featuresCol": "endless"},
        DataError,
        "'endless' must not be or contain NaN or infinity, got 120 such rows of 120",
    ),
    ({"featuresCol": "nested"}, DataError, "'nested' must not be or contain NaN or infinity, got 120 such rows of 120"),
    (
        {"featuresCol": "vector"},
        DataError,
        "'vector' must not be or contain NaN or infinity, got 120 such rows of 120",
    ),
    ({"featuresCol": "uneven"}, DataError, "'uneven' must have .* of equal length.*, got 2 to 3"),
    ({"featuresCol": "deep"}, DataError, "'deep' must not be or contain null, got 120 such rows of 120"),
    ({"featuresCol": "ragged"}, DataError, "'ragged' must have arrays of equal length within its arrays, got 1 to 2"),
    ({"weightCol": "held"}, DataError, "weightCol 'held' must have one number in each row"),
    ({"weightCol": "array"}, DataError, "weightCol 'array' must have one number in each row"),
    (
        {"weightCol": "unheld", "validationIndicatorCol": "held"},
        DataError,
        "weightCol 'unheld' must have a weight above 0 in some row, got 0 in all rows to validate on",
    ),
    ({"featuresCol": "maggy_validation"}, ConfigError, "featuresCol must not be the reserved name 'maggy_validation'"),
    ({"featuresCol": "huge"}, DataError, r"'huge' must have numbers up to 3.4e\+38 \(float32\), got 1e\+39"),
    (
        {"labelCol": "infinite"},
        DataError,
        "'infinite' must not be or contain NaN or infinity, got 120 such rows of 120",
    ),
    (
        {"decode": {"image": len}},
        ConfigError,
        "decode must have columns that are read, got 'image'; use some of features, label",
    ),
    (
        {"model": nn.Linear(4, 1), "loss": "mse", "classWeights": "balanced"},
        ConfigError,
        "loss must be over classes for classWeights, got 'MSELoss'",
    ),
    ({"workers": 121}, ConfigError, "121 workers cannot share 120 rows"),
    ({"labelCol": "shifted"}, DataError, "'shifted' must have classes 0 to 2, .* got labels from 1 to 3"),
    (
        {"predictionCol": "p", "probabilityCol": "p"},
        ConfigError,
        "predictionCol and probabilityCol must have different names, got 'p'",
    ),
    (
        {"predictionCol": "p", "probabilityCol": "P"},
        ConfigError,
        "predictionCol and probabilityCol must have different names, got 'p' and 'P'",
    ),
    ({"errorCol": "Text"}, DataError, "errorCol must be a new column, got 'Text', which the DataFrame has already"),
    ({"errorCol": "text"}, DataError, "errorCol must be a new column, got 'text', which the DataFrame has already"),
    ({"directory": "/proc/nowhere"}, ConfigError, "cannot be written to file:///proc/nowhere/.*: Mkdirs failed"),
]


def test_what_is_wrong_is_told_before_a_worker_starts(
    estimator: TorchEstimator, df: DataFrame, spark_local: SparkSession, tmp_path: Path
) -> None:
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql import functions as F

    df = df.select("array", "label", "number", F.lit("a").alias("text"), F.lit(b"a").alias("bytes"))
    df = df.withColumn("gaps", F.array_append("array", F.lit(None))).withColumn("shifted", F.col("label") + 1)
    df = df.withColumn("endless", F.array_append("array", F.lit(float("inf")))).withColumn("infinite", F.lit(-math.inf))
    df = df.withColumn("huge", F.array_append("array", F.lit(-1e39)))
    df = df.withColumn("nested", F.array(F.array(F.lit(1.0)), F.array(F.lit(math.nan))))
    df = df.withColumn("deep", F.array(F.array(F.lit(1.0)), F.array(F.lit(None).cast("double"))))
    df = df.withColumn("ragged", F.array(F.array(F.lit(1.0)), F.array(F.lit(1.0), F.lit(2.0))))
    df = df.withColumn("held", F.col("number") > 0).withColumn("unheld", F.when(F.col("held"), 0.0).otherwise(1.0))
    df = df.withColumn("vector", array_to_vector(F.array(F.lit(1.0), F.lit(math.nan))))
    df = df.withColumn("uneven", array_to_vector(F.when(F.col("held"), F.array_repeat(F.lit(1.0), 2)).otherwise(
        F.array_repeat(F.lit(1.0), 3))))  # fmt: skip
    df = df.withColumn("maggy_validation", F.col("number")).withColumn("held_out", F.lit(True))
    df.withColumn("features", F.col("array")).write.parquet(f"{tmp_path}/wrong")
    df = spark_local.read.parquet(f"{tmp_path}/wrong")
    for given, kind, message in WRONG:
        wrong = estimator.copy()
        wrong.setParams(**given, runOptions={"name": "never"})
        with pytest.raises(kind, match=message):
            wrong.fit(df)
    with pytest.raises(DataError, match="no rows"):
        estimator.fit(df.where("label > 5"))
    with pytest.raises(DataError, match="must differ in more than case, got 'label', 'Label'; rename all but one"):
        estimator.fit(df.select("*", F.col("label").alias("Label")))
    with pytest.raises(DataError, match=r"fit must get a Spark DataFrame, got pandas.DataFrame; .*createDataFrame"):
        estimator.fit(df.toPandas())
    assert not Path(estimator.getOrDefault("directory"), "never").exists()


def test_a_stream_is_refused(estimator: TorchEstimator, spark_local: SparkSession) -> None:
    from maggy_like.ml import PipelineSearch

    stream = spark_local.readStream.format("rate").load().selectExpr("array(1.0, 2.0) as features", "value as label")
    for stage in (estimator, PipelineSearch([estimator], {})):
        with pytest.raises(DataError, match=r"fit must get a DataFrame that is read once, got a stream; .*spark.read"):
            stage.fit(stream)


class Words(nn.Module):
    """Classes of ten words, for the row or for each of its places."""

    def __init__(self, places: bool) -> None:
        super().__init__()
        self.places, self.words, self.classes = places, nn.Embedding(10, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.classes(self.words(x.reshape(len(x), -1)))
        return found.transpose(1, 2) if self.places else found.mean(1)


@pytest.mark.parametrize(
    ("features", "label", "message"),
    [
        ("if(id = 99, 10, id % 10)", "id % 3", "column 'features' has numbers from 0 to 10, .* index out of range"),
        ("array(1, if(id = 99, -1, 2))", "id % 3", "column 'features' has numbers from -1 to 2, .* index out of range"),
        (
            "array(1, 2)",
            "array(0, if(id = 99, 3, 2))",
            "labelCol 'label' must have classes 0 to 2, .* got labels from 0 to 3",
        ),
        ("array(1, 9)", "array(0, if(id = 99, -100, 2))", None),  # which the loss leaves out
    ],
)
def test_a_late_category_or_class_that_the_network_does_not_have_is_told_before_a_worker_starts(
    estimator: TorchEstimator, spark_local: SparkSession, features: str, label: str, message: str | None
) -> None:
    rows = spark_local.range(100).selectExpr(f"{features} as features", f"{label} as label")
    estimator.setParams(model=Words, modelParams={"places": "array" in label}, epochs=1, runOptions={"name": "run"})
    if message is None:
        assert math.isfinite(estimator.fit(rows).history[0]["loss"])
        return
    with pytest.raises(DataError, match=message):
        estimator.fit(rows)
    assert not Path(estimator.getOrDefault("directory"), "run").exists()


def test_searches_as_for_cross_validator_are_answered_with_ours(
    estimator: TorchEstimator, spark_local: SparkSession
) -> None:
    from pyspark.ml.feature import Bucketizer

    from maggy_like.ml import PipelineSearch

    other = Bucketizer()
    with pytest.raises(ConfigError, match=r"learningRate; use search=\{'learningRate': \[...\]\} of the Torch"):
        PipelineSearch([other, estimator], {estimator.learningRate: [0.1]})
    with pytest.raises(ConfigError, match="end in a TorchEstimator, got Bucketizer; use CrossValidator or"):
        PipelineSearch([other], {})
    with pytest.raises(ConfigError, match=r"search must be a dict with lists .*, got \[\{Param.*; use \{hashed"):
        PipelineSearch([other, estimator], [{other.handleInvalid: "keep"}])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"PipelineSearch\(\) has no argument 'numFolds', got numFolds=3; it takes"):
        PipelineSearch([other, estimator], {}, numFolds=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"search must be a dict with names as keys, .*; use 'learningRate'"):
        TorchEstimator(search={estimator.learningRate: [0.1]})  # type: ignore[dict-item]


@pytest.mark.long
def test_preprocessing_and_network_are_searched_together(
    estimator: TorchEstimator, spark_local: SparkSession, tmp_path: Path
) -> None:
    from pyspark.ml import PipelineModel
    from pyspark.ml.feature import Bucketizer, FeatureHasher, StringIndexer

    from maggy_like.ml import PipelineSearch

    df = spark_local.createDataFrame(
        [(f"s{i % 7}", i % 5, "yes" if i % 7 < 3 else "no") for i in range(80)], "a string, b int, y string"
    )
    index = StringIndexer(inputCol="y", outputCol="label")
    hashed = FeatureHasher(inputCols=["a", "b"], outputCol="features")
    estimator.setParams(
        model=lambda numFeatures, hidden: nn.Sequential(
            nn.Linear(numFeatures, hidden), nn.ReLU(), nn.Linear(hidden, 2)
        ),
        search={"hidden": [4, 8]},
        runOptions={"progress": False, "n_trials": 4, "optimizer": "grid"},
        epochs=2,
    )
    model = PipelineSearch([index, hashed, estimator], {hashed.numFeatures: [8, 32]}).fit(df)
    model.save(f"{tmp_path}/best")
    again = PipelineModel.load(f"{tmp_path}/best")
    assert again.transform(df).select("prediction").collect() == model.transform(df).select("prediction").collect()
    trained = model.stages[-1]
    assert isinstance(trained, TorchModel)
    assert trained.result is not None
    assert {(t.config["numFeatures"], t.config["hidden"]) for t in trained.result.trials} == {
        (8, 4),
        (8, 8),
        (32, 4),
        (32, 8),
    }
    assert model.stages[1].getNumFeatures() == trained.config["numFeatures"] == trained.network[0].in_features
    assert model.transform(df).where("prediction is null").count() == 0
    assert len(list(tmp_path.glob("runs/data/*"))) == 2
    other = Bucketizer()
    with pytest.raises(ConfigError, match="must have Params of stages before the TorchEstimator"):
        PipelineSearch([index, estimator], {other.handleInvalid: ["keep"]})


@pytest.mark.parametrize(
    ("loss", "outputs", "raw"),
    [
        ("cross_entropy", 3, lambda logits: logits),
        ("bce_with_logits", 1, lambda logits: np.concatenate([-logits, logits], 1)),
    ],
)
def test_all_options_of_a_training_and_raw_predictions(
    estimator: TorchEstimator, df: DataFrame, tmp_path: Path, loss: str, outputs: int, raw: Any
) -> None:
    from pyspark.ml.evaluation import BinaryClassificationEvaluator

    df = df.withColumn("label", (df.label > 0).cast("double")) if outputs == 1 else df
    estimator.setParams(
        model=lambda: torch.compile(nn.Linear(4, outputs), backend="eager"),
        loss=loss,
        lrScheduler="OneCycleLR",
        lrSchedulerParams={"max_lr": 0.1},
        lrSchedulerInterval="step",
        gradientClipVal=1.0,
        accumulateGradBatches=2,
        precision="bf16",
        dropLast=True,
        rawPredictionCol="rawPrediction",
    )
    estimator.save(str(tmp_path / "estimator"))
    model = TorchEstimator.load(str(tmp_path / "estimator")).fit(df)
    assert type(model.network) is nn.Linear
    model.save(str(tmp_path / "model"))
    rows = TorchModel.load(str(tmp_path / "model")).transform(df).collect()
    with torch.no_grad():
        logits = model.network(torch.tensor(np.array([row.array for row in rows]), dtype=torch.float32)).numpy()
    assert np.allclose([row.rawPrediction.toArray() for row in rows], raw(logits), atol=1e-6)
    assert model.transform(df).columns[-3:] == ["prediction", "rawPrediction", "probability"]
    if outputs == 1:
        made = model.transform(df)
        by_raw, by_probability = (
            BinaryClassificationEvaluator(rawPredictionCol=name).evaluate(made) for name in made.columns[-2:]
        )
        assert by_raw == pytest.approx(by_probability)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"precision": "fp16"}, r"precision='fp16' must have workers with GPUs, got a CPU; use precision='bf16'"),
        ({"precision": "half"}, r"precision must be one of '32', 'bf16', 'fp16', got 'half'"),
        ({"lrScheduler": "Step"}, r"lrSchedulerParams must be arguments of lrScheduler='Step', got \{\}"),
        ({"dropLast": True, "batchSize": 200}, r"dropLast=True must leave a batch, got 120 rows"),
        ({"gradientClipVal": 0.0}, r"gradientClipVal must be a number above 0, got 0\.0"),
    ],
)
def test_a_mistake_in_an_option_is_found_before_a_worker_starts(
    estimator: TorchEstimator, df: DataFrame, params: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        estimator.setParams(**params).fit(df)


def test_a_param_that_takes_lists_is_searched_too(estimator: TorchEstimator, df: DataFrame) -> None:
    from pyspark.ml.feature import Bucketizer, VectorAssembler

    from maggy_like.ml import PipelineSearch

    bucketizer = Bucketizer(inputCols=["number"], outputCols=["bucket"])
    assembler = VectorAssembler(outputCol="inputs")
    estimator.setParams(model=nn.Linear(2, 3), featuresCol="inputs", runOptions={"progress": False}, epochs=1)
    columns, splits = [["number", "bucket"], ["bucket", "number"]], [[[-math.inf, 0.0, math.inf]]]
    search = {bucketizer.splitsArray: splits, assembler.inputCols: columns}
    model = PipelineSearch([bucketizer, assembler, estimator], search).fit(df)
    assert model.stages[0].getSplitsArray() == splits[0]
    assert model.stages[1].getInputCols() in columns
    columns_of_best = tuple(model.stages[1].getInputCols())
    assert model.stages[-1].config == {"splitsArray": (("-inf", 0.0, "inf"),), "inputCols": columns_of_best}


class Fitted(Model):  # type: ignore[misc]
    """Adds nothing."""

    def _transform(self, dataset: DataFrame) -> DataFrame:
        return dataset


class Watching(Estimator[Fitted]):
    """A stage that keeps the ids of the rows that it is fitted on."""

    def __init__(self, seen: list[set[float]]) -> None:
        super().__init__()
        self.seen = seen

    def _fit(self, dataset: DataFrame) -> Fitted:
        self.seen.append({row["id"] for row in dataset.select("id").collect()})
        return Fitted()


@pytest.mark.long
@pytest.mark.parametrize("apart", [{"validationFraction": 0.3}, {"validationIndicatorCol": "later"}], ids=str)
def test_stages_are_not_fitted_on_rows_to_validate_on(
    estimator: TorchEstimator, spark_local: SparkSession, tmp_path: Path, apart: dict[str, Any]
) -> None:
    from pyspark.ml.feature import VectorAssembler
    from pyspark.sql import functions as F

    from maggy_like.ml import PipelineSearch

    ids = F.col("id").cast("double")
    df = spark_local.range(60).select(ids.alias("id"), (ids / 60).alias("x"), (F.col("id") % 3 == 0).alias("later"))
    df = df.withColumn("later", F.when(F.col("id") != 1, F.col("later")))  # null is no
    seen: list[set[float]] = []
    assembler = VectorAssembler(inputCols=["x"], outputCol="features")
    estimator.setParams(model=nn.Linear(1, 1), loss="mse", labelCol="id", epochs=1, **apart)
    stages = [Watching(seen), assembler, estimator]
    found = PipelineSearch(stages, {assembler.handleInvalid: ["error", "keep"]}).fit(df)
    assert "validation_loss" in found.stages[-1].history[0]
    (fitted_on,) = seen
    (directory,) = {path.parent for path in tmp_path.glob("runs/data/*/maggy_validation=true")}
    read = {
        name: spark_local.read.parquet(f"{directory}/maggy_validation={name}").collect() for name in ("true", "false")
    }
    held, trained = ({row["id"] for row in rows} for rows in (read["true"], read["false"]))
    assert fitted_on == trained
    assert held == set(range(60)) - trained
    assert held
    assert apart != {"validationIndicatorCol": "later"} or held == {float(number) for number in range(0, 60, 3)}
    with pytest.raises(DataError, match="the rows to validate on must be at least 1"):
        PipelineSearch(stages, {}).fit(df.where("id % 3 = 1 AND id < 2"))


def test_a_network_that_does_not_pickle_predicts_and_is_saved(
    estimator: TorchEstimator, df: DataFrame, tmp_path: Path
) -> None:
    def normed(hidden: int = 4) -> nn.Module:
        return nn.Sequential(weight_norm(nn.Linear(4, hidden)), nn.BatchNorm1d(hidden), nn.Linear(hidden, 3))

    estimator.setParams(model=normed, modelParams={"hidden": 5}, batchSize=7, epochs=1)  # one row is left over
    model = estimator.fit(df)
    rows = model.transform(df).select("prediction").collect()
    with torch.no_grad():
        x = torch.tensor([row["array"] for row in df.collect()], dtype=torch.float32)
        assert [row["prediction"] for row in rows] == model.network(x).argmax(1).tolist()
    model.save(f"{tmp_path}/model")
    again = TorchModel.load(f"{tmp_path}/model")
    assert again.transform(df).select("prediction").collect() == rows


def test_arrays_of_whole_numbers_are_fractions_to_a_layer_that_wants_them(
    estimator: TorchEstimator, df: DataFrame
) -> None:
    from pyspark.sql import functions as F

    whole = df.select(F.transform("array", lambda it: (it * 10).cast("int")).alias("features"), "label")
    model = estimator.setParams(epochs=1).fit(whole)
    rows = model.transform(whole).collect()
    with torch.no_grad():
        x = torch.tensor([row["features"] for row in rows], dtype=torch.float32)
        assert [row["prediction"] for row in rows] == model.network(x).argmax(1).tolist()


class TwoSlots(LocalEngine):
    """Has two workers where nobody says how many."""

    def default_workers(self) -> int:
        return 2


@pytest.mark.long
@pytest.mark.e2e
def test_workers_that_cannot_share_the_rows_are_known_before_they_start(
    estimator: TorchEstimator, df: DataFrame
) -> None:
    estimator.setParams(engine=TwoSlots(), epochs=1)
    searches: list[tuple[dict[str, Any], str]] = [
        (
            {"search": {"batchSize": [4, 8, 16, 32, 64, 1]}},
            "2 workers cannot share batches of batchSize=1; .*workers=1",
        ),
        ({"search": {"hidden": [4, 8]}, "batchSize": 1}, "2 workers cannot share batches of batchSize=1"),
        ({"workers": 2, "batchSize": 1}, "2 workers cannot share batches of batchSize=1"),
    ]
    for given, message in searches:
        with pytest.raises(ConfigError, match=message):
            estimator.copy().setParams(**given, runOptions={"name": "never"}).fit(df)
    assert not Path(estimator.getOrDefault("directory"), "never").exists()
    held = df.withColumn("later", df["number"] == df.agg({"number": "max"}).first()[0])
    estimator.setParams(validationIndicatorCol="later")
    with pytest.raises(ConfigError, match="2 workers cannot share 1 rows to validate on"):
        estimator.copy().setParams(search={"hidden": [4, 8]}).fit(held)
    assert estimator.fit(held).history  # on one
