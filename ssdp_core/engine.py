"""Engines run passes over the rows; this is the contract, and the reference that works in memory.

A pass evaluates some queries on every block of rows and adds up. Private passes read the private
codes and return :class:`ExactSum`, an opaque box that only the curator opens. Public passes see
beliefs and public rows only. All sums are integers on a lattice (:mod:`ssdp_core.exact_sums`), so
every engine gives the same bits for the same block size.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from ssdp_core import _validate, beliefs
from ssdp_core.exact_sums import Lattice, sum_slack
from ssdp_core.features import PublicRows
from ssdp_core.queries.base import LinearVectorQuery

Float64 = npt.NDArray[np.float64]
Units = npt.NDArray[np.int64]
_Result = TypeVar("_Result")

DEFAULT_BLOCK_ROWS = 65_536
_WIDE = 1 << 18  # dimension from which sums are worked out one after another


class ExactSum:
    """PRIVATE. The exact sum of a query over the data, hidden from printing and pickling."""

    __slots__ = ("_units",)

    def __init__(self, units: Units) -> None:
        self._units = units

    def open_in_curator(self) -> Units:
        """The sum in lattice steps. Only :mod:`ssdp_core.curator` may call this."""
        return self._units

    def __repr__(self) -> str:
        return "ExactSum(<hidden>)"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("an ExactSum cannot be pickled: the curator's exact sums stay with it")


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a pass knows about one query.

    Attributes:
        lattice: the lattice of both sums.
        belief_units: sum under the beliefs, int64 (dimension,), in lattice steps.
        row_sensitivity: bound on |f(i, y) - f(i, y')| over all rows and codes, sum units.
        rounding_slack: what float64 and the lattice add to it for one row.
        exact: PRIVATE sum on the data; None after a public pass.
    """

    lattice: Lattice
    belief_units: Units
    row_sensitivity: float
    rounding_slack: float
    exact: ExactSum | None


class Engine(Protocol):
    """Passes over all rows. Every method is one pass."""

    @property
    def num_rows(self) -> int:
        """Number n of rows."""

    @property
    def num_codes(self) -> int:
        """Size k of the private domain."""

    def evaluate_private(self, queries: Sequence[LinearVectorQuery]) -> list[Evaluation]:
        """PRIVATE pass: sums on the data and under the beliefs, and sensitivities."""

    def evaluate_public(self, queries: Sequence[LinearVectorQuery]) -> list[Evaluation]:
        """Public pass: sums under the beliefs, and sensitivities."""

    def update(
        self, query: LinearVectorQuery, direction: Float64, *, step: float, truncation: float
    ) -> None:
        """Public pass: moves the beliefs (Algorithm 1)."""

    def log_partition(
        self, query: LinearVectorQuery, direction: Float64, steps: Float64, *, truncation: float
    ) -> Float64:
        """Public pass: mean_i log E_{p_i} exp(step * trunc(<direction, f>)) for a grid of steps."""


class InMemoryEngine:
    """The reference engine: arrays in memory, blocks on a thread pool.

    Args:
        rows: public rows.
        codes: PRIVATE codes, integers in 0..num_codes-1.
        num_codes: size k of the private domain, from its declaration.
        block_rows: rows per block; part of the result's definition, unlike the next argument.
        num_threads: how many blocks are worked on at once; never changes a bit.
        prior: public prior of the beliefs; uniform if None.
    """

    def __init__(
        self,
        rows: PublicRows,
        codes: npt.ArrayLike,
        *,
        num_codes: int,
        block_rows: int = DEFAULT_BLOCK_ROWS,
        num_threads: int | None = None,
        prior: npt.ArrayLike | None = None,
    ) -> None:
        self._num_codes = _validate.integer_at_least(2, num_codes=num_codes)
        self._codes = _validate.private_codes(codes, rows.num_rows, num_codes)
        self._rows = rows
        self._block_rows = _validate.integer_at_least(1, block_rows=block_rows)
        threads = num_threads if num_threads is not None else os.cpu_count() or 1
        self._num_threads = _validate.integer_at_least(1, num_threads=threads)
        self._beliefs = (
            beliefs.uniform_beliefs(rows.num_rows, num_codes)
            if prior is None
            else beliefs.prior_beliefs(rows.num_rows, prior)
        )
        if self._beliefs.shape[1] != num_codes:
            raise ValueError(f"prior must have {num_codes} entries per row")

    @property
    def num_rows(self) -> int:
        """Number n of rows."""
        return self._rows.num_rows

    @property
    def num_codes(self) -> int:
        """Size k of the private domain."""
        return self._num_codes

    @property
    def beliefs(self) -> npt.NDArray[np.float32]:
        """The current beliefs (public), float32 (n, k); read them, do not write."""
        return self._beliefs

    def evaluate_private(self, queries: Sequence[LinearVectorQuery]) -> list[Evaluation]:
        """PRIVATE pass; see :class:`Engine`."""
        return self._evaluate(queries, private=True)

    def evaluate_public(self, queries: Sequence[LinearVectorQuery]) -> list[Evaluation]:
        """Public pass; see :class:`Engine`."""
        return self._evaluate(queries, private=False)

    def update(
        self, query: LinearVectorQuery, direction: Float64, *, step: float, truncation: float
    ) -> None:
        """Public pass; see :class:`Engine`."""

        def work(start: int, stop: int) -> None:
            beliefs.update_beliefs(
                self._beliefs[start:stop],
                query,
                self._rows.rows(start, stop),
                direction=direction,
                step=step,
                truncation=truncation,
            )

        for _ in self._for_each_block(work):
            pass

    def log_partition(
        self, query: LinearVectorQuery, direction: Float64, steps: Float64, *, truncation: float
    ) -> Float64:
        """Public pass; see :class:`Engine`."""

        def work(start: int, stop: int) -> Float64:
            return beliefs.log_partition(
                self._beliefs[start:stop],
                query,
                self._rows.rows(start, stop),
                direction=direction,
                steps=steps,
                truncation=truncation,
            )

        # Blocks are added in their own order, so threads do not matter here either.
        total = np.sum(list(self._for_each_block(work)), axis=0)
        return np.asarray(total / self.num_rows)

    def _evaluate(self, queries: Sequence[LinearVectorQuery], *, private: bool) -> list[Evaluation]:
        for query in queries:
            if query.num_codes != self.num_codes:
                raise ValueError(
                    f"query is about {query.num_codes} private codes, the table has "
                    f"{self.num_codes}"
                )
        lattices = [Lattice.for_sum(self.num_rows, query.norm_bound) for query in queries]

        totals: list[BlockUnits] = []
        lock = threading.Lock()

        def add(results: list[BlockUnits]) -> None:
            # Integers add up to the same total in any order, so whoever is ready adds.
            with lock:
                if totals:
                    for total, result in zip(totals, results, strict=True):
                        total.add(result)
                else:
                    totals.extend(results)

        def work(start: int, stop: int) -> None:
            rows, block_beliefs = self._rows.rows(start, stop), self._beliefs[start:stop]
            codes = self._codes[start:stop] if private else None
            if codes is not None and max(query.dimension for query in queries) > _WIDE:
                # One sum at a time: at a million features the sums are what takes memory.
                add(evaluate_block(queries, lattices, rows, block_beliefs, None))
                add(evaluate_block(queries, lattices, rows, None, codes))
            else:
                add(evaluate_block(queries, lattices, rows, block_beliefs, codes))

        for _ in self._for_each_block(work):
            pass
        return [
            total.as_evaluation(query, lattice, min(self._block_rows, self.num_rows))
            for total, query, lattice in zip(totals, queries, lattices, strict=True)
        ]

    def _for_each_block(self, work: Callable[[int, int], _Result]) -> Iterable[_Result]:
        starts = range(0, self.num_rows, self._block_rows)
        stops = [min(start + self._block_rows, self.num_rows) for start in starts]
        if self._num_threads == 1 or len(stops) == 1:
            yield from map(work, starts, stops)
        else:
            with ThreadPoolExecutor(self._num_threads) as pool:
                yield from pool.map(work, starts, stops)


@dataclass(kw_only=True)
class BlockUnits:
    """One query's sums over one or more blocks, in lattice steps; they add up in any order."""

    data_units: Units | None = field(repr=False)
    belief_units: Units | None
    row_sensitivity: float

    def add(self, other: BlockUnits) -> None:
        """Adds other sums, in place; a side that was not evaluated counts as zero."""
        self.data_units = _added(self.data_units, other.data_units)
        self.belief_units = _added(self.belief_units, other.belief_units)
        self.row_sensitivity = max(self.row_sensitivity, other.row_sensitivity)

    def as_evaluation(
        self, query: LinearVectorQuery, lattice: Lattice, block_rows: int
    ) -> Evaluation:
        """The totals as the curator gets them, with the data sum boxed."""
        assert self.belief_units is not None  # every pass evaluates under the beliefs
        return Evaluation(
            lattice=lattice,
            belief_units=self.belief_units,
            row_sensitivity=self.row_sensitivity,
            rounding_slack=sum_slack(
                dimension=query.dimension,
                block_rows=block_rows,
                num_codes=query.num_codes,
                norm_bound=query.norm_bound,
                lattice=lattice,
            ),
            exact=None if self.data_units is None else ExactSum(self.data_units),
        )


def _added(total: Units | None, more: Units | None) -> Units | None:
    if total is None or more is None:
        return more if total is None else total
    total += more
    return total


def evaluate_block(
    queries: Sequence[LinearVectorQuery],
    lattices: Sequence[Lattice],
    rows: PublicRows,
    block_beliefs: npt.NDArray[np.float32] | None,
    codes: npt.NDArray[np.int32] | None,
) -> list[BlockUnits]:
    """All queries on one block; every engine calls this, so every engine gets the same integers."""
    results = []
    for query, lattice in zip(queries, lattices, strict=True):
        block = query.evaluate(rows, beliefs=block_beliefs, codes=codes)
        results.append(
            BlockUnits(
                data_units=None
                if block.data_sum is None
                else lattice.round_in_place(block.data_sum),
                belief_units=None
                if block.belief_sum is None
                else lattice.round_in_place(block.belief_sum),
                row_sensitivity=block.row_sensitivity,
            )
        )
    return results
