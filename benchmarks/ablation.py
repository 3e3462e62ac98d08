"""Ablation studies of a planted truth: what they find, how often they err, and what adaptive repeats save.

Kinds of noise without any difference, and with one of one deviation, through the tests alone:

- family_error.KIND: the share of studies with any false difference, where the documents claim 5 % at most;
  family_error.max the largest, family_error.max_upper the largest upper end of a 95 % interval (of few with --quick)
- family_error.beyond.KIND: the same where the documents say that the claim ends
- coverage.KIND: the share of studies of which all intervals hold the truth; coverage.min the smallest
- power.6.sd1, power.6.sd1.adaptive: of six components one is worth one deviation of a difference; share of studies
  that find it. share.sd1: trials that adaptive repeats take of those of 20 fixed ones; share.sd1_all where all six are
- overstated.fixed, overstated.adaptive: found differences by true ones
- share of stopped studies with a false difference, if one may stop a fixed study when it shows one: interrupted

Whole studies, by ask and tell, for the designs leave_one_out and pairs: features A, B, C and D, of which A is worth 1,
B nothing, and C and D the same 1, either of which will do. Each seed moves all variants alike (deviation 1), and each
trial by its own noise (deviation 0.35, and 1 where nothing is planted). Trials end in any order, four at a time.

- DESIGN.family_error, DESIGN.power: with 20 fixed repeats beside adaptive ones up to 20
- DESIGN.share: trials that adaptive repeats take, of those that fixed ones do
- DESIGN.same_decisions: the share of lines on which both agree; same_decisions_all: of studies in which all lines do
- DESIGN.null: the same where no feature is worth anything

    python -m benchmarks.ablation [--quick] [--json PATH]
"""

from __future__ import annotations

import math
from statistics import fmean
from typing import Literal

import numpy as np

from benchmarks import ablation_worlds as worlds
from benchmarks.ablation_worlds import Case
from benchmarks.common import parser, publish
from maggy_like.ablation import Ablation, AblationStudy, Design, Run
from optimizers import WAIT, History, Observation, Pending, Problem
from optimizers.comparisons.paired_tests import compare

ALPHA, REPEATS, WORKERS = 0.05, 20, 4
DesignName = Literal["leave_one_out", "pairs"]
ERRORS: dict[DesignName, int] = {"leave_one_out": 1000, "pairs": 400}  # studies for the shares of errors
STUDIES, QUICK = 10_000, 500  # of each kind of noise; a tenth of it for 60 components, and if they are adaptive
RATIO = worlds.TEST / worlds.TRAIN
CLAIMED = {
    **{f"gaussian.{k}": Case(worlds.gaussian, k) for k in (2, 6, 20, 60)},
    "gaussian.6.five_seeds": Case(worlds.gaussian, seeds=5),
    "gaussian.20.five_seeds": Case(worlds.gaussian, 20, seeds=5),
    "gaussian.6.adaptive": Case(worlds.gaussian, adaptive=True),
    "t3": Case(worlds.heavy),
    "unequal": Case(worlds.unequal),
    "quiet_base": Case(worlds.quiet_base),
    "accuracy": Case(worlds.accuracy),
    "one_less_accuracy": Case(worlds.error_rate),
    "one_less_accuracy.two_seeds": Case(worlds.error_rate, seeds=2),
    "one_less_accuracy.adaptive": Case(worlds.error_rate, adaptive=True),
    "missing": Case(worlds.missing),
    "tuned": Case(worlds.tuned),
    "resampled": Case(worlds.splits, resampled=RATIO),
    "resampled.adaptive": Case(worlds.splits, adaptive=True, resampled=RATIO),
}
BEYOND = {
    "skewed": Case(worlds.skewed),
    "skewed.60": Case(worlds.skewed, 60),
    "missing_bad": Case(worlds.missing_bad),
    "resampled_untold": Case(worlds.splits),
    "tuned_once": Case(worlds.tuned_once),
}
PLANTED = {
    "sd1": Case(worlds.gaussian, effect=1.0),
    "sd1.adaptive": Case(worlds.gaussian, effect=1.0, adaptive=True),
    "sd1_all": Case(worlds.gaussian, effect=1.0, all_real=True),
    "sd1_all.adaptive": Case(worlds.gaussian, effect=1.0, adaptive=True, all_real=True),
}
SAVINGS = 200  # studies, each by ask and tell
STUDY = AblationStudy(data=["A", "B", "C", "D", "y"], label="y").features("A", "B", "C", "D")


class World:
    """Values of trials that depend on the variant and the seed alone."""

    def __init__(self, design: Design, seed: int, *, planted: bool) -> None:
        rng = np.random.default_rng([seed, planted])
        shared = rng.normal(size=REPEATS)
        self.values = {}
        for variant in design.variants:
            kept = set(variant.features)
            worth = 1.0 * ("A" in kept) + 1.0 * bool({"C", "D"} & kept)
            own = rng.normal(0.0, 0.35 if planted else 1.0, size=REPEATS)
            for number, value in enumerate(planted * worth + shared + own):
                self.values[variant.name, number] = float(value)


def truths(design: Design) -> set[str]:
    """The lines of the answer that differ from zero."""
    true = set()
    for effect in design.effects:
        worth = {v.name: ("A" in v.features) + bool({"C", "D"} & set(v.features)) for v in design.variants}
        if abs(sum(weight * worth[variant] for variant, weight in effect.contrast.items())) > 1e-9:
            true.add(effect.label)
    return true


def run(design: Design, repeats: int | Literal["auto"], world: World, seed: int) -> list[Run]:
    """A whole study, by ask and tell."""
    optimizer = design.optimizer(repeats, alpha=ALPHA)
    history = History(Problem(design.space(repeats), seed))
    runs: list[Run] = []
    rng, index, ended = np.random.default_rng(seed), 0, False
    while True:
        while not ended and len(history.pending) < WORKERS:
            config = optimizer.ask(index, history)
            ended = config is None
            if not isinstance(config, dict):
                break
            history.apply(Pending(index, config))
            index += 1
        if not history.pending:
            assert ended or config is WAIT
            return runs
        trial = int(rng.choice(sorted(history.pending)))
        config = history.pending[trial]
        value = world.values[config["variant"], config["seed"]]
        runs.append(Run(config["variant"], config["seed"], value))
        history.apply(Observation(trial, config, 1, -value))


def decisions(design: Design, runs: list[Run], bound: int | None) -> set[str]:
    """The lines of the answer in which a difference was found."""
    answer = Ablation(design, runs, alpha=ALPHA, bound=bound)
    return {label for label, finding in answer.findings.items() if finding.differs}


def errors(design: Design, studies: int, *, planted: bool) -> dict[str, float]:
    """How often studies err, and what they find. Trials past a decision change none, so all are given."""
    true = truths(design) if planted else set()
    figures: dict[str, list[float]] = {}
    for number in range(studies):
        world = World(design, number, planted=planted)
        runs = [Run(variant, seed, value) for (variant, seed), value in world.values.items()]
        for kind, bound in (("fixed", None), ("adaptive", REPEATS)):
            found = decisions(design, runs, bound)
            figures.setdefault(f"{kind}.family_error", []).append(bool(found - true))
            for label in sorted({"A", "C x D"} & true):
                figures.setdefault(f"{kind}.power.{label.replace(' ', '')}", []).append(label in found)
    return {name: fmean(values) for name, values in figures.items()}


def savings(design: Design, studies: int, *, planted: bool) -> dict[str, float]:
    """What adaptive repeats take, by whole studies, and whether they decide as fixed ones do."""
    shares, lines, whole = [], [], []
    for number in range(studies):
        world = World(design, number, planted=planted)
        fixed, adaptive = run(design, REPEATS, world, number), run(design, "auto", world, number)
        differ = decisions(design, fixed, None) ^ decisions(design, adaptive, REPEATS)
        shares.append(len(adaptive) / len(fixed))
        lines.append(1.0 - len(differ) / len(design.effects))
        whole.append(not differ)
    return {"share": fmean(shares), "same_decisions": fmean(lines), "same_decisions_all": fmean(whole)}


def measure(case: Case, studies: int) -> dict[str, float]:
    """How often a kind of study errs, and what it finds."""
    truths, figures = case.truths(), dict[str, list[float]]()
    for number in range(studies):
        found = case.study(number)
        lines = [*zip(found, truths, strict=bool(found))]
        note: dict[str, float] = {
            "family_error": any(line.differs for line, truth in lines if truth == 0.0),
            "coverage": all(line.low <= truth <= line.high for line, truth in lines),
            "power": bool(found) and found[0].differs,
        }
        if case.adaptive:
            seeds = [line.seeds for line in found]
            note["share"] = (max(seeds) + sum(seeds)) / ((case.components + 1) * case.seeds)
        for name, value in note.items():
            figures.setdefault(name, []).append(float(value))
        if found and found[0].differs and truths[0]:
            figures.setdefault("overstated", []).append(found[0].difference / truths[0])
    return {name: fmean(values) for name, values in figures.items()}


def count(case: Case, studies: int) -> int:
    """How many studies of a kind are made."""
    return studies // 10 if case.components == 60 or case.adaptive else studies


def noises(fewer: bool) -> dict[str, float]:
    """The figures of all kinds of noise."""
    studies = QUICK if fewer else STUDIES
    figures: dict[str, float] = {}
    for name, case in CLAIMED.items():
        made = measure(case, count(case, studies))
        figures |= {f"family_error.{name}": made["family_error"], f"coverage.{name}": made["coverage"]}
    for name, case in BEYOND.items():
        made = measure(case, studies // 10)
        figures[f"family_error.beyond.{name}"] = made["family_error"]
    for name, case in PLANTED.items():
        made = measure(case, studies // 10)
        kind = "adaptive" if case.adaptive else "fixed"
        figures[f"power.6.{name}"], figures[f"coverage.{name}"] = made["power"], made["coverage"]
        if case.adaptive:
            figures[f"share.{name.removesuffix('.adaptive')}"] = made["share"]
        if not case.all_real:
            figures[f"overstated.{kind}"] = made["overstated"]
    figures["interrupted"] = interrupted(studies // 20)
    figures["coverage.min"] = min(value for name, value in figures.items() if name.startswith("coverage."))
    errors_of = {name: (figures[f"family_error.{name}"], count(case, studies)) for name, case in CLAIMED.items()}
    figures["family_error.max"] = max(share for share, _ in errors_of.values())
    figures["family_error.max_upper"] = max(
        share + 1.96 * math.sqrt(share * (1.0 - share) / number) for share, number in errors_of.values()
    )
    return figures


def interrupted(studies: int) -> float:
    """The share of studies that find something if they may be stopped after any of ten seeds but the last."""
    design, stopped = STUDY.designed("leave_one_out"), []
    for number in range(studies):
        world = World(design, number, planted=False)
        stopped.append(
            any(
                finding.differs
                for seeds in range(2, 10)
                for finding in compare(
                    design.contrasts,
                    {key: -value for key, value in world.values.items() if key[1] < seeds},
                    planned=10,
                ).values()
            )
        )
    return fmean(stopped)


def main() -> None:
    """Measure and print."""
    arguments = parser(__doc__).parse_args()
    fewer = 10 if arguments.quick else 1
    figures: dict[str, float] = {"level": ALPHA, **noises(arguments.quick)}
    designs: tuple[DesignName, ...] = ("leave_one_out", "pairs")
    for name in designs:
        design = STUDY.designed(name)
        for planted in (True, False):
            figures[f"{name}.studies"] = ERRORS[name] // fewer
            found = errors(design, ERRORS[name] // fewer, planted=planted) | savings(
                design, SAVINGS // fewer, planted=planted
            )
            figures |= {f"{name}.{'' if planted else 'null.'}{key}": value for key, value in found.items()}
    publish(figures, arguments.json)


if __name__ == "__main__":
    main()
