"""Empirical risk minimisation problems over public and private features.

A problem minimises over |w| <= radius

    F(w) = (1/n) sum_i loss(<w, [x_i ; E_{a_i}]>, t_i) + (l2/2) |w|^2,

with one weight vector per output of the loss, stored as one flat vector, output by output, public
features before private ones. An intercept is a public feature that is constant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ssdp_core import _validate
from ssdp_core.domain import PrivateFeatures
from ssdp_core.features import PublicRows
from ssdp_core.losses import Loss, MarginLoss
from ssdp_core.queries.class_grid import ClassGrid
from ssdp_core.queries.gradient import GradientQuery
from ssdp_core.queries.margin_grid import MarginGrid

Float64 = npt.NDArray[np.float64]

_ROUND_UP = 1.0 + 2.0**-30
_SMALLEST_LIPSCHITZ = 1e-60
_LARGEST_LIPSCHITZ = 1e60


@dataclass(frozen=True, kw_only=True)
class PublicTarget:
    """The target is a public column of the rows."""

    column: str


@dataclass(frozen=True, kw_only=True, eq=False)
class PrivateTarget:
    """The target is a function of the private code: float or integer (k,), declared values only."""

    values: npt.NDArray[np.generic]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What to fit: a loss, a target, an l2 strength and the radius of the ball of weights."""

    name: str
    loss: Loss
    target: PublicTarget | PrivateTarget
    radius: float
    l2: float = 0.0

    def __post_init__(self) -> None:
        _validate.positive(radius=self.radius)
        _validate.non_negative(l2=self.l2)


class LinearErm:
    """A problem bound to the shape and the public bounds of a table.

    Args:
        problem: what to fit.
        num_public: number d of public features.
        private_features: private feature values of every code.
        feature_norm: public bound on |x_i| over all rows.
        target_bound: public bound on |target|.
    """

    def __init__(
        self,
        *,
        problem: Problem,
        num_public: int,
        private_features: PrivateFeatures,
        feature_norm: float,
        target_bound: float,
    ) -> None:
        self.problem = problem
        self.num_public = num_public
        self.private_features = private_features
        self.num_outputs = problem.loss.num_outputs
        self.num_weights = self.num_outputs * (num_public + private_features.num_features)
        if self.num_weights == 0:
            raise ValueError(f"problem {problem.name!r} has no features, public or private")
        if isinstance(problem.target, PrivateTarget):
            _check_private_target(problem, problem.target, private_features.num_codes)
        self.full_feature_norm = math.hypot(feature_norm, private_features.max_norm) * _ROUND_UP
        if self.full_feature_norm == 0.0:
            raise ValueError(f"problem {problem.name!r}: all features are zero")
        score_bound = problem.loss.lipschitz(
            self.full_feature_norm * problem.radius * _ROUND_UP, target_bound
        )
        self.lipschitz = score_bound * self.full_feature_norm * _ROUND_UP
        # Squares of anything near G must stay inside float64, or sensitivities would be lost.
        if not _SMALLEST_LIPSCHITZ < self.lipschitz < _LARGEST_LIPSCHITZ:
            raise ValueError(
                f"problem {problem.name!r} has gradients of norm up to {self.lipschitz:g}: rescale "
                "its features, radius or targets to be nearer to 1"
            )

    @classmethod
    def from_rows(
        cls, problem: Problem, rows: PublicRows, private_features: PrivateFeatures
    ) -> LinearErm:
        """Takes the public bounds from public rows in memory."""
        if rows.features is None:
            raise ValueError(f"problem {problem.name!r} needs public features; the rows have none")
        if isinstance(problem.target, PublicTarget):
            targets = rows.column(problem.target.column)
            problem.loss.validate_targets(targets, problem.target.column)
        else:
            targets = problem.target.values
        return cls(
            problem=problem,
            num_public=rows.features.num_columns,
            private_features=private_features,
            feature_norm=math.sqrt(float(rows.features.squared_norms().max())),
            target_bound=float(np.abs(targets.astype(np.float64)).max()),
        )

    @property
    def strong_convexity(self) -> float:
        """mu: the objective is at least l2-strongly convex."""
        return self.problem.l2

    @property
    def smoothness(self) -> float | None:
        """lambda: the objective's gradient is this Lipschitz, or None for losses with kinks."""
        if self.problem.loss.smoothness is None:
            return None
        return self.problem.loss.smoothness * self.full_feature_norm**2 + self.problem.l2

    def query(self, weights: Float64) -> GradientQuery:
        """The gradient of the data term at ``weights``, divided by G: a query of norm <= 1."""
        flat = _validate.public_array(1, np.float64, weights=weights)
        if flat.size != self.num_weights:
            raise ValueError(f"weights must have {self.num_weights} entries, got {flat.size}")
        # G was computed for this ball; outside it the norm bound of the query would be wrong.
        if np.linalg.norm(flat) > self.problem.radius * (1.0 + 1e-9):
            raise ValueError(f"weights must lie in the ball of radius {self.problem.radius:g}")
        matrix = flat.reshape(self.num_outputs, -1)
        return GradientQuery(
            weights=matrix,
            private_features=self.private_features,
            grid=self._grid(matrix),
            lipschitz=self.lipschitz,
        )

    def gradient(self, weights: Float64, answer: Float64) -> Float64:
        """The objective's gradient from the (mean) answer to :meth:`query`."""
        return self.lipschitz * answer + self.problem.l2 * weights

    def project(self, weights: Float64) -> Float64:
        """The nearest point of the ball."""
        norm = float(np.linalg.norm(weights))
        return weights if norm <= self.problem.radius else weights * (self.problem.radius / norm)

    def _grid(self, matrix: Float64) -> MarginGrid | ClassGrid:
        target = self.problem.target
        private_weights = matrix[:, self.num_public :]
        offsets = np.stack([self.private_features.apply(w) for w in private_weights], axis=1)
        column = target.column if isinstance(target, PublicTarget) else None
        values = target.values if isinstance(target, PrivateTarget) else None
        if isinstance(self.problem.loss, MarginLoss):
            return MarginGrid(
                loss=self.problem.loss,
                private_features=self.private_features,
                offsets=np.ascontiguousarray(offsets[:, 0]),
                public_target=column,
                private_targets=None if values is None else values.astype(np.float64),
            )
        return ClassGrid(
            private_features=self.private_features,
            offsets=offsets,
            public_target=column,
            private_classes=None if values is None else values.astype(np.int64),
        )


def _check_private_target(problem: Problem, target: PrivateTarget, num_codes: int) -> None:
    if target.values.shape != (num_codes,):
        raise ValueError(
            f"problem {problem.name!r}: a private target needs one declared value for each of the "
            f"{num_codes} codes, got shape {target.values.shape}"
        )
    problem.loss.validate_targets(target.values, "private target of " + problem.name)
