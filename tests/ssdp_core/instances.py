"""Small random tables and problems for the tests, with every kind of loss and target."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ssdp_core.domain import PrivateFeatures
from ssdp_core.features import CsrFeatures, DenseFeatures, PublicRows
from ssdp_core.losses import (
    AbsoluteLoss,
    HingeLoss,
    HuberLoss,
    LogisticLoss,
    Loss,
    MultinomialLoss,
    PinballLoss,
    SmoothHingeLoss,
    SquaredLoss,
)
from ssdp_core.problems import LinearErm, PrivateTarget, Problem, PublicTarget

NUM_CLASSES = 3
LOSSES: list[Loss] = [
    LogisticLoss(),
    SquaredLoss(),
    HuberLoss(threshold=0.7),
    SmoothHingeLoss(width=0.8),
    HingeLoss(),
    AbsoluteLoss(),
    PinballLoss(quantile=0.3),
    MultinomialLoss(num_classes=NUM_CLASSES),
]
SMOOTH_LOSSES = [loss for loss in LOSSES if loss.smoothness is not None]


def loss_id(loss: Loss) -> str:
    return loss.name


@dataclass
class Table:
    rows: PublicRows
    codes: npt.NDArray[np.int32]
    private: PrivateFeatures
    num_codes: int


def targets_for(loss: Loss, size: int, rng: np.random.Generator) -> npt.NDArray[np.generic]:
    if isinstance(loss, MultinomialLoss):
        return np.concatenate(
            [np.arange(NUM_CLASSES), rng.integers(0, NUM_CLASSES, max(0, size - NUM_CLASSES))]
        )[:size]
    if loss.binary_targets:
        return np.concatenate([[0.0, 1.0], rng.integers(0, 2, max(0, size - 2))])[:size]
    return np.round(rng.normal(size=size), 2)


def make_table(
    rng: np.random.Generator,
    *,
    num_rows: int = 40,
    num_features: int = 5,
    num_codes: int = 4,
    private: str = "one_hot",
    sparse: bool = False,
    loss: Loss | None = None,
) -> Table:
    values = rng.normal(size=(num_rows, num_features)).astype(np.float32)
    values /= np.float32(np.sqrt(num_features))
    if sparse:
        values[rng.random(values.shape) < 0.6] = 0.0
        indptr = np.concatenate([[0], np.cumsum((values != 0).sum(axis=1))])
        row, column = np.nonzero(values)
        features = CsrFeatures(values[row, column], column, indptr, num_features)
    else:
        features = DenseFeatures(values)
    matrix = {
        "one_hot": np.eye(num_codes) * 0.7,
        "signed": rng.normal(size=(num_codes, 2)) * 0.5,
        "none": np.zeros((num_codes, 0)),
    }[private]
    columns = {}
    if loss is not None:
        columns["target"] = targets_for(loss, num_rows, rng)
    return Table(
        rows=PublicRows(num_rows=num_rows, features=features, columns=columns),
        codes=rng.integers(0, num_codes, num_rows).astype(np.int32),
        private=PrivateFeatures.from_matrix(matrix),
        num_codes=num_codes,
    )


def make_erm(
    table: Table,
    loss: Loss,
    rng: np.random.Generator,
    *,
    private_target: bool = False,
    l2: float = 0.1,
    radius: float = 5.0,
) -> LinearErm:
    target = (
        PrivateTarget(values=targets_for(loss, table.num_codes, rng))
        if private_target
        else PublicTarget(column="target")
    )
    problem = Problem(name=loss.name, loss=loss, target=target, l2=l2, radius=radius)
    return LinearErm.from_rows(problem, table.rows, table.private)


def random_weights(erm: LinearErm, rng: np.random.Generator, norm: float = 2.0) -> np.ndarray:
    weights = rng.normal(size=erm.num_weights)
    return weights / np.linalg.norm(weights) * norm


def random_beliefs(rng: np.random.Generator, num_rows: int, num_codes: int) -> np.ndarray:
    return rng.dirichlet(np.ones(num_codes), num_rows).astype(np.float32)
