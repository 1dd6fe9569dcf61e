"""Scores of margin losses (one output) over rows and codes."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ssdp_core.domain import PrivateFeatures
from ssdp_core.features import PublicRows
from ssdp_core.kernels import gradient_kernels
from ssdp_core.kernels.elementary import EXP32_LIMIT, exp32_array
from ssdp_core.kernels.loss_codes import LOGISTIC
from ssdp_core.losses import MarginLoss
from ssdp_core.queries.base import Codes, Float32, Float64

Targets = npt.NDArray[Any]
_GridArguments: TypeAlias = tuple[int, np.float32, Float32, Float32, Float32, Float32]
"""The leading arguments that every float32 grid kernel takes, in their order."""
_LogisticArguments: TypeAlias = tuple[Float32, Float32, Float32, Float32]
"""The leading arguments of the logistic kernels."""


class MarginGrid:
    """s(i, y) = loss'(z_i + b_y, target), with the target public (per row) or private (per code).

    Args:
        loss: the margin loss.
        private_features: E; with its bounds on norms and inner products of its rows.
        offsets: b_y = E_y . u, float64 (k,).
        public_target: name of the public target column, or None if the target is private.
        private_targets: float64 (k,) target of every code, or None if it is public.
    """

    def __init__(
        self,
        *,
        loss: MarginLoss,
        private_features: PrivateFeatures,
        offsets: Float64,
        public_target: str | None,
        private_targets: Float64 | None,
    ) -> None:
        self._loss = loss
        self._private = private_features
        self._offsets = offsets
        self._public_target = public_target
        self._code_targets = np.zeros_like(offsets) if private_targets is None else private_targets
        # Of the codes that share a target value only the extreme offsets matter to a range.
        self._target_values, group = np.unique(self._code_targets, return_inverse=True)
        self._extreme_offsets = np.array(
            [_two_extremes(offsets[group == v]) for v in range(self._target_values.size)]
        )
        # The float32 side, for belief passes.
        self._offsets32 = offsets.astype(np.float32)
        self._code_targets32 = self._code_targets.astype(np.float32)
        self._exp_minus_offsets32 = _exp_of_minus(self._offsets32)
        self._largest_offset = float(np.abs(offsets).max())

    def row_targets(self, rows: PublicRows) -> Targets:
        """Public targets as float64, or zeros if the target is private."""
        if self._public_target is None:
            return np.zeros(rows.num_rows)
        return np.ascontiguousarray(rows.column(self._public_target), dtype=np.float64)

    def data_scores(
        self, margins: Float64, targets: Targets, codes: Codes, code_sums: Float64
    ) -> Float64:
        """PRIVATE. s(i, a_i), in float64."""
        scores = np.empty(margins.shape[0])
        gradient_kernels.data_reduce(
            self._loss.kernel_code,
            self._loss.parameter,
            margins[:, 0],
            targets,
            self._offsets,
            self._code_targets,
            codes,
            scores,
            code_sums[:, 0],
        )
        return scores[:, None]

    def belief_scores(
        self, margins: Float64, targets: Targets, beliefs: Float32, code_sums: Float64
    ) -> Float64:
        """E_{p_i} s(i, .), in float32 over the grid."""
        scores = np.empty(margins.shape[0])
        fast = self._logistic_arguments(margins, targets)
        if fast is not None:
            gradient_kernels.belief_reduce_logistic(*fast, beliefs, scores, code_sums[:, 0])
        else:
            gradient_kernels.belief_reduce(
                *self._grid_arguments(margins, targets), beliefs, scores, code_sums[:, 0]
            )
        return scores[:, None]

    def inner_products(
        self, margins: Float64, targets: Targets, row_products: Float64, code_products: Float64
    ) -> Float32:
        """s(i, y) (row_products[i] + code_products[y])."""
        out = np.empty((margins.shape[0], self._offsets.size), dtype=np.float32)
        rows32 = row_products[:, 0].astype(np.float32)
        codes32 = code_products[:, 0].astype(np.float32)
        fast = self._logistic_arguments(margins, targets)
        if fast is not None:
            gradient_kernels.inner_products_logistic(*fast, rows32, codes32, out)
        else:
            gradient_kernels.inner_products(
                *self._grid_arguments(margins, targets), rows32, codes32, out
            )
        return out

    def squared_distance(self, margins: Float64, targets: Targets, squared_norms: Float64) -> float:
        """Max over rows and codes y, y' of |s phi - s' phi'|^2, from above.

        With s, s' the two scores, x the row's public features, B^2 >= |E_y|^2 and c the inner
        product of the two codes' private features,

            |s phi - s' phi'|^2 <= |x|^2 (s - s')^2 + B^2 (s^2 + s'^2) - 2 c s s'.

        The right-hand side is linear in c, so the worse end of c's range bounds it, and for fixed c
        with |c| <= B^2 it is convex in s and in s'. So at a maximum over distinct codes, s is the
        smallest or largest score among the codes other than y', and s' among those other than y:
        the pair is (smallest, largest), (smallest, second smallest) or (largest, second largest).
        Where all |E_y| are equal and c takes one value (one one-hot column, or a sensitive target
        only) this is exact.
        """
        return float(
            gradient_kernels.largest_squared_distance(
                self._loss.kernel_code,
                self._loss.parameter,
                margins[:, 0],
                targets,
                squared_norms,
                self._target_values,
                self._extreme_offsets,
                self._private.max_norm**2,
                self._private.inner_min,
                self._private.inner_max,
            )
        )

    def _grid_arguments(self, margins: Float64, targets: Targets) -> _GridArguments:
        return (
            self._loss.kernel_code,
            np.float32(self._loss.parameter),
            margins[:, 0].astype(np.float32),
            targets.astype(np.float32),
            self._offsets32,
            self._code_targets32,
        )

    def _logistic_arguments(self, margins: Float64, targets: Targets) -> _LogisticArguments | None:
        """Arguments of the fast kernels, or None if the loss or the size of margins forbids."""
        if self._loss.kernel_code != LOGISTIC:
            return None
        exp_minus_margins = np.empty(margins.shape[0], dtype=np.float32)
        targets32 = np.empty(margins.shape[0], dtype=np.float32)
        within = gradient_kernels.prepare_logistic(
            margins[:, 0], targets, self._largest_offset, exp_minus_margins, targets32
        )
        if not within:
            return None
        return exp_minus_margins, targets32, self._exp_minus_offsets32, self._code_targets32


def _exp_of_minus(values: Float32) -> Float32:
    """exp(-values) in float32; arguments beyond float32's range are clamped (and not used)."""
    out = np.empty_like(values)
    exp32_array(np.clip(-values, -EXP32_LIMIT, EXP32_LIMIT), out)
    return out


def _two_extremes(offsets: Float64) -> Float64:
    """Smallest, largest, second smallest and second largest; NaN for a missing second."""
    ordered = np.sort(offsets)
    second_low, second_high = (ordered[1], ordered[-2]) if ordered.size > 1 else (np.nan, np.nan)
    return np.array([ordered[0], ordered[-1], second_low, second_high])
