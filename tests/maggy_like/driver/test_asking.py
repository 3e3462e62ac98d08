"""One question to an optimizer that needs no results is for as many proposals as the gang may want."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from maggy_like.driver.loop import answers
from maggy_like.driver.proposers import DirectProposer
from maggy_like.driver.state_machine.interface import AskOptimizer, SuggestionReady
from maggy_like.driver.state_machine.proposals import MOST, Proposals
from maggy_like.errors import OptimizerError
from optimizers import Float, RandomSearch
from optimizers.core.base import History, Optimizer
from optimizers.core.study import Study


@dataclass
class Listed(Optimizer):
    """Proposes given values, and notes what was pending at each ask."""

    values: list[Any]
    adaptive = False
    pending: list[dict[int, Any]] = field(default_factory=list)

    def ask(self, index: int, history: History) -> Any:
        self.pending.append(dict(history.pending))
        value = self.values[index]
        if isinstance(value, BaseException):
            raise value
        return None if value is None else {"x": value}


def study_of(*values: Any) -> tuple[Study, Listed]:
    optimizer = Listed(list(values))
    return Study({"x": Float(0, 1)}, optimizer), optimizer


def all_answers(study: Study, most: int, *, over_after: int = 10**9) -> list[SuggestionReady]:
    given: list[SuggestionReady] = []
    asked = answers(DirectProposer(study), study, AskOptimizer(0, (), 7, most), lambda: len(given) >= over_after)
    for answer in asked:
        given.append(answer)  # noqa: PERF402  # the generator looks at it meanwhile
    return given


def test_each_ask_knows_the_proposals_before_it_by_the_numbers_they_will_have() -> None:
    study, optimizer = study_of(0.1, 0.2, 0.3)
    given = all_answers(study, 3)
    assert [(answer.index, answer.more) for answer in given] == [(0, True), (1, True), (2, False)]
    assert optimizer.pending == [{}, {7: {"x": 0.1}}, {7: {"x": 0.1}, 8: {"x": 0.2}}]


@pytest.mark.parametrize("last", [None, ValueError("no"), SystemExit(3)], ids=["none left", "raises", "exits"])
def test_an_answer_that_is_no_proposal_is_the_last(last: Any) -> None:
    study, _ = study_of(0.1, last, 0.3)
    given = all_answers(study, 3)
    assert [answer.more for answer in given] == [True, False]
    assert given[1].answer is None
    if isinstance(last, BaseException):
        assert isinstance(given[1].error, ValueError | OptimizerError)


def test_once_the_search_is_over_nothing_more_is_asked() -> None:
    study, optimizer = study_of(0.1, 0.2, 0.3, 0.4)
    assert [answer.more for answer in all_answers(study, 4, over_after=1)] == [True, False]
    assert len(optimizer.pending) == 2


def test_a_large_gang_is_filled_with_few_questions_and_the_proposals_are_those_of_many() -> None:
    """Each question takes a turn of two threads: with one proposal each, a gang of thousands would wait for them."""
    study = Study({"x": Float(0, 1)}, RandomSearch(), n_trials=2 * MOST + 10)
    proposals = Proposals(study, workers=10 * MOST)
    proposals.go_on()
    proposer = DirectProposer(study)
    questions = []
    while (question := proposals.ask(0.0)) is not None:
        questions.append(question.most)
        for answer in answers(proposer, study, question, lambda: False):
            proposals.answer(answer, 0.0)
    assert questions == [MOST, MOST, 10]
    plain = Study({"x": Float(0, 1)}, RandomSearch(), n_trials=2 * MOST + 10)
    expected = [plain.optimizer.ask(index, plain.history) for index in range(2 * MOST + 10)]
    taken = []
    while (created := proposals.take(0.0)) is not None:
        study.apply(created)
        taken.append(created)
    assert [event.config for event in taken] == expected
    assert [event.trial for event in taken] == list(range(len(expected)))
    assert sorted(study.history.pending) == list(range(len(expected) - 1))  # the last goes with the next question


def test_an_optimizer_that_needs_results_is_asked_for_one_proposal_at_a_time() -> None:
    class Adaptive(Listed):
        adaptive = True

    study = Study({"x": Float(0, 1)}, Adaptive([0.5] * 10))
    proposals = Proposals(study, workers=100)
    proposals.go_on()
    question = proposals.ask(0.0)
    assert question is not None
    assert question.most == 1
