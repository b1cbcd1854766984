"""GLUE's scores, against values worked out by hand."""

import pytest

from trainer.glue_scores import predict, score


def test_the_likeliest_class_is_predicted_or_the_value_itself() -> None:
    assert predict([[0.1, 0.9, 0.3], [2.0, -1.0, 1.0]], 3) == [1, 0]
    assert predict([[0.25], [4.5]], 1) == [0.25, 4.5]


def test_two_classes_have_accuracy_and_f1_of_the_second() -> None:
    found = score("mrpc", [1, 1, 0, 0, 1], [1, 0, 0, 1, 1], 2)
    assert found == {"accuracy": 0.6, "f1": pytest.approx(2 / 3, abs=1e-6), "majority": 0.6, "rows": 5}


def test_three_classes_have_the_mean_f1() -> None:
    found = score("mnli", [0, 1, 2, 2], [0, 1, 1, 2], 3)
    assert found["f1"] == pytest.approx((1 + 2 / 3 + 2 / 3) / 3, abs=1e-6)


def test_cola_has_matthews_correlation_and_stsb_correlations() -> None:
    assert score("cola", [1, 1, 0, 0], [1, 1, 0, 1], 2)["matthews"] == pytest.approx(0.57735, abs=1e-5)
    assert score("stsb", [1.0, 2.0, 3.0], [0.1, 0.2, 0.3], 1) == {"pearson": 1.0, "spearman": 1.0, "rows": 3}
    assert score("stsb", [1.0, 2.0], [0.5, 0.5], 1)["pearson"] == 0.0


def test_predicting_one_class_only_is_no_error() -> None:
    assert score("cola", [1, 0], [0, 0], 2) == {"accuracy": 0.5, "f1": 0.0, "majority": 0.5, "matthews": 0.0, "rows": 2}
