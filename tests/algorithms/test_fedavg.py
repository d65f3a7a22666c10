"""Averages of models, worked by hand."""

import pytest
import torch

from fedfomo.algorithms.fedavg import FedAvg, State, Upload, average_uploads, group_averages, weighted_average
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from toy_problems import point, scalar_problem


def test_a_weighted_average_divides_by_the_sum_of_weights() -> None:
    # (1·1 + 3·5)/4 and (1·2 + 3·10)/4.
    assert weighted_average([point(1, 2), point(5, 10)], [1, 3]).tolist() == [4.0, 8.0]


def test_weights_need_not_be_normalised() -> None:
    models = [point(1, 2), point(5, 10)]
    assert torch.equal(weighted_average(models, [0.25, 0.75]), weighted_average(models, [100, 300]))


def test_a_weight_of_zero_leaves_a_model_out() -> None:
    assert weighted_average([point(7), point(1), point(3)], [0, 1, 1]).tolist() == [2.0]


def test_averages_keep_what_float32_would_lose() -> None:
    # In float32, 2²⁵ + 1 is 2²⁵: the two ones would vanish.
    assert weighted_average([point(2.0**25), point(1), point(1), point(-(2.0**25))], [1] * 4).tolist() == [0.5]


def test_an_average_of_one_model_is_that_model_bit_for_bit() -> None:
    model = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    for weight in (1, 3, 7, 1000):
        assert torch.equal(weighted_average([model], [weight]), model)


def test_counts_may_be_as_large_as_a_message_can_carry() -> None:
    assert weighted_average([point(1), point(3)], [2**63 - 1] * 2).tolist() == [2.0]


def test_another_number_of_weights_than_of_models_is_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        weighted_average([point(1), point(2)], [1.0])


def test_group_averages_end_with_the_mean_of_the_averages() -> None:
    # Groups {0, 2} and {4}: averages 1 and 4, and (1 + 4)/2 although the groups differ in size.
    averages = group_averages([point(0), point(4), point(2)], [0, 1, 0])
    assert [average.item() for average in averages] == [1.0, 4.0, 2.5]


def test_uploads_count_by_their_examples_whatever_their_order() -> None:
    uploads = {2: Upload(point(8), 1), 0: Upload(point(0), 3)}
    assert average_uploads(uploads, point(9)).tolist() == [2.0]
    assert average_uploads(dict(sorted(uploads.items())), point(9)).tolist() == [2.0]


def test_uploads_are_summed_in_the_order_of_ids() -> None:
    # 1e30 + 1 is 1e30 even in float64: only 1e30 − 1e30 + 1 keeps the one.
    uploads = {2: Upload(point(1), 1), 1: Upload(point(-1e30), 1), 0: Upload(point(1e30), 1)}
    assert average_uploads(uploads, point(9)).tolist() == pytest.approx([1 / 3])


def test_a_round_without_uploads_keeps_the_global_model() -> None:
    state = State(point(3))
    assert FedAvg().aggregate(state, {}).model is state.model


def test_uploads_without_examples_count_for_nothing() -> None:
    nothing = {0: Upload(point(8), 0)}
    assert average_uploads(nothing, point(9)).tolist() == [9.0]
    assert average_uploads(nothing | {1: Upload(point(6), 2)}, point(9)).tolist() == [6.0]


def test_a_whole_run_of_two_clients() -> None:
    # Both start at x and go halfway to 8 and to −4: the average goes halfway to 2, so 0 → 1 → 1.5.
    result = simulate(scalar_problem([(8.0, 0.0), (-4.0, 0.0)]), FedAvg(), SimulationConfig(rounds=2))
    assert {n: model.item() for n, model in result.models.items()} == {0: 1.5, 1: 1.5}
    assert result.after_update[0].loss == 1.5**2  # the test target is 0
    assert result.after_training[0].loss == 4.5**2  # (1 + 8)/2
    assert result.after_training[1].loss == 1.5**2  # (1 − 4)/2


def test_traffic_counts_models_both_ways_and_the_last_download() -> None:
    # Two rounds of two clients, each one model down and one up, and one more down for each at the end.
    traffic = simulate(scalar_problem([(8.0, 0.0), (-4.0, 0.0)]), FedAvg(), SimulationConfig(rounds=2)).traffic
    assert (traffic.models_down, traffic.models_up) == (6.0, 4.0)
    assert traffic.bytes_down == 6 * 4  # one float32
    assert traffic.bytes_up == 4 * (4 + 8)  # and the number of examples
