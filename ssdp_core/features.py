"""Public rows: features, dense or sparse, and named public columns.

Features are float32 (half the bytes of a pass; they are public data, so this loses nothing that
privacy relies on). All arithmetic on them is float64. A :class:`PublicRows` carries everything
about some rows except their private codes, which travel separately and never inside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ssdp_core import _validate
from ssdp_core.kernels import feature_kernels

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


class Features(Protocol):
    """A matrix of public features, one row per example."""

    @property
    def num_rows(self) -> int:
        """Number of examples."""

    @property
    def num_columns(self) -> int:
        """Dimension d of the public features."""

    @property
    def cells_per_row(self) -> int:
        """Stored numbers per row, on average: what a tile of rows brings into the cache."""

    def rows(self, start: int, stop: int) -> Features:
        """A view of some rows; nothing is copied."""

    def take(self, chosen: npt.NDArray[np.int64]) -> Features:
        """A copy of the chosen rows."""

    def margins(self, weights: Float64) -> Float64:
        """``X @ weights``: float64 (num_rows,)."""

    def accumulate(self, row_weights: Float64, total: Float64) -> None:
        """``total += X.T @ row_weights``, rows in order; ``total`` is float64 (num_columns,)."""

    def squared_norms(self) -> Float64:
        """Squared l2 norm of every row: float64 (num_rows,)."""


class DenseFeatures:
    """Features as a C-contiguous float32 matrix of shape (num_rows, num_columns)."""

    def __init__(self, values: npt.ArrayLike) -> None:
        self.values: Float32 = _validate.public_array(2, np.float32, features=values)
        # Norms are needed in every pass, for the sensitivity, and never change.
        self._squared_norms = np.empty(self.num_rows, dtype=np.float64)
        feature_kernels.dense_squared_norms(self.values, self._squared_norms)

    @property
    def num_rows(self) -> int:
        """Number of examples."""
        return int(self.values.shape[0])

    @property
    def num_columns(self) -> int:
        """Dimension d of the public features."""
        return int(self.values.shape[1])

    @property
    def cells_per_row(self) -> int:
        """Stored numbers per row."""
        return self.num_columns

    def rows(self, start: int, stop: int) -> DenseFeatures:
        """A view of some rows."""
        view = DenseFeatures.__new__(DenseFeatures)
        view.values = self.values[start:stop]
        view._squared_norms = self._squared_norms[start:stop]
        return view

    def take(self, chosen: npt.NDArray[np.int64]) -> DenseFeatures:
        """A copy of the chosen rows."""
        return DenseFeatures(self.values[chosen])

    def margins(self, weights: Float64) -> Float64:
        """``X @ weights``."""
        out = np.empty(self.num_rows, dtype=np.float64)
        feature_kernels.dense_margins(self.values, weights, out)
        return out

    def accumulate(self, row_weights: Float64, total: Float64) -> None:
        """``total += X.T @ row_weights``."""
        feature_kernels.dense_accumulate(self.values, row_weights, total)

    def squared_norms(self) -> Float64:
        """Squared l2 norm of every row."""
        return self._squared_norms


class CsrFeatures:
    """Sparse features in compressed rows: ``data[indptr[i]:indptr[i+1]]`` belongs to row i."""

    def __init__(
        self,
        data: npt.ArrayLike,
        indices: npt.ArrayLike,
        indptr: npt.ArrayLike,
        num_columns: int,
    ) -> None:
        self.data: Float32 = _validate.public_array(1, np.float32, data=data)
        self.indices = _validate.public_array(1, np.int32, indices=indices)
        self.indptr = _validate.public_array(1, np.int64, indptr=indptr)
        self._num_columns = _validate.integer_at_least(1, num_columns=num_columns)
        if self.indptr.size == 0 or self.indptr[0] != 0 or (np.diff(self.indptr) < 0).any():
            raise ValueError("indptr must start at 0 and never fall")
        if not self.indptr[-1] == self.data.size == self.indices.size:
            raise ValueError(
                f"data and indices must both have indptr[-1] = {self.indptr[-1]} entries, "
                f"got {self.data.size} and {self.indices.size}"
            )
        if self.indices.size and not 0 <= self.indices.min() <= self.indices.max() < num_columns:
            raise ValueError(f"indices must lie in 0..{num_columns - 1}")
        # A column named twice in one row would make the row's true norm larger than the norm of
        # its entries, and the sensitivity too small.
        if not feature_kernels.csr_is_canonical(self.indices, self.indptr):
            raise ValueError(
                "indices must rise strictly within each row: sort them and add up duplicates first"
            )
        self._squared_norms = np.empty(self.num_rows, dtype=np.float64)
        feature_kernels.csr_squared_norms(self.data, self.indptr, self._squared_norms)

    @property
    def num_rows(self) -> int:
        """Number of examples."""
        return int(self.indptr.size - 1)

    @property
    def num_columns(self) -> int:
        """Dimension d of the public features."""
        return self._num_columns

    @property
    def cells_per_row(self) -> int:
        """Stored numbers per row: values and their column indices."""
        return 1 + 2 * int(self.indptr[-1] - self.indptr[0]) // max(1, self.num_rows)

    def rows(self, start: int, stop: int) -> CsrFeatures:
        """A view of some rows: the same data and indices with a slice of the row pointers."""
        view = CsrFeatures.__new__(CsrFeatures)
        view.data, view.indices = self.data, self.indices
        view.indptr = self.indptr[start : stop + 1]
        view._num_columns = self._num_columns
        view._squared_norms = self._squared_norms[start:stop]
        return view

    def take(self, chosen: npt.NDArray[np.int64]) -> CsrFeatures:
        """A copy of the chosen rows."""
        spans = [slice(int(self.indptr[i]), int(self.indptr[i + 1])) for i in chosen]
        data = [self.data[span] for span in spans]
        indices = [self.indices[span] for span in spans]
        return CsrFeatures(
            np.concatenate([*data, self.data[:0]]),
            np.concatenate([*indices, self.indices[:0]]),
            np.concatenate([[0], np.cumsum([part.size for part in data], dtype=np.int64)]),
            self.num_columns,
        )

    def margins(self, weights: Float64) -> Float64:
        """``X @ weights``."""
        out = np.empty(self.num_rows, dtype=np.float64)
        feature_kernels.csr_margins(self.data, self.indices, self.indptr, weights, out)
        return out

    def accumulate(self, row_weights: Float64, total: Float64) -> None:
        """``total += X.T @ row_weights``."""
        feature_kernels.csr_accumulate(self.data, self.indices, self.indptr, row_weights, total)

    def squared_norms(self) -> Float64:
        """Squared l2 norm of every row."""
        return self._squared_norms


@dataclass(frozen=True, kw_only=True)
class PublicRows:
    """Some rows of the table without their private part.

    Attributes:
        features: public features, or None where only queries on columns are asked.
        columns: named public columns of one entry per row: targets (float64) and groups (integers).
        num_rows: number of rows.
    """

    num_rows: int
    features: Features | None = None
    columns: Mapping[str, npt.NDArray[np.generic]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _validate.integer_at_least(1, num_rows=self.num_rows)
        if self.features is not None and self.features.num_rows != self.num_rows:
            raise ValueError(
                f"features must have {self.num_rows} rows, got {self.features.num_rows}"
            )
        for name, column in self.columns.items():
            if column.shape != (self.num_rows,):
                raise ValueError(
                    f"column {name!r} must have shape ({self.num_rows},), got {column.shape}"
                )

    def rows(self, start: int, stop: int) -> PublicRows:
        """A view of some rows."""
        return PublicRows(
            num_rows=stop - start,
            features=None if self.features is None else self.features.rows(start, stop),
            columns={name: column[start:stop] for name, column in self.columns.items()},
        )

    def column(self, name: str) -> npt.NDArray[np.generic]:
        """A public column by name, or one sentence that lists what there is."""
        if name not in self.columns:
            known = ", ".join(sorted(self.columns)) or "none"
            raise ValueError(f"there is no public column {name!r}; known columns: {known}")
        return self.columns[name]
