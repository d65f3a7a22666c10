"""What a run says of what it is computed with."""

import pytest
import torch

from fedfomo.environment import _constant_accuracy
from fedfomo.examples import ClientData, Examples


def labelled(*labels: int) -> Examples:
    return Examples(torch.zeros(len(labels), 1), torch.tensor(labels, dtype=torch.long))


@pytest.mark.parametrize(("is_at_home", "expected"), [(True, 1 / 4), (False, 3 / 4)])
def test_one_constant_answer_is_taken_from_data_like_the_target(is_at_home: bool, expected: float) -> None:
    data = ClientData(train=labelled(2, 2, 0), validation=labelled(1, 1, 2), test=labelled(1, 1, 2, 1))
    assert _constant_accuracy(data, is_at_home) == expected


def test_nobody_answers_without_data() -> None:
    assert _constant_accuracy(ClientData(labelled(), labelled(1), labelled(1)), is_at_home=True) is None
    assert _constant_accuracy(ClientData(labelled(1), labelled(1), labelled()), is_at_home=True) is None
