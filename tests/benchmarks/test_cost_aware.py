from __future__ import annotations

import pytest

from benchmarks.cost_aware import METHODS, even, figures, run
from benchmarks.runs import Run
from benchmarks.tables import CURVES
from benchmarks.tasks import LastStep


def test_a_search_ends_at_the_horizon_and_is_the_same_again() -> None:
    first, again = (run("even", "random", 1, CURVES) for _ in range(2))
    assert first.points == again.points
    assert first.points[-1][1] <= first.end == pytest.approx(15.0 * LastStep(even()).full_seconds)


def test_ratios_are_those_of_the_means_of_each_task() -> None:
    def of(task: str, method: str, *regrets: float) -> list[Run]:
        return [Run("mf", method, task, seed, "", 1.0, 4, 2.0, ((1, 0.0, each),)) for seed, each in enumerate(regrets)]

    made = {("a", method): of("a", method, 0.1, 0.3) for method in METHODS}
    made |= {("b", method): of("b", method, 0.8, 0.8) for method in METHODS}
    made["a", "aware"] = of("a", "aware", 0.1, 0.1)
    found = figures(made)
    assert found["cost.area.a.plain"] == pytest.approx(0.2)
    assert found["cost.area_ratio"] == pytest.approx(0.5**0.5)
    assert found["cost.area_ratio.worst"] == pytest.approx(1.0)
    assert found["cost.regret.aware"] == pytest.approx(0.45)
    assert found["cost.cpu_ms.aware"] == pytest.approx(250.0)
