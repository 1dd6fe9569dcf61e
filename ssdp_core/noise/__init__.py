"""Random words, and exact integer noise drawn from them."""

from ssdp_core.noise.samplers import discrete_gaussian, discrete_gaussian_vector, discrete_laplace
from ssdp_core.noise.source import NoiseSource, WordStream

__all__ = [
    "NoiseSource",
    "WordStream",
    "discrete_gaussian",
    "discrete_gaussian_vector",
    "discrete_laplace",
]
