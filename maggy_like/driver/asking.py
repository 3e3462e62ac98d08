"""The optimizer's answers to one question, which may be for several proposals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from maggy_like.driver.proposer.base import Proposer
from maggy_like.driver.state_machine.commands import AskOptimizer
from maggy_like.driver.state_machine.inputs import SuggestionReady
from maggy_like.errors import OptimizerError
from optimizers.core.base import Pending, Proposal, Update
from optimizers.core.study import Study


def answers(
    proposer: Proposer, study: Study, question: AskOptimizer, is_over: Callable[[], bool]
) -> Iterator[SuggestionReady]:
    """Each answer as soon as it is there; the next ask knows it as pending.

    Args:
        proposer: Asks the optimizer.
        study: What it is asked for.
        question: From which proposal on, and for how many at most.
        is_over: Whether nobody wants more of them.
    """
    updates: Sequence[Update] = question.updates
    for number in range(question.most):
        answer = _ask(proposer, study, question.index + number, updates)
        proposal = answer.answer
        if number == question.most - 1 or not isinstance(proposal, Proposal) or is_over():
            yield answer
            return
        yield msgspec.structs.replace(answer, more=True)
        updates = [Pending(question.trial + number, proposal.config)]


def _ask(proposer: Proposer, study: Study, index: int, updates: Sequence[Update]) -> SuggestionReady:
    try:
        return SuggestionReady(index, study.checked(proposer.ask(index, updates)))
    except BaseException as error:
        return SuggestionReady(index, None, as_exception(error))


def as_exception(error: BaseException) -> Exception:
    """What the caller gets to see: a ``sys.exit()`` of an optimizer is an error like any other."""
    return error if isinstance(error, Exception) else OptimizerError(f"the optimizer raised {error!r}")
