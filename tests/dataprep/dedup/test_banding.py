"""The S-curve and the choice of bands."""

import pytest
from datasketch.lsh import _optimal_param

from dataprep.dedup.banding import Banding, choose_banding, explicit_banding
from pipelines.errors import ConfigError


@pytest.mark.parametrize(
    ("banding", "expected"),
    [
        (Banding(10, 10), [0.010, 0.249, 0.679, 0.986]),  # Megatron's
        (Banding(14, 8), [0.053, 0.565, 0.924, 1.0]),  # datatrove
        (Banding(20, 13), [0.002, 0.177, 0.677, 0.997]),  # NeMo Curator
        (Banding(20, 5), [0.470, 0.975, 1.0, 1.0]),  # duplodocus
    ],
)
def test_the_s_curve_of_known_systems_is_as_computed_for_them(banding: Banding, expected: list[float]) -> None:
    assert [round(banding.probability(jaccard), 3) for jaccard in (0.5, 0.7, 0.8, 0.9)] == expected


@pytest.mark.parametrize("num_perm", [16, 100, 128])
@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.8, 0.9])
@pytest.mark.parametrize("weight", [0.5, 0.3])
def test_without_a_floor_the_choice_is_datasketchs(num_perm: int, threshold: float, weight: float) -> None:
    chosen = choose_banding(threshold, num_perm, false_positive_weight=weight)
    assert (chosen.bands, chosen.rows) == _optimal_param(threshold, num_perm, weight, 1 - weight)


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99])
def test_the_default_compares_97_of_100_pairs_at_the_threshold(threshold: float) -> None:
    chosen = choose_banding(threshold, 128, min_recall=0.97)
    assert chosen.probability(threshold) >= 0.97
    assert chosen.bands * chosen.rows <= 128


def test_at_the_default_threshold_the_bands_are_20_of_5_rows() -> None:
    assert choose_banding(0.7, 128, min_recall=0.97) == Banding(20, 5)


def test_a_recall_that_no_banding_reaches_is_refused_with_what_to_change() -> None:
    with pytest.raises(ConfigError, match=r"min_recall: no banding of 4 permutations .* raise num_perm"):
        choose_banding(0.2, 4, min_recall=0.999)


def test_half_a_banding_and_one_too_large_are_refused() -> None:
    with pytest.raises(ConfigError, match="give both, or neither"):
        explicit_banding(10, 0, 128)
    with pytest.raises(ConfigError, match="need 200 permutations, num_perm is 128"):
        explicit_banding(20, 10, 128)
    assert explicit_banding(20, 6, 128) == Banding(20, 6)
