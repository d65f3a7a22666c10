"""Images that are shifted and mirrored at random."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedfomo.core.augmentation import crop_and_flip
from fedfomo.core.data import ClientData, Examples
from fedfomo.core.local_training import Sgd
from fedfomo.core.model import Model
from fedfomo.core.rng import stream
from fedfomo.errors import InputError
from fedfomo.privacy.accountant import Query
from fedfomo.privacy.dp_sgd import DpSgd
from fedfomo.privacy.private_data import BudgetTracker, PrivateExamples, SeededNoise
from fedfomo.simulation.problem import FederatedProblem
from toy_problems import points_problem

TRAINER = Sgd(batch_size=4, epochs=2, augment=True)


def images(count: int, side: int = 8) -> Examples:
    return Examples(torch.rand(count, 3, side, side, generator=stream(0, "images")), torch.arange(count))


def variations(image: Tensor, padding: int) -> list[Tensor]:
    """Return every image that a shift and a mirror can make, by plain slices."""
    padded = nn.functional.pad(image, [padding] * 4)
    height, width = image.shape[1:]
    shifted = [
        padded[:, top : top + height, left : left + width]
        for top in range(2 * padding + 1)
        for left in range(2 * padding + 1)
    ]
    return [variation for one in shifted for variation in (one, one.flip(2))]


def test_every_variation_comes_and_no_other() -> None:
    # Two by two pixels, shifted by up to one: 9 places, mirrored or not. The four in which a single pixel stays
    # are each other's mirrors or not there at all, so that some are equal; each one left has to turn up.
    image = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    possible = {tuple(one.flatten().tolist()) for one in variations(image, 1)}
    drawn = crop_and_flip(image.expand(2000, 1, 2, 2), stream(0, "crops"), padding=1)
    assert {tuple(one.flatten().tolist()) for one in drawn} == possible
    assert (0.0, 0.0, 2.0, 1.0) in possible  # one row down, and mirrored


def test_each_image_has_a_draw_of_its_own_and_keeps_its_channels() -> None:
    batch = images(6)
    varied = crop_and_flip(batch.inputs, stream(0, "crops"))
    assert varied.shape == batch.inputs.shape
    for image, variation in zip(batch.inputs, varied, strict=True):
        assert any(torch.equal(variation, one) for one in variations(image, 4))
    same = crop_and_flip(batch.inputs[:1].expand(50, -1, -1, -1), stream(0, "crops"))
    assert len({one.numpy().tobytes() for one in same}) > 30
    assert torch.equal(varied, crop_and_flip(batch.inputs, stream(0, "crops")))


def test_without_a_flip_and_with_a_mirror_for_a_border() -> None:
    image = torch.arange(16.0).view(1, 1, 4, 4)
    padded = nn.functional.pad(image, [1] * 4, mode="reflect")[0]
    places = [padded[:, top : top + 4, left : left + 4] for top in range(3) for left in range(3)]
    drawn = crop_and_flip(image.expand(200, -1, -1, -1), stream(0, "crops"), 1, flip=False, border="reflect")
    assert {one.numpy().tobytes() for one in drawn} == {one.contiguous().numpy().tobytes() for one in places}


def test_training_varies_every_batch_anew_and_leaves_the_examples_alone() -> None:
    examples = images(8)
    before = examples.inputs.clone()
    batches = list(TRAINER.batches(examples, 2, stream(0, "training")))
    assert torch.equal(examples.inputs, before)
    seen = [torch.cat([batch.inputs for batch in half]) for half in (batches[:2], batches[2:])]
    labels = [torch.cat([batch.labels for batch in half]) for half in (batches[:2], batches[2:])]
    for inputs, of in zip(seen, labels, strict=True):
        assert sorted(of.tolist()) == list(range(8))
        for image, label in zip(inputs, of.tolist(), strict=True):
            assert any(torch.equal(image, one) for one in variations(before[label], 4))
    assert not torch.equal(seen[0][labels[0].argsort()], seen[1][labels[1].argsort()])


def test_without_it_batches_are_what_they_were() -> None:
    plain = replace(TRAINER, augment=False)
    for batch in plain.batches(images(8), 1, stream(0, "training")):
        assert torch.equal(batch.inputs, images(8).inputs[batch.labels])


def test_private_images_stay_unread_and_are_paid_for_once() -> None:
    tracker = BudgetTracker(SeededNoise(stream(0, "noise")), {}, lambda ledger: True)
    trainer = DpSgd(TRAINER, 1.0, 1.0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 8))
    model = Model(network)
    for batch in trainer.batches(PrivateExamples(images(8), ("training",), tracker), 1, stream(0, "training")):
        assert isinstance(batch, PrivateExamples)
        with pytest.raises(InputError, match="inputs of private examples"):
            _ = batch.inputs
        for image, label in zip(batch.opened().inputs, batch.opened().labels.tolist(), strict=True):
            assert any(torch.equal(image, one) for one in variations(images(8).inputs[label], 4))
        trainer.gradient(model, batch)
    assert tracker.ledger == {Query("training", 1.0, 0.5): 2}


def test_clients_whose_images_vary_are_not_stacked() -> None:
    model = Model(nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 8)))
    data = [ClientData(images(8), images(4), images(4))]
    problem = FederatedProblem(model, model.read(), data, replace(TRAINER, augment=False), 0)
    assert problem.stack_of(model) is not None
    assert replace(problem, trainer=TRAINER).stack_of(model) is None


def test_what_is_no_image_is_refused_before_anything_starts() -> None:
    with pytest.raises(InputError, match=r"these inputs are 2 of torch.float32: leave it out"):
        replace(points_problem(), trainer=TRAINER)
