"""Algorithms 1 and 2 of the paper, transcribed line by line, slow and in float64.

Queries are dense arrays f[i, y, :]; noise is handed in, in the paper's order of sampling.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np


def trunc(c, b):
    return b * min(1.0, c / abs(b)) if b != 0 else 0.0


def value_on_data(f, codes):
    n = len(codes)
    return sum(f[i, codes[i]] for i in range(n)) / n


def value_on_beliefs(f, p):
    n, k = p.shape
    return sum(p[i, y] * f[i, y] for i in range(n) for y in range(k)) / n


def multiplicative_weights(p, f, v, iota, eta, c):
    """Algorithm 1."""
    phi = (v - value_on_beliefs(f, p)) / iota
    new = np.empty_like(p)
    for i in range(p.shape[0]):
        weights = [
            p[i, y] * math.exp(eta * trunc(c, float(phi @ f[i, y]))) for y in range(p.shape[1])
        ]
        new[i] = np.array(weights) / sum(weights)
    return new


@dataclass
class Noise:
    """The four kinds of noise, in the order the run used them."""

    chi: Iterator[float]
    nu: Iterator[float]
    z: Iterator[np.ndarray]
    xi: Iterator[float]


@dataclass
class Run:
    answers: list[np.ndarray] = field(default_factory=list)
    above: list[bool] = field(default_factory=list)
    failed: bool = False
    p: np.ndarray | None = None


def pvmw(queries, codes, k, tau, l_max, eta, c, noise):
    """Algorithm 2."""
    n = len(codes)
    run = Run()
    p = np.full((n, k), 1.0 / k)
    ell = 1
    chi = next(noise.chi)
    for f in queries:
        on_data = value_on_data(f, codes)
        while ell < l_max:
            distance = float(np.linalg.norm(value_on_beliefs(f, p) - on_data))
            above = distance + next(noise.nu) >= tau + chi
            run.above.append(above)
            if not above:
                break
            v = on_data + next(noise.z)
            iota = distance + next(noise.xi)
            p = multiplicative_weights(p, f, v, iota, eta, c)
            ell += 1
            chi = next(noise.chi)
        if ell >= l_max:
            run.failed = True
            break
        run.answers.append(value_on_beliefs(f, p))
    run.p = p
    return run
