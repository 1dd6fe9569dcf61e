"""NOT PRIVATE: exact evaluation on data whose codes the caller may see.

For tests, benchmarks, the demo and held-out tables. Nothing here is charged, and nothing here is
used while fitting.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import optimize

from ssdp_core.features import PublicRows
from ssdp_core.losses import MarginLoss
from ssdp_core.problems import LinearErm, PublicTarget

Float64 = npt.NDArray[np.float64]


def margins(
    erm: LinearErm, rows: PublicRows, codes: npt.NDArray[np.int32], weights: Float64
) -> Float64:
    """<w, [x_i ; E_{a_i}]>: float64 (n,), or (n, C) for several outputs."""
    assert rows.features is not None  # LinearErm has checked it
    matrix = weights.reshape(erm.num_outputs, -1)
    columns = []
    for vector in matrix:
        public = rows.features.margins(np.ascontiguousarray(vector[: erm.num_public]))
        columns.append(public + erm.private_features.apply(vector[erm.num_public :])[codes])
    return np.stack(columns, axis=1) if erm.num_outputs > 1 else columns[0]


def targets(
    erm: LinearErm, rows: PublicRows, codes: npt.NDArray[np.int32]
) -> npt.NDArray[np.generic]:
    """The target of every row."""
    target = erm.problem.target
    column = (
        rows.column(target.column) if isinstance(target, PublicTarget) else target.values[codes]
    )
    return column.astype(np.float64 if isinstance(erm.problem.loss, MarginLoss) else np.int64)


def objective(
    erm: LinearErm, rows: PublicRows, codes: npt.NDArray[np.int32], weights: Float64
) -> float:
    """F(w) of :mod:`ssdp_core.problems` on the given rows."""
    values = erm.problem.loss.value(margins(erm, rows, codes, weights), targets(erm, rows, codes))
    return float(np.mean(values)) + 0.5 * erm.problem.l2 * float(weights @ weights)


def gradient(
    erm: LinearErm, rows: PublicRows, codes: npt.NDArray[np.int32], weights: Float64
) -> Float64:
    """The (sub)gradient of :func:`objective`, from the loss itself and not through a query."""
    assert rows.features is not None  # LinearErm has checked it
    derivative = erm.problem.loss.derivative(
        margins(erm, rows, codes, weights), targets(erm, rows, codes)
    )
    scores = derivative.reshape(rows.num_rows, erm.num_outputs)
    parts = []
    for column in scores.T:
        public = np.zeros(erm.num_public)
        rows.features.accumulate(np.ascontiguousarray(column), public)
        per_code = np.bincount(codes, weights=column, minlength=erm.private_features.num_codes)
        parts += [public, erm.private_features.pull_back(per_code.astype(np.float64))]
    return np.concatenate(parts) / rows.num_rows + erm.problem.l2 * weights


def minimise(erm: LinearErm, rows: PublicRows, codes: npt.NDArray[np.int32]) -> Float64:
    """The minimiser of a smooth objective, by L-BFGS; an error if the ball is in its way."""
    if erm.smoothness is None:
        raise ValueError(f"problem {erm.problem.name!r} has kinks; minimise a smooth loss")

    def value_and_gradient(w: Float64) -> tuple[float, Float64]:
        return objective(erm, rows, codes, w), gradient(erm, rows, codes, w)

    result = optimize.minimize(
        value_and_gradient,
        np.zeros(erm.num_weights),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 2000, "ftol": 1e-15, "gtol": 1e-9},
    )
    weights = np.asarray(result.x)
    if np.linalg.norm(weights) > erm.problem.radius:
        raise ValueError(
            f"the minimiser of problem {erm.problem.name!r} lies outside its ball of radius "
            f"{erm.problem.radius:g}: enlarge the radius"
        )
    return weights
