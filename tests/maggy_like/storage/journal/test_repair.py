"""Journals of real searches, damaged anywhere: the place is named, and nothing but the damaged line is lost."""

from __future__ import annotations

import random
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples
from watched_search import OPTIMIZERS, SLOTS, Search
from witness import Witness, said

from maggy_like.errors import JournalError
from maggy_like.storage.journal import FORMAT_VERSION, Contents, Part, RunHeader, decode, encode
from maggy_like.storage.journal.repair import Repairer
from optimizers.core.base import Decision, History
from optimizers.core.events import AttemptEnded, AttemptStarted, CheckpointSaved, Event, Measured, TrialCreated
from optimizers.core.events import from_json as read_event
from optimizers.core.events import to_json as write_event
from optimizers.core.study import Study
from optimizers.core.trial import TrialState

HEADER = RunHeader(FORMAT_VERSION, "run", 1.5, {"x": {"type": "float"}}, "random", ["max"], [], 0, 27)


def search_of(name: str) -> Search:
    return Search(name, "max", 8, 1, max_attempts=3, trial_timeout=None, workers=SLOTS, prompt=True)


@cache
def journal_of(name: str, seed: int) -> tuple[Event, ...]:
    """The events of a search in which trials are saved, lost, paused, promoted and stopped, cut off in its midst."""
    draw = random.Random(f"{name}-{seed}")
    run = Witness()
    run.begin(search_of(name))
    for _ in range(draw.randint(20, 90)):
        run.now += 1.0
        if run.machine.ending is not None:
            break
        if not run.busy:
            free = sorted(set(range(SLOTS)) - {worker.index for worker in run.live})
            if not free:
                break
            run.come(free[0], ready=True)
            continue
        worker = draw.choice(run.busy)
        match draw.randrange(10):
            case 0:
                run.finish(worker, "died", 0.0)
            case 1:
                run.come(worker.index, ready=True)
            case 2 | 3 if run.step[worker]:
                run.save(worker)
            case 4 | 5 if worker not in run.stopping and run.step[worker] < run.holding[worker].budget:
                run.report(worker, 1, draw.random())
            case _:
                run.train(worker, draw.random())
    return tuple(map(read_event, run.journal))


def mended(name: str, contents: Contents, taken: int = 0) -> tuple[Study, list[Event], Repairer]:
    events = contents.events[:taken]
    study = replayed(name, events)
    repairer = Repairer(study, contents.events, taken)
    for event in repairer.events():
        study.apply(event)
        events.append(event)
    return study, events, repairer


def replayed(name: str, events: list[Event]) -> Study:
    study = search_of(name).study()
    for event in events:
        study.apply(event)
    return study


def goes_on(name: str, events: list[Event]) -> None:
    """A driver that starts on those events brings the search to its end."""
    run = Witness()
    run.begin(search_of(name))
    run.ledger = run.search.study()
    run.known = History(run.ledger.problem)
    run.journal, run.condemned, run.saved, run.removed = [write_event(event) for event in events], set(), {}, set()
    for event in events:
        if run.ledger.apply(event) is Decision.STOP:
            run.condemned.add((event.trial, run.ledger.trials[event.trial].attempt))
    for update in run.ledger.take_updates():
        run.known.apply(update)
    run.boot()
    run.settle()


NAMES = st.sampled_from(sorted(OPTIMIZERS))


@pytest.mark.slow
@settings(max_examples=examples(250))
@given(
    name=NAMES,
    seed=st.integers(0, 4),
    backend=st.floats(0, 1, exclude_max=True),
    flip=st.integers(0, 255),
    share=st.floats(0, 1),
)
def test_one_damaged_byte_or_line(name: str, seed: int, backend: float, flip: int, share: float) -> None:
    """``flip`` is what a byte is changed by; 0 cuts the line out. ``share``: of what is before, taken in already."""
    original = list(journal_of(name, seed))
    lines = encode([HEADER, *original], 1).splitlines(keepends=True)
    data = b"".join(lines)
    if flip:
        at = int(backend * len(data))
        number = data[:at].count(b"\n") + 1
        data = data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :]
        is_newline = data[:at] == b"".join(lines[:number])[:-1]
    else:
        number = int(backend * len(lines)) + 1
        data = b"".join(lines[: number - 1] + lines[number:])
        is_newline = False
    parts = [Part("journal.jsonl", data)]
    if number == 1 and not is_newline:
        with pytest.raises(JournalError, match="line 1 must be the header"):
            decode(parts)
        return
    contents = decode(parts)
    if flip or number < len(lines):
        assert f"journal.jsonl, line {number}" in contents.damage[0]
    study, events, repairer = mended(name, contents)

    lost = [] if is_newline else [original[number - 2]]
    assert len(contents.events) == len(original) - len(lost)
    concerned = {event.trial for event in lost}
    whole = replayed(name, original)
    for trial in whole.trials:  # one that started from the state of another is concerned where that is
        if trial.parent in concerned:
            concerned.add(trial.id)
    for before, after in zip(whole.trials, study.trials, strict=False):
        assert before.id in concerned or repr(before) == repr(after)
    assert {trial.id for trial in whole.trials[len(study.trials) :]} <= concerned
    if not lost:
        assert said(study) == said(whole)
        assert not repairer.inferred

    later, same, other = mended(name, contents, int(share * max(0, min(number - 2, len(contents.events)))))
    assert said(later) == said(study)
    assert (same, other.inferred) == (events, repairer.inferred)

    again = decode([Part("journal.jsonl", encode([HEADER, *events], contents.last + 1))])
    assert not again.damage
    assert said(replayed(name, again.events)) == said(study)
    goes_on(name, events)


# -- what is inferred -------------------------------------------------------------------------------

CONFIG = {"x": 0.25}
FIRST: list[Event] = [
    TrialCreated(0, {"x": 0.5}),
    AttemptStarted(0, 1, 0, 1, 1.0, {"x": 0.5}),
    TrialCreated(1, CONFIG, 0),
    AttemptStarted(1, 1, 2, 1, 2.0, CONFIG, 0),
    Measured(1, 1, "loss", {"loss": ([1], [0.75])}),
    CheckpointSaved(1, 1, 1, "00001/1-1.pkl"),
    AttemptEnded(1, 1, TrialState.PAUSED, 4.0, 0.75),
    Measured(0, 1, "loss", {"loss": ([1], [0.5])}),
    AttemptEnded(0, 1, TrialState.PAUSED, 5.0, 0.5),
    AttemptStarted(1, 2, 1, 2, 6.0, CONFIG, 0),
    Measured(1, 2, "loss", {"loss": ([2], [0.875])}),
]


def without(*lost: int) -> tuple[Study, list[Event], Repairer]:
    """The mend of a journal of ASHA's that lost some events."""
    kept = [event for index, event in enumerate(FIRST) if index not in lost]
    return mended("promotion", Contents(HEADER, kept))


def test_a_creation_is_made_anew_from_any_start_of_the_trial() -> None:
    for lost in ([2], [2, 3]):
        study, events, repairer = without(*lost)
        assert events[2] == FIRST[2]
        assert repairer.inferred[0] == "trial 1: its creation was inferred"
        assert study.n_asks == 1


def test_a_start_is_inferred_from_what_the_attempt_did() -> None:
    study, events, repairer = without(3, 9)
    assert [event for event in events if isinstance(event, AttemptStarted)] == [
        FIRST[1],
        AttemptStarted(1, 1, -1, 1, 1.0, CONFIG, 0),
        AttemptStarted(1, 2, -1, 2, 5.0, CONFIG, 0),
    ]
    assert repairer.inferred == [f"trial 1: the start of attempt {n} was inferred" for n in (1, 2)]
    assert study.next_promotion() is None


def test_an_end_is_inferred_from_the_next_attempt() -> None:
    study, events, repairer = without(6)
    assert AttemptEnded(1, 1, TrialState.PAUSED, 6.0, 0.75) in events
    assert repairer.inferred == ["trial 1: the pause of attempt 1 was inferred"]
    assert study.trials[1].attempt == 2

    kept = [*FIRST[:5], AttemptStarted(1, 2, 0, 1, 6.0, CONFIG, 0)]
    study, events, repairer = mended("promotion", Contents(HEADER, kept))
    ends = [event for event in events if isinstance(event, AttemptEnded)]
    assert [(end.state, end.failure and end.failure.kind) for end in ends] == [(TrialState.PENDING, "driver_lost")]
    assert repairer.inferred == ["trial 1: the loss of attempt 1 was inferred"]


def test_the_end_of_an_attempt_and_the_start_of_the_next_are_inferred_together() -> None:
    study, events, _ = without(6, 9)
    assert said(study) == said(replayed("promotion", events))
    assert study.trials[1].attempt == 2
    assert study.trials[1].budget == 2


def test_a_trial_without_an_end_runs_again() -> None:
    study, _, repairer = without(8)
    assert study.trials[0].state is TrialState.RUNNING
    assert not repairer.inferred


def test_a_trial_that_is_known_by_its_number_alone_cannot_be_mended() -> None:
    with pytest.raises(JournalError, match=r"configuration of trial 1: its creation and the starts .* put a copy"):
        without(2, 3, 9)
