"""Bringing your own model and data."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import fedfomo
from fedfomo.errors import InputError
from fedfomo.report.text import figure
from fedfomo.runs.site_data import client_data


class Residual(nn.Module):
    """A small residual network with BatchNorm, as practitioners bring them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.block = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4))
        self.head = nn.Linear(4, 2)

    def forward(self, images: Tensor) -> Tensor:
        features = self.first(images)
        features = torch.relu(features + self.block(features))
        return self.head(features.mean(dim=(2, 3)))


def images(bright_label: int, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Dark and bright images; sites disagree about which of them is which."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    level = 2.0 * ((labels == bright_label).float()) - 1
    return level.view(-1, 1, 1, 1) + torch.randn(count, 1, 6, 6, generator=rng), labels


@pytest.fixture(scope="module")
def federated() -> fedfomo.FederationResult:
    sites: dict[str, tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
        "leeds": (images(1, 21, 1), images(1, 40, 2)),  # 21 = 2 · 10 + 1: the last batch has one example
        "turin": (images(1, 21, 3), images(1, 40, 4)),
        "lyon": (images(0, 21, 5), images(0, 40, 6)),
        "porto": (images(0, 21, 7), images(1, 40, 8)),  # trains on one kind, aims at the other
    }
    trainer = fedfomo.Sgd(batch_size=10, epochs=2)
    return fedfomo.federate(Residual, sites, rounds=8, trainer=trainer, workers=0)


def test_a_residual_network_with_batch_norm_federates(federated: fedfomo.FederationResult) -> None:
    assert federated.sites == ("leeds", "turin", "lyon", "porto")
    assert min(federated.scores[site].metric for site in ("leeds", "turin", "lyon")) > 0.9
    # Porto's own data teach it the opposite of what it wants: only others can help.
    assert federated.local_scores["porto"].metric < 0.3
    assert federated.gains["porto"] > 0.5


def test_the_affinity_says_who_helps_whom(federated: fedfomo.FederationResult) -> None:
    assert federated.affinity is not None
    leeds, _, lyon, porto = range(4)
    assert federated.affinity[porto, leeds] > federated.affinity[porto, lyon]
    assert federated.affinity[lyon, leeds] < 0
    [sentence] = [line for line in str(federated).splitlines() if line.startswith("porto: ")]
    assert " It learned from " in sentence
    contributors = federated.contributors("porto")
    assert contributors["leeds"] + contributors["turin"] > 0.9
    assert sum(contributors.values()) == pytest.approx(1)


def test_every_module_is_its_sites_own_and_scores_as_reported(federated: fedfomo.FederationResult) -> None:
    inputs, labels = images(1, 200, 99)
    with torch.no_grad():
        right = (federated.models["leeds"](inputs).argmax(dim=1) == labels).float().mean()
        wrong = (federated.models["lyon"](inputs).argmax(dim=1) == labels).float().mean()
    assert right > 0.9
    assert wrong < 0.1


def test_what_is_saved_loads_into_the_users_module(federated: fedfomo.FederationResult, tmp_path: Path) -> None:
    folder = federated.save(tmp_path / "out")
    module = Residual().eval()
    module.load_state_dict(load_file(folder / "leeds.safetensors"))
    inputs, _ = images(1, 5, 1)
    assert torch.equal(module(inputs), federated.models["leeds"](inputs))
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["sites"]["porto"]["federated"] == federated.scores["porto"].metric


def of_any_size() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )


def test_sites_may_have_images_of_different_sizes() -> None:
    rng = torch.Generator().manual_seed(0)

    def part(size: int, count: int) -> tuple[Tensor, Tensor]:
        return torch.randn(count, 1, size, size, generator=rng), torch.arange(count) % 2

    sites = {name: (part(size, 12), part(size, 8)) for name, size in (("leeds", 8), ("turin", 12), ("lyon", 8))}
    nothing = torch.empty(0), torch.empty(0, dtype=torch.long)
    found = fedfomo.federate(of_any_size, {**sites, "porto": (part(8, 12), part(8, 8), nothing)}, rounds=1, workers=0)
    assert found.report_data.cross is not None
    scored = {name: [row[site] for row in found.report_data.cross] for site, name in enumerate(found.sites)}
    assert [scored[name][site] for site, name in enumerate(found.sites)] == pytest.approx(
        [found.scores[name].metric for name in found.sites], nan_ok=True
    )
    assert all(math.isnan(value) for value in scored["porto"])


def test_a_report_that_cannot_be_made_does_not_cost_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*arguments: object) -> None:
        raise ValueError("no such thing")

    monkeypatch.setattr("fedfomo.report.final_results.score_examples", failing)
    sites = {name: (line(slope, 12), line(slope, 8)) for name, slope in (("leeds", 1.0), ("turin", -1.0))}
    found = fedfomo.federate(lambda: nn.Linear(1, 1), sites, rounds=1, loss="regression", workers=0)
    assert set(found.models) == set(found.scores) == {"leeds", "turin"}
    with pytest.warns(UserWarning, match=r"scores alone, since trying the models failed \(ValueError: no such thing\)"):
        said = str(found)
    score, alone = (scores["leeds"].metric for scores in (found.scores, found.local_scores))
    assert f"absolute error {figure(-score, False)} instead of {figure(-alone, False)}" in said
    with pytest.warns(UserWarning, match="scores alone"):
        folder = found.save(tmp_path / "saved")
    assert "trying the models failed (ValueError: no such thing)" in (folder / "report.html").read_text()


def line(slope: float, count: int) -> TensorDataset:
    x = torch.linspace(-1, 1, count).unsqueeze(1)
    return TensorDataset(x, slope * x)


def test_datasets_any_loss_and_any_metric_work() -> None:
    sites: dict[str, tuple[Dataset[tuple[Tensor, ...]], Dataset[tuple[Tensor, ...]]]] = {
        f"site {k}": (line(slope, 20), line(slope, 20)) for k, slope in enumerate((1.0, 1.0, -2.0))
    }
    result = fedfomo.federate(
        lambda: nn.Linear(1, 1),
        sites,
        rounds=10,
        loss=nn.functional.mse_loss,
        metric=lambda outputs, labels: -(outputs - labels).abs().squeeze(1),
        workers=0,
    )
    assert isinstance(result.models["site 2"], nn.Linear)
    assert result.models["site 2"].weight.item() == pytest.approx(-2.0, abs=0.2)
    assert result.scores["site 2"].metric > -0.2  # mean absolute error


def test_test_data_that_a_site_has_seen_are_noted() -> None:
    train, validation, test = images(1, 8, 0), images(1, 8, 1), images(1, 8, 2)
    inputs = torch.cat([train[0][:2], validation[0][:3], test[0]])
    seen = inputs, torch.cat([train[1][:2], validation[1][:3], test[1]])
    sites = {"leeds": (train, validation, seen), "turin": (train, train, test)}
    result = fedfomo.federate(Residual, sites, rounds=1, workers=0, baselines=())
    assert result.notes == (
        "note: leeds: 2 samples are both in its training and in its test data: unless they are different records that"
        " are merely equal, its figures will be too good: leave them out of one",
        "note: leeds: 3 samples are both in its validation and in its test data: unless they are different records that"
        " are merely equal, its figures will be too good: leave them out of one",
    )


def test_three_parts_are_taken_as_train_validation_and_test() -> None:
    part = images(1, 8, 0)
    result = fedfomo.federate(Residual, {"a": (part, part, images(1, 5, 1))}, rounds=1, workers=0)
    assert result.scores["a"].num_examples == 5


def test_a_site_without_enough_data_receives_and_is_named() -> None:
    nothing = (torch.empty(0, 1, 6, 6), torch.empty(0, dtype=torch.int64))
    sites = {"big": (images(1, 30, 0), images(1, 30, 1)), "new": (nothing, images(1, 30, 2))}
    result = fedfomo.federate(Residual, sites, rounds=3, trainer=fedfomo.Sgd(batch_size=10), workers=0)
    assert "new has 0 training" in str(result)
    assert result.scores["new"].metric > 0.9


def test_wrong_sites_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="at least one"):
        fedfomo.federate(Residual, {})
    with pytest.raises(InputError, match="site 'a': 3 inputs but 2 labels"):
        fedfomo.federate(Residual, {"a": ((torch.zeros(3, 1), torch.zeros(2)), images(1, 4, 0))})
    with pytest.raises(InputError, match="did you mean 'fedfomo'"):
        fedfomo.federate(Residual, {"a": (images(1, 4, 0), images(1, 4, 0))}, method="fedfomoo")


@pytest.mark.parametrize(
    ("site", "words"),
    [
        (images(1, 4, 0), "each of train and target is a pair"),
        ((images(1, 4, 0),) * 4, "give .train, target. or .train, validation, test."),
        (((["a"] * 4, torch.zeros(4)), images(1, 4, 0)), "inputs cannot become a tensor of numbers"),
        (((*images(1, 4, 0), 3), images(1, 4, 0)), "3 parts where inputs and labels"),
        (([{"x": 1}], images(1, 4, 0)), "example 0 of the Dataset is a dict, not a pair"),
        (((torch.randn(4, 7), torch.zeros(4).long()), images(1, 4, 0)), "training data: the model cannot take"),
        (((images(1, 4, 0)[0], torch.full((4,), 9)), images(1, 4, 0)), "training data: the loss cannot take"),
        (
            ((images(1, 4, 0)[0], torch.tensor([0, 1, 1, 2])), images(1, 4, 0)),
            r"the loss cannot take outputs of shape \(2, 2\) and int64 labels from 0 to 2 of",
        ),
        (
            ((images(1, 4, 0)[0] / 0, torch.zeros(4).long()), images(1, 4, 0)),
            "training inputs hold values",
        ),
    ],
)
def test_data_that_cannot_work_are_refused_with_the_sites_name(site: object, words: str) -> None:
    with pytest.raises(InputError, match=f"site 'leeds'.*{words}"):
        fedfomo.federate(Residual, {"leeds": site}, rounds=1, workers=0)  # type: ignore[dict-item]


@pytest.mark.parametrize("name", ["../evil", "a/b", ".hidden", ""])
def test_names_that_cannot_name_a_file_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="cannot name a file"):
        fedfomo.federate(Residual, {name: (images(1, 4, 0), images(1, 4, 0))}, rounds=1, workers=0)


@pytest.mark.parametrize(("size", "fraction", "parts"), [(10, 0.96, (9, 1)), (4, 0.01, (1, 3)), (1, 0.5, (1, 0))])
def test_a_target_of_two_or_more_is_both_judged_by_and_tested_on(
    size: int, fraction: float, parts: tuple[int, int]
) -> None:
    data = client_data("leeds", (images(1, 4, 0), images(1, size, 0)), fraction, seed=0)
    assert (len(data.validation), len(data.test)) == parts


def test_a_metric_must_speak_of_every_example() -> None:
    sites = {"a": (images(1, 4, 0), images(1, 4, 0))}
    with pytest.raises(InputError, match="one figure per example"):
        fedfomo.federate(Residual, sites, metric=lambda outputs, labels: outputs.mean(), workers=0)


def test_a_site_without_validation_data_still_trains_alone() -> None:
    nothing = (torch.empty(0, 1, 6, 6), torch.empty(0, dtype=torch.int64))
    sites = {"a": (images(1, 40, 0), nothing, images(1, 40, 1)), "b": (images(1, 40, 2), images(1, 40, 3))}
    result = fedfomo.federate(Residual, sites, rounds=5, trainer=fedfomo.Sgd(batch_size=10), workers=0)
    assert result.local_scores["a"].metric > 0.9
    assert set(result.contributors("a")) == {"b"}


def test_a_shared_module_is_copied_for_each_site() -> None:
    module = Residual()
    sites = {"a": (images(1, 20, 0), images(1, 20, 1)), "b": (images(0, 20, 2), images(0, 20, 3))}
    result = fedfomo.federate(lambda: module, sites, rounds=1, workers=0)
    assert result.models["a"] is not result.models["b"]


def test_refused_models_are_spoken_of() -> None:
    sites = {"a": (images(1, 20, 0), images(1, 20, 1)), "b": (images(1, 20, 2), images(1, 20, 3))}
    result = fedfomo.federate(Residual, sites, rounds=2, trainer=fedfomo.Sgd(learning_rate=1e30), workers=0)
    assert "a's model was refused in 2 rounds" in str(result)


def private_federation(privacy: fedfomo.Privacy) -> fedfomo.FederationResult:
    rng = torch.Generator().manual_seed(0)

    def some(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.randn(number, 2, generator=rng)
        return inputs, (inputs.sum(dim=1) > 0).long()

    sites = {name: (some(40), some(60)) for name in ("leeds", "turin")}
    return fedfomo.federate(lambda: nn.Linear(2, 2), sites, rounds=2, privacy=privacy, workers=0, baselines=())


def test_sites_may_be_private() -> None:
    result = private_federation(fedfomo.Privacy(noise=2.0, delta=1e-3, validation_noise=10.0))
    assert result.spent is not None
    assert all(0 < spent.training < 20 and 0 < spent.validation < 5 for spent in result.spent.values())
    assert "privacy: training records: ε = " in str(result)


def own_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, labels)


def own_metric(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs.argmax(dim=1) == labels).double() / 2


def test_the_printed_call_computes_the_same_again() -> None:
    sites = {name: (images(1, 8, seed), images(1, 12, seed + 9)) for seed, name in enumerate(("leeds", "turin"))}
    first = fedfomo.federate(
        Residual,
        sites,
        rounds=2,
        trainer=fedfomo.Sgd(batch_size=4, epochs=1),
        loss=own_loss,
        metric=own_metric,
        validation_fraction=0.25,
        workers=0,
    )
    names = {"fedfomo": fedfomo, "Sgd": fedfomo.Sgd, "make_model": Residual, "sites": sites}
    again = eval(first.report_data.reproduce.command, names | {"own_loss": own_loss, "own_metric": own_metric})  # noqa: S307
    assert (again.scores, again.report_data.reproduce) == (first.scores, first.report_data.reproduce)


def test_a_hash_notices_other_validation_data() -> None:
    train, validation, test = images(1, 8, 0), images(1, 8, 1), images(1, 8, 2)
    hashes = [
        fedfomo.federate(
            Residual, {"leeds": (train, judged_by, test)}, method="local", rounds=1, workers=0
        ).report_data.reproduce.hashes
        for judged_by in (validation, images(1, 8, 3))
    ]
    assert hashes[0] != hashes[1]


def test_the_summary_of_a_site_without_test_data_is_strict_json(tmp_path: Path) -> None:
    train, validation, test = images(1, 8, 0), images(1, 8, 1), images(1, 8, 2)
    nothing = (test[0][:0], test[1][:0])
    sites = {"leeds": (train, validation, test), "turin": (train, validation, nothing)}
    folder = fedfomo.federate(Residual, sites, method="local", rounds=1, baselines=(), workers=0).save(tmp_path)
    summary = json.loads((folder / "summary.json").read_text(), parse_constant=pytest.fail)
    assert summary["sites"]["turin"] == {"federated": None, "alone": None}


def test_the_report_of_a_private_federation_says_so_and_counts_no_labels(federated: fedfomo.FederationResult) -> None:
    result = private_federation(fedfomo.Privacy(noise=2.0, delta=1e-3))
    assert result.spent is not None
    assert result.report_data.privacy is not None
    assert result.report_data.privacy.training == max(spent.training for spent in result.spent.values())
    assert result.report_data.privacy.validation is None  # judged without noise: no guarantee
    assert result.report_data.privacy.delta == 1e-3
    assert all(client.train_labels is None and client.target_labels is None for client in result.report_data.clients)
    assert federated.report_data.privacy is None
    assert federated.report_data.clients[0].train_labels is not None


def two_sites() -> dict[str, tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]]:
    return {name: (images(1, 8, seed), images(1, 12, seed + 9)) for seed, name in enumerate(("leeds", "turin"))}


class Tuples(Residual):
    """A model that gives more than its outputs."""

    def forward(self, images: Tensor) -> Any:
        return super().forward(images), images


def item_loss(outputs: Tensor, labels: Tensor) -> Any:
    return nn.functional.cross_entropy(outputs, labels).item()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"make_model": Residual()}, "make_model must be a function that builds a module"),
        ({"make_model": lambda: None}, "make_model must return a torch.nn.Module, not NoneType"),
        ({"make_model": nn.Flatten}, "the model has no parameters"),
        ({"make_model": lambda: Residual().to("meta")}, "parameters are on the device meta"),
        ({"make_model": Tuples}, "the model gives a tuple: its outputs must be one tensor"),
        ({"loss": item_loss}, "the loss gives a float: it must give a tensor"),
        ({"rounds": 2.5}, "rounds must be a whole number, not 2.5"),
        ({"rounds": "3"}, "rounds must be a whole number, not '3'"),
        ({"seed": "0"}, "seed must be a whole number"),
        ({"seeds": ()}, "seeds must be some whole numbers"),
        ({"seeds": (1, 1)}, "a seed is given twice"),
        ({"participation": "all"}, "participation must be a number"),
        ({"trainer": "sgd"}, "trainer must be an object such as fedfomo.Sgd"),
        ({"trainer": fedfomo.Sgd}, "trainer must be an object such as fedfomo.Sgd"),
        ({"privacy": "noise"}, "privacy must be fedfomo.Privacy"),
        ({"options": ["epsilon"]}, "options are a mapping by name"),
        ({"method": 7}, "method must be a name or an algorithm object, not 7"),
        ({"baselines": "fedavgg"}, "unknown method 'fedavgg'"),
        ({"validation_fraction": "half"}, "validation_fraction must be between 0 and 1, not 'half'"),
    ],
)
def test_arguments_that_cannot_work_are_refused_in_words(wrong: dict[str, Any], words: str) -> None:
    usual = {"make_model": Residual, "sites": two_sites(), "rounds": 1, "workers": 0}
    with pytest.raises(InputError, match=words):
        fedfomo.federate(**{**usual, **wrong})


def test_a_name_that_is_too_long_for_a_file_is_refused() -> None:
    with pytest.raises(InputError, match="cannot name a file: at most 200 bytes, not 300"):
        fedfomo.federate(Residual, {"a" * 300: two_sites()["leeds"]}, workers=0)


def test_tensors_without_values_are_refused() -> None:
    train, target = two_sites()["leeds"]
    with pytest.raises(InputError, match="site 'leeds': the inputs are on the device meta"):
        fedfomo.federate(Residual, {"leeds": ((train[0].to("meta"), train[1]), target)}, workers=0)


def test_inputs_that_require_a_gradient_are_plain_values() -> None:
    sites = two_sites()
    plain = fedfomo.federate(Residual, sites, rounds=1, workers=0)
    sites["leeds"][0][0].requires_grad_()
    found = fedfomo.federate(Residual, sites, rounds=1, workers=0)
    assert (found.scores, str(found)) == (plain.scores, str(plain))


def test_the_users_own_module_is_left_as_it_was() -> None:
    module = Residual()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    fedfomo.federate(lambda: module, two_sites(), rounds=1, workers=0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_a_result_refuses_what_it_does_not_have(federated: fedfomo.FederationResult, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown site 'zz'"):
        federated.contributors("zz")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file: give a folder"):
        federated.save(tmp_path / "file")


def test_a_target_of_one_sample_leaves_nothing_to_test_on_and_is_noted() -> None:
    sites = two_sites()
    sites["turin"] = (images(1, 8, 3), images(1, 1, 4))
    found = fedfomo.federate(Residual, sites, rounds=1, workers=0)
    assert math.isnan(found.scores["turin"].metric)
    assert "note: turin has no test examples: whether federating pays for it cannot be measured" in found.notes


def test_one_baseline_may_be_a_plain_word() -> None:
    found = fedfomo.federate(Residual, two_sites(), rounds=1, workers=0, baselines="ditto")
    assert {facts.method for facts in found.report_data.methods} == {"fedfomo-plus", "local", "ditto"}
