"""Convex losses of linear models.

A problem minimises, over weight vectors w with ``|w| <= radius``,

    F(w) = (1/n) * sum_i loss(<w, x_i>, t_i) + (l2/2) * |w|^2

where x_i are the features of row i (public ones, then private ones), t_i is its target, and |.| is
the l2 norm. ``l2`` and ``radius`` belong to the problem; a loss only knows the *margin*
m = <w, x_i> and the target t. With s = 2t - 1, u = s * m, r = m - t:

| name         | loss(m, t)                          | derivative in m               | smoothness |
|--------------|-------------------------------------|-------------------------------|------------|
| logistic     | log(1 + e^m) - t m                  | sigmoid(m) - t                | 1/4        |
| squared      | r^2 / 2                             | r                             | 1          |
| huber        | c (abs(r) - c/2),                   | clip(r, -threshold, threshold)| 1          |
|              | c = min(abs(r), threshold)          |                               |            |
| smooth_hinge | c (1 - u - c/2) / width,            | -s c / width                  | 1 / width  |
|              | c = clip(1 - u, 0, width)           |                               |            |
| hinge        | max(0, 1 - u)                       | -s if u < 1 else 0            | none       |
| absolute     | abs(r)                              | sign(r), 0 if r = 0           | none       |
| pinball      | quantile max(-r, 0)                 | -quantile if r < 0,           | none       |
|              | + (1 - quantile) max(r, 0)          | 1 - quantile if r > 0, else 0 |            |
| multinomial  | log sum_c e^m_c - m_t               | softmax(m) - onehot(t)        | 1/2        |

Targets are 0 or 1 for logistic, hinge and smooth_hinge, a class 0..C-1 for multinomial (whose
margin is a vector of length C) and any finite number for the rest. At a kink the derivative is the
subgradient given in the table. The compiled kernels follow the same definitions.
"""

from __future__ import annotations

import abc
import dataclasses
import difflib
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import special

from ssdp_core import _validate
from ssdp_core.kernels import loss_codes

_Floats: TypeAlias = npt.NDArray[np.float64]


class MarginLoss(abc.ABC):
    """A convex function of one margin, for every target.

    Attributes:
        name: Name in a specification.
        kernel_code: The integer by which compiled kernels know the loss.
        num_outputs: Length of the margin, always 1.
        is_canonical: Whether the derivative is g(margin) - target. The target then enters every
            gradient in the same way, whatever the weights are.
        binary_targets: Whether targets must be 0 or 1.
    """

    name: ClassVar[str]
    kernel_code: ClassVar[int]
    num_outputs: ClassVar[int] = 1
    is_canonical: ClassVar[bool] = False
    binary_targets: ClassVar[bool] = False

    @property
    def parameter(self) -> float:
        """The number that kernels receive with the code; 0 for a loss without one."""
        return 0.0

    @property
    def smoothness(self) -> float | None:
        """Upper bound on the second derivative in the margin, or None where there is none."""
        return None

    def value(self, margin: npt.ArrayLike, target: npt.ArrayLike) -> _Floats:
        """Returns the loss, float64 of the broadcast shape of margin and target."""
        m, t = np.asarray(margin, dtype=np.float64), np.asarray(target, dtype=np.float64)
        return np.asarray(self._value(m, t), dtype=np.float64)

    def derivative(self, margin: npt.ArrayLike, target: npt.ArrayLike) -> _Floats:
        """Returns the (sub)derivative in the margin, float64 of the broadcast shape."""
        m, t = np.asarray(margin, dtype=np.float64), np.asarray(target, dtype=np.float64)
        return np.asarray(self._derivative(m, t), dtype=np.float64)

    def lipschitz(self, margin_bound: float, target_bound: float) -> float:
        """Returns a bound on |derivative|.

        Args:
            margin_bound: Bound on |margin|, may be infinite.
            target_bound: Bound on |target|, may be infinite.
        """
        _check_bounds(margin_bound, target_bound)
        return self._lipschitz(float(margin_bound) + float(target_bound))

    def validate_targets(self, targets: npt.ArrayLike, what: str) -> None:
        """Raises ValueError unless every target is one this loss is defined for.

        Args:
            targets: Public targets, or the declared values of a private one.
            what: Name of the column, for the message.
        """
        array = np.asarray(targets)
        if array.dtype.kind not in "biuf" or not np.isfinite(array).all():
            raise ValueError(f"{what} must hold finite numbers only to be a {self.name} target")
        if self.binary_targets and not ((array == 0) | (array == 1)).all():
            raise ValueError(f"{what} must hold only 0 and 1 to be a {self.name} target")

    @abc.abstractmethod
    def _value(self, m: _Floats, t: _Floats) -> Any:
        """The loss."""

    @abc.abstractmethod
    def _derivative(self, m: _Floats, t: _Floats) -> Any:
        """Its derivative in the margin."""

    def _lipschitz(self, residual_bound: float) -> float:
        """Bound on |derivative| given a bound on |margin| + |target|."""
        return 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogisticLoss(MarginLoss):
    """Logistic loss; it is also defined, and linear, for targets between 0 and 1."""

    name = "logistic"
    kernel_code = loss_codes.LOGISTIC
    is_canonical = True
    binary_targets = True

    @property
    def smoothness(self) -> float:
        """See the base class."""
        return 0.25

    def _value(self, m: _Floats, t: _Floats) -> Any:
        return np.logaddexp(0.0, m) - t * m

    def _derivative(self, m: _Floats, t: _Floats) -> Any:
        return special.expit(m) - t


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquaredLoss(MarginLoss):
    """Half the squared residual."""

    name = "squared"
    kernel_code = loss_codes.SQUARED
    is_canonical = True

    @property
    def smoothness(self) -> float:
        """See the base class."""
        return 1.0

    def _value(self, m: _Floats, t: _Floats) -> Any:
        return np.square(m - t) / 2

    def _derivative(self, m: _Floats, t: _Floats) -> Any:
        return m - t

    def _lipschitz(self, residual_bound: float) -> float:
        return residual_bound


@dataclasses.dataclass(frozen=True, kw_only=True)
class HuberLoss(MarginLoss):
    """Squared loss near zero, linear from ``threshold`` on.

    Attributes:
        threshold: Residual, and derivative, at which the loss becomes linear.
    """

    threshold: float = 1.0

    name = "huber"
    kernel_code = loss_codes.HUBER

    def __post_init__(self) -> None:
        object.__setattr__(self, "threshold", _validate.positive(threshold=self.threshold))

    @property
    def parameter(self) -> float:
        """The threshold."""
        return self.threshold

    @property
    def smoothness(self) -> float:
        """See the base class."""
        return 1.0

    def _value(self, m: _Floats, t: _Floats) -> Any:
        residual = np.abs(m - t)
        clipped = np.minimum(residual, self.threshold)
        return clipped * (residual - clipped / 2)

    def _derivative(self, m: _Floats, t: _Floats) -> Any:
        return np.clip(m - t, -self.threshold, self.threshold)

    def _lipschitz(self, residual_bound: float) -> float:
        return min(self.threshold, residual_bound)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmoothHingeLoss(MarginLoss):
    """Hinge loss with its kink replaced by a parabola over ``1 - width < u < 1``.

    Attributes:
        width: Length of the parabola; the hinge loss is the limit at 0.
    """

    width: float = 1.0

    name = "smooth_hinge"
    kernel_code = loss_codes.SMOOTH_HINGE
    binary_targets = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", _validate.positive(width=self.width))

    @property
    def parameter(self) -> float:
        """The width."""
        return self.width

    @property
    def smoothness(self) -> float:
        """See the base class."""
        return 1.0 / self.width

    def _value(self, m: _Floats, t: _Floats) -> Any:
        gap = 1.0 - (2.0 * t - 1.0) * m
        clipped = np.clip(gap, 0.0, self.width)
        return clipped / self.width * (gap - clipped / 2)

    def _derivative(self, m: _Floats, t: _Floats) -> Any:
        sign = 2.0 * t - 1.0
        return -sign * (np.clip(1.0 - sign * m, 0.0, self.width) / self.width)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HingeLoss(MarginLoss):
    """Hinge loss of the support vector machine."""

    name = "hinge"
    kernel_code = loss_codes.HINGE
    binary_targets = True

    def _value(self, m: _Floats, t: _Floats) -> Any:
        return np.maximum(0.0, 1.0 - (2.0 * t - 1.0) * m)

    def _derivative(self, m: _Floats, t: _Floats) -> Any:
        sign = 2.0 * t - 1.0
        return np.where(sign * m < 1.0, -sign, 0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AbsoluteLoss(MarginLoss):
    """Absolute residual; its minimiser estimates a median."""

    name = "absolute"
    kernel_code = loss_codes.ABSOLUTE

    def _value(self, m: _Floats, t: _Floats) -> Any:
        return np.abs(m - t)

    def _derivative(self, m: _Floats, t: _Floats) -> Any:
        return np.sign(m - t)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PinballLoss(MarginLoss):
    """Loss whose minimiser estimates a quantile.

    Attributes:
        quantile: Which one, strictly between 0 and 1.
    """

    quantile: float = 0.5

    name = "pinball"
    kernel_code = loss_codes.PINBALL

    def __post_init__(self) -> None:
        quantile = _validate.open_interval(0, 1, quantile=self.quantile)
        object.__setattr__(self, "quantile", quantile)

    @property
    def parameter(self) -> float:
        """The quantile."""
        return self.quantile

    def _value(self, m: _Floats, t: _Floats) -> Any:
        return self.quantile * np.maximum(t - m, 0.0) + (1.0 - self.quantile) * np.maximum(
            m - t, 0.0
        )

    def _derivative(self, m: _Floats, t: _Floats) -> Any:
        return np.where(m < t, -self.quantile, np.where(m > t, 1.0 - self.quantile, 0.0))

    def _lipschitz(self, residual_bound: float) -> float:
        return max(self.quantile, 1.0 - self.quantile)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultinomialLoss:
    """Softmax cross-entropy over ``num_classes`` classes; its margin is a vector of that length.

    It has the attributes and methods of `MarginLoss`, with margins and derivatives of shape
    (..., num_classes) and targets (...) that hold class numbers.

    Attributes:
        num_classes: Number of classes, at least 2.
    """

    num_classes: int

    name: ClassVar[str] = "multinomial"
    kernel_code: ClassVar[int] = loss_codes.MULTINOMIAL
    is_canonical: ClassVar[bool] = True

    def __post_init__(self) -> None:
        num_classes = _validate.integer_at_least(2, num_classes=self.num_classes)
        object.__setattr__(self, "num_classes", num_classes)

    @property
    def num_outputs(self) -> int:
        """Length of the margin, one entry per class."""
        return self.num_classes

    @property
    def parameter(self) -> float:
        """Always 0: kernels read the number of classes from the margin's shape."""
        return 0.0

    @property
    def smoothness(self) -> float:
        """Bound on the largest eigenvalue of diag(p) - p p^T, attained at p = (1/2, 1/2, 0...)."""
        return 0.5

    def value(self, margin: npt.ArrayLike, target: npt.ArrayLike) -> _Floats:
        """Returns the loss, float64 of shape (...)."""
        m, is_target = self._prepare(margin, target)
        picked = np.where(is_target, m, 0.0).sum(axis=-1)
        return np.asarray(special.logsumexp(m, axis=-1) - picked, dtype=np.float64)

    def derivative(self, margin: npt.ArrayLike, target: npt.ArrayLike) -> _Floats:
        """Returns the gradient in the margin, float64 of shape (..., num_classes)."""
        m, is_target = self._prepare(margin, target)
        return np.asarray(special.softmax(m, axis=-1) - is_target, dtype=np.float64)

    def lipschitz(self, margin_bound: float, target_bound: float) -> float:
        """Returns a bound on the derivative's l2 norm, sqrt(2) whatever the arguments are."""
        _check_bounds(margin_bound, target_bound)
        return math.sqrt(2.0)

    def validate_targets(self, targets: npt.ArrayLike, what: str) -> None:
        """Raises ValueError unless every target is a whole number in 0..num_classes-1."""
        array = np.asarray(targets)
        is_number = array.dtype.kind in "iuf"
        if not is_number or not np.isin(array, np.arange(self.num_classes)).all():
            raise ValueError(
                f"{what} must hold only the class numbers 0..{self.num_classes - 1} to be a "
                f"{self.name} target"
            )

    def _prepare(
        self, margin: npt.ArrayLike, target: npt.ArrayLike
    ) -> tuple[_Floats, npt.NDArray[np.bool_]]:
        """Margins as float64 (..., C), and which class is the target as bool (..., C)."""
        m = np.asarray(margin, dtype=np.float64)
        if m.ndim == 0 or m.shape[-1] != self.num_classes:
            raise ValueError(
                f"margin must have {self.num_classes} entries on its last axis, one per class, "
                f"got shape {m.shape}"
            )
        self.validate_targets(target, "target")
        return m, np.asarray(target)[..., np.newaxis] == np.arange(self.num_classes)


Loss: TypeAlias = MarginLoss | MultinomialLoss

_LOSSES: Mapping[str, Callable[..., Loss]] = {
    loss.name: loss
    for loss in (
        LogisticLoss,
        SquaredLoss,
        HuberLoss,
        SmoothHingeLoss,
        HingeLoss,
        AbsoluteLoss,
        PinballLoss,
        MultinomialLoss,
    )
}
LOSS_NAMES: tuple[str, ...] = tuple(_LOSSES)


def loss_by_name(name: str, **parameters: float) -> Loss:
    """Returns the loss with a name from `LOSS_NAMES`, such as ``("pinball", quantile=0.9)``.

    Raises:
        ValueError: If the name or a parameter is unknown, missing or out of range.
    """
    if name not in _LOSSES:
        near = difflib.get_close_matches(str(name), LOSS_NAMES, n=1, cutoff=0.0)[0]
        raise ValueError(
            f"loss must be one of {', '.join(LOSS_NAMES)}, got {name!r}: did you mean {near!r}?"
        )
    make = _LOSSES[name]
    fields = dataclasses.fields(make)  # type: ignore[arg-type] # every loss is a dataclass
    allowed = [field.name for field in fields]
    required = [field.name for field in fields if field.default is dataclasses.MISSING]
    if not set(required) <= set(parameters) <= set(allowed):
        raise ValueError(
            f"{name} loss takes {', '.join(allowed) or 'no parameters'}"
            f"{' (required)' if required else ''}, got {', '.join(parameters) or 'none'}"
        )
    return make(**parameters)


def _check_bounds(margin_bound: float, target_bound: float) -> None:
    for name, bound in (("margin_bound", margin_bound), ("target_bound", target_bound)):
        if not bound >= 0:
            raise ValueError(f"{name} must be a non-negative number, got {bound!r}")
