"""The regression: scikit-learn's optimum, and the same bits whatever the machine adds in which order."""

import hashlib
import math

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from dataprep.quality import logistic
from dataprep.quality.features import find_features, folded
from dataprep.quality.logistic import area_under_curve, fit, sigmoid
from tests.dataprep.quality.examples import BAD_WORDS, GOOD_WORDS, texts

BITS = 10
FEATURES = find_features(folded([*texts(GOOD_WORDS, 60), *texts(BAD_WORDS, 25)]), BITS)
GOOD = np.array([True] * 60 + [False] * 25)
L2 = 1e-3


def fitted(tolerance: float = 1e-10, steps: int = 20_000) -> logistic.Fit:
    return fit(FEATURES, GOOD, BITS, l2=L2, tolerance=tolerance, steps=steps)


def test_the_weights_are_those_of_scikit_learn() -> None:
    rows = np.zeros((len(GOOD), (1 << BITS) + 1))
    for number in range(len(GOOD)):
        own = FEATURES.of(number)
        np.add.at(rows[number], own, 1 / math.sqrt(len(own)))
    rows[:, -1] = 1  # the bias, whose square counts too
    theirs = LogisticRegression(
        C=1 / (L2 * len(GOOD)), class_weight="balanced", fit_intercept=False, tol=1e-10, max_iter=10_000
    ).fit(rows, GOOD)
    ours = fitted()
    assert ours.gradient <= 1e-10
    assert np.abs(ours.weights - theirs.coef_[0, :-1]).max() < 1e-5
    assert ours.bias == pytest.approx(theirs.coef_[0, -1], abs=1e-5)


def test_the_bits_of_the_weights_are_known() -> None:
    """They were computed on x86-64; another machine that computes others breaks the promise."""
    weights = fitted(steps=50, tolerance=1e-300).weights
    assert hashlib.sha256(weights.astype("<f8").tobytes()).hexdigest()[:16] == "04f0085334f55a28"


def test_it_ends_at_the_tolerance_or_after_the_steps() -> None:
    assert fitted(steps=3, tolerance=1e-300).steps == 3
    early = fitted(tolerance=1e-3)
    assert early.gradient <= 1e-3
    assert early.steps < fitted(tolerance=1e-6).steps


def test_blocks_change_nothing_but_the_last_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fitted(steps=50)
    monkeypatch.setattr(logistic, "_BLOCK", 7)  # fewer than any text has
    assert np.abs(fitted(steps=50).weights - whole.weights).max() < 1e-12


def test_a_class_weighs_the_same_whatever_its_size() -> None:
    twice = [*range(60), *range(60), *range(60, 85)]
    buckets = np.concatenate([FEATURES.of(number) for number in twice])
    first = np.cumsum([0, *(len(FEATURES.of(number)) for number in twice)])
    doubled = fit(
        type(FEATURES)(buckets, first), GOOD[twice], BITS, l2=L2, tolerance=1e-10, steps=20_000
    )  # fmt: skip
    assert np.abs(doubled.weights - fitted().weights).max() < 1e-6


def test_the_sigmoid_is_right_to_two_units_in_the_last_place() -> None:
    values = np.concatenate([np.linspace(-745, 745, 20_001), np.linspace(-2, 2, 20_001), [0.0, -0.0, 1e300, -1e300]])
    exact = np.array([1 / (1 + math.exp(-value)) if value > -709 else 0.0 for value in values.tolist()])
    with np.errstate(over="ignore"):
        near = values > -690
        assert (np.abs(sigmoid(values) - exact)[near] <= 4 * np.spacing(exact[near])).all()
    assert (sigmoid(values)[~near] < 1e-290).all()
    assert sigmoid(np.array([0.0])).tolist() == [0.5]


def test_the_area_is_that_of_scikit_learn_with_ties() -> None:
    good, bad = np.array([0.9, 0.5, 0.5, 0.3]), np.array([0.5, 0.3, 0.1])
    expected = roc_auc_score([1] * 4 + [0] * 3, [*good, *bad])
    assert area_under_curve(good, bad) == pytest.approx(expected, abs=1e-15)
