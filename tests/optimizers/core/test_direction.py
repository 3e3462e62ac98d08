from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import get_scorer_names

from optimizers.core.direction import Direction, contradiction, direction_hint, direction_of, sign_hint
from optimizers.core.objectives import Objectives
from optimizers.errors import UserError

SMALL = """
    loss val_loss valLoss test/loss eval-loss train.loss loss_1 loss2 error top1_error error_rate MSE rmse val_rmse
    mean_squared_error mean_absolute_error MAPE nll perplexity test_ppl latency latency_ms seconds fit_time cost regret
    acc_loss cross_entropy crossEntropy neg_log_likelihood negative_log_likelihood log_loss wer FID wall_seconds
"""
LARGE = """
    accuracy acc val_acc testAcc top1_acc acc@5 AUC testAUC roc_auc f1 F1Score f1_macro r2 R2 r2_score score reward
    mean_reward precision recall mAP map map50 iou IoU mIoU bleu neg_mean_squared_error neg_root_mean_squared_error
    log_likelihood dice psnr throughput balanced_accuracy
"""
SILENT = "value wobble x glossary emapping rapid mapping timeless foo_bar _ 7 größe lossless - @ at neg 1- per_se"
COMPOUND_SMALL = """
    brier_score integrated_brier_score fid_score kid_score wer_score cer_score mae_score nll_score davies_bouldin_score
    edit_distance_score ranked_probability_score error_score score_time risk_score test_brier_score_loss
    neg_log_likelihood_loss neg_dice_loss neg_elbo negative_elbo neg_reward neg_log_prob minus_reward one_minus_auc
    1-auc 1-f1 -auc one_minus_val_accuracy negative_sampling_loss neg_sampling_loss contrastive_neg_loss
    false_negative_cost hard_negative_loss mIoU_loss dice_loss val/dice_loss reward_loss policy_loss reward_error
    reward_mse price_rmse profit_rmse return_mae success_cost_loss td_error temporal_difference_error detection_loss
    variance_loss inverse_dynamics_loss cost_per_hour seconds_per_step ms_per_token time_to_first_token
    distance_to_goal fpr@95 fpr95 fpr_at_tpr error@1 loss@10 loss_at_accuracy fit_time mean_rank simple_regret
    accuracy_penalty l1 l2 1.0-auc 100-accuracy nmse bits_per_byte expected_calibration_error equal_error_rate
    top5_error_rate mean_cosine_distance
    val_ce test/cce bits_per_char
    interval_score winkler_score energy_score variogram_score dawid_sebastiani_score quantile_score psi_score
    drift_score WAPE msis mean_wQL average_forgetting
"""
COMPOUND_LARGE = """
    neg_brier_score neg_loss neg_val_loss val_neg_loss test_neg_mean_squared_error mean_test_neg_log_loss eval/neg_mse
    metrics/neg_rmse val:neg_loss -loss -val_loss minus_loss negative_mean_poisson_deviance tokens_per_second samples/s
    it/s images_per_sec accuracy_per_second accuracy_gain f1_improvement tpr@fpr recall@10 recall_at_precision cost_r2
    latency_r2 risk_auc distance_accuracy time_series_accuracy error_detection_f1 signal_to_noise_ratio
    true_negatives true_positive_rate hit_rate success_rate win_rate
    episode_return eval/episode_reward return_mean f2_score hard_negative_accuracy inception_score clip_score
    end_to_end_accuracy image_to_text_recall map@50 mAP50-95 silhouette_score detection_accuracy
    brier_skill_score skill_score hamming_score watch_time expected_reciprocal_rank eval_spearmanr quantile_accuracy
    best_val_acc information_gain quality_score
"""
CONTRADICTORY = """
    accuracy_drop error_reduction cost_savings auc_gap loss_delta loss_reduction perplexity_gain time_saved
    latency_improvement inverse_loss time_to_accuracy steps_to_90_accuracy accuracy_per_cost accuracy_std
    reward_variance error_detection_rate error_tolerance free_memory memory_saved loss_neg mse_negated neg_foo_loss
    negative_f1 neg_recall negative_accuracy neg_mse_loss accuracy_time accuracy_cost cost_reward reward_cost fid_reward
    mse_r2 loss_accuracy latency_quality val/accuracyDrop accuracy_lost accuracy_decline reward_decay auc_shift
    accuracy_spread accuracy_range return_volatility accuracy_uncertainty reward_jitter accuracy_bias
    accuracy_forgetting inv_loss inv_auc time_between_failures distance_travelled time_alive memory_available
    cost_effectiveness error_recovery loss_resilience failure_robustness risk_mitigation mse_skill_score
"""
KERAS_SMALL = """
    BinaryCrossentropy CategoricalCrossentropy SparseCategoricalCrossentropy binary_crossentropy
    binary_focal_crossentropy CategoricalHinge Hinge SquaredHinge squared_hinge FalseNegatives FalsePositives
    false_negatives_1 KLDivergence kl_divergence LogCoshError logcosh Huber MeanAbsoluteError
    mean_absolute_error MeanAbsolutePercentageError MeanSquaredError mean_squared_error
    MeanSquaredLogarithmicError RootMeanSquaredError root_mean_squared_error Poisson poisson loss val_loss
"""
KERAS_LARGE = """
    AUC Accuracy BinaryAccuracy binary_accuracy CategoricalAccuracy SparseCategoricalAccuracy
    sparse_top_k_categorical_accuracy TopKCategoricalAccuracy BinaryIoU binary_io_u IoU io_u MeanIoU mean_io_u
    OneHotIoU one_hot_io_u OneHotMeanIoU one_hot_mean_io_u ConcordanceCorrelation CosineSimilarity
    cosine_similarity F1Score f1_score FBetaScore fbeta_score PearsonCorrelation Precision PrecisionAtRecall
    precision_at_recall R2Score Recall RecallAtPrecision SensitivityAtSpecificity SpecificityAtSensitivity
    TrueNegatives TruePositives true_positives val_accuracy
"""
TORCHMETRICS_SMALL = """
    BinaryCalibrationError BinaryEER BinaryHammingDistance BinaryHingeLoss CalibrationError CharErrorRate
    ContinuousRankedProbabilityScore DaviesBouldinScore DeepImageStructureAndTextureSimilarity EER
    EditDistance ErrorRelativeGlobalDimensionlessSynthesis ExtendedEditDistance HammingDistance
    HausdorffDistance HingeLoss InfoLM JensenShannonDivergence KLDivergence LipVertexError LogCoshError
    MatchErrorRate MeanAbsoluteError MeanAbsolutePercentageError MeanSquaredError MeanSquaredLogError
    MemorizationInformedFrechetInceptionDistance MinkowskiDistance MulticlassCalibrationError MulticlassEER
    MulticlassHammingDistance MulticlassHingeLoss MultilabelCoverageError MultilabelEER
    MultilabelHammingDistance MultilabelRankingLoss NormalizedRootMeanSquaredError Perplexity
    ProcrustesDisparity RelativeAverageSpectralError RelativeSquaredError RetrievalFallOut
    RootMeanSquaredErrorUsingSlidingWindow SpatialDistortionIndex SpectralAngleMapper SpectralDistortionIndex
    SymmetricMeanAbsolutePercentageError TotalVariation TranslationEditRate TweedieDevianceScore
    WeightedMeanAbsolutePercentageError WordErrorRate WordInfoLost LearnedPerceptualImagePatchSimilarity
    FrechetInceptionDistance KernelInceptionDistance PerceptualPathLength
"""
TORCHMETRICS_LARGE = """
    AUROC Accuracy AdjustedMutualInfoScore AdjustedRandScore AveragePrecision BERTScore BLEUScore BinaryAUROC
    BinaryAccuracy BinaryAveragePrecision BinaryCohenKappa BinaryF1Score BinaryFBetaScore BinaryJaccardIndex
    BinaryLogAUC BinaryMatthewsCorrCoef BinaryNegativePredictiveValue BinaryPrecision
    BinaryPrecisionAtFixedRecall BinaryRecall BinaryRecallAtFixedPrecision BinarySensitivityAtSpecificity
    BinarySpecificity BinarySpecificityAtSensitivity CHRFScore CLIPImageQualityAssessment CLIPScore
    CalinskiHarabaszScore ClusterAccuracy CohenKappa CompletenessScore ComplexScaleInvariantSignalNoiseRatio
    ConcordanceCorrCoef CosineSimilarity CramersV CriticalSuccessIndex DiceScore DunnIndex ExactMatch
    ExplainedVariance F1Score FBetaScore FleissKappa FowlkesMallowsIndex GeneralizedDiceScore HomogeneityScore
    JaccardIndex KendallRankCorrCoef LogAUC MatthewsCorrCoef MeanIoU ModifiedPanopticQuality
    MultiScaleStructuralSimilarityIndexMeasure MulticlassAUROC MulticlassAccuracy MulticlassAveragePrecision
    MulticlassCohenKappa MulticlassExactMatch MulticlassF1Score MulticlassFBetaScore MulticlassJaccardIndex
    MulticlassLogAUC MulticlassMatthewsCorrCoef MulticlassNegativePredictiveValue MulticlassPrecision
    MulticlassPrecisionAtFixedRecall MulticlassRecall MulticlassRecallAtFixedPrecision
    MulticlassSensitivityAtSpecificity MulticlassSpecificity MulticlassSpecificityAtSensitivity
    MultilabelAUROC MultilabelAccuracy MultilabelAveragePrecision MultilabelExactMatch MultilabelF1Score
    MultilabelFBetaScore MultilabelJaccardIndex MultilabelLogAUC MultilabelMatthewsCorrCoef
    MultilabelNegativePredictiveValue MultilabelPrecision MultilabelPrecisionAtFixedRecall
    MultilabelRankingAveragePrecision MultilabelRecall MultilabelRecallAtFixedPrecision
    MultilabelSensitivityAtSpecificity MultilabelSpecificity MultilabelSpecificityAtSensitivity
    MutualInfoScore NegativePredictiveValue NormalizedMutualInfoScore PanopticQuality PeakSignalNoiseRatio
    PeakSignalNoiseRatioWithBlockedEffect PearsonCorrCoef PearsonsContingencyCoefficient Precision
    PrecisionAtFixedRecall QualityWithNoReference R2Score ROUGEScore RandScore Recall RecallAtFixedPrecision
    RetrievalAUROC RetrievalHitRate RetrievalMAP RetrievalMRR RetrievalNormalizedDCG RetrievalPrecision
    RetrievalRPrecision RetrievalRecall RetrievalRecallAtFixedPrecision SQuAD SacreBLEUScore
    ScaleInvariantSignalDistortionRatio ScaleInvariantSignalNoiseRatio SensitivityAtSpecificity
    SignalDistortionRatio SignalNoiseRatio SourceAggregatedSignalDistortionRatio SpatialCorrelationCoefficient
    SpearmanCorrCoef Specificity SpecificityAtSensitivity StructuralSimilarityIndexMeasure TheilsU TschuprowsT
    UniversalImageQualityIndex VMeasureScore VisualInformationFidelity WordInfoPreserved InceptionScore
    MeanAveragePrecision IntersectionOverUnion CompleteIntersectionOverUnion DistanceIntersectionOverUnion
    GeneralizedIntersectionOverUnion PerceptualEvaluationSpeechQuality ShortTimeObjectiveIntelligibility
    SpeechReverberationModulationEnergyRatio RetrievalMRR
"""
WORDS = """
    neg negative minus val loss accuracy brier score drop at to per second 1 error detection l2 wobble IoU
"""
BOOSTING_SMALL = """
    validation_0-logloss validation-rmse valid_0's_binary_logloss multi_logloss merror mlogloss poisson-nloglik
    gamma-nloglik cox-nloglik gamma-deviance tweedie-nloglik@1.5 aft-nloglik error@0.7 mphe quantile expectile l1 l2
    fair poisson gamma tweedie huber binary_error multi_error@2 cross_entropy_lambda xentropy xentlambda
    kullback_leibler kldiv regression_l1 test-mphe-mean valid_0-l2-mean Logloss CrossEntropy BalancedErrorRate
    BrierScore HammingLoss ZeroOneLoss Quantile MultiQuantile LogLinQuantile Expectile Tweedie FairLoss NumErrors
    MedianAbsoluteError RMSEWithUncertainty MultiRMSE QueryRMSE QueryCrossEntropy SurvivalAft test-SurvivalAft-mean
"""
BOOSTING_LARGE = """
    auc aucpr ndcg@5- map@5- interval-regression-accuracy auc_mu average_precision r2 BalancedAccuracy QueryAUC PRAUC
    WKappa LogLikelihoodOfPrediction TotalF1 PairAccuracy FilteredDCG AverageGain PrecisionAt RecallAt MRR
"""
SKLEARN_SMALL = """
    brier_score_loss coverage_error davies_bouldin_score hamming_loss hinge_loss label_ranking_loss log_loss
    max_error mean_absolute_error mean_absolute_percentage_error mean_gamma_deviance mean_pinball_loss
    mean_poisson_deviance mean_squared_error mean_squared_log_error mean_tweedie_deviance median_absolute_error
    root_mean_squared_error root_mean_squared_log_error zero_one_loss fit_time score_time
"""
SKLEARN_LARGE = """
    cohen_kappa_score calinski_harabasz_score dcg_score d2_pinball_score d2_tweedie_score fbeta_score
    label_ranking_average_precision_score ndcg_score roc_auc_score silhouette_score test_neg_log_loss
"""


@pytest.mark.parametrize(
    ("names", "direction"),
    [
        pytest.param(SMALL, "min", id="small"),
        pytest.param(LARGE, "max", id="large"),
        pytest.param(SILENT, None, id="silent"),
        pytest.param(COMPOUND_SMALL, "min", id="compound small"),
        pytest.param(COMPOUND_LARGE, "max", id="compound large"),
        pytest.param(SKLEARN_SMALL, "min", id="scikit-learn small"),
        pytest.param(SKLEARN_LARGE, "max", id="scikit-learn large"),
        pytest.param(" ".join(get_scorer_names()), "max", id="scorers of scikit-learn"),
        pytest.param(BOOSTING_SMALL, "min", id="boosting small"),
        pytest.param(BOOSTING_LARGE, "max", id="boosting large"),
        pytest.param(KERAS_SMALL, "min", id="Keras small"),
        pytest.param(KERAS_LARGE, "max", id="Keras large"),
        pytest.param(TORCHMETRICS_SMALL, "min", id="torchmetrics small"),
        pytest.param(TORCHMETRICS_LARGE, "max", id="torchmetrics large"),
    ],
)
def test_a_name_says_which_way_its_metric_goes(names: str, direction: Direction | None) -> None:
    assert {name: direction_of(name) for name in names.split()} == dict.fromkeys(names.split(), direction)
    assert [name for name in names.split() if contradiction(name)] == []


@pytest.mark.parametrize("name", CONTRADICTORY.split())
def test_words_that_contradict_each_other_say_nothing(name: str) -> None:
    assert direction_of(name) is None
    assert contradiction(name).startswith(f"direction must be given for {name!r}, since ")
    assert "use direction='max' if larger values are better, " in contradiction(name)
    with pytest.raises(UserError, match="direction must be given for "):
        Objectives(names=[name])
    assert Objectives("min", [name]).directions == ("min",)
    assert direction_hint(name, "max", given=True) == ""


@pytest.mark.parametrize("front", ["val_", "test/", "metrics/train/", "best ", "eval:"])
@pytest.mark.parametrize("measure", ["mse", "log_loss", "mean_absolute_error", "brier_score", "CharErrorRate"])
def test_a_negation_in_front_turns_a_measure_round(front: str, measure: str) -> None:
    assert direction_of(f"{front}{measure}") == "min"
    assert direction_of(f"{front}neg_{measure}") == direction_of(f"neg_{front}{measure}") == "max"


@given(st.lists(st.sampled_from(WORDS.split()), min_size=1, max_size=5), st.sampled_from(["_", "/", "-", " ", "@", ""]))
def test_a_name_says_one_of_three_things(words: list[str], joint: str) -> None:
    name = joint.join(words)
    assert direction_of(name) is None or not contradiction(name)
    assert direction_of(name.upper() if joint else name) in ("max", "min", None)


@pytest.mark.parametrize(
    ("name", "direction", "values", "hints"),
    [
        ("loss", "min", [-3.0, -1.0], True),
        ("val_rmse", "min", [-0.5], True),
        ("loss", "min", [-3.0, 0.0], False),
        ("loss", "min", [math.nan], False),
        ("loss", "min", [], False),
        ("loss", "max", [-1.0], False),
        ("accuracy", "min", [-1.0], False),
        ("wobble", "min", [-1.0], False),
        ("neg_log_likelihood", "min", [-1.0], False),
        ("-reward", "min", [-1.0], False),
    ],
)
def test_a_loss_below_zero_may_have_its_sign_changed(
    name: str, direction: Direction, values: list[float], hints: bool
) -> None:
    assert sign_hint(name, direction, values).startswith(f"{name!r} is minimized, and all its values") == hints


def test_nothing_is_told_where_nobody_is_surprised() -> None:
    assert direction_hint("loss", "min", given=False) == ""
    assert direction_hint("loss", "min", given=True) == ""
    assert direction_hint("wobble", "min", given=True) == ""


def test_a_direction_that_the_name_does_not_say_is_told_with_the_mend() -> None:
    assert direction_hint("wobble", "max", given=False) == (
        "'wobble' is maximized: its name does not say whether larger or smaller is better; "
        "pass direction='min' to minimize it"
    )
    assert direction_hint("value", "max", given=False).startswith(
        "the objective is maximized: it has no name that says "
    )


def test_a_direction_against_the_name_is_told() -> None:
    assert direction_hint("loss", "max", given=True) == (
        "direction='max' maximizes 'loss', and its name suggests to minimize it; "
        "pass direction='min', or leave it out, to minimize it"
    )
