from __future__ import annotations

import pytest

from optimizers.core.direction import Direction, direction_hint, direction_of

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
SILENT = "value wobble x glossary emapping rapid mapping timeless foo_bar _ 7 größe lossless"


@pytest.mark.parametrize(
    ("names", "direction"), [(SMALL, "min"), (LARGE, "max"), (SILENT, None)], ids=["small", "large", "silent"]
)
def test_a_name_says_which_way_its_metric_goes(names: str, direction: Direction | None) -> None:
    assert {name: direction_of(name) for name in names.split()} == dict.fromkeys(names.split(), direction)


def test_nothing_is_told_where_nobody_is_surprised() -> None:
    assert direction_hint("loss", "min", given=False) == ""
    assert direction_hint("loss", "min", given=True) == ""
    assert direction_hint("wobble", "min", given=True) == ""


def test_a_direction_that_the_name_does_not_say_is_told_with_the_mend() -> None:
    assert direction_hint("wobble", "max", given=False) == (
        "'wobble' is maximised: its name does not say whether larger or smaller is better; "
        "pass direction='min' to minimise it"
    )
    assert direction_hint("value", "max", given=False).startswith(
        "the objective is maximised: it has no name that says "
    )


def test_a_direction_against_the_name_is_told() -> None:
    assert direction_hint("loss", "max", given=True) == (
        "direction='max' maximises 'loss', and its name suggests to minimise it; "
        "pass direction='min', or leave it out, to minimise it"
    )
