"""How far the confirmation of a noisy search can be trusted, and whether it is worth its trainings.

Searches with planted truth, without any training. A search tries 100 configurations and sees each true loss with
noise. The best five by what it saw are repeated as ``lagom(..., confirm=True)`` repeats them, and one is recommended.
It is compared with the same search with as many more trials as there were repeats, by its lowest loss.

Worlds: ``normal`` noise; ``seeds`` (70 % of its variance is common to all trainings with a seed); ``tails`` (Student's
t with 3 degrees of freedom); ``skewed`` (exponential); ``unequal`` (the noise of each configuration differs, by half in
the logarithm); ``equal`` (all configurations are equal, so that any difference is false). In these the search is
random, with losses that are absolute values of normal variables. With ``--model``, also ``bayesian``: the search of
that name on landscapes with a known optimum.

    python -m benchmarks.confirm [--quick] [--model] [--searches N] [--json PATH]

Keys: ``confirm.coverage.WORLD.NOISE``, the share of searches whose interval has the true loss of the recommended
configuration; ``confirm.width``, half of its width by the noise; ``confirm.false``, the share with a difference between
two candidates that has the wrong sign; ``confirm.extra``, the trainings; ``confirm.regret``, ``confirm.regret_more``
and ``confirm.regret_best``: of the recommended configuration, of the longer search, and of the search's own best. Each
with the world and the noise. ``confirm.coverage_error`` is the standard error of the coverages.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from benchmarks import one_thread  # noqa: F401  (before numpy is loaded)
from benchmarks.common import means, parser, publish
from benchmarks.drive import search
from benchmarks.landscapes import landscape
from benchmarks.noise import Noisy
from benchmarks.tasks import LastStep
from optimizers import BayesianSearch
from optimizers.comparisons.confirmation import estimates, pairwise, standing

WORLDS = ("normal", "seeds", "tails", "skewed", "unequal", "equal")
CASES = (*((world, 0.3) for world in WORLDS), ("normal", 0.1), ("normal", 1.0))
"""Worlds with the standard deviation of the noise. Losses are 0 at the best, and 0.67 in the median."""

N_TRIALS, TOP, REPEATS = 100, 5, 5
SEARCHES, QUICK_SEARCHES, TESTED = 1000, 60, 300
"""Searches of each world, and those of them whose pairs are tested, which takes as long as the rest."""

MODELLED, QUICK_MODELLED = 40, 2
LANDSCAPES = ("plateaus", "conditional")
SHARED, INEQUALITY = 0.7, 0.5

Array = NDArray[np.float64]
Draw = Callable[[int, int], float]
"""Returns the loss of a candidate's repeat, by its number and that of the repeat."""


def race(draw: Draw, candidates: list[int], repeats: int = REPEATS) -> dict[tuple[int, int], float]:
    """Repeat candidates as a run does, and return all losses.

    Example:
        >>> len(race(lambda candidate, number: candidate + 0.1 * number, [0, 1, 2]))
        9
    """
    losses: dict[tuple[int, int], float] = {}
    while not (state := standing(losses, candidates, repeats)).is_over:
        for candidate in state.racing:
            for number in range(state.rounds):
                if (candidate, number) not in losses:
                    losses[candidate, number] = draw(candidate, number)
    return losses


def judge(draw: Draw, seen: Array, true: Array, *, is_tested: bool = True) -> dict[str, float]:
    """Confirm one search, and return what came of it.

    Args:
        draw: Draws repeats.
        seen: The losses that the search saw, shape (n,).
        true: The true ones, shape (n,).
        is_tested: Whether pairs are tested.
    """
    candidates = np.argsort(seen, kind="stable")[:TOP].tolist()
    losses = race(draw, candidates)
    chosen = standing(losses, candidates, REPEATS).leader
    assert chosen is not None
    found = estimates(losses, candidates)[chosen]
    tested: dict[str, float] = {}
    if is_tested:
        tests = pairwise(losses, candidates).items()
        tested["false"] = float(any(it.differs and it.difference * (true[a] - true[b]) <= 0.0 for (a, b), it in tests))
    return tested | {
        "coverage": float(found.low <= true[chosen] <= found.high),
        "width": (found.high - found.low) / 2.0,
        "extra": float(len(losses)),
        "regret": float(true[chosen]),
        "regret_best": float(true[int(np.argmin(seen))]),
    }


def noise_of(world: str, level: float, size: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Draw noise of a world, with that standard deviation."""
    if world == "tails":
        return level / math.sqrt(3.0) * rng.standard_t(3, size)
    if world == "skewed":
        return level * (rng.exponential(size=size) - 1.0)
    return level * rng.normal(size=size)


def simulated(world: str, level: float, seed: int) -> dict[str, float]:
    """Confirm a random search of a world."""
    rng = np.random.default_rng([seed, WORLDS.index(world), round(100 * level)])
    n = N_TRIALS + TOP * REPEATS
    true = np.zeros(n) if world == "equal" else np.abs(rng.normal(size=n))
    levels = np.exp(INEQUALITY * rng.normal(size=n)) if world == "unequal" else np.ones(n)
    seen = true + levels * noise_of(world, level, (n,), rng)
    own = levels[:, None] * noise_of(world, level, (n, REPEATS), rng)
    if world == "seeds":
        own = math.sqrt(1.0 - SHARED) * own + math.sqrt(SHARED) * noise_of(world, level, (REPEATS,), rng)

    def draw(candidate: int, number: int) -> float:
        return float(true[candidate] + own[candidate, number])

    found = judge(draw, seen[:N_TRIALS], true, is_tested=seed < TESTED)
    more = N_TRIALS + int(found["extra"])
    return found | {"regret_more": float(true[int(np.argmin(seen[:more]))]), "width": found["width"] / level}


def modelled(name: str, level: float, seed: int) -> dict[str, float]:
    """Confirm a Bayesian search of a landscape, whose losses are regrets with noise."""
    rng = np.random.default_rng([seed, LANDSCAPES.index(name)])

    def searched(n_trials: int) -> tuple[Array, Array]:
        task = Noisy(LastStep(landscape(name)), seed, noise=level)
        search(BayesianSearch(), task, seed=seed, workers=4, n_trials=n_trials)
        return np.array(task.losses), np.array(task.regrets)

    seen, true = searched(N_TRIALS)
    found = judge(lambda candidate, _: float(true[candidate] + level * rng.normal()), seen, true)
    seen, true = searched(N_TRIALS + int(found["extra"]))
    return found | {"regret_more": float(true[int(np.argmin(seen))]), "width": found["width"] / level}


def main() -> None:
    """Simulate and print."""
    options = parser(__doc__)
    options.add_argument("--searches", type=int, metavar="N", help="searches of each world")
    options.add_argument("--model", action="store_true", help="Bayesian searches, too")
    arguments = options.parse_args()
    searches = arguments.searches or (QUICK_SEARCHES if arguments.quick else SEARCHES)
    figures: dict[str, float] = {}
    cases = [(f"{world}.{level}", partial(simulated, world, level), searches) for world, level in CASES]
    if arguments.model:
        runs = QUICK_MODELLED if arguments.quick else MODELLED
        cases += [(f"bayesian.{name}", partial(modelled, name, 0.3), runs) for name in LANDSCAPES]
    for name, case, count in cases:
        figures |= {f"confirm.{key}.{name}": value for key, value in means(map(case, range(count))).items()}
    figures["confirm.coverage_error"] = math.sqrt(0.95 * 0.05 / searches)
    publish(figures, arguments.json)


if __name__ == "__main__":
    main()
