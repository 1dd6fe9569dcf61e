"""models.json: names and numbers, readable without ssdp and without pickle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.encode import INTERCEPT, EncoderPlan
from pipeline.spec import Spec
from ssdp_core.domain import PrivateFeatures

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Model:
    """One fitted model: weights (outputs, features) over public then private features."""

    name: str
    target: str
    loss: str
    weights: Float64
    num_public: int


def models_json(
    spec: Spec,
    plan: EncoderPlan,
    weights: Sequence[Float64],
    private_features: Sequence[PrivateFeatures],
    *,
    is_private: bool,
    is_complete: bool,
) -> dict[str, Any]:
    """The content of models.json."""
    public_names = list(plan.feature_names)
    models = []
    for problem, flat, private in zip(spec.problem_specs, weights, private_features, strict=True):
        width = len(public_names) + len(private.names)
        matrix = flat.reshape(-1, width)
        models.append(
            {
                "name": problem.name,
                "target": problem.target,
                "loss": problem.loss,
                "features": [*public_names, *private.names],
                "num_public": len(public_names),
                "weights": matrix.tolist(),
                "intercept": matrix[:, public_names.index(INTERCEPT)].tolist(),
            }
        )
    return {
        "format": 1,
        "private": is_private,
        "warning": None if is_private else "NOT PRIVATE: seeded or noise-free run",
        "complete": is_complete,
        "models": models,
    }


def read_models(content: dict[str, Any]) -> list[Model]:
    """The models of models.json."""
    return [
        Model(
            name=model["name"],
            target=model["target"],
            loss=model["loss"],
            weights=np.array(model["weights"], dtype=np.float64),
            num_public=model["num_public"],
        )
        for model in content["models"]
    ]
