"""Linear vector queries: gradients, tabulated functions, counts and marginals."""

from ssdp_core.queries.base import BlockEvaluation, LinearVectorQuery, Tile
from ssdp_core.queries.gradient import GradientQuery
from ssdp_core.queries.marginal import MarginalQuery
from ssdp_core.queries.tabulated import TabulatedQuery, count_query, mean_query

__all__ = [
    "BlockEvaluation",
    "GradientQuery",
    "LinearVectorQuery",
    "MarginalQuery",
    "TabulatedQuery",
    "Tile",
    "count_query",
    "mean_query",
]
