"""Ablation studies of a planted truth: what they find, how often they err, and what adaptive repeats save.

Features A, B, C and D: A is worth 1, B nothing, and C and D the same 1, either of which will do; so removing one of
the two changes nothing, and removing both does. Each seed moves all variants alike (deviation 1), and each trial
by its own noise (deviation 0.35, and 1 where nothing is planted). Trials end in any order, four at a time.

Figures, for the designs leave_one_out and pairs, and for 20 fixed repeats beside adaptive ones up to 20:

- family_error: the share of studies with any difference or interaction found where there is none; the level is 0.05,
  from which a share of 3000 studies may be off by 0.008, and one of 400 by 0.02
- power: the share of studies that find A, and in pairs also the interaction of C and D
- share: trials that adaptive repeats take, of those that fixed ones do
- same_decisions: the share of lines on which both agree; same_decisions_all: of studies in which all lines do
- null: the same where no feature is worth anything

    python -m benchmarks.ablation [--quick] [--json PATH]
"""

from __future__ import annotations

from statistics import fmean
from typing import Literal

import numpy as np

from benchmarks.common import parser, publish
from maggy_like.ablation import Ablation, AblationStudy, Design, Run
from optimizers import WAIT, History, Observation, Pending, Problem

ALPHA, REPEATS, WORKERS = 0.05, 20, 4
DesignName = Literal["leave_one_out", "pairs"]
ERRORS: dict[DesignName, int] = {"leave_one_out": 3000, "pairs": 400}  # studies for the shares of errors
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


def main() -> None:
    """Measure and print."""
    arguments = parser(__doc__).parse_args()
    fewer = 10 if arguments.quick else 1
    figures: dict[str, float] = {"level": ALPHA}
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
