"""What travels is what trains: frozen weights stay, and so does what clients keep for themselves."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW

from fedfomo import federate
from fedfomo.algorithms import ALGORITHMS, make_algorithm
from fedfomo.core.algorithm import AnyAlgorithm
from fedfomo.core.local_training import Sgd, TrainingJob
from fedfomo.core.model import Model
from fedfomo.core.parameters import Layout
from fedfomo.core.rng import stream
from fedfomo.core.trainer import Trainer
from fedfomo.core.vectorised import Stack
from fedfomo.engine.run_dir import RunDirectory
from fedfomo.errors import InputError
from fedfomo.simulation.callbacks import Callback, FinishedRound
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from fedfomo.testing import LAWS, InProcess, Law, run_rounds
from fedfomo.testing.toy_federation import ROUNDS, digest, digest_of
from toy_problems import points, points_problem, with_batch_norm

TWO = SimulationConfig(rounds=2)


class Backbone(nn.Module):
    """A frozen feature extractor with statistics, and a head that trains."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(2, 50), nn.BatchNorm1d(50), nn.ReLU(), nn.Linear(50, 8))
        self.backbone.requires_grad_(False)
        self.head = nn.Linear(8, 3)
        self.register_buffer("scale", torch.ones(1))
        self.register_buffer("mask", torch.ones(8), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.backbone(inputs) * self.scale * self.mask)


def names(layout: Layout) -> list[str]:
    return [slot.name for slot in layout.slots]


def test_theta_is_what_trains_and_the_buffers_that_move() -> None:
    layout = Layout.of(Backbone())
    assert names(layout) == ["head.weight", "head.bias", "scale"]
    assert (layout.num_trainable, layout.size) == (8 * 3 + 3, 8 * 3 + 3 + 1)


def test_a_frozen_backbone_is_the_same_before_and_after() -> None:
    model = Model(Backbone())
    before = {name: tensor.clone() for name, tensor in model.architecture.state_dict().items()}
    job = TrainingJob(model.read(), points(20, 0, stream(0)), 0, stream(1))
    for trainer in (Sgd(), Trainer(lambda params: AdamW(params, 0.1))):
        state = model.state_dict(trainer.train(model, job))
        assert {name for name in state if not torch.equal(state[name], before[name])} == {"head.weight", "head.bias"}
    assert not model.architecture.backbone[1].training  # pyright: ignore


def test_a_frozen_network_is_not_stacked() -> None:
    frozen = nn.Sequential(nn.Linear(2, 4).requires_grad_(False), nn.ReLU(), nn.Linear(4, 3))
    assert Stack.of(Model(frozen), points(20, 0, stream(0))) is None


def test_only_what_travels_is_counted() -> None:
    traffic = simulate(points_problem(build=Backbone), make_algorithm("fedavg"), TWO).traffic
    # 6 clients × (2 rounds + the last update) models down and 6 × 2 up, of 28 float32 and, up, a number of examples.
    assert traffic.bytes_down == 18 * 28 * 4
    assert traffic.bytes_up == 12 * (28 * 4 + 8)


def test_shared_first_then_kept_and_buffers_likewise() -> None:
    model = Model(with_batch_norm(), kept=["1.weight", "1.running_mean"])
    assert names(model.layout) == ["0.weight", "0.bias", "1.bias", "3.weight", "3.bias", "1.running_var"]
    assert (
        names(model.whole)[-3:] == ["1.weight", "1.running_var", "1.running_mean"]
        or names(model.whole)[5] == "1.weight"
    )
    assert model.whole.num_trainable == model.layout.num_trainable + 100
    assert len(model.read()) == model.layout.size
    assert len(model.kept_values) == 200  # type: ignore[arg-type]


def test_a_model_can_be_put_together_and_taken_apart() -> None:
    model = Model(with_batch_norm(), kept=["1.weight", "1.running_mean", "3.bias"])
    theta, home = torch.rand(model.layout.size), torch.rand(203)
    whole = model.export(theta, home)
    plain = Layout.of(with_batch_norm())
    views = plain.views(whole)
    assert torch.equal(views["0.weight"], model.layout.views(theta)["0.weight"])
    assert torch.equal(torch.cat([views["1.weight"], views["3.bias"], views["1.running_mean"]]), home)
    again, kept = model.take_apart(whole)
    assert torch.equal(again, theta)
    assert torch.equal(kept, home)  # type: ignore[arg-type]


def test_what_is_kept_trains_along_as_in_any_training() -> None:
    examples, sgd = points(20, 0, stream(0)), Sgd(batch_size=6, epochs=2)
    plain = points_problem(build=with_batch_norm).model
    start = plain.read()
    split = points_problem(build=with_batch_norm)
    split = replace(split, keep=("1.*",)).split(make_algorithm("fedavg")).model
    trained = sgd.train(plain, TrainingJob(start, examples, 0, stream(1)))
    theta = sgd.train(split, TrainingJob(split.read(), examples, 0, stream(1)))
    assert torch.equal(split.export(theta, split.kept_values), trained)


def test_fedbn_is_fedavg_whose_clients_keep_batch_norm() -> None:
    problem = points_problem(build=with_batch_norm)
    kept = replace(problem, keep=("1.*",))
    assert digest_of(simulate(problem, make_algorithm("fedbn"), TWO)) == digest_of(
        simulate(kept, make_algorithm("fedavg"), TWO)
    )
    one, other = (simulate(problem, make_algorithm("fedbn"), TWO).models[n] for n in (0, 1))
    views = [Layout.of(with_batch_norm()).views(theta) for theta in (one, other)]
    same = {name for name in views[0] if torch.equal(views[0][name], views[1][name])}
    assert same == {"0.weight", "0.bias", "3.weight", "3.bias"}


def test_fedper_keeps_the_last_layers() -> None:
    problem = points_problem()
    assert digest_of(simulate(problem, make_algorithm("fedper"), TWO)) == digest_of(
        simulate(replace(problem, share=("0.*",)), make_algorithm("fedavg"), TWO)
    )
    with pytest.raises(InputError, match="head_layers is 2, of 2 layers"):
        simulate(problem, make_algorithm("fedper", {"head_layers": 2}), TWO)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_fedbn_obeys_the_laws_with_batch_norm(law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedfomo import testing

    original = testing.points_problem

    def with_norm(*arguments: object, **named: object) -> object:
        return original(*arguments, **{"build": with_batch_norm, **named})  # type: ignore[arg-type]

    monkeypatch.setattr(testing, "points_problem", with_norm)
    law(make_algorithm("fedbn"))


def other_methods() -> list[str]:
    return [name for name in ALGORITHMS if name not in ("mocha-linear", "fedper")]


@pytest.mark.parametrize("name", other_methods())
def test_every_method_shares_a_part(name: str) -> None:
    """The simulator and a plain loop agree, sites keep different heads, and less travels."""
    problem, algorithm = points_problem(), make_algorithm(name)
    kept = replace(problem, keep=("2.*",))
    plan = SimulationConfig(rounds=ROUNDS)
    result = simulate(kept, algorithm, plan)
    _, models = run_rounds(kept, algorithm, InProcess(kept, algorithm), [range(6)] * ROUNDS)
    assert digest(result.models) == digest(models)
    whole = simulate(problem, algorithm, plan).traffic
    assert result.traffic.bytes_up < whole.bytes_up or whole.bytes_up < 1000


@pytest.mark.parametrize("method", ["fedfomo", "fedbn"])
def test_what_is_kept_survives_resume(method: str, tmp_path: Path) -> None:
    class Interrupt(Callback):
        def round_done(self, finished: FinishedRound) -> None:
            if finished.round == 1:
                raise KeyboardInterrupt

    problem, algorithm = points_problem(build=with_batch_norm), make_algorithm(method)
    problem, plan = replace(problem, keep=("1.*",)), SimulationConfig(rounds=4, participation=0.5)
    whole = digest_of(simulate(problem, algorithm, plan))
    (tmp_path / "run").mkdir()

    def run(callback: Callback | None) -> str:
        directory = RunDirectory(tmp_path / "run", "digest", print)
        try:
            return digest_of(simulate(problem, algorithm, replace(plan, workers=2), directory, callback))
        finally:
            directory.close()

    with pytest.raises(KeyboardInterrupt):
        run(Interrupt())
    assert run(None) == whole


@pytest.mark.parametrize(
    ("patterns", "words"),
    [
        ({"keep": ("bn.*",)}, r"keep: no parameter .* is like 'bn\.\*': there is 0\.weight"),
        ({"keep": ("*",)}, "nothing is left to share"),
        ({"share": "2.*"}, "share must be a list of patterns"),
    ],
)
def test_patterns_that_mean_nothing_are_refused(patterns: dict[str, tuple[str, ...]], words: str) -> None:
    with pytest.raises(InputError, match=words):
        simulate(replace(points_problem(), **patterns), make_algorithm("fedavg"), TWO)


def test_sites_keep_parts_through_federate(tmp_path: Path) -> None:
    sites = {
        name: tuple(points(20, place, stream(3, name, part)) for part in range(3)) for place, name in enumerate("abc")
    }

    def run(**parts: object) -> dict[str, dict[str, Tensor]]:
        result = federate(
            with_batch_norm,
            sites,
            method="fedavg",
            rounds=2,
            workers=0,
            baselines=(),
            out=tmp_path / "runs",
            **parts,  # type: ignore
        )
        return {site: network.state_dict() for site, network in result.models.items()}

    states = run(keep=["1.*"])
    assert torch.equal(states["a"]["0.weight"], states["b"]["0.weight"])
    assert not torch.equal(states["a"]["1.running_mean"], states["b"]["1.running_mean"])
    assert run(keep=["1.*"])["a"]["1.weight"].equal(states["a"]["1.weight"])  # read from the finished folder
    with pytest.raises(InputError, match="was begun with keep"):
        run(keep=["3.*"])


def test_distances_of_fedfomo_are_over_what_travels() -> None:
    seen: list[int] = []

    class Watching(type(make_algorithm("fedfomo"))):  # type: ignore[misc]
        def distances(self, reference: Tensor, candidates: list[Tensor], num_trainable: int) -> Tensor:
            seen.extend([num_trainable, len(reference), *map(len, candidates)])
            return super().distances(reference, candidates, num_trainable)

    algorithm: AnyAlgorithm = Watching()
    simulate(replace(points_problem(), keep=("2.*",)), algorithm, TWO)
    assert set(seen) == {2 * 200 + 200}


class Adapted(nn.Module):
    """A frozen linear layer beside a low-rank one that trains, as in LoRA."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(2, 200).requires_grad_(False)
        self.down, self.up = nn.Linear(2, 1, bias=False), nn.Linear(1, 200, bias=False)
        self.classify = nn.Linear(200, 3).requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.classify(torch.relu(self.base(inputs) + self.up(self.down(inputs))))


def test_adapters_travel_without_what_they_adapt() -> None:
    traffic = simulate(points_problem(build=Adapted), make_algorithm("fedfomo"), SimulationConfig(rounds=3)).traffic
    adapters, whole = 2 + 200, 2 * 200 + 200 + 2 + 200 + 3 * 200 + 3
    models = traffic.models_down + traffic.models_up
    assert adapters * 4 * models <= traffic.bytes_down + traffic.bytes_up <= adapters * 4 * models * 1.1
    assert adapters * 6 < whole
