"""One contract for all losses, then what is special to each.

The contract sees every loss as a function of a margin *vector* of length ``num_outputs``, so the
same assertions (with norms and inner products) serve scalar and multinomial losses.
"""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special
from sklearn import metrics

from ssdp_core import losses
from ssdp_core.kernels import loss_codes

LOSSES = [
    losses.LogisticLoss(),
    losses.SquaredLoss(),
    losses.HuberLoss(),
    losses.HuberLoss(threshold=0.3),
    losses.HuberLoss(threshold=4.0),
    losses.SmoothHingeLoss(),
    losses.SmoothHingeLoss(width=0.25),
    losses.SmoothHingeLoss(width=3.0),
    losses.HingeLoss(),
    losses.AbsoluteLoss(),
    losses.PinballLoss(),
    losses.PinballLoss(quantile=0.1),
    losses.PinballLoss(quantile=0.9),
    losses.MultinomialLoss(num_classes=2),
    losses.MultinomialLoss(num_classes=3),
    losses.MultinomialLoss(num_classes=7),
]
MARGIN_LOSSES = [loss for loss in LOSSES if isinstance(loss, losses.MarginLoss)]
each_loss = pytest.mark.parametrize("loss", LOSSES, ids=repr)
each_margin_loss = pytest.mark.parametrize("loss", MARGIN_LOSSES, ids=repr)
quick = settings(derandomize=True, deadline=None, max_examples=50)


def value(loss, margin, target):
    """Loss of margin vectors (..., num_outputs)."""
    if isinstance(loss, losses.MarginLoss):
        return loss.value(margin[..., 0], target)
    return loss.value(margin, target)


def gradient(loss, margin, target):
    """Derivative at margin vectors, with their shape (..., num_outputs)."""
    if isinstance(loss, losses.MarginLoss):
        return loss.derivative(margin[..., 0], target)[..., np.newaxis]
    return loss.derivative(margin, target)


def some_targets(loss):
    if isinstance(loss, losses.MultinomialLoss):
        return np.arange(loss.num_classes)
    return np.array([0.0, 1.0]) if loss.binary_targets else np.array([-3.0, -0.7, 0.0, 1.0, 3.0])


def seams(loss, target):
    """Margins where the loss changes its formula."""
    sign = 2 * target - 1
    return {
        "huber": [target - loss.parameter, target + loss.parameter],
        "smooth_hinge": [sign, sign * (1 - loss.parameter)],
        "hinge": [sign],
        "absolute": [target],
        "pinball": [target],
    }.get(loss.name, [])


def some_margins(loss, target, bound):
    """Margin vectors within the bound in every entry: spread out, extreme, and on the seams."""
    rng = np.random.default_rng(7)
    C = loss.num_outputs
    spread = rng.uniform(-bound, bound, (60, C))
    extreme = rng.choice([-bound, 0.0, bound], (30, C))
    corners = bound * (2 * np.eye(C) - 1)
    on_seams = np.array(seams(loss, target), dtype=np.float64).reshape(-1, C)
    on_seams = on_seams[np.abs(on_seams).max(axis=1, initial=0) <= bound]
    return np.concatenate([spread, extreme, corners, -corners, on_seams, np.zeros((1, C))])


@each_loss
def test_derivative_equals_finite_differences_away_from_seams(loss):
    step = 1e-5
    for target in some_targets(loss):
        margins = some_margins(loss, target, 5.0)
        for seam in seams(loss, target):
            margins = margins[np.abs(margins[:, 0] - seam) > 2 * step]
        assert len(margins) > 50
        for direction in np.eye(loss.num_outputs):
            up = value(loss, margins + step * direction, target)
            down = value(loss, margins - step * direction, target)
            expected = gradient(loss, margins, target) @ direction
            np.testing.assert_allclose((up - down) / (2 * step), expected, rtol=0, atol=1e-8)


@each_loss
def test_derivative_is_a_subgradient_everywhere(loss):
    for target in some_targets(loss):
        margins = some_margins(loss, target, 6.0)
        values, gradients = value(loss, margins, target), gradient(loss, margins, target)
        differences = margins[np.newaxis, :, :] - margins[:, np.newaxis, :]
        tangents = values[:, np.newaxis] + np.einsum("ic,ijc->ij", gradients, differences)
        assert (values[np.newaxis, :] >= tangents - 1e-12).all()


@each_loss
@quick
@given(data=st.data())
def test_is_convex_and_its_derivative_monotone(loss, data):
    entries = st.lists(
        st.floats(-50, 50), min_size=loss.num_outputs, max_size=loss.num_outputs
    ).map(np.array)
    a, b, target = data.draw(entries), data.draw(entries), data.draw(targets_of(loss))
    middle = value(loss, (a + b) / 2, target)
    assert middle <= (value(loss, a, target) + value(loss, b, target)) / 2 + 1e-9
    assert (gradient(loss, a, target) - gradient(loss, b, target)) @ (a - b) >= -1e-12


def targets_of(loss):
    if isinstance(loss, losses.MultinomialLoss):
        return st.integers(0, loss.num_classes - 1)
    return st.sampled_from([0.0, 1.0]) if loss.binary_targets else st.floats(-20, 20)


@each_loss
@pytest.mark.parametrize("margin_bound", [0.1, 8.0])
def test_lipschitz_bounds_the_derivative(loss, margin_bound):
    bound = loss.lipschitz(margin_bound, 3.0)
    norms = [
        np.linalg.norm(gradient(loss, some_margins(loss, t, margin_bound), t), axis=-1).max()
        for t in some_targets(loss)
    ]
    assert max(norms) <= bound * (1 + 1e-12)
    if margin_bound == 8.0:
        assert max(norms) >= 0.99 * bound


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (losses.SquaredLoss(), 0.3),
        (losses.HuberLoss(threshold=0.25), 0.25),
        (losses.HuberLoss(threshold=0.5), 0.3),
        (losses.PinballLoss(quantile=0.1), 0.9),
    ],
    ids=repr,
)
def test_lipschitz_at_small_bounds(loss, expected):
    assert loss.lipschitz(0.1, 0.2) == pytest.approx(expected, rel=1e-15)


def test_lipschitz_with_infinite_bounds():
    assert losses.SquaredLoss().lipschitz(math.inf, 1.0) == math.inf
    assert losses.HuberLoss(threshold=2.0).lipschitz(math.inf, math.inf) == 2.0


@each_loss
@pytest.mark.parametrize("bad", [-1.0, math.nan])
def test_lipschitz_refuses_bad_bounds(loss, bad):
    with pytest.raises(ValueError, match="margin_bound must be a non-negative number, got"):
        loss.lipschitz(bad, 1.0)
    with pytest.raises(ValueError, match="target_bound must be a non-negative number, got"):
        loss.lipschitz(1.0, bad)


def _rates_of_change(loss, target, step):
    """Change of the derivative over short segments, divided by their length."""
    margins = some_margins(loss, target, 3.0)
    directions = np.eye(loss.num_outputs)
    if loss.num_outputs > 1:
        # Two classes tied and the rest far behind is where the curvature is largest.
        tied = np.full((1, loss.num_outputs), -60.0)
        tied[0, :2] = 0.0
        margins = np.concatenate([margins, tied])
        directions = np.concatenate([directions, (directions[:1] - directions[1:2]) / math.sqrt(2)])
    for direction in directions:
        shift = step / 2 * direction
        change = gradient(loss, margins + shift, target) - gradient(loss, margins - shift, target)
        yield np.linalg.norm(change, axis=-1).max() / step


@each_loss
def test_smoothness_bounds_the_change_of_the_derivative_and_is_attained(loss):
    step = 1e-3
    fastest = max(max(_rates_of_change(loss, t, step)) for t in some_targets(loss))
    if loss.smoothness is None:
        # Not smooth: the derivative jumps by a fixed amount however short the step.
        assert fastest * step >= 1 - 1e-9
        shorter = max(max(_rates_of_change(loss, t, step / 1e6)) for t in some_targets(loss))
        assert shorter * step / 1e6 >= 1 - 1e-9
    else:
        assert 0.99 * loss.smoothness <= fastest <= loss.smoothness * (1 + 1e-9)


@each_loss
@pytest.mark.parametrize("size", [1e4, 1e8])
def test_huge_margins_stay_finite_and_convex(loss, size):
    C = loss.num_outputs
    for target in some_targets(loss):
        margins = size * np.concatenate([np.eye(C), -np.eye(C), 1 - 2 * np.eye(C)])
        values, gradients = value(loss, margins, target), gradient(loss, margins, target)
        assert np.isfinite(values).all()
        assert (values >= 0).all()
        assert np.isfinite(gradients).all()
        at_zero = value(loss, np.zeros((1, C)), target)
        assert (at_zero >= values - np.einsum("ic,ic->i", gradients, margins) - 1e-6).all()
        assert values.max() >= 0.29 * size  # all grow at least linearly; huber(0.3) is slowest


@each_loss
def test_results_are_float64_of_the_broadcast_shape(loss):
    C = loss.num_outputs
    margins = np.zeros((4, 1, C), dtype=np.float32)
    targets = some_targets(loss)[:2].astype(np.int32)
    assert value(loss, margins, targets).shape == (4, 2)
    assert gradient(loss, margins, targets).shape == (4, 2, C)
    assert value(loss, margins, targets).dtype == np.float64
    assert gradient(loss, margins, targets).dtype == np.float64
    scalar = value(loss, np.zeros(C), 1)
    assert isinstance(scalar, np.ndarray)
    assert scalar.shape == ()


@each_loss
def test_pickles_and_compares_by_value(loss):
    copy = pickle.loads(pickle.dumps(loss))
    assert copy == loss
    assert hash(copy) == hash(loss)
    assert sum(copy == other for other in LOSSES) == 1


@each_loss
def test_kernel_code_and_name_agree(loss):
    assert loss.kernel_code == getattr(loss_codes, loss.name.upper())
    assert losses.loss_by_name(loss.name, **vars(loss)) == loss


@each_loss
def test_canonical_means_the_target_enters_linearly(loss):
    targets = some_targets(loss)
    margins = np.random.default_rng(1).uniform(-2, 2, (20, 1, loss.num_outputs))
    one_hot = np.eye(loss.num_outputs)[targets.astype(int)] if loss.num_outputs > 1 else None
    statistic = targets[:, np.newaxis] if one_hot is None else one_hot
    mean_part = gradient(loss, margins, targets) + statistic  # (20, targets, outputs)
    depends_on_target = np.ptp(mean_part, axis=1).max() > 1e-12
    assert loss.is_canonical == (not depends_on_target)


@each_loss
def test_accepts_its_own_targets(loss):
    loss.validate_targets(some_targets(loss), "income")
    loss.validate_targets(some_targets(loss)[:2].astype(np.int8), "income")


@each_loss
@pytest.mark.parametrize(
    "targets", [["0", "1"], [0.0, math.nan], [1.0, math.inf], np.array([0, None])], ids=str
)
def test_refuses_targets_that_are_not_finite_numbers(loss, targets):
    with pytest.raises(ValueError, match=rf"income must hold .* to be a {loss.name} target"):
        loss.validate_targets(targets, "income")


@pytest.mark.parametrize("loss", [x for x in MARGIN_LOSSES if x.binary_targets], ids=repr)
@pytest.mark.parametrize("targets", [[-1, 1], [0, 1, 2], [0.5]], ids=str)
def test_binary_losses_refuse_other_targets(loss, targets):
    with pytest.raises(ValueError, match=f"income must hold only 0 and 1 to be a {loss.name}"):
        loss.validate_targets(targets, "income")


@pytest.mark.parametrize("targets", [[-1, 1], [0, 3], [0.5], [True, False]], ids=str)
def test_multinomial_refuses_targets_that_are_no_classes(targets):
    loss = losses.MultinomialLoss(num_classes=3)
    with pytest.raises(ValueError, match=r"income must hold only the class numbers 0\.\.2"):
        loss.validate_targets(targets, "income")


def test_multinomial_refuses_wrong_shapes_and_classes():
    loss = losses.MultinomialLoss(num_classes=3)
    for margin in (np.zeros(2), np.zeros((3, 4)), 0.0):
        with pytest.raises(ValueError, match="margin must have 3 entries on its last axis"):
            loss.derivative(margin, 0)
    with pytest.raises(ValueError, match=r"target must hold only the class numbers 0\.\.2"):
        loss.value(np.zeros(3), 3)


# Values against independent implementations.

MARGINS = np.random.default_rng(3).normal(scale=2.0, size=300)
BINARY = np.random.default_rng(4).integers(0, 2, 300)
NUMBERS = np.random.default_rng(5).normal(scale=2.0, size=300)


def test_logistic_equals_sklearn():
    expected = metrics.log_loss(BINARY, special.expit(MARGINS))
    assert losses.LogisticLoss().value(MARGINS, BINARY).mean() == pytest.approx(expected, rel=1e-12)


def test_squared_equals_sklearn():
    expected = metrics.mean_squared_error(NUMBERS, MARGINS) / 2
    assert losses.SquaredLoss().value(MARGINS, NUMBERS).mean() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("threshold", [0.2, 1.0, 3.0])
def test_huber_equals_scipy(threshold):
    actual = losses.HuberLoss(threshold=threshold).value(MARGINS, NUMBERS)
    np.testing.assert_allclose(actual, special.huber(threshold, MARGINS - NUMBERS), rtol=1e-12)


def test_hinge_equals_sklearn():
    expected = metrics.hinge_loss(2 * BINARY - 1, MARGINS)
    assert losses.HingeLoss().value(MARGINS, BINARY).mean() == pytest.approx(expected, rel=1e-12)


def test_absolute_equals_sklearn():
    expected = metrics.mean_absolute_error(NUMBERS, MARGINS)
    actual = losses.AbsoluteLoss().value(MARGINS, NUMBERS).mean()
    assert actual == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.75])
def test_pinball_equals_sklearn(quantile):
    expected = metrics.mean_pinball_loss(NUMBERS, MARGINS, alpha=quantile)
    actual = losses.PinballLoss(quantile=quantile).value(MARGINS, NUMBERS).mean()
    assert actual == pytest.approx(expected, rel=1e-12)


def test_multinomial_equals_sklearn():
    margins = np.random.default_rng(6).normal(size=(300, 4))
    targets = np.random.default_rng(7).integers(0, 4, 300)
    expected = metrics.log_loss(targets, special.softmax(margins, axis=1), labels=range(4))
    actual = losses.MultinomialLoss(num_classes=4).value(margins, targets).mean()
    assert actual == pytest.approx(expected, rel=1e-12)


def test_two_classes_are_logistic():
    two = np.stack([np.zeros_like(MARGINS), MARGINS], axis=1)
    loss, logistic = losses.MultinomialLoss(num_classes=2), losses.LogisticLoss()
    np.testing.assert_allclose(
        loss.value(two, BINARY), logistic.value(MARGINS, BINARY), rtol=0, atol=1e-13
    )
    np.testing.assert_allclose(
        loss.derivative(two, BINARY)[:, 1], logistic.derivative(MARGINS, BINARY), atol=1e-15
    )


def test_smooth_hinge_by_hand():
    # width 1/2, target 1, so u = m: zero from 1 on, (1 - u)^2 between 1/2 and 1, then 3/4 - u.
    loss = losses.SmoothHingeLoss(width=0.5)
    margins = [2.0, 1.0, 0.75, 0.5, 0.0, -3.0]
    np.testing.assert_array_equal(loss.value(margins, 1), [0, 0, 0.0625, 0.25, 0.75, 3.75])
    np.testing.assert_array_equal(loss.derivative(margins, 1), [0, 0, -0.5, -1, -1, -1])
    np.testing.assert_array_equal(loss.value(np.negative(margins), 0), loss.value(margins, 1))


def test_smooth_hinge_approaches_hinge():
    gap = losses.HingeLoss().value(MARGINS, BINARY) - losses.SmoothHingeLoss(width=1e-3).value(
        MARGINS, BINARY
    )
    assert gap.min() >= 0
    assert gap.max() == pytest.approx(5e-4, rel=1e-9)


def test_derivatives_at_kinks():
    assert losses.HingeLoss().derivative([1.0, -1.0], [1, 0]).tolist() == [0, 0]
    assert losses.AbsoluteLoss().derivative(2.0, 2.0) == 0
    assert losses.PinballLoss(quantile=0.3).derivative([1.0, 2.0, 3.0], 2.0).tolist() == [
        -0.3,
        0,
        0.7,
    ]


# Construction.


def test_names_are_listed_once():
    assert losses.LOSS_NAMES == (
        "logistic",
        "squared",
        "huber",
        "smooth_hinge",
        "hinge",
        "absolute",
        "pinball",
        "multinomial",
    )
    assert {loss.name for loss in LOSSES} == set(losses.LOSS_NAMES)


@pytest.mark.parametrize(
    ("wrong", "nearest"), [("logstic", "logistic"), ("smooth-hinge", "smooth_hinge"), ("l2", ".*")]
)
def test_unknown_name_suggests_the_nearest(wrong, nearest):
    message = (
        f"loss must be one of logistic, .*multinomial, got '{wrong}': did you mean '{nearest}'"
    )
    with pytest.raises(ValueError, match=message):
        losses.loss_by_name(wrong)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("logistic", {"width": 1.0}, "logistic loss takes no parameters, got width"),
        ("pinball", {"q": 0.5}, "pinball loss takes quantile, got q"),
        ("multinomial", {}, r"multinomial loss takes num_classes \(required\), got none"),
        ("multinomial", {"num_classes": 1}, "num_classes must be a whole number of at least 2"),
        ("multinomial", {"num_classes": 2.0}, "num_classes must be a whole number of at least 2"),
        ("huber", {"threshold": 0}, "threshold must be a positive finite number, got 0"),
        ("smooth_hinge", {"width": math.inf}, "width must be a positive finite number, got inf"),
        ("pinball", {"quantile": 1.0}, "quantile must be strictly between 0 and 1, got 1.0"),
    ],
)
def test_bad_parameters_are_explained(name, parameters, message):
    with pytest.raises(ValueError, match=message):
        losses.loss_by_name(name, **parameters)


@each_margin_loss
def test_parameter_is_the_loss_s_one_field(loss):
    assert [loss.parameter] == (list(vars(loss).values()) or [0.0])
    assert type(loss.parameter) is float
    assert loss.num_outputs == 1
