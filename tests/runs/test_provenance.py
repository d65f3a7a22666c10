"""What a run says of what it is computed with."""

import json
from pathlib import Path

import pytest
import torch

from fedfomo.core.data import ClientData, Examples
from fedfomo.core.determinism import instructions
from fedfomo.errors import InputError
from fedfomo.runs.provenance import _constant_accuracy, check_machine, source_digest


def labelled(*labels: int) -> Examples:
    return Examples(torch.zeros(len(labels), 1), torch.tensor(labels, dtype=torch.long))


@pytest.mark.parametrize(("has_own_target", "expected"), [(True, 1 / 4), (False, 3 / 4)])
def test_one_constant_answer_is_taken_from_data_like_the_target(has_own_target: bool, expected: float) -> None:
    data = ClientData(train=labelled(2, 2, 0), validation=labelled(1, 1, 2), test=labelled(1, 1, 2, 1))
    assert _constant_accuracy(data, has_own_target) == expected


def test_nobody_answers_without_data() -> None:
    assert _constant_accuracy(ClientData(labelled(), labelled(1), labelled(1)), has_own_target=True) is None
    assert _constant_accuracy(ClientData(labelled(1), labelled(1), labelled()), has_own_target=True) is None


def test_going_on_with_other_code_is_told_and_on_another_processor_refused(tmp_path: Path) -> None:
    told: list[str] = []
    file = tmp_path / "environment.json"
    file.write_text(json.dumps({"instructions": instructions(), "source": source_digest()}))
    check_machine(tmp_path, told.append)
    assert told == []
    file.write_text(json.dumps({"instructions": instructions(), "source": "other"}))
    check_machine(tmp_path, told.append)
    assert ["was begun with other code of fedfomo" in line for line in told] == [True]
    file.write_text(json.dumps({"instructions": "abacus"}))
    with pytest.raises(InputError, match="begun on a processor that computes with abacus"):
        check_machine(tmp_path, told.append)
