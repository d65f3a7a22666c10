"""Private training, step by step."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedfomo.core.data import Examples
from fedfomo.core.local_training import ProximalTerm, Sgd, TrainingJob
from fedfomo.core.rng import stream
from fedfomo.errors import InputError
from fedfomo.privacy.accountant import Query
from fedfomo.privacy.dp_sgd import DpSgd
from fedfomo.privacy.private_data import BudgetError, BudgetTracker, PrivateExamples, SeededNoise, SystemNoise
from toy_problems import HALFWAY, initialised, perceptron, points, scalar_model, targets


class Ones:
    """Noise that can be worked with by hand."""

    def draw(self, size: int) -> Tensor:
        return torch.ones(size, dtype=torch.float64)


def private(examples: Examples, noise: object = None, chance: float = 1.0) -> PrivateExamples:
    return PrivateExamples(examples, ("training",), BudgetTracker(noise or Ones(), {}, lambda ledger: True), chance)  # type: ignore[arg-type]


def test_a_gradient_by_hand() -> None:
    # Clipped sum −0.2 (see the clipping tests), noise 2 · 1 · 1, three examples: (−0.2 + 2) / 3 = 0.6.
    model = scalar_model()
    batch = private(targets(1.0, 0.1, -3.0))
    assert DpSgd(HALFWAY, 2.0, 1.0).gradient(model, batch).tolist() == pytest.approx([0.6])
    assert batch.tracker.ledger == {Query("training", 2.0, 1.0): 1}
    # With a clip of 4: (1.8 + 2 · 4) / 3.
    assert DpSgd(HALFWAY, 2.0, 4.0).gradient(model, private(targets(1.0, 0.1, -3.0))).tolist() == pytest.approx(
        [9.8 / 3]
    )


def test_a_sum_is_divided_by_the_expected_size_whatever_the_real_one() -> None:
    # Chance 1/2 of 4 examples: 2 are expected. Whoever came, noise 1 · 1 is divided by 2.
    whole = private(targets(0.0, 0.0, 0.0, 0.0))
    trainer = DpSgd(replace(HALFWAY, batch_size=2), 1.0, 1.0)
    sizes = set[int]()
    for batch in trainer.batches(whole, 10, stream(0, "sampling")):
        sizes.add(len(batch))
        assert trainer.gradient(scalar_model(), batch).tolist() == pytest.approx([0.5])  # at the minimum, noise alone
    assert len(sizes) > 2
    assert whole.tracker.ledger == {Query("training", 1.0, 0.5): 20}


def test_an_empty_batch_is_a_step_of_noise_and_is_paid_for() -> None:
    batch = private(targets(), chance=0.1)
    empty = PrivateExamples(batch.opened(), batch.records, batch.tracker, 0.1, 5.0, b"a draw")
    assert DpSgd(HALFWAY, 1.0, 2.0).gradient(scalar_model(), empty).tolist() == pytest.approx([2.0 / 5])
    assert batch.tracker.ledger == {Query("training", 1.0, 0.1): 1}


def test_every_example_comes_with_the_same_chance_by_itself() -> None:
    examples = Examples(torch.arange(40.0).view(40, 1), torch.arange(40))
    trainer = DpSgd(Sgd(batch_size=10), 1.0, 1.0)
    batches = [batch.opened().labels for batch in trainer.batches(private(examples), 500, stream(1, "sampling"))]
    assert len(batches) == 2000  # four steps an epoch, as without privacy
    counts = torch.bincount(torch.cat(batches), minlength=40).double() / 2000
    assert counts.sub(0.25).abs().max() < 0.04
    sizes = torch.tensor([float(len(batch)) for batch in batches])
    assert float(sizes.var()) == pytest.approx(40 * 0.25 * 0.75, rel=0.15)  # binomial: no fixed size


def test_noise_has_the_stated_size_and_no_direction() -> None:
    model = initialised(perceptron)
    empty = points(5, 0, stream(0)).take(torch.tensor([], dtype=torch.int64))
    for source in (SeededNoise(stream(3, "noise")), SystemNoise()):
        batch = PrivateExamples(
            empty, ("training",), BudgetTracker(source, {}, lambda ledger: True), 0.5, expected=10.0
        )
        trainer = DpSgd(replace(HALFWAY, weight_decay=0.0), 1.5, 2.0)
        steps = torch.stack([trainer.gradient(model, batch) for _ in range(40)])  # 48,120 draws
        assert float(steps.std()) == pytest.approx(1.5 * 2.0 / 10, rel=0.02)
        assert abs(float(steps.mean())) < 0.01
        kurtosis = float(((steps / steps.std()) ** 4).mean())
        assert kurtosis == pytest.approx(3.0, rel=0.05)  # of a normal distribution


def test_what_reads_no_records_is_added_after_the_noise() -> None:
    model = scalar_model()
    model.load(torch.tensor([1.0]))
    plain = DpSgd(HALFWAY, 1.0, 1.0).gradient(model, private(targets(5.0)))
    decayed = DpSgd(replace(HALFWAY, weight_decay=0.5), 1.0, 1.0).gradient(model, private(targets(5.0)))
    assert (decayed - plain).tolist() == pytest.approx([0.5])
    # One step from 1 towards 5: gradient clipped to −1, noise 1, pull 3 · (1 − 0) = 3: 1 − 0.25 · 3 = 0.25.
    task = TrainingJob(torch.tensor([1.0]), private(targets(5.0)), 0, stream(0), ProximalTerm(torch.tensor([0.0]), 3.0))
    assert DpSgd(HALFWAY, 1.0, 1.0).train(model, task).tolist() == pytest.approx([0.25])


def test_without_noise_and_with_a_generous_clip_a_whole_batch_is_a_plain_step() -> None:
    model, examples = initialised(perceptron), points(12, 0, stream(0))
    sgd = Sgd(batch_size=12, epochs=3)
    start = model.read()
    plain = sgd.train(model, TrainingJob(start, examples, 0, stream(5)))
    clipped = DpSgd(sgd, 0.0, 1e6).train(model, TrainingJob(start, private(examples), 0, stream(5)))
    torch.testing.assert_close(clipped, plain, rtol=1e-4, atol=1e-6)


def test_what_stays_is_trained_without_noise_to_the_bit() -> None:
    model, examples = initialised(perceptron), points(12, 0, stream(0))
    start, records = model.read(), private(points(12, 0, stream(0)))
    plain = Sgd(batch_size=5).train(model, TrainingJob(start, examples, 0, stream(5)))
    task = TrainingJob(start, records, 0, stream(5), local_only=True)
    assert torch.equal(DpSgd(Sgd(batch_size=5), 1.0, 1.0).train(model, task), plain)
    assert records.tracker.ledger == {}


def test_looks_at_one_sample_cost_more_than_looks_at_several() -> None:
    # Twice at the same sample is once with the noise of the mean, 2/√2; then three times, 2/√3.
    whole = private(targets(1.0, 2.0, 3.0, 4.0))
    trainer = DpSgd(replace(HALFWAY, batch_size=2), 2.0, 1.0)
    first, second = trainer.batches(whole, 1, stream(0, "sampling"))
    for batch in (first, second, first):
        trainer.gradient(scalar_model(), batch)
    assert whole.tracker.ledger == {Query("training", 2.0, 0.5): 1, Query("training", 2.0 / 2**0.5, 0.5): 1}
    again = next(trainer.batches(whole, 1, stream(0, "sampling")))  # drawn anew from the same state: the same sample
    trainer.gradient(scalar_model(), again)
    assert whole.tracker.ledger == {Query("training", 2.0, 0.5): 1, Query("training", 2.0 / 3**0.5, 0.5): 1}


def test_what_was_cleared_pays_for_nothing_else() -> None:
    training, judging = Query("training", 1.0, 0.5), Query("validation", 1.0, 1.0)
    tracker = BudgetTracker(Ones(), {}, lambda ledger: sum(ledger.values()) <= 3)
    tracker.reserve(training, 2)
    tracker.charge(judging)
    with pytest.raises(BudgetError):  # the two that were cleared are spoken for
        tracker.charge(judging)
    tracker.charge(training)
    tracker.charge(training)
    with pytest.raises(BudgetError):
        tracker.charge(training)
    assert tracker.ledger == {judging: 1, training: 2}


def test_a_second_look_at_a_sample_takes_up_what_was_cleared_for_it() -> None:
    look = Query("training", 1.0, 0.5)
    # A price by which two looks at one sample, one with the noise 1/√2, cost as much as two samples.
    tracker = BudgetTracker(
        Ones(), {}, lambda ledger: sum(times / kind.noise**2 for kind, times in ledger.items()) <= 4 + 1e-9
    )
    for _ in range(2):  # two trainings on the same two samples
        tracker.reserve(look, 2)
        for sample in (b"first", b"second"):
            tracker.charge_sample(look, sample)
    assert tracker.ledger == {Query("training", 1 / 2**0.5, 0.5): 2}


def test_a_sample_is_not_cut_up() -> None:
    sample = private(targets(1.0, 2.0, 3.0, 4.0)).sampled(0.5, stream(0))
    for cut in (
        lambda: sample.take(torch.tensor([0])),
        lambda: next(sample.batches(1)),
        lambda: sample.joined(),
        lambda: sample.sampled(0.5, stream(0)),
    ):
        with pytest.raises(InputError, match="cuts, joins or evaluates a random sample"):
            cut()


def test_examples_that_are_nobodys_are_refused() -> None:
    trainer, model = DpSgd(HALFWAY, 1.0, 1.0), scalar_model()
    for misuse in (
        lambda: trainer.gradient(model, targets(1.0)),
        lambda: next(trainer.batches(targets(1.0), 1, stream(0))),
        lambda: trainer.train(model, TrainingJob(torch.zeros(1), targets(1.0), 0, stream(0))),
    ):
        with pytest.raises(InputError, match="no budget to charge"):
            misuse()


def test_noise_of_the_system_cannot_be_drawn_again() -> None:
    torch.manual_seed(0)
    first = SystemNoise().draw(1000)
    torch.manual_seed(0)
    second = SystemNoise().draw(1000)
    assert not torch.equal(first, second)
    assert torch.isfinite(first).all()
    seeded = [SeededNoise(stream(0, "noise")).draw(10) for _ in range(2)]
    assert torch.equal(*seeded)
