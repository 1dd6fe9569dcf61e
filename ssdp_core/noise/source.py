"""Where random words come from.

A :class:`NoiseSource` holds one 256-bit key. Every question of a run gets a stream of 64-bit words
of its own, ``SHAKE-256(domain || key || label || block number)``, so that

* a restarted run that still has its key re-derives the noise of a question it was about to answer
  instead of drawing a second one, which would let two noisy answers be averaged;
* nothing depends on the order in which questions are asked.

Exact and not exact. The samplers in :mod:`ssdp_core.noise.samplers` turn independent uniform words
into *exactly* the stated distributions. That the words of a fresh source are independent and
uniform is a computational assumption: SHAKE-256 keyed with 32 bytes from the operating system
(``os.urandom``) is a pseudo-random function (NIST FIPS 202; Bertoni et al., "On the security of
the keyed sponge construction", 2011). There is no other assumption, and no floating-point number
decides anything that exact arithmetic would decide differently.

``numpy.random`` is not used: its generators are not cryptographic.
"""

from __future__ import annotations

import hashlib
import os
from typing import Final

import numpy as np
import numpy.typing as npt

_DOMAIN: Final = b"ssdp-noise-v1"
_KEY_BYTES: Final = 32
# One scalar draw needs about ten words, one million Gaussians about 96 MB: 4 KiB serves both.
_BLOCK_BYTES: Final = 4096
_WORDS_PER_BLOCK: Final = _BLOCK_BYTES // 8

Words = npt.NDArray[np.uint64]


class WordStream:
    """A reproducible sequence of 64-bit words; reading it consumes it."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._next_block = 0
        self._pending: Words = np.empty(0, dtype=np.uint64)

    def __repr__(self) -> str:
        return "WordStream(<hidden>)"

    def take(self, count: int) -> Words:
        """Returns the next ``count`` words."""
        missing = count - self._pending.size
        if missing > 0:
            blocks = -(-missing // _WORDS_PER_BLOCK)
            fresh = b"".join(self._block(self._next_block + i) for i in range(blocks))
            self._next_block += blocks
            words = np.frombuffer(fresh, dtype="<u8").astype(np.uint64, copy=False)
            self._pending = np.concatenate([self._pending, words])
        taken, self._pending = self._pending[:count], self._pending[count:]
        return taken

    def give_back(self, words: Words) -> None:
        """Puts unused words back at the front of the stream."""
        self._pending = np.concatenate([words, self._pending])

    def word(self) -> int:
        """Returns the next word as an int in ``[0, 2**64)``."""
        return int(self.take(1)[0])

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a WordStream cannot be pickled: noise is drawn in the driver only")

    def _block(self, number: int) -> bytes:
        return hashlib.shake_256(self._prefix + number.to_bytes(8, "little")).digest(_BLOCK_BYTES)


class NoiseSource:
    """The key of a run's noise. Make one with :meth:`secure`; :meth:`seeded` is for tests.

    Attributes:
        is_private: False for a seeded source. Whoever knows the seed can subtract the noise, so
            every output of a seeded run must be marked NOT PRIVATE.
    """

    def __init__(self, key: bytes, *, is_private: bool) -> None:
        if len(key) != _KEY_BYTES:
            raise ValueError(f"key must be {_KEY_BYTES} bytes, got {len(key)}")
        self._key = key
        self._used_labels: set[str] = set()
        self.is_private = is_private

    @classmethod
    def secure(cls) -> NoiseSource:
        """A source with a fresh key from the operating system's secure generator."""
        return cls(os.urandom(_KEY_BYTES), is_private=True)

    @classmethod
    def seeded(cls, seed: int) -> NoiseSource:
        """A reproducible source for tests. NOT PRIVATE: the seed reveals all noise."""
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
            raise ValueError(f"seed must be a whole number, got {seed!r}")
        key = hashlib.sha256(b"ssdp-not-private-seed" + str(int(seed)).encode()).digest()
        return cls(key, is_private=False)

    def stream(self, label: str) -> WordStream:
        """The word stream of one question. A label is good for one stream.

        Two answers with the same noise would give away the difference of their exact values, so a
        second stream under one label is refused. (A restarted run makes a new source from its key.)
        """
        if label in self._used_labels:
            raise ValueError(f"the noise stream {label!r} has been used: labels must be unique")
        self._used_labels.add(label)
        name = label.encode()
        return WordStream(_DOMAIN + self._key + len(name).to_bytes(4, "little") + name)

    def __repr__(self) -> str:
        return f"NoiseSource(is_private={self.is_private}, key=<hidden>)"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a NoiseSource cannot be pickled: noise is drawn in the driver only")
