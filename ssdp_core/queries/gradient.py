"""Gradients of linear models as linear vector queries.

A model has one weight vector per output (one output for margin losses, C for the multinomial
loss) over the features phi(i, y) = [x_i ; E_y]: d public ones and the private features of code y.
With scores s(i, y) in R^C the gradient of the loss is s(i, y) (x) phi(i, y), so

    f(i, y) = s(i, y) (x) [x_i ; E_y] / G,      |f(i, y)| <= 1,

where G is the loss's Lipschitz constant. The layout of f is output by output, public features
before private ones: index c*(d + d_priv) + j. The regulariser's gradient is public and is added by
the caller, not asked.

Rooms: this module knows features and layout; the two *grids* know scores
(:mod:`ssdp_core.queries.margin_grid`, :mod:`ssdp_core.queries.class_grid`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ssdp_core.domain import PrivateFeatures
from ssdp_core.features import Features, PublicRows
from ssdp_core.queries.base import (
    BlockEvaluation,
    Codes,
    Float32,
    Float64,
    Tile,
    tile_bounds,
    widen_squared_sensitivity,
)

Targets = npt.NDArray[Any]
"""float64 targets of a margin loss, int32 classes of the multinomial loss."""


class ScoreGrid(Protocol):
    """Scores s(i, y) of some rows, reduced in the three ways a pass needs.

    Shapes: margins float64 (rows, C), code_sums float64 (k, C), row results float64 (rows, C).
    """

    def row_targets(self, rows: PublicRows) -> Targets:
        """The rows' public targets in the grid's own representation (neutral if private)."""

    def data_scores(
        self, margins: Float64, targets: Targets, codes: Codes, code_sums: Float64
    ) -> Float64:
        """PRIVATE. s(i, a_i) per row; adds them per code to ``code_sums``."""

    def belief_scores(
        self, margins: Float64, targets: Targets, beliefs: Float32, code_sums: Float64
    ) -> Float64:
        """sum_y p_i(y) s(i, y) per row; adds p_i(y) s(i, y) per code to ``code_sums``."""

    def inner_products(
        self, margins: Float64, targets: Targets, row_products: Float64, code_products: Float64
    ) -> Float32:
        """sum_c s_c(i, y) (row_products[i, c] + code_products[y, c]): float32 (rows, k)."""

    def squared_distance(self, margins: Float64, targets: Targets, squared_norms: Float64) -> float:
        """A bound on |s (x) phi - s' (x) phi'|^2 over the rows and all pairs of codes."""


class GradientQuery:
    """The gradient of one model's loss at fixed weights, divided by its Lipschitz constant.

    Guarantee:
        ``evaluate(...).row_sensitivity`` bounds |f(i, y) - f(i, y')| for every row of the block and
        every pair of codes. It is computed from public data only, in float64, and rounded up.

    Args:
        weights: float64 (outputs, d + d_priv).
        private_features: values of the private features for every code.
        grid: scores of the loss at these weights.
        lipschitz: G, an upper bound on the norm of the unscaled gradient.
    """

    def __init__(
        self,
        *,
        weights: Float64,
        private_features: PrivateFeatures,
        grid: ScoreGrid,
        lipschitz: float,
    ) -> None:
        self._weights = weights
        self._private = private_features
        self._grid = grid
        self._scale = 1.0 / lipschitz
        self._num_public = weights.shape[1] - private_features.num_features
        self._public_weights = weights[:, : self._num_public]

    @property
    def dimension(self) -> int:
        """Outputs * (d + d_priv)."""
        return int(self._weights.size)

    @property
    def num_codes(self) -> int:
        """Size k of the private domain."""
        return self._private.num_codes

    @property
    def norm_bound(self) -> float:
        """1 by construction."""
        return 1.0

    def evaluate(
        self, rows: PublicRows, *, beliefs: Float32 | None = None, codes: Codes | None = None
    ) -> BlockEvaluation:
        """Sums of the scaled gradient over ``rows``; each row's features are read once."""
        features = self._features(rows)
        targets = self._grid.row_targets(rows)
        data = None if codes is None else _Sums(self._weights.shape, self.num_codes)
        average = None if beliefs is None else _Sums(self._weights.shape, self.num_codes)
        squared_distance = 0.0
        for start, stop in self._tiles(rows):
            tile = features.rows(start, stop)
            tile_targets = targets[start:stop]
            margins = self._row_products(tile, self._public_weights)
            here = self._grid.squared_distance(margins, tile_targets, tile.squared_norms())
            squared_distance = here if not here <= squared_distance else squared_distance
            if codes is not None and data is not None:
                scores = self._grid.data_scores(
                    margins, tile_targets, codes[start:stop], data.per_code
                )
                data.add_rows(tile, scores)
            if beliefs is not None and average is not None:
                scores = self._grid.belief_scores(
                    margins, tile_targets, beliefs[start:stop], average.per_code
                )
                average.add_rows(tile, scores)
        return BlockEvaluation(
            data_sum=None if data is None else data.total(self._private, self._scale),
            belief_sum=None if average is None else average.total(self._private, self._scale),
            row_sensitivity=widen_squared_sensitivity(squared_distance * self._scale**2, 1.0),
        )

    def inner_products(self, rows: PublicRows, direction: Float64) -> Iterator[Tile]:
        """<direction, f(i, y)>, tile by tile."""
        features = self._features(rows)
        targets = self._grid.row_targets(rows)
        parts = direction.reshape(self._weights.shape)
        public_part = parts[:, : self._num_public]
        private_part = parts[:, self._num_public :]
        code_products = np.stack([self._private.apply(v) for v in private_part], axis=1)
        for start, stop in self._tiles(rows):
            tile = features.rows(start, stop)
            products = self._grid.inner_products(
                self._row_products(tile, self._public_weights),
                targets[start:stop],
                self._row_products(tile, public_part) * self._scale,
                code_products * self._scale,
            )
            yield Tile(start, stop, products)

    def _features(self, rows: PublicRows) -> Features:
        if rows.features is None:
            raise ValueError("a gradient query needs public features; these rows have none")
        if rows.features.num_columns != self._num_public:
            raise ValueError(
                f"weights expect {self._num_public} public features, "
                f"the rows have {rows.features.num_columns}"
            )
        return rows.features

    def _tiles(self, rows: PublicRows) -> Iterator[tuple[int, int]]:
        width = self._features(rows).cells_per_row + 2 * self.num_codes
        return tile_bounds(rows.num_rows, width)

    def _row_products(self, features: Features, vectors: Float64) -> Float64:
        """X @ vectors.T: float64 (rows, outputs)."""
        if vectors.shape[0] == 1:
            return features.margins(vectors[0])[:, None]
        return np.stack([features.margins(vector) for vector in vectors], axis=1)


class _Sums:
    """A gradient sum in the making: X^T s output by output, and the scores' sums per code.

    One vector of the final layout is allocated and nothing else of its size: at a million features
    every copy counts.
    """

    def __init__(self, shape: tuple[int, ...], num_codes: int) -> None:
        self._values = np.zeros(shape)
        self.per_code = np.zeros((num_codes, shape[0]))

    def add_rows(self, features: Features, scores: Float64) -> None:
        """Adds X^T s for some rows; scores are float64 (rows, outputs)."""
        for output in range(scores.shape[1]):
            public = self._values[output, : features.num_columns]
            features.accumulate(np.ascontiguousarray(scores[:, output]), public)

    def total(self, private_features: PrivateFeatures, scale: float) -> Float64:
        """[X^T s ; E^T (sums per code)] * scale, output by output."""
        num_private = private_features.num_features
        if num_private:
            for output, sums in enumerate(self.per_code.T):
                self._values[output, -num_private:] = private_features.pull_back(sums)
        self._values *= scale
        return self._values.reshape(-1)
