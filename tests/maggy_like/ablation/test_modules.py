from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch import nn

from maggy_like.ablation import AblationStudy
from maggy_like.ablation.modules import cut, seed_weights
from maggy_like.ablation.variant import same_value
from maggy_like.errors import ConfigError

ROWS = torch.ones(2, 4)
SEQUENCES = torch.ones(2, 3, 4)


class Around(nn.Module):
    """A layer, what is looked at, and a layer."""

    def __init__(self, inner: nn.Module, use: Any = None) -> None:
        super().__init__()
        self.entry = nn.Linear(4, 4)
        self.inner = inner
        self.exit = nn.Linear(4, 2)
        self.use = use or (lambda inner, x: inner(x))

    def forward(self, x: torch.Tensor) -> Any:
        x = self.entry(x)
        return self.exit(x + self.use(self.inner, x))


class Attention(nn.Module):
    """Called by keywords."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return self.values(x)  # type: ignore[no-any-return]


def a_study(model: Any, sample: Any = ROWS) -> AblationStudy:
    return AblationStudy(model=model, sample=sample)


def without(name: str, model: Any, replace: Any = "identity", sample: Any = ROWS) -> Any:
    """The model without a module, after the checks."""
    study = a_study(model, sample).modules(name, replace=replace)
    return study.designed().variant(f"without {name}").model()


@pytest.mark.parametrize("sample", [np.ones((2, 4)), pandas.DataFrame(np.ones((2, 4)))])
def test_a_sample_that_is_no_tensor_is_answered_with_what_to_pass(sample: Any) -> None:
    with pytest.raises(ConfigError, match=r"; sample is of (numpy|pandas\.\S+), so use torch\.tensor\("):
        without("inner", lambda: Around(nn.Linear(4, 4)), sample=sample)


# -- which modules ----------------------------------------------------------------------------------
class Shared(nn.Module):
    """One layer by two names, of which one is used."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = self.first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["first", "second"])
def test_a_shared_module_is_removed_wherever_it_stands(name: str) -> None:
    model = without(name, Shared, replace=lambda module: nn.Linear(4, 4, bias=False))
    assert model.first is model.second
    assert model.first.bias is None


def test_a_shared_module_is_one_component() -> None:
    assert [c.name for c in a_study(Shared).modules("*").components] == ["first"]


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.ModuleDict({"lin": nn.Linear(4, 4), "act": nn.ReLU()}) for _ in range(2))
        self.none = nn.ModuleList()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block["act"](block["lin"](x))  # type: ignore[index]
        return x


INSIDE = ("blocks.0.lin", "blocks.0.act", "blocks.1.lin", "blocks.1.act")


@pytest.mark.parametrize("asked", ["*", "block*", "block?"])
def test_of_a_container_that_fits_a_glob_the_modules_in_it_are_taken(asked: str) -> None:
    assert tuple(c.name for c in a_study(Blocks).modules(asked, replace="zero").components) == INSIDE


@pytest.mark.slow
@pytest.mark.parametrize(("asked", "paths"), [("blocks", INSIDE), ("blocks.1", INSIDE[2:])])
def test_a_container_that_is_named_is_all_in_it(asked: str, paths: tuple[str, ...]) -> None:
    for study in (a_study(Blocks).modules(asked), a_study(Blocks).modules({asked: f"{asked}*"})):
        assert [(c.name, c.paths) for c in study.components] == [(asked, paths)]  # type: ignore[union-attr]
    model = without(asked, Blocks)
    assert all(isinstance(model.get_submodule(path), nn.Identity) for path in paths)


@pytest.mark.parametrize("asked", ["none", "non?"])
def test_an_empty_container_is_told(asked: str) -> None:
    with pytest.raises(ConfigError, match="none must have a forward or modules"):
        a_study(Blocks).modules(asked).designed()


# -- what stands in ---------------------------------------------------------------------------------
@pytest.mark.parametrize("call", [lambda m, x: m(x, mask=None), lambda m, x: m(mask=x, x=x)])
def test_keywords_reach_what_stands_in(call: Any) -> None:
    zero = without("inner", lambda: Around(Attention(), call), "zero")
    assert torch.equal(call(zero.inner, ROWS), torch.zeros(2, 4))
    identity = without("inner", lambda: Around(Attention(), call))
    assert torch.equal(identity.inner(mask=torch.zeros(2, 4), x=ROWS), ROWS)


def attend(attention: Any, x: torch.Tensor) -> torch.Tensor:
    return attention(x, x, x, need_weights=False)[0]  # type: ignore[no-any-return]


def recur(recurrent: Any, x: torch.Tensor) -> torch.Tensor:
    return recurrent(x)[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("inner", "use"),
    [
        (lambda: nn.MultiheadAttention(4, 2, batch_first=True), attend),
        (lambda: nn.GRU(4, 4, batch_first=True), recur),
        (lambda: nn.LSTM(4, 4, batch_first=True), recur),
    ],
)
def test_attention_and_recurrent_layers_can_be_left_out(inner: Any, use: Any) -> None:
    for how, expected in (("identity", SEQUENCES), ("zero", torch.zeros_like(SEQUENCES))):
        model = without("inner", lambda: Around(inner(), use), how, SEQUENCES)
        assert torch.equal(use(model.inner, SEQUENCES), expected)


def test_outputs_keep_their_structure() -> None:
    inner = nn.LSTM(4, 4, batch_first=True)
    zero = without("inner", lambda: Around(inner, recur), "zero", SEQUENCES)
    identity = without("inner", lambda: Around(inner, recur), "identity", SEQUENCES)
    for _, (hidden, cell) in (zero.inner(SEQUENCES), identity.inner(SEQUENCES)):
        assert torch.equal(hidden, torch.zeros(1, 2, 4))
        assert torch.equal(cell, torch.zeros(1, 2, 4))


class Named(nn.Module):
    def forward(self, x: torch.Tensor, n: int) -> dict[str, Any]:
        return {"n": n, "all": [x[:, :n], None]}


def test_zeros_depend_on_all_that_is_given() -> None:
    zero = without("inner", lambda: Around(Named(), lambda m, x: m(x, n=4)["all"][0]), "zero")
    assert zero.inner(ROWS, n=3)["all"][0].shape == (2, 3)
    assert zero.inner(ROWS, n=2) == {"n": 2, "all": [pytest.approx(torch.zeros(2, 2)), None]}


@pytest.mark.parametrize("move", [lambda m: m.to(torch.bfloat16), lambda m: m.double(), lambda m: m.half()])
def test_zeros_follow_the_dtype_of_the_model(move: Any) -> None:
    for inner, given in ((nn.Linear(4, 4), torch.zeros(2, 4)), (nn.Embedding(3, 4), torch.zeros(2, dtype=torch.long))):
        zero = move(
            a_study(lambda inner=inner: Around(inner)).modules("inner", replace="zero").without("inner").model()
        )
        given = given.to(zero.entry.weight.dtype) if given.is_floating_point() else given
        assert zero.inner(given).dtype == zero.entry.weight.dtype


def test_zeros_follow_the_device_of_the_model() -> None:
    model = without("inner", lambda: Around(Attention()), "zero").to("meta")
    assert model(ROWS.to("meta")).device.type == "meta"
    no_tensor_given = without("inner", lambda: Around(Count(), lambda m, x: m(len(x))), "zero").to("meta")
    assert no_tensor_given.inner(3).device.type == "meta"


class Count(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4))

    def forward(self, n: int) -> torch.Tensor:
        return self.weight.expand(n, 4)


def test_zeros_work_in_mixed_precision() -> None:
    def use(conv: Any, x: torch.Tensor) -> torch.Tensor:
        return conv(x[:, None])[:, 0]  # type: ignore[no-any-return]

    model = without("inner", lambda: Around(nn.Conv1d(1, 1, 1), use), "zero")
    with torch.autocast("cpu", torch.bfloat16):
        assert model(ROWS).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("replace", "message"),
    [
        ("zero", "output of MakesOdd must have only tensors, got Odd; use a custom module"),
        ("identity", "Odd.*use a custom module"),
    ],
)
def test_an_output_that_is_made_of_no_tensors_is_told(replace: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        without("inner", lambda: Around(MakesOdd(), lambda m, x: m(x).value), replace)


@dataclass
class Odd:
    value: torch.Tensor


class MakesOdd(nn.Module):
    def forward(self, x: torch.Tensor) -> Odd:
        return Odd(x)


class Counts(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[x == x].reshape(x.shape)


@pytest.mark.parametrize("replace", ["identity", "zero"])
@pytest.mark.parametrize(
    ("inner", "use", "message"),
    [
        (Counts, None, "the output of Counts cannot be determined without computing it.*replace=nn.Identity()"),
        (nn.PReLU, lambda m, x: x * m.weight + m(x), "has no attribute 'weight'.*custom module"),
    ],
)
def test_what_nothing_can_stand_in_for_is_told(inner: Any, use: Any, message: str, replace: str) -> None:
    with pytest.raises(ConfigError, match=f"'without inner'.*'inner' replaced.*{message}"):
        without("inner", lambda: Around(inner(), use), replace)
    without("inner", lambda: Around(inner(), use), lambda module: module)


class Locked(nn.ReLU):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


@pytest.mark.parametrize("replace", ["identity", "zero"])
def test_a_module_that_cannot_be_copied_is_told(replace: str) -> None:
    with pytest.raises(ConfigError, match=r"module 'inner' must be copyable.*nn.Identity()"):
        without("inner", lambda: Around(Locked()), replace)
    without("inner", lambda: Around(Locked()), nn.Identity())


def test_weights_of_a_module_that_is_given_are_those_of_the_seed() -> None:
    given = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    variant = a_study(lambda: Around(nn.ReLU())).modules("inner", replace=given).designed().variant("without inner")
    made = []
    for seed in (0, 0, 1):
        seed_weights(seed)
        made.append(variant.model().inner[0].weight)
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])
    assert not torch.equal(made[0], given[0].weight)


# -- what the sample tells --------------------------------------------------------------------------
class TrainingHead(nn.Module):
    """With a head that is used in training alone, and whose batch norm would refuse a sample of one there."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.aux = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.norm(x)
        return (x, self.aux(x)) if self.training else x


def test_a_head_that_is_used_in_training_alone_can_be_left_out() -> None:
    model = without("aux", TrainingHead, "zero", ROWS[:1]).train()
    assert torch.equal(model(ROWS)[1], torch.zeros(2, 3))


def test_what_does_not_fit_in_training_alone_is_told() -> None:
    with pytest.raises(ConfigError, match=r"must give .*2, 3.* as the base does, got .*2, 5.* in train mode"):
        without("aux", TrainingHead, nn.Linear(4, 5))
    with pytest.raises(ConfigError, match="failed on the sample in train mode with 'aux' replaced"):
        without("aux", TrainingHead, nn.Linear(5, 5))


class NeedsTargets(TrainingHead):
    def forward(self, x: torch.Tensor) -> Any:
        if self.training:
            raise ValueError("targets are needed")
        return super().forward(x)


def test_a_model_that_trains_on_more_than_the_sample_is_checked_in_eval_mode() -> None:
    assert isinstance(without("norm", NeedsTargets).norm, nn.Identity)
    with pytest.raises(ConfigError, match=r"never uses 'aux'.*in eval mode, and does not run in train mode"):
        without("aux", NeedsTargets, "zero")


def test_a_factory_that_builds_nothing_anew_is_told() -> None:
    model = Around(nn.ReLU())
    with pytest.raises(ConfigError, match=r"must return a new model each time.*build it in the factory"):
        a_study(lambda: model).modules("inner").designed()


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(2))


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
@pytest.mark.parametrize(("name", "replace"), [("0", "zero"), ("1", "identity"), ("1", "zero"), ("2", "identity")])
def test_lazy_modules_are_left_out(name: str, replace: str) -> None:
    study = a_study(lazy).modules(name, replace=replace)
    counted = study.designed().parameters
    assert counted["base"] == 5 * 8 + 2 * 8 + 9 * 2
    assert (counted[f"without {name}"] < counted["base"]) is (name != "2")
    assert study.without(name).model()(ROWS).shape == (2, 2)  # which is what a worker builds


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_lazy_modules_need_a_sample() -> None:
    with pytest.raises(ConfigError, match=r"'0.weight' of a lazy module has no shape.*AblationStudy\(sample="):
        a_study(lazy, None).modules("2").designed()


def test_a_sample_is_cut_whatever_its_structure() -> None:
    sample = {"x": torch.ones(2, 4), "more": [torch.ones(3), (torch.ones(4), "name")]}
    made = cut(sample, [0, 2], 4)
    assert made["x"].shape == (2, 2)
    assert [made["more"][0].shape, made["more"][1][0].shape, made["more"][1][1]] == [(3,), (2,), "name"]


# -- samples of several tensors, and which values are the same --------------------------------------


ABC = ["a", "b", "c"]


class OfBatch(nn.Module):
    """A model of one tensor by name, or of one by each column."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.exit = nn.Linear(n_features, 1)

    def forward(self, batch: dict[str, torch.Tensor]) -> Any:
        return self.exit(torch.cat(list(batch.values()), dim=-1))


@pytest.mark.parametrize(
    "sample",
    [
        {"x": torch.zeros(2, 3)},
        {name: torch.zeros(2, 1) for name in ABC},
        lambda n_features: {"x": torch.zeros(2, n_features)},
    ],
)
def test_a_dict_is_cut_to_the_variant(sample: Any) -> None:
    study = AblationStudy(model=OfBatch, data=ABC, sample=sample).features("b")
    assert study.designed().parameters == {"base": 4, "without b": 3}


def test_a_sample_without_data_keeps_its_defaults() -> None:
    def sample(n_features: int = 3, **config: Any) -> torch.Tensor:
        return torch.zeros(config["rows"], n_features)

    study = AblationStudy(model=lambda: nn.Sequential(nn.Linear(3, 1), nn.ReLU()), sample=sample, config={"rows": 2})
    assert study.modules("1").designed().parameters == {"base": 4, "without 1": 4}


ARRAY = np.ones(3)


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (0, 0.0, True),
        (np.float64(0.2), 0.2, True),
        (np.int64(1), 1.0, True),
        (float("nan"), np.float32("nan"), True),
        (1, True, False),
        (None, 0, False),
        ((64, 64), (64, 64), True),
        (ARRAY, ARRAY, True),
        (ARRAY, None, False),
        (ARRAY, np.zeros(3), False),
        (np.array([]), None, False),
        ([ARRAY], [np.zeros(3)], False),
        (torch.ones(3), torch.zeros(3), False),
        (pandas.DataFrame({"a": [1]}), 0, False),
        (pandas.NA, 0, False),
    ],
)
def test_values_are_compared_as_far_as_they_can_be(a: Any, b: Any, same: bool) -> None:
    assert same_value(a, b) is same
    assert same_value(b, a) is same


@pytest.mark.parametrize(("base", "without"), [(0, 0.0), (float("nan"), float("nan"))])
def test_a_value_that_stays_the_same_is_told(base: Any, without: Any) -> None:
    with pytest.raises(ConfigError, match=r"'dropout' must change when it is removed, got .* with and without it"):
        AblationStudy(config={"dropout": base}).config(dropout=without).designed()


def test_an_array_may_be_ablated() -> None:
    study = AblationStudy(model=lambda weights: weights, config={"weights": ARRAY}).config(weights=None)
    assert [variant.model() is ARRAY for variant in study.designed().variants] == [True, False]
