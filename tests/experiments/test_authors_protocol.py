"""What the authors' code does otherwise, switch by switch."""

from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.iclr2021.authors_protocol import (
    AuthorsSgd,
    Protocol,
    VariedEvaluator,
    make_method,
    prepare_protocol,
    shards,
    share_of_class_0,
    varied,
    with_diverged_kept,
)
from experiments.iclr2021.authors_runs import AuthorsRun, compute, planned
from fedfomo.core.client import FederationInfo
from fedfomo.core.data import ClientData, Examples
from fedfomo.core.local_training import Sgd, TrainingJob
from fedfomo.core.model import Model
from fedfomo.errors import InputError
from made_up_sets import write_toys


def examples(count: int = 10) -> Examples:
    rng = torch.Generator().manual_seed(0)
    return Examples(torch.rand(count, 1, 8, 8, generator=rng), torch.arange(count) % 3)


def network() -> Model:
    torch.manual_seed(0)
    return Model(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3)))


def test_names_of_protocols() -> None:
    assert Protocol().name == "ours"
    assert Protocol.of(["authors"]).name == "authors"
    assert Protocol.of(["same_ten", "as_coded"]).name == "same-ten+as-coded"
    with pytest.raises(InputError, match="same_ten"):
        Protocol.of(["same_tan"])


def test_shards_may_be_of_one_class_and_nobody_shares_any() -> None:
    train, test = np.arange(2000) % 10, np.arange(400) % 10
    dealt = shards(train, test, 100, 2, seed=0, validation=0.2)
    held = np.concatenate([np.concatenate((one.train, one.validation)) for one in dealt])
    assert sorted(held.tolist()) == list(range(2000))
    assert sorted(np.concatenate([one.test for one in dealt]).tolist()) == list(range(400))
    kinds = [len(np.unique(train[one.train])) for one in dealt]
    assert 2 <= kinds.count(1) <= 25  # 19 of the 199 other shards are of the first one's class: 9.5 are expected
    assert all(set(test[one.test]) == set(train[np.concatenate((one.train, one.validation))]) for one in dealt)
    assert all(len(one.validation) == 4 for one in dealt)


def test_shards_that_do_not_come_out_even_are_refused() -> None:
    with pytest.raises(InputError, match="same number of each"):
        shards(np.arange(100) % 10, np.arange(100) % 10, 7, 2, seed=0, validation=0.2)


def test_the_short_round_is_one_epoch_at_the_first_step_size() -> None:
    model, plain, short = network(), Sgd(batch_size=5), AuthorsSgd(batch_size=5, first_epoch=True)
    assert [short.learning_rate_in(n) for n in range(3)] == [plain.learning_rate_in(n) for n in (0, 0, 1)]

    def train(trainer: Sgd, round: int, epochs: int | None = None) -> torch.Tensor:
        rng = torch.Generator().manual_seed(1)
        return trainer.train(model, TrainingJob(start, examples(), round, rng, epochs=epochs))

    start = model.read()
    assert torch.equal(train(short, 0), train(plain, 0, epochs=1))
    assert torch.equal(train(short, 2), train(plain, 1))
    assert not torch.equal(train(short, 0), train(plain, 0))


def test_borders_are_black() -> None:
    images = Examples(torch.ones(50, 1, 8, 8), torch.zeros(50, dtype=torch.long))
    seen = varied(images, (-2.0,), torch.Generator().manual_seed(0)).inputs
    assert set(seen.unique().tolist()) == {-2.0, 1.0}
    with_mean_colour = images.augmented(torch.Generator().manual_seed(0)).inputs
    assert torch.equal(with_mean_colour == 0.0, seen == -2.0)  # the same shifts


def test_every_model_is_judged_on_other_images() -> None:
    model = network()
    theta = model.read()
    losses = VariedEvaluator(torch.Generator().manual_seed(0), ()).losses(model, [theta, theta], examples())
    assert losses[0] != losses[1]
    again = VariedEvaluator(torch.Generator().manual_seed(0), ()).losses(model, [theta, theta], examples())
    assert torch.equal(losses, again)


def test_what_diverged_stays_class_0() -> None:
    scores, class_0 = {0: 0.9, 1: 0.8}, {0: 0.5, 1: 0.0}
    assert with_diverged_kept(scores, [0], class_0, "local") == {0: 0.5, 1: 0.8}
    assert with_diverged_kept(scores, [1], class_0, "fedavg") == {0: 0.5, 1: 0.0}
    assert with_diverged_kept(scores, [], class_0, "fedavg") == scores
    with pytest.raises(InputError, match="would have stopped"):
        with_diverged_kept(scores, [1], class_0, "fedfomo")


def test_a_network_of_no_numbers_answers_class_0() -> None:
    assert int(torch.full((3, 4), torch.nan).argmax(1).sum()) == 0
    client = ClientData(examples(), examples(), Examples(torch.zeros(4, 1, 8, 8), torch.tensor([0, 0, 1, 2])))
    assert share_of_class_0([client]) == {0: 0.5}


def test_own_model_counts_among_n_and_averages_are_candidates() -> None:
    paper, coded = make_method("fedfomo", Protocol()), make_method("fedfomo", Protocol(as_coded=True))
    assert (paper.num_downloads, paper.norm, paper.num_averages) == (5, "l2", 0)  # type: ignore[attr-defined]
    assert (coded.num_downloads, coded.norm, coded.num_averages) == (4, "l1", 5)  # type: ignore[attr-defined]
    start = FederationInfo(torch.zeros(3), network().layout, 2, 1)
    assert coded.start_server(start) is not None


def test_the_ten_are_the_federation(tmp_path: Path) -> None:
    folder = write_toys(tmp_path / "data")
    run = AuthorsRun("toys", "pathological", 15, 2, "fedfomo", Protocol(same_ten=True, first_epoch=True), 0)
    prepared = prepare_protocol(run.setting(folder), 0, "fedfomo", run.protocol)
    assert len(prepared.problem.clients) == 15  # with 15 clients, all take part
    assert prepared.simulation.rounds == 3  # the short one included
    line = compute(run, folder, tmp_path / "work")
    assert line["clients_scored"] == 15
    assert compute(run, folder, tmp_path / "work")["by_client"] == line["by_client"]
    assert not any((tmp_path / "work").iterdir())


def test_what_is_planned_is_played_once() -> None:
    runs = [*planned(images=False, seeds=2, rounds=100)]
    keys = [tuple(run.key.values()) for run in runs]
    assert len(set(keys)) == len(keys)
    assert {run.method for run in runs if run.protocol == Protocol(as_coded=True)} == {"fedfomo"}
    assert {run.protocol.name for run in planned(images=True, seeds=1, rounds=20)} == {"authors"}
