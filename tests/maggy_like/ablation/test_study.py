from __future__ import annotations

import pickle
import threading
import weakref
from typing import Any

import cloudpickle
import numpy as np
import pandas
import pyarrow
import pytest
import torch
from torch import nn

from maggy_like.ablation import AblationStudy, Variant
from maggy_like.ablation.variant import names_of, takes
from maggy_like.errors import ConfigError, TrainFunctionError
from optimizers.comparisons.repeats import AdaptiveRepeats, Repeats

SAMPLE = torch.zeros(2, 4)


def train(variant: Any, seed: int, augment: bool = True) -> float:
    return 0.0


class SparkFrame:
    """What a Spark DataFrame has that counts here."""

    def __init__(self, *columns: str) -> None:
        self.columns = list(columns)

    def drop(self, *names: str) -> SparkFrame:
        return SparkFrame(*(name for name in self.columns if name not in names))

    def __getattr__(self, name: str) -> str:
        if name not in self.columns:
            raise AttributeError(name)
        return name


# -- variants ---------------------------------------------------------------------------------------
def test_the_base_has_everything(study: AblationStudy) -> None:
    base = study.bound(train).without()
    assert (base.name, base.removed) == ("base", ())
    assert base.features == ["mean radius", "mean area", "worst radius", "texture"]
    assert base.config == {"dropout": 0.2, "augment": True}  # the defaults of the factory and of train


def test_features_leave_the_table_whatever_its_kind(study: AblationStudy, table: pandas.DataFrame) -> None:
    variant = study.bound(train).without("size")
    assert variant.features == ["texture"]
    kept = ["texture", "target"]
    assert list(variant.apply(table).columns) == kept
    assert variant.apply(pyarrow.Table.from_pandas(table)).column_names == kept
    assert variant.apply(SparkFrame(*table.columns)).columns == kept
    assert variant.model().entry.in_features == 1
    assert list(study.bound(train).without().apply(table).columns) == list(table.columns)


def test_columns_may_have_the_names_of_attributes_of_tables() -> None:
    names = ["age", "loc", "column_names", "drop_columns"]
    variant = AblationStudy(data=names).features("age").without("age")
    rows = pandas.DataFrame([[1, 2, 3, 4]], columns=names)
    assert list(variant.apply(rows).columns) == names[1:]
    assert variant.apply(pyarrow.Table.from_pandas(rows)).column_names == names[1:]
    assert variant.apply(SparkFrame(*names)).columns == names[1:]


def test_a_table_that_lacks_the_column_is_told(study: AblationStudy, table: pandas.DataFrame) -> None:
    with pytest.raises(ConfigError, match="must have the column 'texture'"):
        study.bound(train).without("texture").apply(table.drop(columns="texture"))


def test_columns_may_be_given_by_name_alone_and_singly_by_a_glob() -> None:
    study = AblationStudy(data=["a1", "a2", "b"]).features("a*", {"the rest": "b"})
    assert [v.name for v in study.designed().variants] == ["base", "without a1", "without a2", "without the rest"]


def test_modules_are_replaced(study: AblationStudy) -> None:
    variant = study.bound(train).without("norm", "residual")
    model = variant.model()
    assert isinstance(model.norm, nn.Identity)
    assert isinstance(model.block.inner, nn.Identity)
    assert variant.name == "without norm and residual"


def test_zero_gives_zeros_of_the_shape_and_no_parameters(empty: AblationStudy) -> None:
    model = empty.modules("entry", replace="zero").without("entry").model().eval()
    assert torch.equal(model.entry(torch.ones(5, 4)), torch.zeros(5, 8))
    assert list(model.entry.parameters()) == []
    assert empty.modules("entry", replace="zero").designed().parameters["without entry"] > 0
    assert cloudpickle.loads(cloudpickle.dumps(model)).entry(torch.ones(3, 4)).shape == (3, 8)


def test_a_module_or_a_function_stands_in(empty: AblationStudy) -> None:
    given = nn.Linear(4, 8, bias=False)
    variant = empty.modules("entry", replace=given).without("entry")
    entries = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        entries.append(variant.model().entry)
    assert given not in entries  # each place gets a copy
    assert all((entry.in_features, entry.out_features, entry.bias) == (4, 8, None) for entry in entries)
    assert torch.equal(entries[0].weight, entries[1].weight)
    assert not torch.equal(entries[0].weight, entries[2].weight)  # nor are all those of what was given
    b = empty.modules("entry", replace=lambda m: nn.Linear(m.in_features, m.out_features, bias=False))
    assert b.without("entry").model().entry.bias is None


def test_of_modules_inside_each_other_the_outermost_is_taken(empty: AblationStudy) -> None:
    assert [c.name for c in empty.modules("block*").components] == ["block"]
    assert [c.name for c in empty.modules("block.inner.*").components] == [f"block.inner.{i}" for i in range(3)]


def test_custom_components_change_what_they_like(study: AblationStudy) -> None:
    variant = study.bound(train).without("bias")
    assert variant.model().exit.bias is None
    assert study.bound(train).without("size").changed(data=lambda df: df.iloc[:1]).apply(
        pandas.DataFrame([[1] * 4] * 2, columns=["mean radius", "mean area", "worst radius", "texture"])
    ).shape == (1, 1)


def test_arguments_are_filled_by_name(study: AblationStudy) -> None:
    variant = study.bound(train).without("texture")
    filled = variant.arguments(["seed", "variant", "n_features", "model"])
    assert list(filled) == ["variant", "n_features", "model"]
    assert (filled["variant"], filled["n_features"]) == (variant, 3)


def test_what_the_training_function_gives_goes_before(study: AblationStudy) -> None:
    assert study.bound(train).without().model(dropout=0.7).block.inner[2].p == 0.7
    assert study.bound(train).without("dropout").model().block.inner[2].p == 0.0


def test_a_study_is_never_changed(empty: AblationStudy) -> None:
    empty.features("texture")
    assert empty.asked == ()


# -- designs ----------------------------------------------------------------------------------------
def test_a_design_travels_and_makes_its_variants_anew(study: AblationStudy) -> None:
    design = study.bound(train).designed()
    arrived = cloudpickle.loads(cloudpickle.dumps(design))
    assert [v.name for v in arrived.variants] == ["base", *(f"without {c.name}" for c in study.bound(train).components)]
    assert isinstance(arrived.variant("without norm").model().norm, nn.Identity)
    with pytest.raises(ConfigError, match="a variant of the design, got 'with norm'"):
        design.variant("with norm")


def test_a_design_travels_without_the_data_or_the_sample() -> None:
    table = pandas.DataFrame(0.0, index=range(10_000), columns=["a", "b", "c"])
    study = AblationStudy(model=lambda n_features: nn.Linear(n_features, 1), data=table, sample=torch.zeros(10_000, 3))
    assert len(cloudpickle.dumps(study.features("a", "b").designed("pairs"))) < 5_000


def test_models_are_built_one_after_the_other() -> None:
    alive: weakref.WeakSet[nn.Module] = weakref.WeakSet()
    beside = []

    def make(n_features: int) -> nn.Module:
        beside.append(len(alive))
        model = nn.Sequential(nn.Linear(n_features, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))
        alive.add(model)
        return model

    study = AblationStudy(model=make, data=["a", "b", "c"], sample=torch.zeros(2, 3)).features("a", "b", "c")
    design = study.modules("1").modules(exit="2", replace="zero").designed()
    assert list(design.parameters.values()) == [18, 16, 16, 16, 14, 12]
    assert max(beside) == 1  # the base, while it is run itself
    assert not alive


def test_trials_have_what_the_function_takes_by_name(study: AblationStudy) -> None:
    design = study.bound(train).designed()
    assert design.configs["base"] == {"augment": True}  # the model's factory gets its dropout from the variant
    assert design.configs["without augment"] == {"augment": False}
    space = design.space(3)
    assert space.validate({"variant": "without norm", "seed": 2, "augment": True})
    assert isinstance(design.optimizer(3), Repeats)
    assert isinstance(design.optimizer("auto"), AdaptiveRepeats)


def test_parameters_are_counted(study: AblationStudy) -> None:
    counted = study.bound(train).designed().parameters
    assert counted["base"] - counted["without norm"] == 8
    assert counted["base"] - counted["without residual"] == 8 * 8 + 8


def test_groups_are_left_out_together(study: AblationStudy) -> None:
    design = study.bound(train).designed("leave_one_group_out")
    assert [(v.name, v.removed) for v in design.variants[1:]] == [("without regularization", ("norm", "dropout"))]


def columns(n: int) -> AblationStudy:
    names = [chr(ord("A") + place) for place in range(n)]
    return AblationStudy(data=[*names, "rest"]).features(*names)


def test_add_one_in() -> None:
    design = columns(2).designed("add_one_in")
    assert {v.name: v.removed for v in design.variants} == {
        "base": (),
        "without any": ("A", "B"),
        "only A": ("B",),
        "only B": ("A",),
    }
    assert design.contrasts["A"] == {"without any": 1.0, "only A": -1.0}


def test_pairs_have_interactions() -> None:
    design = columns(3).designed("pairs")
    assert len(design.variants) == 7
    assert design.contrasts["A x C"] == {"without A and C": 1, "without A": -1, "without C": -1, "base": 1}


def test_a_factorial_of_two_asks_for_the_same_interaction() -> None:
    pairs, factorial = columns(2).designed("pairs"), columns(2).designed("factorial")
    assert factorial.contrasts["A x B"] == pairs.contrasts["A x B"]
    assert factorial.contrasts["A"] == {"base": -0.5, "without A": 0.5, "without B": -0.5, "without A and B": 0.5}


@pytest.mark.parametrize("name", ["leave_one_out", "add_one_in", "pairs", "factorial"])
def test_contrasts_are_of_variants_and_sum_to_zero(name: Any) -> None:
    design = columns(3).designed(name)
    assert design.variants[0].name == "base"
    assert len({v.name for v in design.variants}) == len(design.variants)
    for contrast in design.contrasts.values():
        assert set(contrast) <= {v.name for v in design.variants}
        assert sum(contrast.values()) == pytest.approx(0.0)


# -- mistakes ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda s: s.features("textur"), "no column 'textur' \\(did you mean 'texture'"),
        (lambda s: s.features("target"), "the label, got 'target'"),
        (lambda s: s.features(size=[]), "group 'size' must have at least one name or glob of a column"),
        (lambda s: s.features(size="*foo*"), "no column '\\*foo\\*' of the group 'size'"),
        (lambda s: s.features("texture").features("texture"), "different names, got 'texture' twice"),
        (lambda s: s.modules("nrm").designed(), "no module 'nrm' \\(did you mean 'norm'"),
        (lambda s: s.modules(gone=()), "group 'gone' must have at least one name or glob of a module"),
        (lambda s: s.modules("norm", replace="one"), "replace must be 'identity', 'zero'"),
        (lambda s: s.modules("spare").designed(), "never uses 'spare'"),
        (lambda s: s.modules("entry").designed(), "'entry' turns \\(2, 4\\) into \\(2, 8\\)"),
        (lambda s: s.modules("entry", replace=nn.Linear(4, 5)).designed(), "'without entry'.*'entry' replaced"),
        (
            lambda s: s.modules("exit", replace=nn.Linear(8, 3)).designed(),
            "must give \\(2, 2\\) as the base does, got \\(2, 3\\)",
        ),
        (lambda s: s.modules("norm", replace=lambda m: 3).designed(), "replacement of module 'norm' must be a module"),
        (lambda s: s.config(dropout=0.2).designed(), "must change when it is removed, got 0.2"),
        (lambda s: s.config(droput=0.0).designed(), "did you mean 'dropout'"),
        (
            lambda s: s.config(rate=0.0).power(effect=0.1, sd=1, repeats=9),
            r"'rate' must have a value.*: study\.bound\(train_fn\), or",
        ),
        (
            lambda s: s.config(rate=0.0).bound(lambda rate, seed: 0.0),
            "'rate' must have a value with nothing removed, got none; give train_fn a default",
        ),
        (lambda s: s.config(seed=0).bound(train), "must not have 'seed'|'seed' must have a value"),
        (lambda s: s.custom("x", lambda v: None).designed(), "must return a variant"),
        (lambda s: s.custom("x", lambda v: v.changed(config={"y": 1})).designed(), "parameters of the study, got 'y'"),
        (lambda s: s.features("texture").group("g", "nope").designed(), "no component 'nope' of the group 'g'"),
        (lambda s: s.features("texture").group("g"), "must have at least one component"),
        (lambda s: s.features("texture").designed("leave_one_group_out"), "must have a group"),
        (lambda s: s.features("texture").designed("pair"), "did you mean 'pairs'"),
        (lambda s: s.features("*").designed("factorial", limit=8), "at most limit=8 variants, got 16"),
        (lambda s: s.features("*").designed("add_one_in"), "must have a feature, got none"),
        (lambda s: s.designed(), "must have components, got none"),
        (lambda s: s.features("texture").without("texturee"), "did you mean 'texture'"),
    ],
)
def test_mistakes_are_told(empty: AblationStudy, wrong: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        wrong(empty)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda variant, augment=True: 0, "must have a parameter 'seed', got none"),
        (lambda seed, model, augment=True: 0, "must take something that removing 'texture' changes"),
        (lambda seed, features, augment=True: 0, "must take something that removing 'norm' changes"),
        (lambda seed, augment=True: 0, "add one of the parameters variant, features, n_features"),
    ],
)
def test_a_function_that_takes_nothing_of_it_is_told(study: AblationStudy, function: Any, message: str) -> None:
    with pytest.raises(TrainFunctionError, match=message):
        study.bound(function)


def test_a_parameter_that_nothing_takes_is_told() -> None:
    study = AblationStudy(config={"smoothing": 0.1, "smoth": 0.1}).config(smoth=0.0)
    with pytest.raises(TrainFunctionError, match=r"the parameter 'smoth' must be used.*did you mean 'smoothing'"):
        study.bound(lambda seed, smoothing: 0)


COLUMNS = ["a", "b", "y"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": nn.Linear(1, 1)}, r"got a Linear; use AblationStudy\(model=lambda: Linear\("),
        ({"model": 3}, "model must be a function that builds a model, got 3"),
        ({"sample": SAMPLE}, "sample must be given with a model, got none"),
        ({"data": 3}, "data must be a pandas, Arrow or Spark table, or a list of column names, got int"),
        ({"data": [1, 2]}, "the names of columns must be strings, got 1"),
        ({"data": COLUMNS, "label": 2}, "label must be the name of a column or a list of names, got 2"),
        ({"data": COLUMNS, "label": ["y", 2]}, r"label must be .* got \['y', 2\]"),
        ({"data": COLUMNS, "label": None}, "got None; omit it"),
        ({"label": "y"}, r"label must be a column of data, got 'y' without data; use AblationStudy\(data=table"),
        ({"data": COLUMNS, "label": "yy"}, r"label must be a column of data, got 'yy' \(did you mean 'y'"),
        ({"data": ["y"], "label": "y"}, "a column in addition to the label"),
        ({"data": ["a", "a", "y"]}, "must have different names, got 'a' twice; rename one"),
        ({"data": pandas.DataFrame([[1, 2]], columns=["a", "a"])}, "must have different names, got 'a' twice"),
        ({"config": ["d"]}, r"config must be a dict \{name: value\}, got \['d'\]"),
        ({"config": {3: 1}}, r"config must be a dict \{name: value\}, got \{3: 1\}"),
    ],
)
def test_arguments_are_told(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AblationStudy(**given)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda s: s.features("y"), "features must not have the label, got 'y'"),
        (lambda s: s.features(both=["a", "y"]), "features must not have the label, got 'y'"),
        (lambda s: s.features({3: ["a"]}), "the name of a component must be a word, got 3"),
        (lambda s: s.custom("", lambda variant: variant), "the name of a component must be a word, got ''"),
        (lambda s: s.group("g", ["a", "b"]), r"components of the group 'g' .* got \['a', 'b'\]; pass them one by one"),
        (lambda s: s.group(["g"], "a"), r"the name of a group must be a word, got \['g'\]"),
        (lambda s: s.features("a").without(3), r"must be components of the study, got 3; use some of \['a'\]"),
        (lambda s: s.designed(), r"use study = study.features\(.*returns a new study"),
    ],
)
def test_calls_are_told(wrong: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        wrong(AblationStudy(data=COLUMNS, label="y"))


def test_a_class_a_function_and_several_labels_will_do() -> None:
    assert AblationStudy(model=nn.ReLU).factory is nn.ReLU
    assert AblationStudy(data=np.array(["a", "b", "y", "z"]), label=np.array(["y", "z"])).columns == ("a", "b")


def test_a_variant_without_a_model_says_so() -> None:
    with pytest.raises(ConfigError, match="must have a model"):
        Variant("base", (), [], {}).model()


@pytest.mark.parametrize("sample", [lambda n_features: torch.zeros(3, n_features), (torch.zeros(2, 4),)])
def test_a_sample_fits_the_variant(empty: AblationStudy, sample: Any) -> None:
    study = AblationStudy(model=empty.factory, data=empty.columns, sample=sample).features("texture")
    assert len(study.designed().parameters) == 2


def test_a_model_that_does_not_heed_its_width_is_told() -> None:
    study = AblationStudy(model=lambda: nn.Linear(4, 2), data=["a", "b", "c", "d"], sample=SAMPLE).features("a")
    with pytest.raises(ConfigError, match="'without a' failed on the sample"):
        study.designed()


# -- designs: names that would meet, and how large one may be ---------------------------------------


def named_columns(*names: str) -> AblationStudy:
    return AblationStudy(data=[*names, "rest"]).features(*names)


@pytest.mark.parametrize(
    ("names", "design", "twice"),
    [
        (("a", "b", "a and b"), "pairs", "without a and b"),
        (("a", "b", "a x b"), "pairs", "a x b"),
        (("a", "b", "a and b"), "factorial", "without a and b"),
        (("any",), "add_one_in", None),
        (("all of them", "b"), "add_one_in", "all of them"),
    ],
)
def test_components_that_are_called_as_several_together(names: Any, design: Any, twice: str | None) -> None:
    study = named_columns(*names)
    if twice is None:
        assert len(study.designed(design).variants) == 2
    else:
        with pytest.raises(ConfigError, match=f"the design must have different names, got '{twice}' .*rename it"):
            study.designed(design)


def test_only_a_factorial_has_a_limit() -> None:
    names = [f"c{number}" for number in range(80)]
    study = named_columns(*names).group("even", *names[::2]).group("odd", *names[1::2])
    assert len(study.designed("leave_one_group_out").variants) == 3
    assert len(study.designed("leave_one_out").variants) == 81
    assert len(named_columns(*names[:12]).designed("pairs").variants) == 1 + 12 + 66
    with pytest.raises(
        ConfigError, match=r"at most limit=64 variants, got 4096 .* give components that belong together one"
    ):
        named_columns(*names[:12]).designed("factorial")


def test_a_design_is_described_by_what_its_variants_are() -> None:
    study = AblationStudy(
        model=lambda: nn.Sequential(nn.Identity()), data=["a", "b", "c"], config={"rate": 0.1, "loss": object()}
    )
    design = (
        study.features(size=["a", "b"])
        .modules("0", replace=nn.ReLU())
        .config(rate=0.0)
        .custom("half", lambda variant: variant.changed(data=len))
        .designed()
    )
    assert design.described == (
        "base: column a, column b, column c, rate=0.1, loss=<object object>",
        "without size: without column a, without column b, rate=0.1, loss=<object object>",
        "without 0: ReLU() for 0, rate=0.1, loss=<object object>",
        "without rate: rate=0.0, loss=<object object>",
        "without half: rate=0.1, loss=<object object>, changed by len",
    )


# -- variants as they travel, and which arguments the user's functions get --------------------------


def test_a_bare_variant_can_be_pickled_whatever_its_config_has() -> None:
    config = {"activation": lambda x: x, "lock": threading.Lock(), "layers": (64, 64), "a": 1}
    variant = AblationStudy(model=lambda: None, config=config).config(a=0).without("a")
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(variant)
    arrived = pickle.loads(pickle.dumps(variant.bare()))
    assert (arrived.config["layers"], arrived.config["a"]) == ((64, 64), 0)
    assert "lambda" in arrived.config["activation"]
    assert "lock" in arrived.config["lock"]


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
