"""Ablation studies of a planted truth: what they find, how often they err, and what adaptive repeats save.

Kinds of noise without any difference, and with one of one deviation, through the tests alone:

- family_error.KIND: the share of studies with any false difference, where the documents claim 5 % at most;
  family_error.max the largest, family_error.max_upper the largest upper end of a 95 % interval (of few with --quick)
- family_error.beyond.KIND: the same where the documents say that the claim ends
- skewed.t_test, skewed.bootstrap: one comparison of that kind, how often each test errs; skewed.noted: the share of
  studies that err of which a note says so; skewed.noted.gaussian, skewed.noted.heavy: of symmetric noise, needlessly
- coverage.KIND: the share of studies of which all intervals hold the truth; coverage.min the smallest
- power.6.sd1, power.6.sd1.adaptive: of six components one is worth one deviation of a difference; share of studies
  that find it; power.6.sd1.predicted: what study.power says; power.20.*: of twenty components.
  share.sd1: trials that adaptive repeats take of those of 20 fixed ones; share.sd1_all where all six are worth that
- overstated.fixed, overstated.adaptive: means that were found by true differences, on average; overstated.unbiased: the
  median-unbiased estimates; median.adaptive, median.unbiased: the medians of both over all studies, found or not
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
from statistics import fmean, median
from typing import Literal

import numpy as np

from benchmarks import ablation_worlds as worlds
from benchmarks.ablation_worlds import Case
from benchmarks.common import parser, publish
from maggy_like.ablation import Ablation, AblationStudy, Design, Run
from optimizers import WAIT, History, Observation, Pending, Problem
from optimizers.comparisons.paired_tests import (
    Differences,
    Finding,
    bootstrap_p,
    compare,
    p_value,
    power,
    skewed,
    skewed_together,
)

ALPHA, REPEATS, WORKERS = 0.05, 20, 4
DesignName = Literal["leave_one_out", "pairs"]
ERRORS: dict[DesignName, int] = {"leave_one_out": 500, "pairs": 200}  # studies for the shares of errors
STUDIES, FACTORIALS, SLOW = 10_000, 4000, 1500  # of each kind of noise; the last if adaptive
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
    "skewed_alike": Case(worlds.skewed_alike),
    "missing": Case(worlds.missing),
    "missing.factorial": Case(worlds.missing, factorial=True),
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
    "6.sd1": Case(worlds.gaussian, effect=1.0),
    "6.sd1.adaptive": Case(worlds.gaussian, effect=1.0, adaptive=True),
    "20.sd1": Case(worlds.gaussian, 20, effect=1.0),
    "20.sd1.adaptive": Case(worlds.gaussian, 20, effect=1.0, adaptive=True),
    "6.sd1_all": Case(worlds.gaussian, effect=1.0, all_real=True),
    "6.sd1_all.adaptive": Case(worlds.gaussian, effect=1.0, adaptive=True, all_real=True),
}
SAVINGS = 100  # studies, each by ask and tell
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
        if found and truths[0]:
            mean, unbiased = found[0].difference / truths[0], (found[0].unbiased or 0.0) / truths[0]
            figures.setdefault("means", []).append(mean)
            figures.setdefault("estimates", []).append(unbiased)
            if found[0].differs:
                figures.setdefault("overstated", []).append(mean)
                figures.setdefault("overstated_unbiased", []).append(unbiased)
    medians = {f"median_{name}": median(figures[name]) for name in ("means", "estimates") if name in figures}
    return {name: fmean(values) for name, values in figures.items()} | medians


def count(case: Case, fewer: int) -> int:
    """How many studies of a kind are made."""
    return (SLOW if case.adaptive else FACTORIALS if case.factorial else STUDIES) // fewer


def skewness(studies: int) -> dict[str, float]:
    """What tests make of one comparison with a long tail, and whether a note warns of what errs."""
    rng, t_tests, bootstraps, noted = np.random.default_rng(0), [], [], []
    for _ in range(studies):
        base, without = worlds.skewed(rng, 2, REPEATS)
        sample = Differences(without - base, np.arange(REPEATS), 0, 0.0)
        p = p_value(sample)
        t_tests.append(p is not None and p <= ALPHA)
        bootstraps.append(bootstrap_p(sample) <= ALPHA)
    for number in range(studies):
        found = Case(worlds.skewed).study(number)
        if any(line.differs for line in found):
            noted.append(_is_noted(found))
    figures = {"skewed.t_test": fmean(t_tests), "skewed.bootstrap": fmean(bootstraps), "skewed.noted": fmean(noted)}
    for noise in (worlds.gaussian, worlds.heavy):
        all_of = [Case(noise).study(number, whole=True) for number in range(studies // 4)]
        figures[f"skewed.noted.{noise.__name__}"] = fmean(map(_is_noted, all_of))
    return figures


def _is_noted(found: list[Finding]) -> bool:
    """Whether a note below the table says that differences are skewed."""
    samples = [line.sample for line in found]
    return skewed_together(samples) is not None or any(
        skewed(sample, of=len(samples)) is not None for sample in samples
    )


def noises(fewer: int) -> dict[str, float]:
    """The figures of all kinds of noise."""
    figures: dict[str, float] = {}
    for name, case in CLAIMED.items():
        made = measure(case, count(case, fewer))
        figures |= {f"family_error.{name}": made["family_error"], f"coverage.{name}": made["coverage"]}
    for name, case in BEYOND.items():
        made = measure(case, SLOW // fewer)
        figures[f"family_error.beyond.{name}"] = made["family_error"]
    figures |= skewness(SLOW // fewer)
    for name, case in PLANTED.items():
        made = measure(case, count(case, fewer))
        figures[f"power.{name}"], figures[f"coverage.{name}"] = made["power"], made["coverage"]
        if case.adaptive:
            figures[f"share.{name.removeprefix('6.').removesuffix('.adaptive')}"] = made["share"]
        if name == "6.sd1":
            contrasts = [*worlds.contrasts_of(case.components, False).values()]
            figures["power.6.sd1.predicted"] = power(1.0, 1.0, REPEATS, contrasts=contrasts)
            figures["overstated.fixed"] = made["overstated"]
        if name == "6.sd1.adaptive":
            figures |= {"overstated.adaptive": made["overstated"], "overstated.unbiased": made["overstated_unbiased"]}
            figures |= {"median.adaptive": made["median_means"], "median.unbiased": made["median_estimates"]}
    figures["interrupted"] = interrupted(SLOW // 4 // fewer)
    figures["coverage.min"] = min(value for name, value in figures.items() if name.startswith("coverage."))
    errors_of = {name: (figures[f"family_error.{name}"], count(case, fewer)) for name, case in CLAIMED.items()}
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
                    design.contrasts, {key: -value for key, value in world.values.items() if key[1] < seeds}, planned=10
                ).values()
            )
        )
    return fmean(stopped)


def main() -> None:
    """Measure and print."""
    arguments = parser(__doc__).parse_args()
    fewer = 10 if arguments.quick else 1
    figures: dict[str, float] = {"level": ALPHA, **noises(40 if arguments.quick else 1)}
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
