"""A vector of a million exact Gaussians from the secure source."""

from __future__ import annotations

import hashlib
import itertools
import sys

import numpy as np
from timing import interleaved, judged_at_most, report

from ssdp_core.noise import NoiseSource, discrete_gaussian, discrete_gaussian_vector

SIZE = 1_000_000


def main() -> int:
    source = NoiseSource.secure()
    stddev = 3.3e12
    numbers = itertools.count()
    generator = np.random.default_rng(0)
    seconds = interleaved(
        {
            "vector": lambda: discrete_gaussian_vector(
                source.stream(f"v{next(numbers)}"), stddev, SIZE
            ),
            "words": lambda: hashlib.shake_256(b"k").digest(12 * 8 * SIZE),
            "numpy": lambda: generator.normal(0.0, stddev, SIZE),
        },
        rounds=5,
    )
    stream = source.stream("s")
    scalar = interleaved(
        {"scalar": lambda: [discrete_gaussian(stream, stddev) for _ in range(2000)]}, rounds=3
    )["scalar"] * (SIZE / 2000)
    rows = [
        (
            "a million exact Gaussians, seconds",
            f"{seconds['vector']:.2f}",
            judged_at_most(seconds["vector"], 1.0),
        ),
        (
            "time against its random words alone (SHAKE-256)",
            f"{seconds['vector'] / seconds['words']:.2f}",
            "",
        ),
        (
            "time against NumPy's insecure float Gaussians",
            f"{seconds['vector'] / seconds['numpy']:.0f}",
            "",
        ),
        (
            "speed-up over the scalar exact sampler",
            f"{scalar / seconds['vector']:.0f}",
            "",
        ),
    ]
    return 0 if report("Noise", rows) else 1


if __name__ == "__main__":
    sys.exit(main())
