"""Whether a metric is to be maximised or minimised, as far as its name says it."""

from __future__ import annotations

import re
from typing import Literal

Direction = Literal["max", "min"]

SPELLINGS: dict[str, Direction] = {"max": "max", "maximize": "max", "min": "min", "minimize": "min"}
"""What may be given as a direction: ours, and Optuna's."""

_SMALL_WORDS = """
    loss losses logloss error errors err mse rmse rmsle msle mae mape smape nll perplexity ppl bpb bpc wer cer eer fid
    brier hinge bce crossentropy xent kl divergence distance deviation residual latency second seconds sec secs ms time
    duration runtime cost costs regret risk penalty violations memory misclassified
"""
_LARGE_WORDS = """
    accuracy acc auc auroc auprc roc f1 fbeta r2 score scores reward rewards return returns precision recall specificity
    sensitivity map ap iou miou dice bleu rouge ndcg mrr mcc kappa psnr ssim likelihood loglikelihood elbo throughput
    correlation pearson spearman success profit revenue quality correct
"""
_SMALL = frozenset(_SMALL_WORDS.split())
_LARGE = frozenset(_LARGE_WORDS.split())
_NEGATED = frozenset(("neg", "negative"))
_WORDS = re.compile(r"[A-Z]+\d*(?![a-z])|[A-Z]?[a-z]+\d*|\d+")


def direction_of(metric: str) -> Direction | None:
    """Whether a metric is to be maximised or minimised, or None if its name does not say it.

    The last word of the name that says anything decides, since it is what the others describe: ``mean_squared_error``
    is an error, ``val_acc_loss`` a loss. After ``neg`` or ``negative`` it is the other way round.

    Example:
        >>> [direction_of(name) for name in ("val_loss", "testAUC", "neg_mean_squared_error", "wobble")]
        ['min', 'max', 'max', None]
    """
    words = _words(metric)
    said: list[Direction] = ["min" if word in _SMALL else "max" for word in words if word in _SMALL or word in _LARGE]
    if not said:
        return None
    return opposite(said[-1]) if _NEGATED.intersection(words) else said[-1]


def opposite(direction: Direction) -> Direction:
    """The other one."""
    return "min" if direction == "max" else "max"


def direction_hint(metric: str, direction: Direction, *, given: bool) -> str:
    """A hint about the direction in which a metric is optimised; empty where it is what its name says.

    Args:
        metric: Its name; ``value`` where it has none.
        direction: In which it is optimised.
        given: Whether the user gave it; else it follows from the name, or is the default.
    """
    says = direction_of(metric)
    other = opposite(direction)
    if given:
        if says != other:
            return ""
        conflict = f"direction={direction!r} {_VERBS[direction]}s {metric!r}, and its name suggests to "
        return f"{conflict}{_VERBS[other]} it; pass direction={other!r}, or leave it out, to {_VERBS[other]} it"
    if says is not None:
        return ""
    named = metric != "value"
    subject, why = (repr(metric), "its name does not say") if named else ("the objective", "it has no name that says")
    return (
        f"{subject} is {_VERBS[direction]}d: {why} whether larger or smaller is better; pass direction={other!r} to "
        f"{_VERBS[other]} it"
    )


_VERBS = {"max": "maximise", "min": "minimise"}


def _words(name: str) -> list[str]:
    """The words of a name in lower case: parts between other characters, and those of camel case."""
    words: list[str] = []
    for part in re.split(r"[\W_]+", re.sub(r"cross[\W_]?entropy", "crossentropy", name, flags=re.IGNORECASE)):
        whole = part.lower()
        found = [whole] if _is_known(whole) else [word.lower() for word in _WORDS.findall(part)]
        words += (word if _is_known(word) else word.rstrip("0123456789") for word in found)
    return words


def _is_known(word: str) -> bool:
    return word in _SMALL or word in _LARGE or word in _NEGATED
