"""Scores of the multinomial loss (one output per class) over rows and codes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ssdp_core.domain import PrivateFeatures
from ssdp_core.features import PublicRows
from ssdp_core.kernels import class_kernels
from ssdp_core.queries.base import Codes, Float32, Float64

Targets = npt.NDArray[Any]
_ELSEWHERE = -1  # "this array does not hold the target", see class_kernels


class ClassGrid:
    """s(i, y) = softmax(z_i + b_y) - e_target, with the target class public or private.

    Args:
        private_features: E; with its bounds on norms and inner products of its rows.
        offsets: float64 (k, C), E_y . u_c.
        public_target: name of the public target column, or None if the target is private.
        private_classes: integer (k,) class of every code, or None if it is public.
    """

    def __init__(
        self,
        *,
        private_features: PrivateFeatures,
        offsets: Float64,
        public_target: str | None,
        private_classes: npt.NDArray[np.int64] | None,
    ) -> None:
        self._private = private_features
        self._offsets = np.ascontiguousarray(offsets)
        self._offsets32 = self._offsets.astype(np.float32)
        self._public_target = public_target
        self._code_targets = (
            np.full(offsets.shape[0], _ELSEWHERE, dtype=np.int32)
            if private_classes is None
            else private_classes.astype(np.int32)
        )

    def row_targets(self, rows: PublicRows) -> Targets:
        """Public classes as int32, or -1 if the target is private."""
        if self._public_target is None:
            return np.full(rows.num_rows, _ELSEWHERE, dtype=np.int32)
        return np.ascontiguousarray(rows.column(self._public_target), dtype=np.int32)

    def data_scores(
        self, margins: Float64, targets: Targets, codes: Codes, code_sums: Float64
    ) -> Float64:
        """PRIVATE. s(i, a_i), in float64."""
        scores = np.empty(margins.shape)
        class_kernels.data_reduce_classes(
            margins, targets, self._offsets, self._code_targets, codes, scores, code_sums
        )
        return scores

    def belief_scores(
        self, margins: Float64, targets: Targets, beliefs: Float32, code_sums: Float64
    ) -> Float64:
        """E_{p_i} s(i, .), in float32 over the grid."""
        scores = np.empty(margins.shape)
        class_kernels.belief_reduce_classes(
            margins.astype(np.float32),
            targets,
            self._offsets32,
            self._code_targets,
            beliefs,
            scores,
            code_sums,
        )
        return scores

    def inner_products(
        self, margins: Float64, targets: Targets, row_products: Float64, code_products: Float64
    ) -> Float32:
        """sum_c s_c(i, y) (row_products[i, c] + code_products[y, c])."""
        out = np.empty((margins.shape[0], self._offsets.shape[0]), dtype=np.float32)
        class_kernels.inner_products_classes(
            margins.astype(np.float32),
            targets,
            self._offsets32,
            self._code_targets,
            row_products.astype(np.float32),
            code_products.astype(np.float32),
            out,
        )
        return out

    def squared_distance(self, margins: Float64, targets: Targets, squared_norms: Float64) -> float:
        """Max over rows and codes of |s (x) phi - s' (x) phi'|^2, from above.

        Write S^2 for the row's largest |s|^2 and W^2 for its largest |s - s'|^2. Then, with B^2 and
        c as in :class:`ssdp_core.queries.margin_grid.MarginGrid`,

            |s phi - s' phi'|^2 <= |x|^2 |s - s'|^2 + B^2 (|s|^2 + |s'|^2) - 2 c <s, s'>
                                 = |x|^2 |s - s'|^2 + (B^2 - c)(|s|^2 + |s'|^2) + c |s - s'|^2
                                <= |x|^2 W^2 + 2 (B^2 - c) S^2 + max(c, 0) W^2,

        at the worse end of c's range (the bound is piecewise linear and convex in c).
        """
        squared_spread = np.empty(margins.shape[0])
        largest_squared = np.empty(margins.shape[0])
        class_kernels.score_spread_classes(
            margins, targets, self._offsets, self._code_targets, squared_spread, largest_squared
        )
        squared_private = self._private.max_norm**2
        largest = 0.0
        for inner in (self._private.inner_min, self._private.inner_max):
            bound = (
                squared_norms * squared_spread
                + 2.0 * (squared_private - inner) * largest_squared
                + max(inner, 0.0) * squared_spread
            )
            if not np.isfinite(bound).all():
                return math.inf
            largest = max(largest, float(bound.max()))
        return largest
