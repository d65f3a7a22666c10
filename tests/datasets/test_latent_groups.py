"""Groups that were found once are found again: for the set that they belong to, and for no other."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedfomo.core import networks
from fedfomo.core.data import Examples
from fedfomo.core.rng import stream
from fedfomo.datasets import latent_groups, scenarios
from fedfomo.datasets.bundled import DataSet, fingerprint
from fedfomo.datasets.config import ScenarioConfig
from fedfomo.datasets.embedding import Progress, Schedule
from fedfomo.datasets.latent_groups import Assignments, build_groups, find_groups, known_numbers, own_file, write_groups
from fedfomo.datasets.scenarios import build_scenario
from fedfomo.errors import InputError


@pytest.fixture(autouse=True)
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDFOMO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(latent_groups, "SHIPPED", tmp_path / "shipped")
    return tmp_path / "shipped"


def made_up(size: int = 200, num_classes: int = 10) -> DataSet:
    labels = torch.arange(size) % num_classes
    images = torch.rand(size, 3, 8, 8, generator=stream(0, "made-up images")) / 2
    images += (labels / num_classes / 2)[:, None, None, None]
    cut = size * 4 // 5
    train, test = Examples(images[:cut], labels[:cut]), Examples(images[cut:], labels[cut:])
    return DataSet("made-up", train, test, num_classes, fingerprint(train, test))


def halves(data: DataSet, number: int = 2, shift: int = 0) -> Assignments:
    """Assign images to groups by their labels."""
    groups = ((data.train.labels.numpy() + shift) % number, (data.test.labels.numpy() + shift) % number)
    return Assignments(data.fingerprint, 0.9, {number: groups})


def test_what_is_written_is_found_for_its_set_and_number_only(shipped: Path) -> None:
    data = made_up()
    assert find_groups(data, 2) is None
    write_groups(halves(data), shipped / "made-up.npz")
    assert [file.name for file in shipped.iterdir()] == ["made-up.npz"], "no part is left behind"
    found = find_groups(data, 2)
    assert found is not None
    for part, expected in zip(found, halves(data).groups[2], strict=True):
        assert part.dtype == np.int64
        np.testing.assert_array_equal(part, expected)
    assert find_groups(data, 3) is None
    assert find_groups(made_up(100), 2) is None
    assert known_numbers(data) == [2]
    assert known_numbers(made_up(100)) == []


def test_one_byte_an_image_and_no_pickle(shipped: Path) -> None:
    data = made_up()
    write_groups(halves(data), shipped / "made-up.npz")
    with np.load(shipped / "made-up.npz", allow_pickle=False) as archive:
        assert sorted(archive.files) == ["accuracy", "fingerprint", "test_2", "train_2"]
        assert archive["train_2"].dtype == np.uint8
        assert float(archive["accuracy"]) == 0.9


def test_the_users_own_groups_come_before_those_that_ship(shipped: Path) -> None:
    data = made_up()
    write_groups(halves(data, 3), shipped / "made-up.npz")
    write_groups(halves(data, 2), own_file(data))
    assert known_numbers(data) == [2, 3], "what the own file lacks is taken from the library"
    write_groups(halves(data, 3, shift=1), own_file(data))
    found = find_groups(data, 3)
    assert found is not None
    np.testing.assert_array_equal(found[0], halves(data, 3, shift=1).groups[3][0])


def test_damaged_files_are_named(shipped: Path) -> None:
    data = made_up()
    file = shipped / "made-up.npz"
    write_groups(halves(data), file)
    whole = file.read_bytes()
    correct = {"fingerprint": data.fingerprint, "accuracy": 0.5}
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"made-up.npz is not a whole file of groups .* remove it"):
        find_groups(data, 2)
    zeros = np.zeros(160, dtype=np.uint8)
    for train, test in (
        (zeros, np.zeros(39, dtype=np.uint8)),  # an image has no group
        (zeros + 2, np.zeros(40, dtype=np.uint8)),  # a group of a larger number
        (zeros.astype(np.int64), np.zeros(40, dtype=np.uint8)),
        (np.array([None] * 160), np.zeros(40, dtype=np.uint8)),  # a pickle
    ):
        np.savez(file, train_2=train, test_2=test, **correct)
        with pytest.raises(InputError, match=r"made-up.npz is not a whole file of groups"):
            find_groups(data, 2)


@pytest.mark.parametrize("number", [0, 257])
def test_numbers_that_one_byte_cannot_hold_are_refused(number: int, shipped: Path) -> None:
    data = made_up()
    for work in (
        lambda: write_groups(Assignments("", 0.0, {number: (data.train.labels.numpy(),) * 2}), shipped / "x.npz"),
        lambda: build_groups(data, shipped, Schedule(), (number,)),
    ):
        with pytest.raises(InputError, match=f"{number} groups: give 1 to 256"):
            work()
    assert not shipped.exists()


def test_more_groups_than_images_are_refused_before_any_training(shipped: Path) -> None:
    with pytest.raises(InputError, match="201 groups of 200 images"):
        build_groups(made_up(), shipped, Schedule(), (2, 201))
    assert not shipped.exists()


def test_a_small_set_goes_through_the_whole_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "_EMBEDDING_WIDTH", 16)
    monkeypatch.setattr(networks, "_VGG11_WIDTHS", ((4,), (8,)))
    data = made_up(num_classes=2)
    schedule = Schedule(sides=(8,) * 8, batch_size=20, padding=1)
    reports: list[Progress] = []
    said: list[str] = []
    built = build_groups(data, tmp_path / "work", schedule, (2, 3), reports.append, said.append)
    assert reports[-1].step == reports[-1].steps == 64
    assert built.fingerprint == data.fingerprint
    assert built.accuracy > 0.9
    for number, (train, test) in built.groups.items():
        assert (len(train), len(test)) == (160, 40)
        assert set(np.concatenate([train, test]).tolist()) == set(range(number))
    # The network tells the classes apart, so two groups are the two classes.
    train, labels = built.groups[2][0], data.train.labels.numpy()
    assert max(np.mean(train == labels), np.mean(train != labels)) > 0.9
    assert said[0] == f"the network classifies {100 * built.accuracy:.2f} % of the test images correctly"
    assert said[1].startswith("2 groups of ")
    # All work is kept: a second build trains nothing and finds the same.
    reports.clear()
    again = build_groups(data, tmp_path / "work", schedule, (2, 3), reports.append)
    assert not reports
    for number in (2, 3):
        np.testing.assert_array_equal(again.groups[number][0], built.groups[number][0])


def test_scenarios_use_the_groups_that_are_kept(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenarios, "SMALL_SET", 100)
    monkeypatch.setattr(scenarios, "pixel_representation", lambda _: pytest.fail("groups were sought on the spot"))
    data = made_up()
    write_groups(halves(data), shipped / "made-up.npz")
    for name in ("latent", "ood"):
        scenario = build_scenario(ScenarioConfig(scenario=name, clients=4, distributions=2), data, seed=0)
        assert scenario.partition.groups == (0, 0, 1, 1)
        for client, group in zip(scenario.clients, scenario.partition.groups, strict=True):
            assert (client.train.labels % 2 == group).all()


def test_a_large_set_without_groups_is_sent_to_the_command(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenarios, "SMALL_SET", 100)
    data = made_up()
    command = "run `fedfomo latent build --dataset made-up --data FOLDER"
    with pytest.raises(InputError, match=f"no latent groups of 'made-up' are kept, .* {command}`"):
        build_scenario(ScenarioConfig(distributions=2), data, seed=0)
    with pytest.raises(InputError, match=f"{command} --distributions 2 3 4 5 7 10`"):
        build_scenario(ScenarioConfig(distributions=7), data, seed=0)
    write_groups(halves(data), shipped / "made-up.npz")
    with pytest.raises(InputError, match=f"kept for D = 2, not 7, .* {command} --distributions 2 7`"):
        build_scenario(ScenarioConfig(distributions=7), data, seed=0)
    build_scenario(ScenarioConfig(distributions=7, representation="pixels"), data, seed=0)  # asked for by name


def test_a_small_set_without_groups_is_grouped_on_the_spot() -> None:
    data = made_up()
    auto, pixels = (build_scenario(ScenarioConfig(representation=name), data, 0) for name in ("auto", "pixels"))
    for first, second in zip(auto.partition.clients, pixels.partition.clients, strict=True):
        np.testing.assert_array_equal(first.train, second.train)


def test_classes_as_groups_give_every_client_one_class() -> None:
    data = made_up()
    config = ScenarioConfig(clients=10, distributions=10, representation="classes")
    scenario = build_scenario(config, data, seed=0)
    for number, client in enumerate(scenario.clients):
        assert {*client.train.labels.tolist(), *client.test.labels.tolist()} == {number}
    assert scenario.emd_official == pytest.approx(2.7)
    with pytest.raises(InputError, match=r"distributions is 5, .* 'made-up' has classes: give 10 distributions"):
        build_scenario(replace(config, distributions=5), data, seed=0)


@pytest.mark.parametrize("file", sorted((Path(latent_groups.__file__).parent / "groups").glob("*.npz")))
def test_what_ships_is_whole(file: Path) -> None:
    with np.load(file, allow_pickle=False) as archive:
        assert len(str(archive["fingerprint"])) == 64
        assert 0.5 < float(archive["accuracy"]) <= 1
        for number in latent_groups.PUBLISHED_NUMBERS:
            groups = np.concatenate([archive[f"train_{number}"], archive[f"test_{number}"]])
            assert groups.dtype == np.uint8
            assert np.unique(groups).tolist() == list(range(number))
