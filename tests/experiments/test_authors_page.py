"""What pages say of the authors' protocol, from lines made by hand."""

from pathlib import Path

from experiments.iclr2021.authors_page import contradictions, diverged, many_clients
from experiments.iclr2021.authors_runs import RUNS
from experiments.iclr2021.features.store import Store
from experiments.iclr2021.unguarded import NAME
from experiments.markdown import NOTHING


def line(method: str, protocol: str, accuracy: float, seed: int = 0, scored: int = 10) -> dict[str, object]:
    return {
        "dataset": "cifar10-features",
        "rounds": 100,
        "method": method,
        "protocol": protocol,
        "seed": seed,
        "accuracy": accuracy,
        "by_client": [accuracy / 100] * 100,
        "clients_scored": scored,
    }


def test_protocols_stand_beside_the_papers_numbers(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed, accuracy in enumerate((80.0, 82.0)):
        store.append(RUNS, line("local", "ours", accuracy, seed, scored=100))
        store.append(RUNS, line("local", "same-ten", accuracy + 5, seed))
    rows = many_clients(tmp_path).splitlines()
    assert rows[2] == "| ours | features, 100, 2 | 81.0 | – | – | 100 |"
    assert rows[3] == ("| ours, read of the ten who would always take part | features, 100, 2 | 81.0 | – | – | 10 |")
    assert rows[4] == "| the same ten in every round, and only they scored | features, 100, 2 | 86.0 | – | – | 10 |"
    assert rows[-1] == "| the paper prints | | 85.42 ± 4.06 | 53.08 ± 7.40 | 92.10 ± 5.20 | |"


def test_what_divergence_would_have_cost(tmp_path: Path) -> None:
    key = {"case": "cifar10-ood-d5-k15", "scale": "paper", "method": "fedavg", "seed": 0}
    Store(tmp_path).append(NAME, {**key, "diverged": 1, "guarded": 72.7, "unguarded": 10.0})
    assert "| foreign targets, D = 5, older groups | all, 0 | FedAvg | 1 | 72.7 | 10.0 | 23.11 ± 2.51 |" in diverged(
        tmp_path
    )


def test_nothing_is_said_of_nothing(tmp_path: Path) -> None:
    assert many_clients(tmp_path) == diverged(tmp_path) == NOTHING


def test_the_papers_own_numbers_contradict_each_other() -> None:
    text = contradictions()
    assert "32.13 and 23.11 for FedAvg" in text
    assert "1.33 for D = 3; the paper prints 1.41" in text
    assert "66.42 against 38.92 at D = 2" in text
