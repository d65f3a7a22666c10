"""How to spread a data set over clients, in words and numbers; light to import, so that help is quick."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path

from fedfomo.errors import InputError, unknown

MOST = 1_000_000
"""Clients, groups or classes: more than anybody has, and few enough to be counted in memory."""

SCENARIOS: dict[str, str] = {
    "iid": "every client holds a random share of the whole set",
    "pathological": "every client holds a few classes only (McMahan et al., 2017)",
    "dirichlet": "every class is spread over the clients in proportions drawn from Dirichlet(alpha)",
    "latent": "clients sample from hidden groups of similar images (Zhang et al., 2021)",
    "ood": "as latent, and every client is judged on the data of a client drawn at random",
    "pairs": "clients of a group hold mostly the same few classes (two of ten), and a tenth of others",
    "concept": "equal random shares, but each group of clients permutes the labels in its own way",
}

REPRESENTATIONS: dict[str, str] = {
    "auto": "groups that ship with the library or were built for the data set; for a small set without, pixels",
    "pixels": "the inputs as they are, enough for small images",
    "vgg": "older groups of mnist, cifar10 and cifar100, from a VGG-11 trained from scratch: many are of one class",
    "network": "hidden activations of a network trained on the labels, as in the paper",
    "classes": "the labels themselves: every class is a group, as many groups as classes",
}


@dataclass(frozen=True)
class ScenarioConfig:
    """Who holds which examples."""

    scenario: str = "latent"
    """Who holds what: iid, pathological, dirichlet, latent, ood (latent with shuffled targets), pairs, or concept."""
    clients: int = 15
    """Number of clients (K)."""
    distributions: int = 5
    """Number of groups (D); latent, ood, pairs and concept only."""
    classes_per_client: int | None = None
    """Classes per client, by default a fifth of all (2 of 10, 20 of 100); pathological and pairs only."""
    alpha: float = 0.1
    """Concentration α: small values give clients few classes, large ones nearly equal data; dirichlet only."""
    representation: str = "auto"
    """Source of latent groups: auto (shipped or built before, else pixels), vgg (older ones), pixels, network
    (activations), classes."""
    groups: Path | None = None
    """File with latent groups of your own (.npz, as the shipped ones), instead of those that representation says."""
    shuffle_targets: bool = False
    """Permute validation and test data at random among the clients, in any scenario."""
    validation_fraction: float = 0.2
    """Fraction of a client's training data that it uses for validation and not for training."""
    share_fraction: float = 0.0
    """Fraction of its training data that each client adds to a pool on which all clients train, in any scenario."""
    data_fraction: float = 1.0
    """Fraction of its training and validation data that each client keeps, for quick trials; all test data are kept."""

    def __post_init__(self) -> None:
        if self.scenario not in SCENARIOS:
            raise unknown("scenario", self.scenario, SCENARIOS)
        if self.representation not in REPRESENTATIONS:
            raise unknown("representation", self.representation, REPRESENTATIONS)
        _require_count("clients", self.clients)
        _require_count("distributions", self.distributions)
        if self.classes_per_client is not None:
            _require_count("classes_per_client", self.classes_per_client)
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise InputError(f"alpha is {self.alpha!r}: give a finite number above 0")
        if not 0 < self.validation_fraction < 1:
            raise InputError(f"validation_fraction is {self.validation_fraction!r}: give one between 0 and 1")
        if not 0 <= self.share_fraction <= 1:
            raise InputError(f"share_fraction is {self.share_fraction!r}: give one from 0 to 1")
        if not 0 < self.data_fraction <= 1:
            raise InputError(f"data_fraction is {self.data_fraction!r}: give one above 0 and at most 1")
        if self.scenario == "concept" and self.share_fraction:
            raise InputError(
                "in concept, clients do not agree on labels, so they share no examples: leave out share_fraction"
            )

    @property
    def ignored(self) -> list[str]:
        """Return what is set, but makes no difference in this scenario."""
        groups = {"distributions", "representation", "groups"}
        used = {
            **dict.fromkeys(("latent", "ood"), groups),
            "dirichlet": {"alpha"},
            "pathological": {"classes_per_client"},
            "pairs": {"distributions", "classes_per_client"},
            "concept": {"distributions"},
        }
        unused = {"alpha", "classes_per_client", *groups} - used.get(self.scenario, set())
        return [f.name for f in fields(self) if f.name in unused and getattr(self, f.name) != f.default]

    @property
    def has_groups(self) -> bool:
        """Whether clients are in groups that are alike, as the oracle knows."""
        return self.has_latent_groups or self.scenario in ("pairs", "concept")

    @property
    def has_latent_groups(self) -> bool:
        """Whether clients sample from hidden groups of similar images."""
        return self.scenario in ("latent", "ood")

    @property
    def has_shuffled_targets(self) -> bool:
        """Whether clients are judged on the data of others."""
        return self.shuffle_targets or self.scenario == "ood"


def _require_count(name: str, value: int) -> None:
    if not 1 <= value <= MOST:
        raise InputError(f"{name} is {value!r}: give a whole number of at least 1 and at most {MOST:,}")
