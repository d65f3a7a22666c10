"""What the paper shows: its tables and figures, and one comparison that it lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from experiments.iclr2021.settings import MANY_CLIENTS, MethodConfig, Setting, Target
from fedfomo.errors import unknown

LOCAL = MethodConfig("local", "Local Training", "local")
FEDAVG = MethodConfig("fedavg", "FedAvg", "fedavg")
SHARED = MethodConfig("fedavg-shared", "FedAvg + Data", "fedavg-shared")
FEDPROX = MethodConfig("fedprox", "FedProx", "fedprox")
LG_FEDAVG = MethodConfig("lg-fedavg", "LG-FedAvg", "lg-fedavg")
MOCHA = MethodConfig("mocha", "MOCHA", "mocha")
# As when its cells were computed, and as validation chose on features: the default hardly ever splits there.
CFL = MethodConfig("cfl", "Clustered FL (CFL)", "cfl", ("separation=0",))
PER_FEDAVG = MethodConfig("per-fedavg", "Per-FedAvg", "per-fedavg", ("alpha=0.02",))
PFEDME = MethodConfig("pfedme", "pFedMe", "pfedme")
FOMO_5 = MethodConfig("fedfomo-5", "FedFomo (n = 5)", "fedfomo", ("num_downloads=5",))
FOMO_10 = MethodConfig("fedfomo-10", "FedFomo (n = 10)", "fedfomo", ("num_downloads=10",))
AVERAGES = MethodConfig("fedfomo-averages", "FedFomo (MA)", "fedfomo-averages", ("num_downloads=14",))
FINE_TUNED = MethodConfig("fedavg-finetuned", "FedAvg + fine-tuning", "fedavg-finetuned")
DITTO = MethodConfig("ditto", "Ditto", "ditto")
ORACLE = MethodConfig("oracle", "oracle clusters", "oracle")
PLUS = MethodConfig("fedfomo-plus", "FedFomo+", "fedfomo-plus")
LOCAL_BEST = MethodConfig("local-best", "Local Training, best round kept", "local", ("keep_best=true",))

MOCHA_REPOSITORY = MethodConfig("mocha-repository", "MOCHA, as in LG-FedAvg's code", "mocha-repository")
LOCAL_ALL = MethodConfig("local-all", "Local Training, on validation data as well", "local-all")
TUNED = MethodConfig("fedavg-tuned-on-validation", "FedAvg, tuned on validation data", "fedavg-tuned-on-validation")

PAPER_METHODS = (LOCAL, FEDAVG, SHARED, FEDPROX, LG_FEDAVG, MOCHA, CFL, PER_FEDAVG, PFEDME, FOMO_5, FOMO_10)
"""The rows of the paper's tables, in its order."""
CORRECTED_METHODS = tuple(
    {
        # Holds clients near without holding them back, where the default of 0.1 costs tens of points.
        "fedprox": replace(FEDPROX, options=("mu=0.01",)),
        # An eighth of the meta-step: beyond, directions of large curvature are pushed uphill.
        "per-fedavg": replace(PER_FEDAVG, options=("alpha=0.0125",)),
    }.get(method.name, method)
    for method in PAPER_METHODS
)
"""The same rows, with settings that do not stand in a rival's way; for all cells without an older result."""
EXTRA_METHODS = (LOCAL_BEST, FINE_TUNED, DITTO, ORACLE, MOCHA_REPOSITORY)
"""Rows that the paper's tables lack; the first is FedFomo without anybody else's model."""
CONTROL_METHODS = (LOCAL_ALL, TUNED)
"""Whoever aims at foreign data has some of it, for validation: what training on that would bring."""

NUMBERS = (2, 3, 4, 5, 10)
"""The paper's numbers of latent distributions (D)."""
LATENT_2, LATENT_5 = (Setting("cifar10", "latent", number) for number in (2, 5))
OOD_5 = Setting("cifar10", "ood", 5)
PLAIN_5 = replace(LATENT_5, augment=False)
NOISES = (0.0, 1.0, 2.0)
"""The paper's σ."""
VALIDATION_FRACTIONS = (0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9)
"""The paper's splits."""
EPSILONS, DOWNLOADS = (0.0, 0.1, 0.3, 0.5, 1.0), (0, 1, 2, 5, 10, 14)
"""Our grid for ε and M: the paper's is not written down."""


# The older groups, of a VGG-11 trained from scratch, are those of all cells above; these ship now.
NEW_2, NEW_5 = (Setting("cifar10", "latent", number, imagenet=True) for number in (2, 5))
NEW_OOD_5 = Setting("cifar10", "ood", 5, imagenet=True)
ROUNDED_5 = replace(NEW_5, precision="bf16")
DIRICHLET = Setting("cifar10", "dirichlet", alpha=0.1)
PAIRS = Setting("cifar10", "pairs", 5)
DECIDING_METHODS = (LOCAL, FINE_TUNED, CFL, FOMO_5, PLUS, ORACLE)
"""Whom the CNN compares first where groups mean something."""
# With the settings that validation chose on features, where these are not the defaults.
LATER_METHODS = (
    MethodConfig("pfedgraph", "pFedGraph", "pfedgraph"),
    MethodConfig("dpfl", "DPFL", "dpfl"),
    FEDAVG,
    MethodConfig("ditto-0.3", "Ditto", "ditto", ("lambda_=0.3",)),
    MethodConfig("fedala-2", "FedALA", "fedala", ("blended_layers=2",)),
    MethodConfig("fedrep-4", "FedRep", "fedrep", ("body_epochs=4",)),
)
"""Whom it compares next."""


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    heading: str
    case: Setting


@dataclass(frozen=True)
class Row:
    """A row of a table."""

    variant: MethodConfig
    noise: float | None = None
    is_papers: bool = True

    @property
    def name(self) -> str:
        """The row's name among the paper's numbers."""
        return self.variant.name if self.noise is None else f"{self.variant.name}-noise-{self.noise:g}"

    @property
    def label(self) -> str:
        """What the row is called on a page."""
        return self.variant.label if self.noise is None else f"{self.variant.label}, σ = {self.noise:g}"

    def case_in(self, column: Column) -> Setting:
        """Return what the row's method is run on in a column."""
        return column.case if self.noise is None else replace(column.case, noise=self.noise)


@dataclass(frozen=True)
class Table:
    """One of the paper's tables, or one of ours in its manner."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    runs: int = 3
    pairs_columns: bool = False  # the page compares the second column with the first, seed by seed

    @property
    def target(self) -> Target:
        """The cells behind the paper's rows."""
        return self._target([row for row in self.rows if row.is_papers])

    @property
    def whole(self) -> Target:
        """The cells behind all rows, those beyond the paper's included."""
        return self._target(self.rows)

    def _target(self, rows: Sequence[Row]) -> Target:
        pairs = tuple(
            (case, row.variant)
            for column in self.columns
            for row in rows
            if row.variant.fits(case := row.case_in(column))
        )
        return Target(self.name, self.title, self.runs, pairs)


def _rows(variants: tuple[MethodConfig, ...], beyond: tuple[MethodConfig, ...] = EXTRA_METHODS) -> tuple[Row, ...]:
    return (*(Row(variant) for variant in variants), *(Row(variant, is_papers=False) for variant in beyond))


def _latent(dataset: str, imagenet: bool = False) -> tuple[Column, ...]:
    cases = {number: Setting(dataset, "latent", number, imagenet=imagenet) for number in NUMBERS}
    return tuple(Column(f"D = {number}", case) for number, case in cases.items())


def _private(variants: tuple[MethodConfig, ...]) -> tuple[Row, ...]:
    return tuple(Row(variant, noise) for variant in variants for noise in NOISES)


def coded(
    name: str, label: str, norm: str = "l2", affinity_update: str = "raw", averages: str = "0", others: int = 5
) -> MethodConfig:
    """Return FedFomo (n = 5) with what its authors' code does differently."""
    options = (
        f"num_downloads={others}",
        f"norm={norm}",
        f"affinity_update={affinity_update}",
        f"num_averages={averages}",
    )
    return MethodConfig(f"fedfomo-5-{name}", label, "fedfomo-as-coded", options)


# The authors' code is told how many distributions there are, and has as many averages.
AS_CODED = coded("authors", "all four", "l1", "normalised", "{D}", others=4)
AUTHORS_OPTIONS = (
    replace(FOMO_5, label="as the paper has it"),
    coded("l1", "L1 norm", norm="l1"),
    coded("averages", "cluster and global averages as candidates", averages="{D}"),
    coded("normalised", "normalised affinity", affinity_update="normalised"),
    MethodConfig("fedfomo-5-own-counted", "own model counted among the five", "fedfomo", ("num_downloads=4",)),
    AS_CODED,
)
KEPT = MethodConfig("fedfomo-5-kept", "training kept where nobody helps", "fedfomo-keep-training", ("num_downloads=5",))
"""Our variant, not the paper's."""
MANY_CLIENT_SETTINGS = {
    label: Setting(dataset, "pathological", clients=MANY_CLIENTS)
    for dataset, label in (("mnist", "MNIST"), ("cifar10", "CIFAR-10"))
}
"""The paper's split among 100 clients."""
BOTH = (Column("CIFAR-10", LATENT_5), Column("CIFAR-100", Setting("cifar100", "latent", 5)))

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        Table(
            "table1",
            "Pathological split, two classes a client",
            tuple(
                Column(f"{label}, {clients} clients", Setting(dataset, "pathological", clients=clients))
                for dataset, label in (("mnist", "MNIST"), ("cifar10", "CIFAR-10"))
                for clients in (15, 100)
            ),
            _rows(CORRECTED_METHODS, (FINE_TUNED, DITTO)),
        ),
        Table("table2", "CIFAR-10, latent distributions, 15 clients", _latent("cifar10"), _rows(PAPER_METHODS)),
        Table(
            "table3",
            "Out-of-distribution targets, five latent distributions, 15 clients",
            (
                Column("CIFAR-10", OOD_5),
                Column("CIFAR-100", Setting("cifar100", "ood", 5)),
            ),
            _rows(PAPER_METHODS, (*EXTRA_METHODS, *CONTROL_METHODS)),
            runs=5,
        ),
        Table(
            "table4",
            "Differential privacy, five latent distributions, 15 clients",
            BOTH,
            _private((FEDAVG, FOMO_5)),
        ),
        Table("table5", "CIFAR-100, latent distributions, 15 clients", _latent("cifar100"), _rows(PAPER_METHODS)),
        Table(
            "table6",
            "Differential privacy, and FedFomo on model averages (MA)",
            BOTH,
            _private((FEDAVG, FOMO_5, AVERAGES)),
        ),
        Table(
            "authors",
            "FedFomo (n = 5) as the paper has it, and with options of its authors' code and of ours; not in the paper",
            (Column("CIFAR-10, D = 2", LATENT_2), Column("CIFAR-10, D = 5", LATENT_5)),
            _rows(AUTHORS_OPTIONS, (KEPT,)),
        ),
        Table(
            "augmentation",
            "CIFAR-10, D = 5: training images shifted and mirrored at random, and as they are; not in the paper",
            (Column("shifted and mirrored", LATENT_5), Column("as they are", PLAIN_5)),
            tuple(Row(variant) for variant in (LOCAL, LOCAL_BEST, FOMO_5)),
        ),
        Table(
            "precision",
            "CIFAR-10, D = 5 (groups of ImageNet features): networks in float32, and in bfloat16; not in the paper",
            (Column("float32", NEW_5), Column("bf16", ROUNDED_5)),
            tuple(Row(variant) for variant in (LOCAL, FEDAVG, FOMO_5)),
            pairs_columns=True,
        ),
        Table(
            "everyone",
            "Pathological split, 100 clients: ten of them in a round, and all of them; not in the paper",
            tuple(
                Column(f"{label}, {words}", replace(case, participation=share))
                for label, case in MANY_CLIENT_SETTINGS.items()
                for words, share in (("ten in a round", None), ("all in every round", 1.0))
            ),
            (Row(LOCAL),),
        ),
        Table(
            "regimes",
            "Groups of ImageNet features and other regimes, 15 clients; not in the paper",
            (
                Column("CIFAR-10, latent distributions, D = 5", NEW_5),
                Column("CIFAR-10, foreign targets, D = 5", NEW_OOD_5),
                Column("CIFAR-10, latent distributions, D = 2", NEW_2),
                Column("CIFAR-10, Dirichlet(0.1)", DIRICHLET),
                Column("CIFAR-10, two classes", Setting("cifar10", "pathological")),
                Column("CIFAR-10, IID", Setting("cifar10", "iid")),
                Column("CIFAR-10, class pairs", PAIRS),
                Column("CIFAR-10, class pairs, foreign targets", replace(PAIRS, shuffled=True)),
                Column("CIFAR-10, latent distributions, D = 3", Setting("cifar10", "latent", 3, imagenet=True)),
                Column("CIFAR-10, latent distributions, D = 10", Setting("cifar10", "latent", 10, imagenet=True)),
                Column("CIFAR-10, labels permuted by two groups", Setting("cifar10", "concept", 2)),
                Column("CIFAR-100, latent distributions, D = 5", Setting("cifar100", "latent", 5, imagenet=True)),
                Column("CIFAR-100, foreign targets, D = 5", Setting("cifar100", "ood", 5, imagenet=True)),
            ),
            tuple(Row(variant) for variant in (*DECIDING_METHODS, *LATER_METHODS)),
        ),
        Table(
            "table2-imagenet",
            "CIFAR-10, latent distributions of ImageNet features, 15 clients",
            _latent("cifar10", imagenet=True),
            _rows(CORRECTED_METHODS, (FINE_TUNED, ORACLE, PLUS)),
        ),
        Table(
            "table3-imagenet",
            "Out-of-distribution targets, five latent distributions of ImageNet features, 15 clients",
            (
                Column("CIFAR-10", NEW_OOD_5),
                Column("CIFAR-100", Setting("cifar100", "ood", 5, imagenet=True)),
            ),
            _rows(CORRECTED_METHODS, (FINE_TUNED, ORACLE, PLUS)),
            runs=5,
        ),
        Table(
            "table5-imagenet",
            "CIFAR-100, latent distributions of ImageNet features, 15 clients",
            _latent("cifar100", imagenet=True),
            _rows(CORRECTED_METHODS, (FINE_TUNED, ORACLE, PLUS)),
        ),
    )
}


def exploring(epsilon: float) -> MethodConfig:
    """Return FedFomo (n = 5) with another ε; it does not decay any faster."""
    options = ("num_downloads=5", f"epsilon={epsilon:g}")
    return (
        FOMO_5
        if epsilon == 0.3
        else MethodConfig(f"fedfomo-5-epsilon-{epsilon:g}", f"ε = {epsilon:g}", "fedfomo", options)
    )


def downloading(number: int) -> MethodConfig:
    """Return FedFomo with another number of downloads (M)."""
    if number == 0:
        return replace(LOCAL_BEST, label="M = 0")
    return MethodConfig(f"fedfomo-{number}", f"M = {number}", "fedfomo", (f"num_downloads={number}",))


def splitting(fraction: float) -> Setting:
    """Return CIFAR-10 with five distributions and another share of validation data."""
    return LATENT_5 if fraction == 0.2 else replace(LATENT_5, validation_fraction=fraction)


FIGURES: dict[str, Target] = {
    figure.name: figure
    for figure in (
        Target(
            "clients",
            "Accuracy with 100 clients over latent distributions, CIFAR-10",
            3,
            tuple(
                (Setting("cifar10", "latent", number, 100), variant) for number in NUMBERS for variant in PAPER_METHODS
            ),
        ),
        Target(
            "weights",
            "Client-to-client weights over rounds",
            1,
            (
                *((Setting("cifar10", "latent", number), FOMO_5) for number in NUMBERS),
                (Setting("cifar10", "latent", 5, 100), FOMO_5),
            ),
        ),
        Target(
            "exploration",
            "FedFomo over ε and over the number of downloads M",
            3,
            (
                *((LATENT_5, exploring(epsilon)) for epsilon in EPSILONS),
                *((LATENT_5, downloading(number)) for number in DOWNLOADS),
            ),
        ),
        Target(
            "targets",
            "Out-of-distribution targets: accuracy, and each client's weights for the others",
            5,
            (
                *((OOD_5, variant) for variant in PAPER_METHODS),
                *((Setting("cifar100", "ood", 5), variant) for variant in PAPER_METHODS),
                (LATENT_5, FOMO_5),
            ),
        ),
        Target(
            "validation",
            "FedFomo over the share of validation data",
            5,
            tuple((splitting(fraction), FOMO_5) for fraction in VALIDATION_FRACTIONS),
        ),
        Target(
            "privacy",
            "Differential privacy: weights and accuracy",
            3,
            tuple((replace(LATENT_5, noise=noise), variant) for variant in (FOMO_5, FEDAVG) for noise in NOISES),
        ),
    )
}


def find_target(name: str) -> Target:
    """Return the table or figure of that name."""
    if name in TABLES:
        return TABLES[name].target
    if name in FIGURES:
        return FIGURES[name]
    raise unknown("table or figure", name, [*TABLES, *FIGURES])
