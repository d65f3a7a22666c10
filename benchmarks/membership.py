"""Membership: what a peer can tell about the records behind a model that FedFomo hands it.

The object of attack is an upload of the last round: a client's locally trained model, which the server passes on to
peers as it is. It is read from the server's state, where `configure_client` finds it. The peer must tell that client's
training records from fresh records of the same distribution, by RMIA (Zarifzadeh, Liu, Shokri, 2024), offline: it
never trained on the records in question. Its reference models are the uploads of a shadow federation of equal size
and settings, noise included, on data of its own: more than most peers have. All records in play are disjoint.

Within one model a score only orders records by p(x|θ) / p(x); the population makes scores of several models alike,
so that they can be pooled where a false-positive rate is too small for the fresh records of one.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

import torch
from measure import report
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch import Tensor

from fedfomo.algorithms.fedfomo import FedFomo, State
from fedfomo.core import messages
from fedfomo.core.data import ClientData, Examples
from fedfomo.core.local_training import Sgd
from fedfomo.core.model import Model
from fedfomo.core.networks import mlp
from fedfomo.core.rng import layer_rng, stream
from fedfomo.engine.run_dir import RunDirectory
from fedfomo.privacy.config import Privacy
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.simulation.simulate import simulate

CLIENTS, TRAINING, VALIDATION = 5, 100, 20  # in each of the two federations
FRESH, POPULATION = 400, 197  # with these, all 1,797 digits are dealt
ROUNDS, SGD = 5, Sgd(learning_rate=0.5, epochs=10, batch_size=50)
SPLITS = range(2, 10)  # the digits are dealt anew for each; the first two served to choose the sizes and steps above
DELTA = 1e-5
SETTINGS = {
    "without privacy": Privacy(),
    "ε = 8": Privacy(epsilon=8, delta=DELTA),
    "ε = 2": Privacy(epsilon=2, delta=DELTA),
}
RATIO = 1.0  # γ
OFFLINE = 1 / 3  # a
TINY = 1e-6  # no ratio is so large that this much of it counts for a population point


@dataclass(frozen=True)
class Deal:
    """One deal of the digits: no record is in two places."""

    attacked: list[ClientData]
    shadow: list[ClientData]
    fresh: Examples
    population: Examples


@dataclass(frozen=True)
class Attack:
    """Scores of one client's training and validation records and of fresh ones, and how well its upload predicts."""

    members: Tensor
    validation: Tensor
    fresh: Tensor
    accuracy_on_members: float
    accuracy_on_fresh: float


def relative(likelihood: Tensor, outside: Tensor) -> Tensor:
    """Return p(x|θ) / p(x), with p(x) = ½ ((1 + a) p_out(x) + (1 − a)) from models that never saw x."""
    return likelihood / (0.5 * ((1 + OFFLINE) * outside + (1 - OFFLINE)))


def scores(records: Tensor, population: Tensor) -> Tensor:
    """Return the fraction of population points z with [p(x|θ) / p(x)] / [p(z|θ) / p(z)] ≥ γ.

    Among equals the ratio itself decides, as a larger population would.
    """
    return (records[:, None] >= RATIO * population).double().mean(1) + TINY * records


def area(members: Tensor, fresh: Tensor) -> float:
    """Return the area under the curve of true over false positives (AUC); 0.5 is a guess."""
    is_member = [1] * len(members) + [0] * len(fresh)
    return float(roc_auc_score(is_member, torch.cat((members, fresh)).numpy()))


def true_positives(members: Tensor, fresh: Tensor, rate: float) -> float:
    """Return the share of members above the lowest score that at most this share of fresh records exceeds."""
    threshold = fresh.sort(descending=True).values[math.floor(rate * len(fresh))]
    return float((members > threshold).double().mean())


def bound(epsilon: float, rate: float) -> float:
    """Return the most true positives that (ε, δ) leaves to any attack at a rate of false ones."""
    return min(1.0, math.exp(epsilon) * rate + DELTA)


def deal(split: int) -> Deal:
    """Deal the digits without replacement."""
    images, labels = load_digits(return_X_y=True)
    digits = Examples(torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(labels))
    sizes = [TRAINING, VALIDATION] * (2 * CLIENTS) + [FRESH, POPULATION]
    order = torch.randperm(len(digits), generator=stream(split, "deal"))
    *dealt, fresh, population = [digits.take(part) for part in order.split(sizes)]
    nothing = digits.take(torch.empty(0, dtype=torch.int64))
    clients = [ClientData(*pair, nothing) for pair in zip(dealt[::2], dealt[1::2], strict=True)]
    return Deal(clients[:CLIENTS], clients[CLIENTS:], fresh, population)


def uploads(
    model: Model, clients: Sequence[ClientData], privacy: Privacy, seed: int
) -> tuple[list[Tensor], float | None]:
    """Run a federation; return what the server then hands to peers, and the largest ε of training records, if any."""
    problem = FederatedProblem(model, model.read(), clients, SGD, seed, privacy=privacy)
    with tempfile.TemporaryDirectory(prefix="fedfomo-") as folder:
        home = RunDirectory(Path(folder), "", print)
        result = simulate(problem, FedFomo(), SimulationConfig(rounds=ROUNDS), home)
        checkpoint = home.checkpoints.newest("")
        assert checkpoint is not None  # noqa: S101 - narrows the type
        state = messages.unpack(State, home.tensors.load(checkpoint.state))
        models = [state.models[client].clone() for client in range(len(clients))]
        home.close()
    epsilon = None if result.spent is None else max(spent.training for spent in result.spent.values())
    return models, epsilon


def likelihoods(model: Model, theta: Tensor, examples: Examples) -> Tensor:
    """Return p(x|θ): the probability of each record's own label."""
    outputs = model.outputs(theta, examples).double()
    return outputs.softmax(1).gather(1, examples.labels[:, None]).flatten()


def attack(model: Model, theta: Tensor, references: Sequence[Tensor], data: ClientData, dealt: Deal) -> Attack:
    """Score the records behind one upload, and fresh ones."""

    def relative_of(examples: Examples) -> Tensor:
        outside = torch.stack([likelihoods(model, reference, examples) for reference in references]).mean(0)
        return relative(likelihoods(model, theta, examples), outside)

    population = relative_of(dealt.population)
    return Attack(
        members=scores(relative_of(data.train), population),
        validation=scores(relative_of(data.validation), population),
        fresh=scores(relative_of(dealt.fresh), population),
        accuracy_on_members=model.score(theta, data.train).metric,
        accuracy_on_fresh=model.score(theta, dealt.fresh).metric,
    )


def attack_all(privacy: Privacy) -> tuple[list[Attack], float | None]:
    """Attack every client's upload, in every split; return also the largest ε."""
    attacks: list[Attack] = []
    epsilons: list[float] = []
    for split in SPLITS:
        dealt = deal(split)
        with layer_rng(stream(split, "network")):
            model = Model(mlp((1, 8, 8), 10))
        initial = model.read()
        references, _ = uploads(model, dealt.shadow, privacy, seed=2 * split)
        model.load(initial)
        targets, epsilon = uploads(model, dealt.attacked, privacy, seed=2 * split + 1)
        pairs = zip(targets, dealt.attacked, strict=True)
        attacks += [attack(model, theta, references, data, dealt) for theta, data in pairs]
        epsilons += [] if epsilon is None else [epsilon]
    return attacks, max(epsilons, default=None)


def figures_of(attacks: Sequence[Attack], epsilon: float | None) -> dict[str, float]:
    """Average over the attacked clients; pool their scores where one client's records are too few."""
    areas = [area(a.members, a.fresh) for a in attacks]
    # Clients of one federation share fresh records, and learn from each other: only splits count as independent.
    by_split = [mean(areas[start : start + CLIENTS]) for start in range(0, len(areas), CLIENTS)]
    members, fresh = torch.cat([a.members for a in attacks]), torch.cat([a.fresh for a in attacks])
    figures = {
        "AUC": mean(areas),
        "AUC, standard error": stdev(by_split) / math.sqrt(len(by_split)),
        "AUC, validation records": mean(area(a.validation, a.fresh) for a in attacks),
        "TPR at 1 % FPR": mean(true_positives(a.members, a.fresh, 0.01) for a in attacks),
        "TPR at 0.1 % FPR, pooled": true_positives(members, fresh, 0.001),
        "accuracy, training records": mean(a.accuracy_on_members for a in attacks),
        "accuracy, fresh records": mean(a.accuracy_on_fresh for a in attacks),
    }
    if epsilon is not None:
        figures["TPR at 1 % FPR, bound"] = bound(epsilon, 0.01)
        figures["TPR at 0.1 % FPR, bound"] = bound(epsilon, 0.001)
        figures["ε spent, training records"] = epsilon
    return figures


def main() -> None:
    """Attack without and with privacy."""
    figures: dict[str, float] = {}
    for setting, privacy in SETTINGS.items():
        measured = figures_of(*attack_all(privacy))
        figures |= {f"{name}, {setting}": value for name, value in measured.items()}
    sizes = {"attacked uploads": CLIENTS * len(SPLITS), "training records each": TRAINING, "fresh records each": FRESH}
    report("membership", {**figures, **sizes, "δ": DELTA}, "make bench-membership")


if __name__ == "__main__":
    main()
