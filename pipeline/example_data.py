"""A generated ad-conversion table: small, public, and shaped like the tables ssdp is for.

One row per ad impression. The page context is public; what the exchange knows about the person (an
interest segment, an income band) is sensitive; clicks, installs and order values are the targets.
The same seed always gives the same table.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ssdp_core.columns import BinnedColumn, CategoricalColumn
from ssdp_core.domain import PrivateDomain
from ssdp_core.features import DenseFeatures, PublicRows

_DEVICES = 3
_PLACEMENTS = 5
_CAMPAIGNS = 8
_FEATURE_NORM = 1.0
_PRIVATE_SCALE = 0.7

AD_DOMAIN = PrivateDomain(
    columns=(
        CategoricalColumn(
            name="segment",
            values=("sports", "travel", "fashion", "gaming", "news", "family"),
            scale=_PRIVATE_SCALE,
        ),
        BinnedColumn(name="income", edges=(0.0, 20.0, 40.0, 80.0, 500.0), scale=_PRIVATE_SCALE),
    )
)
"""The declared sensitive columns: 6 segments x 4 income bands."""


@dataclass(frozen=True)
class AdTable:
    """Public rows, and the PRIVATE codes of the sensitive columns."""

    rows: PublicRows
    codes: npt.NDArray[np.int32]


def generate_ad_table(num_rows: int, seed: int = 0) -> AdTable:
    """Generates impressions with three targets: ``click``, ``install`` and ``order_value``."""
    # Synthetic data, not noise: an ordinary reproducible generator is what we want here.
    # The world (tastes and weights) has a generator of its own, so that it does not depend on
    # how many rows are drawn from it.
    rng = np.random.default_rng([seed, 0])
    world = np.random.default_rng([seed, 1])
    device = rng.choice(_DEVICES, num_rows, p=[0.6, 0.3, 0.1])
    placement = rng.integers(0, _PLACEMENTS, num_rows)
    campaign = rng.integers(0, _CAMPAIGNS, num_rows)
    hour = rng.uniform(0, 2 * np.pi, num_rows)
    features = np.zeros((num_rows, 1 + _DEVICES + _PLACEMENTS + _CAMPAIGNS + 2), dtype=np.float32)
    row = np.arange(num_rows)
    features[:, 0] = 1.0
    features[row, 1 + device] = 1.0
    features[row, 1 + _DEVICES + placement] = 1.0
    features[row, 1 + _DEVICES + _PLACEMENTS + campaign] = 1.0
    features[:, -2], features[:, -1] = np.sin(hour), np.cos(hour)
    features *= _FEATURE_NORM / np.sqrt(5.0)  # four ones and a point on the circle

    segments = np.array(AD_DOMAIN.columns[0].labels())
    tastes = world.dirichlet(np.full(segments.size, 0.6), size=(_PLACEMENTS, _CAMPAIGNS))
    cumulative = tastes[placement, campaign].cumsum(axis=1)
    segment = (rng.random(num_rows)[:, None] > cumulative).sum(axis=1).clip(max=segments.size - 1)
    income = np.exp(rng.normal(3.4 + 0.15 * device, 0.6)).clip(1.0, 499.0)
    codes = AD_DOMAIN.encode({"segment": segments[segment], "income": income})

    private = AD_DOMAIN.private_features().matrix[codes]
    columns = {}
    for name, bias in (("click", -1.0), ("install", -1.8)):
        public_weights = world.normal(size=features.shape[1]) * 1.2
        private_weights = world.normal(size=private.shape[1]) * 2.0
        margin = features @ public_weights + private @ private_weights + bias
        columns[name] = (rng.random(num_rows) < 1 / (1 + np.exp(-margin))).astype(np.float64)
    taste = private @ world.normal(size=private.shape[1])
    taste += features @ world.normal(size=features.shape[1])
    columns["order_value"] = taste + 0.3 * rng.standard_t(df=3, size=num_rows)
    return AdTable(
        rows=PublicRows(num_rows=num_rows, features=DenseFeatures(features), columns=columns),
        codes=codes,
    )
