"""Variants as they travel."""

from __future__ import annotations

import pickle
import threading

import pytest

from maggy_like.ablation import AblationStudy


def test_a_bare_variant_can_be_pickled_whatever_its_config_has() -> None:
    config = {"activation": lambda x: x, "lock": threading.Lock(), "layers": (64, 64), "a": 1}
    variant = AblationStudy(model=lambda: None, config=config).config(a=0).without("a")
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(variant)
    arrived = pickle.loads(pickle.dumps(variant.bare()))
    assert (arrived.config["layers"], arrived.config["a"]) == ((64, 64), 0)
    assert "lambda" in arrived.config["activation"]
    assert "lock" in arrived.config["lock"]
