"""A generated ad-conversion table: small, public, and shaped like the tables ssdp is for.

One row per ad impression. The page context is public; what the exchange knows about the person (an
interest segment, an income band) is sensitive; clicks, installs and order values are the targets.
The same seed always gives the same table.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

DEVICES = ("phone", "desktop", "tablet")
PLACEMENTS = ("top", "side", "feed", "video", "search")
CAMPAIGNS = tuple(f"campaign{c}" for c in range(8))
SEGMENTS = ("sports", "travel", "fashion", "gaming", "news", "family")
INCOME_EDGES = (0.0, 20.0, 40.0, 80.0, 500.0)

DEMO_SPEC = """\
[data]
path = "{path}"
features = ["device", "placement", "campaign", "hour"]

[data.encode.hour]
kind = "bins"
edges = [0, 6, 12, 18, 24]

[data.sensitive.segment]
values = ["sports", "travel", "fashion", "gaming", "news", "family"]

[data.sensitive.income]
edges = [0, 20, 40, 80, 500]

[privacy]
epsilon = 1.0
delta = 1e-6

[[problem]]
name = "click"
target = "click"
loss = "logistic"
l2 = 0.1

[[problem]]
name = "install"
target = "install"
loss = "logistic"
l2 = 0.1

[[problem]]
name = "order_value"
target = "order_value"
loss = "huber"
l2 = 0.1

[fit]
num_steps = {num_steps}
"""


def generate_ad_table(num_rows: int, seed: int = 0) -> dict[str, npt.NDArray[Any]]:
    """Impressions by column, with three targets: ``click``, ``install`` and ``order_value``."""
    # Synthetic data, not noise: an ordinary reproducible generator is what we want here. The world
    # (tastes and weights) has one of its own, so that it does not depend on the number of rows.
    rng = np.random.default_rng([seed, 0])
    world = np.random.default_rng([seed, 1])
    device = rng.choice(len(DEVICES), num_rows, p=[0.6, 0.3, 0.1])
    placement = rng.integers(0, len(PLACEMENTS), num_rows)
    campaign = rng.integers(0, len(CAMPAIGNS), num_rows)
    hour = rng.uniform(0, 24, num_rows)
    tastes = world.dirichlet(np.full(len(SEGMENTS), 0.6), size=(len(PLACEMENTS), len(CAMPAIGNS)))
    cumulative = tastes[placement, campaign].cumsum(axis=1)
    segment = (rng.random(num_rows)[:, None] > cumulative).sum(axis=1).clip(max=len(SEGMENTS) - 1)
    income = np.exp(rng.normal(3.4 + 0.15 * device, 0.6)).clip(1.0, 499.0)
    band = np.digitize(income, INCOME_EDGES[1:-1])

    def effect(scale: float) -> npt.NDArray[np.float64]:
        """A linear function of everything, with random weights of the given size."""
        return scale * (
            0.4 * world.normal(size=len(DEVICES))[device]
            + 0.4 * world.normal(size=len(PLACEMENTS))[placement]
            + 0.4 * world.normal(size=len(CAMPAIGNS))[campaign]
            + 1.2 * world.normal(size=len(SEGMENTS))[segment]
            + 0.8 * world.normal(size=len(INCOME_EDGES) - 1)[band]
        )

    table: dict[str, npt.NDArray[Any]] = {
        "device": np.array(DEVICES)[device],
        "placement": np.array(PLACEMENTS)[placement],
        "campaign": np.array(CAMPAIGNS)[campaign],
        "hour": hour,
        "segment": np.array(SEGMENTS)[segment],
        "income": income,
    }
    for name, bias in (("click", -1.0), ("install", -1.8)):
        chance = 1 / (1 + np.exp(-(effect(1.0) + bias)))
        table[name] = (rng.random(num_rows) < chance).astype(np.int64)
    table["order_value"] = effect(0.5) + 0.3 * rng.standard_t(df=3, size=num_rows)
    return table
