"""Runs are compared with those that were run on the same, and none takes the place of another."""

import json
import shutil
from pathlib import Path

import pytest

from cli_calls import call
from fedfomo.errors import InputError
from fedfomo.report.compare_runs import compare_runs

TITLE = "digits: latent, 6 clients, distributions 2, epochs 1, 4 rounds"


def another(run: Path, place: Path, shift: float = 0.0, **settings: str) -> Path:
    """Copy a run, and say of the copy that it had other settings and that everybody ended better by so much."""
    shutil.copytree(run, place)
    config = place / "config.toml"
    lines = config.read_text().splitlines()
    for name, value in settings.items():
        if name == "num_downloads":
            lines += ["[fedfomo]", f"{name} = {value}"]
            continue
        [number] = [k for k, line in enumerate(lines) if line.startswith(f"{name} = ")]
        lines[number] = f"{name} = {value}"
    config.write_text("\n".join(lines))
    result = json.loads((place / "result.json").read_text())
    for score in result["after_update"].values():
        score["metric"] += shift
    (place / "result.json").write_text(json.dumps(result))
    return place


def test_methods_are_set_against_each_other_client_by_client(comparison: Path, tmp_path: Path) -> None:
    [arena] = compare_runs([comparison])
    assert arena.title == TITLE
    [duel] = [duel for duel in arena.pairs if (duel.method, duel.against) == ("fedfomo", "fedavg")]
    [back] = [duel for duel in arena.pairs if (duel.method, duel.against) == ("fedavg", "fedfomo")]
    assert len(duel.gaps) == 12  # six clients of two seeds
    assert duel.gaps == [-gap for gap in back.gaps]
    assert (duel.better, duel.equal, duel.worse) == (back.worse, back.equal, back.better)
    call("report", "compare", str(comparison), "--out", str(tmp_path / "page.html"))
    assert (tmp_path / "page.html").stat().st_size < 6_000_000


def test_the_same_method_with_other_options_is_another(comparison: Path, tmp_path: Path) -> None:
    three = another(comparison / "fedfomo-seed-0", tmp_path / "three", 0.25, num_downloads="3")
    usual = another(comparison / "fedfomo-seed-0", tmp_path / "usual", num_downloads="5")
    [arena] = compare_runs([comparison, three, usual])
    assert list(arena.means) == ["fedavg", "fedfomo", "local", "fedfomo (num_downloads=3)"]
    [duel] = [d for d in arena.pairs if (d.method, d.against) == ("fedfomo (num_downloads=3)", "fedfomo")]
    assert duel.gaps == pytest.approx([0.25] * 6)


def test_other_settings_are_another_arena(comparison: Path, tmp_path: Path) -> None:
    run = comparison / "fedfomo-seed-0"
    faster = another(run, tmp_path / "faster", learning_rate="0.5")
    private = another(run, tmp_path / "private", clip="2.0")  # of the table [privacy]
    elsewhere = another(run, tmp_path / "elsewhere", workers="7", vectorise="false", evaluate_every="2")
    titles = [arena.title for arena in compare_runs([comparison, faster, private, elsewhere])]
    assert titles == [
        TITLE,
        "digits: latent, 6 clients, distributions 2, learning-rate 0.5, epochs 1, 4 rounds",
        "digits: latent, 6 clients, distributions 2, epochs 1, privacy.clip 2.0, 4 rounds",
    ]


def test_a_run_counts_once_and_two_that_contradict_each_other_are_refused(comparison: Path, tmp_path: Path) -> None:
    run = comparison / "fedfomo-seed-0"
    again = another(run, tmp_path / "again")
    assert compare_runs([comparison, comparison, again]) == compare_runs([comparison])
    better = another(run, tmp_path / "better", 0.01)
    with pytest.raises(InputError, match=rf"{run} and {better} have the same method, settings and seed"):
        compare_runs([comparison, better])


def say_of_clients(run: Path, **said: object) -> None:
    path = run / "environment.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **said}))


def test_data_of_the_same_name_that_are_others_are_another_arena(comparison: Path, tmp_path: Path) -> None:
    other = another(comparison / "fedfomo-seed-0", tmp_path / "other", 0.01)
    mine = json.loads((comparison / "fedfomo-seed-0" / "environment.json").read_text())["data"]["sha256"]
    say_of_clients(other, data={"name": "digits", "sha256": "0" * 64})
    arenas = compare_runs([comparison, other])
    assert [arena.title for arena in arenas] == [f"{TITLE}, data {mine[:8]}", f"{TITLE}, data 00000000"]
    assert [list(arena.means) for arena in arenas] == [["fedavg", "fedfomo", "local"], ["fedfomo"]]


@pytest.mark.parametrize(
    "said", [{"split": "another"}, {"groups": [1, 0, 1, 0, 1, 0]}, {"targets": [5, 4, 3, 2, 1, 0]}]
)
def test_other_clients_of_the_same_seed_are_refused(comparison: Path, tmp_path: Path, said: dict[str, object]) -> None:
    other = another(comparison / "fedfomo-seed-0", tmp_path / "other", num_downloads="3")
    say_of_clients(other, **said)
    with pytest.raises(InputError, match=rf"{other} had other clients, though of the same data, settings and seed"):
        compare_runs([comparison, other])
