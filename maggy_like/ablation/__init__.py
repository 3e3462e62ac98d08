"""Ablation studies, which measure the contribution of each part of a training run.

A study declares components (features, modules, parameters, anything else). A design lists the variants, each without
some of the components. An outcome says which components make a difference::

    study = (
        AblationStudy(model=make_network, data=table, label="target", sample=torch.zeros(2, 30))
        .features(size=["*radius*", "*area*"], texture="*texture*")
        .modules("norm", residual="block.inner")
        .config(dropout=0.0)
    )
"""

from __future__ import annotations

from maggy_like.ablation.comparisons import Run
from maggy_like.ablation.design import Design
from maggy_like.ablation.outcome import Ablation
from maggy_like.ablation.study import AblationStudy
from maggy_like.ablation.variant import Variant

__all__ = ["Ablation", "AblationStudy", "Design", "Run", "Variant"]
