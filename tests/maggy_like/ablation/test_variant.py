"""Variants as they travel."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest

from maggy_like.ablation import AblationStudy
from maggy_like.ablation.variant import names_of, takes
from maggy_like.errors import ConfigError


def test_a_bare_variant_can_be_pickled_whatever_its_config_has() -> None:
    config = {"activation": lambda x: x, "lock": threading.Lock(), "layers": (64, 64), "a": 1}
    variant = AblationStudy(model=lambda: None, config=config).config(a=0).without("a")
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(variant)
    arrived = pickle.loads(pickle.dumps(variant.bare()))
    assert (arrived.config["layers"], arrived.config["a"]) == ((64, 64), 0)
    assert "lambda" in arrived.config["activation"]
    assert "lock" in arrived.config["lock"]


# -- which arguments the user's functions get -----------------------------------------------------


def gather(**given: Any) -> dict[str, Any]:
    return given


def gather_with_width(n_features: int, **given: Any) -> dict[str, Any]:
    return {"n_features": n_features, **given}


def variant_of(**arguments: Any) -> Any:
    return AblationStudy(**arguments).custom("c", lambda variant: variant.changed(model=lambda model: model)).without()


def test_a_double_star_gets_the_config_and_nothing_else() -> None:
    config = {"width": 64, "depth": 2}
    assert variant_of(model=gather, config=config, data=["a", "b"]).model() == config
    assert variant_of(model=gather_with_width, config=config, data=["a", "b"]).model() == {"n_features": 2, **config}
    assert variant_of(model=gather, config=config).model(depth=3, rate=0.1) == {"width": 64, "depth": 3, "rate": 0.1}


def test_a_star_parameter_is_no_name() -> None:
    def make(*model: Any, **variant: Any) -> None: ...

    assert names_of(make) == ()
    assert takes(make, "anything")
    assert variant_of(model=gather, config={"given": 1}).model() == {"given": 1}


@pytest.mark.parametrize(("data", "given"), [(None, (4, ["z"])), (["a", "b"], (2, ["a", "b"]))])
def test_columns_are_filled_where_there_is_data_and_else_defaults_hold(data: Any, given: Any) -> None:
    variant = variant_of(model=lambda n_features=4, features=("z",): (n_features, list(features)), data=data)
    assert variant.model() == given
    assert set(variant.arguments(["features", "n_features"])) == (set() if data is None else {"features", "n_features"})


def test_a_variant_that_lost_all_features_still_has_data() -> None:
    study = AblationStudy(model=lambda n_features=4: n_features, data=["a", "b"]).features(both=["a", "b"])
    assert study.without("both").model() == 0


@pytest.mark.parametrize("name", ["seed", "config", "variant"])
def test_a_factory_that_takes_what_only_train_fn_gets_is_told(name: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"def make({name}): ...", scope)
    with pytest.raises(ConfigError, match=rf"only train_fn receives it.* remove it.*variant.model\({name}={name}\)"):
        variant_of(model=scope["make"]).model()
    with pytest.raises(ConfigError, match=rf"must not have '{name}'.*use another name"):
        variant_of(model=scope["make"], config={name: 0})


def test_columns_without_data_are_told() -> None:
    def make(n_features: int) -> None: ...

    with pytest.raises(
        ConfigError,
        match=r"'n_features' of the model's factory must .*; the study must have data, got none; use .*data=",
    ):
        variant_of(model=make).model()
    with pytest.raises(ConfigError, match=r"must not have 'n_features'.*the study must have data, got none"):
        variant_of(model=make, config={"n_features": 4})
