"""Fused kernels at n = 65,536, k = 64: against plain NumPy, against np.exp, and on two threads.

Bytes and operations per cell of the (row, code) grid:

| pass            | read | written | arithmetic                                         |
|-----------------|------|---------|----------------------------------------------------|
| belief gradient | 4    | 0       | 1 division, 2 multiplications, 4 additions         |
| belief update   | 8    | 8       | the same, 1 exponential (16 operations), 1 scaling |
| np.exp          | 4    | 4       | 1 exponential                                      |
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from timing import interleaved, judged, report

from ssdp_core.domain import PrivateFeatures
from ssdp_core.kernels import belief_kernels
from ssdp_core.losses import LogisticLoss
from ssdp_core.queries.base import tile_bounds
from ssdp_core.queries.margin_grid import MarginGrid

ROWS, CODES = 65_536, 64


def numpy_belief_gradient(margins, offsets, targets, beliefs):
    """The straightforward version: whole arrays, float32 as the beliefs are."""
    scores = 1 / (1 + np.exp(-(margins[:, None] + offsets))) - targets[:, None]
    terms = beliefs * scores
    return terms.sum(axis=1), terms.sum(axis=0)


def main() -> int:
    rng = np.random.default_rng(0)
    beliefs = rng.dirichlet(np.ones(CODES), ROWS).astype(np.float32)
    margins = rng.normal(size=(ROWS, 1))
    offsets = rng.normal(size=CODES)
    targets = rng.integers(0, 2, ROWS).astype(np.float64)
    grid = MarginGrid(
        loss=LogisticLoss(),
        private_features=PrivateFeatures.from_matrix(np.eye(CODES)),
        offsets=offsets,
        public_target="t",
        private_targets=None,
    )
    row_products = rng.normal(size=(ROWS, 1))
    code_products = rng.normal(size=(CODES, 1))
    exp_in = rng.normal(size=(ROWS, CODES)).astype(np.float32)
    exp_out = np.empty_like(exp_in)
    small = [a.astype(np.float32) for a in (margins[:, 0], offsets, targets)]

    many = [beliefs.copy() for _ in range(8)]

    def gradient(beliefs=beliefs):
        grid.belief_scores(margins, targets, beliefs, np.zeros((CODES, 1)))

    def update(beliefs=beliefs):
        for a, b in tile_bounds(ROWS, 128 + 2 * CODES):
            products = grid.inner_products(
                margins[a:b], targets[a:b], row_products[a:b], code_products
            )
            belief_kernels.multiply_weights(
                beliefs[a:b], products, np.float32(1e-3), np.float32(3.0)
            )

    with ThreadPoolExecutor(2) as pool:

        def blocks(work, threads):
            """Eight blocks, as an engine would run them."""
            return list(map(work, many) if threads == 1 else pool.map(work, many))

        seconds = interleaved(
            {
                "exp": lambda: np.exp(exp_in, out=exp_out),
                "numpy": lambda: numpy_belief_gradient(*small, beliefs),
                "gradient": gradient,
                "update": update,
                "gradient x8": lambda: blocks(gradient, 1),
                "update x8": lambda: blocks(update, 1),
                "gradient x8, 2 threads": lambda: blocks(gradient, 2),
                "update x8, 2 threads": lambda: blocks(update, 2),
            },
            rounds=30,
        )
    ratios = {
        "belief gradient against plain NumPy": (seconds["numpy"] / seconds["gradient"], 8.0),
        "belief gradient against np.exp": (seconds["exp"] / seconds["gradient"], 1.5),
        "belief update against np.exp": (seconds["exp"] / seconds["update"], 0.6),
        "belief gradient, two threads against one": (
            seconds["gradient x8"] / seconds["gradient x8, 2 threads"],
            1.7,
        ),
        "belief update, two threads against one": (
            seconds["update x8"] / seconds["update x8, 2 threads"],
            1.7,
        ),
    }
    rows = [(name, f"{value:.2f}", judged(value, aim)) for name, (value, aim) in ratios.items()]
    cells = ROWS * CODES / 1e9
    rows += [
        (f"{name}, Gcells/s", f"{cells / seconds[name]:.2f}", "")
        for name in ("exp", "numpy", "gradient", "update")
    ]
    return 0 if report(f"Kernels, n = {ROWS:,}, k = {CODES}, logistic", rows) else 1


if __name__ == "__main__":
    sys.exit(main())
