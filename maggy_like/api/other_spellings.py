"""Arguments of other libraries and other functions, and what to write instead in ``lagom``, ``ablate`` and ``run``."""

from __future__ import annotations

_OF_FAILURES = {
    name: f"failures=FailurePolicy({name}={{}})"
    for name in ("max_attempts", "trial_timeout", "report_timeout", "min_workers", "max_identical_failures", "catch")
}
_OF_ASHA = {name: f"optimizer=ASHA({name}={{}})" for name in ("eta", "min_budget", "brackets", "sampler")}

_EVERYWHERE = {
    **_OF_FAILURES,
    "journal": "directory={}, the folder of the journal and of the rest of the run",
    "keep_checkpoints": "store=Store(keep_checkpoints={})",
    "isolation": "engine=LocalEngine(isolation={}) or SparkEngine(isolation={})",
    "experiment": "block=False, which returns a handle with stop()",
}

OTHER_SPELLINGS = {
    **_EVERYWHERE,
    **_OF_ASHA,
    "mode": "optimizer=ASHA(mode={}) for how it decides, or direction={} for what is best",
    "ablation": "maggy_like.ablate(train_fn, study)",
    "design": "maggy_like.ablate(train_fn, study, design={})",
    "repeats": "maggy_like.ablate(train_fn, study, repeats={})",
    "tune": "maggy_like.ablate(train_fn, study, tune=Tuning(searchspace))",
}
"""For ``lagom``. ``{}`` stands for the value of the argument."""

OTHER_SPELLINGS_OF_ABLATE = {
    **_EVERYWHERE,
    "searchspace": "tune=Tuning(searchspace)",
    "optimizer": "tune=Tuning(searchspace, optimizer={})",
    "n_trials": "tune=Tuning(searchspace, n_trials={})",
}
"""For ``ablate``."""

OTHER_SPELLINGS_OF_RUN = {
    **_EVERYWHERE,
    "timeout": "failures=FailurePolicy(trial_timeout={})",
    "searchspace": "maggy_like.lagom(train_fn, searchspace)",
}
"""For ``run``."""

ARGUMENT_OF_TRAIN_FN = 'config={{"{name}": {value}}} for an argument of train_fn'
"""For ``run``: any other argument."""
