"""Images as bytes: a network that was trained on other images gives features, and a small one learns classes of them.

The images are scikit-learn's digits, as PNG files. The large network has only seen 0 to 4. With its features, a
single layer learns 5 to 9 from two hundred images. Nothing is downloaded: the weights are trained in a few seconds.

    pip install "maggy_like[java,examples]"
    python examples/image_features.py

For your own images, change ``read_images``, ``decode`` and ``make_encoder``. Load your weights in ``train_encoder``.
"""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from pyspark.ml import Pipeline
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from maggy_like import spark_session
from maggy_like.ml import TorchEstimator, TorchFeaturizer

KNOWN, NEW = range(5), range(5, 10)
EXAMPLES = 200
"""Images of the new digits to learn from."""

WIDTH = 32 * 4 * 4
"""Numbers that the large network's layer ``features`` gives for an image."""


def make_encoder() -> nn.Sequential:
    """The large network: its layer ``features`` says what it sees, and ``digit`` which of the known ones that is."""
    network = nn.Sequential()
    network.add_module("first", nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()))
    network.add_module("second", nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)))
    network.add_module("features", nn.Flatten())
    network.add_module("digit", nn.Linear(WIDTH, len(KNOWN)))
    return network


def train_encoder(images: Tensor, digits: Tensor) -> nn.Sequential:
    """Train it in this process."""
    torch.set_num_threads(1)  # such small tensors gain nothing by more
    torch.manual_seed(0)
    network = make_encoder()
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(5):
        for batch in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(images[batch]), digits[batch]).backward()
            optimizer.step()
    return network


def decode(content: bytes) -> np.ndarray:
    """The pixels of an image file, as the network takes them."""
    with Image.open(io.BytesIO(content)) as image:
        return np.asarray(image, dtype=np.float32)[None] / 255


def write_images(images: np.ndarray, digits: np.ndarray, directory: Path) -> None:
    """Each image as ``directory/DIGIT/NUMBER.png``."""
    for number, (image, digit) in enumerate(zip(images, digits, strict=True)):
        path = directory / str(digit) / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 255).astype(np.uint8)).save(path)


def read_images(spark: SparkSession, directory: Path) -> DataFrame:
    """One row per image: its bytes, and its class from the name of its directory."""
    files = spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(str(directory))
    name = F.split("path", "/")
    return files.select(
        F.col("content").alias("image"),
        (F.element_at(name, -2).cast("int") - NEW[0]).alias("label"),
        F.regexp_extract("path", r"(\d+)\.png$", 1).cast("int").alias("number"),
    )


def main(spark: SparkSession, directory: Path) -> None:
    """Train the encoder, write the new images to files, and learn them of its features."""
    data = load_digits()
    images, digits = (data.images / 16).astype(np.float32), data.target
    is_known = np.isin(digits, KNOWN)
    encoder = train_encoder(torch.from_numpy(images[is_known])[:, None], torch.from_numpy(digits[is_known]))
    write_images(images[~is_known], digits[~is_known], directory / "images")

    rows = read_images(spark, directory / "images").cache()
    train = rows.where(F.col("number") < EXAMPLES)
    test = rows.where(F.col("number") >= EXAMPLES)
    pipeline = Pipeline(
        stages=[
            TorchFeaturizer(model=encoder, layer="features", inputCol="image", outputCol="features", decode=decode),
            TorchEstimator(
                model=nn.Linear(WIDTH, len(NEW)),
                loss="cross_entropy",
                learningRate=5e-3,
                batchSize=32,
                epochs=20,
                workers=2,
                directory=str(directory / "runs"),
            ),
        ]
    )
    predicted = pipeline.fit(train).transform(test)
    right = predicted.agg(F.avg((F.col("prediction") == F.col("label")).cast("double")), F.count("*")).first()
    assert right is not None
    print(f"learned digits 5 to 9 of {train.count()} images; right on {right[0]:.1%} of {right[1]} others")


if __name__ == "__main__":
    session = spark_session("local[2]", app_name="Images")
    with tempfile.TemporaryDirectory() as name:
        main(session, Path(name))
    session.stop()
