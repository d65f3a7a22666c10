"""Groups that were found once are found again: for the set that they belong to, and for no other."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedfomo.datasets import latent_groups, scenarios
from fedfomo.datasets.bundled import DataSet
from fedfomo.datasets.config import ScenarioConfig
from fedfomo.datasets.latent_groups import LatentGroups, load_groups, numbers_kept, save_groups, user_file
from fedfomo.datasets.scenarios import build_scenario
from fedfomo.errors import InputError
from made_up_sets import made_up


@pytest.fixture(autouse=True)
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDFOMO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(latent_groups, "SHIPPED", tmp_path / "shipped")
    return tmp_path / "shipped"


def halves(data: DataSet, number: int = 2, shift: int = 0) -> LatentGroups:
    """Assign images to groups by their labels."""
    groups = ((data.train.labels.numpy() + shift) % number, (data.test.labels.numpy() + shift) % number)
    return LatentGroups(data.fingerprint, 0.9, {number: groups})


def test_what_is_written_is_found_for_its_set_and_number_only(shipped: Path) -> None:
    data = made_up()
    assert load_groups(data, 2) is None
    save_groups(halves(data), shipped / "made-up.npz")
    assert [file.name for file in shipped.iterdir()] == ["made-up.npz"], "no part is left behind"
    found = load_groups(data, 2)
    assert found is not None
    for part, expected in zip(found, halves(data).groups[2], strict=True):
        assert part.dtype == np.int64
        np.testing.assert_array_equal(part, expected)
    assert load_groups(data, 3) is None
    assert load_groups(made_up(100), 2) is None
    assert numbers_kept(data) == [2]
    assert numbers_kept(made_up(100)) == []


def test_one_byte_an_image_and_no_pickle(shipped: Path) -> None:
    data = made_up()
    save_groups(halves(data), shipped / "made-up.npz")
    with np.load(shipped / "made-up.npz", allow_pickle=False) as archive:
        assert sorted(archive.files) == ["accuracy", "fingerprint", "test_2", "train_2"]
        assert archive["train_2"].dtype == np.uint8
        assert float(archive["accuracy"]) == 0.9


def test_the_users_own_groups_come_before_those_that_ship(shipped: Path) -> None:
    data = made_up()
    save_groups(halves(data, 3), shipped / "made-up.npz")
    save_groups(halves(data, 2), user_file(data))
    assert numbers_kept(data) == [2, 3], "what the own file lacks is taken from the library"
    save_groups(halves(data, 3, shift=1), user_file(data))
    found = load_groups(data, 3)
    assert found is not None
    np.testing.assert_array_equal(found[0], halves(data, 3, shift=1).groups[3][0])


def test_damaged_files_are_named(shipped: Path) -> None:
    data = made_up()
    file = shipped / "made-up.npz"
    save_groups(halves(data), file)
    whole = file.read_bytes()
    correct = {"fingerprint": data.fingerprint, "accuracy": 0.5}
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"made-up.npz is not a whole file of groups .* remove it"):
        load_groups(data, 2)
    zeros = np.zeros(160, dtype=np.uint8)
    for train, test in (
        (zeros, np.zeros(39, dtype=np.uint8)),  # an image has no group
        (zeros + 2, np.zeros(40, dtype=np.uint8)),  # a group of a larger number
        (zeros.astype(np.int64), np.zeros(40, dtype=np.uint8)),
        (np.array([None] * 160), np.zeros(40, dtype=np.uint8)),  # a pickle
    ):
        np.savez(file, train_2=train, test_2=test, **correct)
        with pytest.raises(InputError, match=r"made-up.npz is not a whole file of groups"):
            load_groups(data, 2)


@pytest.mark.parametrize("number", [0, 257])
def test_numbers_that_one_byte_cannot_hold_are_refused(number: int, shipped: Path) -> None:
    data = made_up()
    with pytest.raises(InputError, match=f"{number} groups: give 1 to 256"):
        save_groups(LatentGroups("", 0.0, {number: (data.train.labels.numpy(),) * 2}), shipped / "x.npz")
    assert not shipped.exists()


def test_scenarios_use_the_groups_that_are_kept(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenarios, "SMALL_SET", 100)
    monkeypatch.setattr(scenarios, "pixel_representation", lambda _: pytest.fail("groups were sought on the spot"))
    data = made_up()
    save_groups(halves(data), shipped / "made-up.npz")
    for name in ("latent", "ood"):
        scenario = build_scenario(ScenarioConfig(scenario=name, clients=4, distributions=2), data, seed=0)
        assert scenario.partition.groups == (0, 0, 1, 1)
        for client, group in zip(scenario.clients, scenario.partition.groups, strict=True):
            assert (client.train.labels % 2 == group).all()


def test_older_groups_and_a_file_of_ones_own_are_used_where_they_are_asked_for(shipped: Path, tmp_path: Path) -> None:
    data = made_up()
    save_groups(halves(data), shipped / "made-up.npz")
    save_groups(halves(data, shift=1), shipped / "vgg" / "made-up.npz")
    file = tmp_path / "mine.npz"
    save_groups(halves(data, 3, shift=1), file)

    def group_of_first(**settings: Any) -> int:
        config = ScenarioConfig(clients=6, distributions=settings.pop("number", 2), **settings)
        clients = build_scenario(config, data, seed=0).partition.clients
        return next(
            number // (6 // config.distributions) for number, c in enumerate(clients) if 0 in [*c.train, *c.validation]
        )

    assert (group_of_first(), group_of_first(representation="vgg")) == (0, 1)
    assert group_of_first(groups=file, number=3) == 1
    with pytest.raises(InputError, match="has groups for D = 3, not 2"):
        group_of_first(groups=file)
    with pytest.raises(InputError, match="no older groups of 'made-up' for D = 5"):
        group_of_first(representation="vgg", number=5)
    with pytest.raises(InputError, match="there is no file"):
        group_of_first(groups=tmp_path / "none.npz")
    save_groups(replace(halves(data), fingerprint="0" * 64), file)
    with pytest.raises(InputError, match="the groups of another data set than 'made-up'"):
        group_of_first(groups=file)


def test_a_large_set_without_groups_is_sent_to_the_command(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenarios, "SMALL_SET", 100)
    data = made_up()
    command = "run `python -m experiments.iclr2021.latent_groups build --dataset made-up --data FOLDER --distributions"
    with pytest.raises(InputError, match=f"no latent groups of 'made-up' are kept, .* {command} 2`"):
        build_scenario(ScenarioConfig(distributions=2), data, seed=0)
    save_groups(halves(data), shipped / "made-up.npz")
    with pytest.raises(InputError, match=f"kept for D = 2, not 7, .* {command} 2 7`"):
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


@pytest.mark.parametrize("file", sorted((Path(latent_groups.__file__).parent / "groups").rglob("*.npz")))
def test_what_ships_is_whole(file: Path) -> None:
    with np.load(file, allow_pickle=False) as archive:
        assert len(str(archive["fingerprint"])) == 64
        assert 0.5 < float(archive["accuracy"]) <= 1
        for number in (2, 3, 4, 5, 10):
            groups = np.concatenate([archive[f"train_{number}"], archive[f"test_{number}"]])
            assert groups.dtype == np.uint8
            assert np.unique(groups).tolist() == list(range(number))
