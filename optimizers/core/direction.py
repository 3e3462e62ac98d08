"""Infer from a metric's name whether to maximize or minimize it."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Direction = Literal["max", "min"]

SPELLINGS: dict[str, Direction] = {"max": "max", "maximize": "max", "min": "min", "minimize": "min"}
"""Accepted spellings of a direction: ours, and Optuna's."""


class _Kind(enum.Enum):
    """The role of a word in a metric's name."""

    MEASURE = "names a measure, such as accuracy"
    LOSS = "makes a loss of the word before it"
    GENERAL = "says the direction, whatever the measure"
    WEAK = "yields to any of these, as in brier_score"
    NEGATION = "reverses the words after it, at the front of a name"
    MINUS = "reverses the whole name, at its front"
    CHANGE = "may reverse the word next to it: a drop, a gap"
    AFTER = "may reverse the word before it: error detection is not a detection loss"
    ONWARDS = "relates the words on both sides: time to accuracy"
    CONDITION = "starts a condition: recall at precision"
    QUALIFIER = "says which values are meant"


# Words of a name are joined by underscores here.
_MEASURES: dict[Direction, str] = {
    "min": """
        mse rmse nrmse nmse rmsle rmsse msle mae mape smape wmape wape mdape mase mphe rmsd msis wql
        mean_squared_error mean_absolute_error interval_score quantile_score winkler energy_score variogram_score
        dawid_sebastiani
        psi_score drift_score survival_aft kldiv kullback_leibler xentropy xentlambda
        logloss log_loss mlogloss nll nloglik nlpd cross_entropy crossentropy ce bce cce xent hinge pinball huber
        logcosh log_cosh perplexity ppl bpb bpc bits_per_byte bits_per_dim bits_per_character bits_per_char deviance
        poisson_deviance gamma_deviance tweedie_deviance brier ece calibration_error ranked_probability crps kl kld mmd
        wasserstein sinkhorn chamfer hausdorff divergence discrepancy disparity dissimilarity disagreement aic bic
        error_rate word_error_rate char_error_rate match_error_rate translation_edit_rate merror wer cer eer der
        word_info_lost wil edit_distance levenshtein false_positive false_positives false_positive_rate
        false_negative false_negatives false_negative_rate false_alarm false_alarms false_discovery_rate fpr fnr fdr
        miss_rate fall_out fallout hamming_distance hamming zero_one negative_likelihood_ratio
        misclassified misclassification inaccuracy incorrect
        davies_bouldin xie_beni coverage_error mean_rank impurity
        fid kid fvd mifid frechet_inception_distance kernel_inception_distance perceptual_path_length lpips dists
        learned_perceptual_image_patch_similarity deep_image_structure_and_texture_similarity ergas rase
        error_relative_global_dimensionless_synthesis spectral_angle_mapper spectral_distortion spatial_distortion
        total_variation info_lm infolm
    """,
    "max": """
        accuracy acc auc auroc auprc aucpr aupr roc ap map average_precision precision recall specificity sensitivity
        f1 fbeta f_beta f_score f_measure tpr tnr ppv npv true_positive true_positives true_positive_rate
        true_negative true_negatives true_negative_rate negative_predictive_value positive_predictive_value prauc
        positive_likelihood_ratio hit_rate exact_match correct
        jaccard iou io_u miou giou diou ciou intersection_over_union distance_intersection_over_union dice tversky
        critical_success mcc matthews kappa dcg ndcg discounted_cumulative_gain mrr mean_reciprocal_rank
        expected_reciprocal_rank watch_time dwell_time mota motp
        hota idf1
        r2 d2 explained_variance d2_absolute_error d2_log_loss d2_brier d2_pinball d2_tweedie pearson pearsons spearman
        pearsonr spearmanr kendalltau kendall correlation corrcoef corr_coef concordance concordance_index c_index
        cindex
        likelihood loglikelihood loglik log_likelihood log_prob log_probability elbo elpd
        hamming_score brier_skill ranked_probability_skill crps_skill silhouette calinski_harabasz dunn rand ari nmi
        ami mutual_info mutual_information v_measure homogeneity
        completeness fowlkes_mallows purity cramers_v theils_u tschuprows_t
        psnr snr sdr pesq stoi ssim signal_noise_ratio signal_to_noise_ratio signal_distortion_ratio
        perceptual_evaluation_speech_quality short_time_objective_intelligibility similarity cosine_proximity
        structural_similarity inception universal_image_quality uqi visual_information_fidelity vif vmaf fidelity
        panoptic_quality quality_with_no_reference speech_reverberation_modulation_energy_ratio
        bleu sacrebleu rouge rougel meteor chrf cider bertscore squad word_info_preserved wip comet lddt plddt
        sharpe sortino calmar pnl profit_and_loss information_gain
    """,
}
_LOSSES = "loss losses error errors err regret penalty"
_GENERAL: dict[Direction, str] = {
    "min": """
        distance distances deviation residual residuals distortion latency second seconds sec secs ms millis
        milliseconds time duration runtime cost costs risk violation violations memory failure failures mistakes
        misses toxicity hallucination hallucinations drawdown downtime forgetting unfairness jitter instability
    """,
    "max": """
        reward rewards return returns throughput goodput fps speed speedup success successes win wins profit profits
        revenue quality fitness utility efficiency agreement uptime lifetime survival gain gains improvement
        improvements increase uplift effectiveness skill
    """,
}
_WEAK: dict[Direction, str] = {
    "min": "l1 l2 poisson gamma tweedie fair quantile expectile",
    "max": """
        score scores per_second per_sec per_s per_minute per_min per_hour per_day hits
    """,
}
_OTHERS: dict[_Kind, str] = {
    _Kind.NEGATION: "neg negative negated",
    _Kind.MINUS: "minus one_minus 1_minus",
    _Kind.CHANGE: """
        drop drops dropped lost decrease decreased reduction reductions reduced savings saving saved gap gaps delta diff
        difference degradation change tradeoff inverse inverted inv reciprocal free
    """,
    _Kind.AFTER: """
        detection detected correction corrected removal removed prevention prevented avoidance avoided tolerance
        tolerated resilience robustness recovery recovered mitigation mitigated available headroom remaining alive
        survived travelled traveled covered std stdev stddev stderr sem variance var volatility uncertainty spread
        range shift decline decay bias imbalance
    """,
    _Kind.ONWARDS: "to until till per between",
    _Kind.CONDITION: "at",
    _Kind.QUALIFIER: """
        metric metrics val valid validation test testing train training eval evaluation dev holdout cv oof mean avg
        average median min max best worst final last total sum running ema root squared square absolute abs log
        logarithmic percentage percent relative symmetric normalized weighted unweighted macro micro samples epoch
        epochs step batch global negative_sampling neg_sampling cost_sensitive time_series temporal_difference
        inverse_dynamics inverse_kinematics free_energy noise_reduction
    """,
}
_OF_A_CLASS = """
    accuracy acc auc auroc auprc aucpr aupr ap average_precision precision recall specificity sensitivity f1 fbeta
    f_beta f_score f_measure jaccard iou hit_rate
"""
"""Measures of a class: ``negative_recall`` is rarely a recall with its sign changed."""


@dataclass(frozen=True)
class _Word:
    """One word of a name, or several that have one meaning."""

    text: str
    kind: _Kind | None = None
    direction: Direction | None = None
    turned: bool = False  # by a negation


def _vocabulary() -> dict[tuple[str, ...], _Word]:
    kinds = [(_Kind.MEASURE, _MEASURES), (_Kind.GENERAL, _GENERAL), (_Kind.WEAK, _WEAK)]
    known = [_Word(text, _Kind.LOSS, "min") for text in _LOSSES.split()]
    known += [_Word(text, kind, way) for kind, ways in kinds for way, texts in ways.items() for text in texts.split()]
    known += [_Word(text, kind) for kind, texts in _OTHERS.items() for text in texts.split()]
    return {tuple(word.text.split("_")): word for word in known}


_KNOWN = _vocabulary()
_LONGEST = max(map(len, _KNOWN))
_PARTS = frozenset(part for parts in _KNOWN for part in parts)
_CAMEL = re.compile(r"[A-Z]+\d*(?![a-z])|[A-Z]?[a-z]+\d*|\d+")
_SIGN = re.compile(r"\s*((1(\.0*)?|100)\s*)?[-\u2212]\s*(?=[^\W\d])")


def direction_of(metric: str) -> Direction | None:
    """Return whether to maximize or minimize a metric, or None if its name does not say.

    Names of measures take precedence over general words: ``brier_score`` is an error. A name that ends with ``loss`` or
    ``error`` is minimized: ``val_acc_loss``. The prefix ``neg`` or ``negative`` reverses the direction. A name with
    contradictory words says nothing (see :func:`contradiction`).
    """
    said = _read(metric)
    return said if isinstance(said, str) else None


def contradiction(metric: str) -> str:
    """Return an error message if the words of a metric's name contradict each other, or an empty text."""
    said = _read(metric)
    if not isinstance(said, tuple):
        return ""
    words = " and ".join(map(repr, dict.fromkeys(said)))
    return (
        f"direction must be given for {metric!r}, since {words} contradict each other; use direction='max' if larger "
        "values are better, direction='min' if smaller ones are"
    )


def opposite(direction: Direction) -> Direction:
    """Return the other direction."""
    return "min" if direction == "max" else "max"


def direction_hint(metric: str, direction: Direction, *, given: bool) -> str:
    """Return a hint about the direction of a metric, or an empty text if it agrees with the name.

    The direction follows from the name, or is the default, unless the user has given it.
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


def sign_hint(metric: str, direction: Direction, values: Sequence[float]) -> str:
    """Return a hint about a loss whose values so far suggest a changed sign, or an empty text."""
    if direction != "min" or direction_of(metric) != "min" or any(_turns(word) for word in _words(metric)):
        return ""
    if not values or not all(value < 0.0 for value in values):
        return ""
    return (
        f"{metric!r} is minimized, and all its values so far are below 0: pass direction='max' if it is a loss with "
        "its sign changed, direction='min' if it is not"
    )


_VERBS = {"max": "maximize", "min": "minimize"}


def _read(metric: str) -> Direction | tuple[str, ...] | None:
    """Return the direction that a name says, the words that contradict each other, or None if it says nothing."""
    words = _words(metric)
    words = words[: next((i for i in range(len(words)) if _is_condition(words, i)), len(words))]
    front = next((i for i, word in enumerate(words) if word.kind is not _Kind.QUALIFIER), 0)
    prefix = words[front].kind if words else None
    if prefix is _Kind.NEGATION:
        after = _next(words, front)
        if after < len(words) and (way := words[after].direction) is not None:
            words[after] = replace(words[after], direction=opposite(way), turned=True)
    said = [word for word in words if word.direction is not None]
    if not said:
        return None
    strong = [word for word in said if word.kind is not _Kind.WEAK] or said
    if doubt := _doubt(words, front, strong):
        return (*(word.text for word in strong), doubt)
    strong = [word for place, word in enumerate(words) if word in strong and not _is_object(words, place)] or strong
    directions = {word.direction for word in strong}
    last = strong[-1]
    if last.kind is _Kind.LOSS and last.direction == "min" and not any(word.turned for word in strong[:-1]):
        directions = {"min"}
    elif last.kind is _Kind.MEASURE:
        directions = {word.direction for word in strong if word.kind is not _Kind.GENERAL}
    if len(directions) > 1:
        return tuple(word.text for word in strong)
    found = last.direction
    return opposite(found) if prefix is _Kind.MINUS and found is not None else found


def _doubt(words: list[_Word], front: int, strong: list[_Word]) -> str:
    """Return the word that makes the direction unclear, or an empty text."""
    for place, word in enumerate(words):
        if word.kind is _Kind.CHANGE:
            return word.text
        if word.kind is _Kind.AFTER and strong[-1] in words[:place] and _says(words, place - 1):
            return word.text
        if word.kind is _Kind.ONWARDS and _says(words, _next(words, place)):
            return word.text
    first, last = words[front], words[-1]
    if first.kind is not _Kind.NEGATION:
        return last.text if last.kind is _Kind.NEGATION else ""
    turned = next((word for word in strong if word.turned), None)
    is_loss = strong[-1].kind is _Kind.LOSS and not strong[-1].turned
    if turned is None or (turned.text in _OF_A_CLASS.split() and not is_loss):
        return first.text
    return ""


def _turns(word: _Word) -> bool:
    return word.kind in (_Kind.NEGATION, _Kind.MINUS)


def _says(words: list[_Word], place: int) -> bool:
    return 0 <= place < len(words) and words[place].kind in (_Kind.MEASURE, _Kind.LOSS, _Kind.GENERAL)


def _next(words: list[_Word], place: int) -> int:
    """Return the place of the next word that is neither a number nor a qualifier."""
    following = (i for i in range(place + 1, len(words)) if words[i].text and words[i].kind is not _Kind.QUALIFIER)
    return next(following, len(words))


def _is_object(words: list[_Word], place: int) -> bool:
    """Return whether the next word acts on this one, as in "error detection"."""
    return place + 1 < len(words) and words[place + 1].kind is _Kind.AFTER


def _is_condition(words: list[_Word], place: int) -> bool:
    return words[place].kind is _Kind.CONDITION and any(word.direction for word in words[:place])


def _words(name: str) -> list[_Word]:
    """Split a name at other characters and at camel case, and join the words that have one meaning.

    If one section of a name like ``metrics/neg_rmse`` starts with a negation, only that section counts.
    """
    sign = _SIGN.match(name)
    text = re.sub(r"/(?=(s|sec|second)$)", "_per_", name[sign.end() :] if sign else name)
    text = text.replace("@", "_at_").replace("IoU", "Iou")
    for section in re.split(r"[/:|]", text)[1:]:
        if next((word.kind for word in _joined(section) if word.kind is not _Kind.QUALIFIER), None) is _Kind.NEGATION:
            return _joined(section)
    return [*([_Word("minus", _Kind.MINUS)] if sign else []), *_joined(text)]


def _joined(text: str) -> list[_Word]:
    parts, words = list(_parts(text)), list[_Word]()
    while parts:
        for length in range(min(_LONGEST, len(parts)), 0, -1):
            if (word := _KNOWN.get(tuple(parts[:length]))) is not None:
                break
        else:
            length, word = 1, _Word(parts[0])
        words.append(word)
        del parts[:length]
    return words


def _parts(text: str) -> Iterator[str]:
    for part in re.split(r"[\W_]+", text):
        whole = part.lower()
        for word in [whole] if whole in _PARTS else (word.lower() for word in _CAMEL.findall(part)):
            yield word if word in _PARTS else word.rstrip("0123456789")
