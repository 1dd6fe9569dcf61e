"""The hard instances behind the lower bounds: private selection, many times over.

From Ghazi et al., On Convex Optimization with Semi-Sensitive Features, COLT 2024, Appendix
"Excess Risk Lower Bound". The n rows form n' groups of r rows. The public part of a row is its
group; its private part is a code in 0..k-1, drawn uniformly once per group and shared by its rows.
A row of group g with code y points at coordinate j = k g + y of a flat weight vector of length
d = n' k, and its loss is

    convex:           -G w_j
    strongly convex:  (mu / 2) |w - R e_j|^2

on the ball of radius R. To have low risk is to know which of its k coordinates each group chose; r
is as large as group privacy allows while that stays hidden. `bounds.convex_lower_bound` and
`bounds.strongly_convex_lower_bound` say how much risk must remain.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import numpy.typing as npt

from ssdp_core import _validate
from ssdp_core.bounds import selection_replication

FloatVector = npt.NDArray[np.float64]
CodeVector = npt.NDArray[np.int32]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class SelectionInstance:
    """One dataset and its loss.

    Risk and optimum are exact for any codes, also when rows of one group differ, so that a
    neighbouring dataset is ``dataclasses.replace(instance, codes=...)``.

    Attributes:
        num_groups: n'.
        replication: r, rows per group; the dataset has n' r rows.
        num_codes: k.
        group_ids: The public part, int32 of shape (n' r,), in 0..n'-1.
        codes: The private part, int32 of shape (n' r,), in 0..k-1.
        lipschitz: G.
        radius: R, of the domain.
        strong_convexity: mu, or None for the linear loss.
    """

    num_groups: int
    replication: int
    num_codes: int
    group_ids: CodeVector
    codes: CodeVector = dataclasses.field(repr=False)
    lipschitz: float
    radius: float
    strong_convexity: float | None = None

    def __post_init__(self) -> None:
        _validate.integer_at_least(1, num_groups=self.num_groups)
        _validate.integer_at_least(1, replication=self.replication)
        _validate.integer_at_least(2, num_codes=self.num_codes)
        _validate.positive(lipschitz=self.lipschitz)
        _validate.positive(radius=self.radius)
        if self.strong_convexity is not None:
            _validate.positive(strong_convexity=self.strong_convexity)
        groups = np.asarray(self.group_ids)
        if groups.shape != (self.num_rows,) or not np.issubdtype(groups.dtype, np.integer):
            raise ValueError(
                f"group_ids must be {self.num_rows} integers (num_groups * replication), got shape "
                f"{groups.shape} of {groups.dtype}"
            )
        if groups.min() < 0 or groups.max() >= self.num_groups:
            raise ValueError(f"group_ids must lie in 0..{self.num_groups - 1}")
        object.__setattr__(self, "group_ids", np.ascontiguousarray(groups, dtype=np.int32))
        codes = _validate.private_codes(self.codes, self.num_rows, self.num_codes)
        object.__setattr__(self, "codes", codes)

    @property
    def num_rows(self) -> int:
        """The number of rows, n' r."""
        return self.num_groups * self.replication

    @property
    def dimension(self) -> int:
        """The length of a weight vector, d = n' k."""
        return self.num_groups * self.num_codes

    @functools.cached_property
    def _coordinate_frequencies(self) -> FloatVector:
        """The share of rows that point at each coordinate: h = mean_i e_{j_i}, shape (d,)."""
        coordinates = self.group_ids.astype(np.int64) * self.num_codes + self.codes
        return np.bincount(coordinates, minlength=self.dimension) / self.num_rows

    def _weights(self, weights: npt.ArrayLike) -> FloatVector:
        array = _validate.public_array(1, weights=weights)
        if array.shape != (self.dimension,):
            raise ValueError(f"weights must have shape ({self.dimension},), got {array.shape}")
        return array

    def gradient_data_part(self) -> FloatVector:
        """Returns the part of the gradient that depends on private data, shape (d,).

        -G h for the linear loss and -mu R h for the squared loss, h being the mean of e_j over
        rows. It does not depend on the weights; the rest of the gradient, mu w for the squared
        loss, is public.
        """
        if self.strong_convexity is None:
            return -self.lipschitz * self._coordinate_frequencies
        return -self.strong_convexity * self.radius * self._coordinate_frequencies

    def gradient(self, weights: npt.ArrayLike) -> FloatVector:
        """Returns the gradient of the risk, shape (d,)."""
        array = self._weights(weights)
        if self.strong_convexity is None:
            return self.gradient_data_part()
        return self.strong_convexity * array + self.gradient_data_part()

    def risk(self, weights: npt.ArrayLike) -> float:
        """Returns the mean loss over rows."""
        array = self._weights(weights)
        correlation = float(self._coordinate_frequencies @ array)
        if self.strong_convexity is None:
            return -self.lipschitz * correlation
        squares = float(array @ array) - 2 * self.radius * correlation + self.radius**2
        return self.strong_convexity / 2 * squares

    def optimum(self) -> FloatVector:
        """Returns the minimiser of the risk on the ball, shape (d,).

        R h / |h| for the linear loss, R h for the squared loss (inside the ball, as |h| <= 1).
        """
        frequencies = self._coordinate_frequencies
        if self.strong_convexity is None:
            return self.radius * frequencies / float(np.linalg.norm(frequencies))
        return self.radius * frequencies

    def excess_risk(self, weights: npt.ArrayLike) -> float:
        """Returns the risk above the optimum, for weights in the ball."""
        array = self._weights(weights)
        norm = float(np.linalg.norm(array))
        if norm > self.radius * (1 + 1e-9):
            raise ValueError(
                f"weights must lie in the ball of radius {self.radius}, got |w| = {norm}"
            )
        distance = self.optimum() - array
        if self.strong_convexity is None:
            return self.lipschitz * float(self._coordinate_frequencies @ distance)
        return self.strong_convexity / 2 * float(distance @ distance)


def _draw(
    num_rows: int, num_codes: int, epsilon: float, generator: np.random.Generator
) -> tuple[int, int, CodeVector, CodeVector]:
    """Returns n', r, group ids and codes of one random dataset."""
    replication = selection_replication(num_rows=num_rows, num_codes=num_codes, epsilon=epsilon)
    num_groups = num_rows // replication
    shared = generator.integers(num_codes, size=num_groups, dtype=np.int32)
    groups = np.repeat(np.arange(num_groups, dtype=np.int32), replication)
    return num_groups, replication, groups, np.repeat(shared, replication)


def selection_instance(
    num_rows: int,
    num_codes: int,
    epsilon: float,
    generator: np.random.Generator,
    lipschitz: float = 1.0,
    radius: float = 1.0,
) -> SelectionInstance:
    """Draws a convex instance that is hard at privacy ``epsilon`` (at most ln k).

    The dataset has n' r rows, r as in `bounds.selection_replication` and n' = floor(n / r): where
    the paper pads with rows of constant loss, we drop the n - n' r left-over rows. Compare with
    ``bounds.convex_lower_bound(num_rows=instance.num_rows, ...)``.
    """
    num_groups, replication, groups, codes = _draw(num_rows, num_codes, epsilon, generator)
    return SelectionInstance(
        num_groups=num_groups,
        replication=replication,
        num_codes=num_codes,
        group_ids=groups,
        codes=codes,
        lipschitz=lipschitz,
        radius=radius,
    )


def strongly_convex_selection_instance(
    num_rows: int,
    num_codes: int,
    epsilon: float,
    generator: np.random.Generator,
    lipschitz: float = 1.0,
    strong_convexity: float = 1.0,
) -> SelectionInstance:
    """Draws a strongly convex and smooth instance; as `selection_instance`, with R = G / (2 mu).

    On the ball of that radius gradients have norm at most 2 mu R = G.
    """
    lipschitz = _validate.positive(lipschitz=lipschitz)
    strong_convexity = _validate.positive(strong_convexity=strong_convexity)
    num_groups, replication, groups, codes = _draw(num_rows, num_codes, epsilon, generator)
    return SelectionInstance(
        num_groups=num_groups,
        replication=replication,
        num_codes=num_codes,
        group_ids=groups,
        codes=codes,
        lipschitz=lipschitz,
        radius=lipschitz / (2 * strong_convexity),
        strong_convexity=strong_convexity,
    )
