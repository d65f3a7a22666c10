"""What a federation agrees on, and the folders that it lives in.

No torch here: commands that only write or read files should not take seconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Self

import tyro

from fedfomo.core.local_training import Sgd
from fedfomo.core.method_names import DEFAULT_METHOD
from fedfomo.deployment.addresses import ALL, check_address, host_and_port, is_loopback
from fedfomo.errors import reading, require
from fedfomo.io import lock, write_atomically
from fedfomo.privacy.config import Privacy
from fedfomo.runs.config_io import read_toml
from fedfomo.simulation.config import SimulationConfig

# How processes that Flower starts find out where they are.
SERVER_VARIABLE = "FEDFOMO_SERVER"
SITE_VARIABLE = "FEDFOMO_SITE"
DATA_VARIABLE = "FEDFOMO_DATA"
THREADS_VARIABLE = "FEDFOMO_THREADS"
DEVICE_VARIABLE = "FEDFOMO_DEVICE"
WORKER_VARIABLE = "FEDFOMO_WORKER"
EXPERIMENT_VARIABLE = "FEDFOMO_EXPERIMENT"

FIRST = "federation"  # what the experiment of federation.toml is called


@dataclass(frozen=True)
class FederationConfig:
    """What all sites of a federation have in common; `federation.toml` holds it."""

    method: str = DEFAULT_METHOD
    """The method; `fedfomo methods` lists them. The paper's is fedfomo."""
    options: tyro.conf.Suppress[Mapping[str, Any]] = field(default_factory=dict[str, Any])
    rounds: int = 20
    """Communication rounds."""
    participation: float = 1.0
    """Fraction of the connected sites that take part in a round, sampled in each; at least `min_clients` sites."""
    seed: int = 0
    """Seed of the initial model, cohorts, shuffling and exploration."""
    address: str = "127.0.0.1:8443"
    """Address at which sites reach the server: host:port."""
    listen: str = ""
    """Address on which the server listens. By default 127.0.0.1. If --address is another machine's, port + 1000: nginx
    listens on --address and forwards there."""
    min_clients: int = 2
    """A round with fewer answers than this is repeated."""
    deadline: float = 600.0
    """Seconds after which a round closes with the answers that have arrived."""
    startup_timeout: float = 120.0
    """Seconds that the server waits for all sites after a start or restart; then it continues with those connected."""
    max_sites: int = 0
    """Largest number of sites, including those added later; 0: twice as many as at first."""
    bits: int = 32
    """Bits per coordinate of a transmitted model: 32, 16 or 8."""
    norm_bound: float = 100.0
    """Models are refused if their norm exceeds the initial model's by more than this factor."""
    plaintext: bool = False
    """No TLS and no authentication; possible on this machine only."""
    training: Annotated[Sgd, tyro.conf.arg(name="")] = field(default_factory=Sgd)

    def __post_init__(self) -> None:
        SimulationConfig(self.rounds, self.participation)
        for name, least in (("min_clients", 1), ("max_sites", 0)):
            require(getattr(self, name) >= least, f"{name} must be at least {least}, not {getattr(self, name)}")
        enough = self.max_sites == 0 or self.min_clients <= self.max_sites
        require(enough, f"min_clients ({self.min_clients}) is more than max_sites ({self.max_sites}): lower it")
        require(self.deadline > 0, f"deadline must be above 0, not {self.deadline}")
        require(self.bits in (8, 16, 32), f"bits must be 8, 16 or 32, not {self.bits}")
        require(self.norm_bound > 0, f"norm_bound must be above 0, not {self.norm_bound}")
        for name, address in (("address", self.address), ("listen", self.listen)):
            if address or name == "address":
                check_address(name, address)
                host = host_and_port(address)[0]
                require(is_loopback(host) or not self.plaintext, f"plaintext is for this machine alone, not for {host}")

    @property
    def listens_on(self) -> tuple[str, int]:
        """Host and port that the server binds."""
        if self.listen:
            return host_and_port(self.listen)
        host, port = host_and_port(self.address)
        return "::1" if host == "::1" else "127.0.0.1", port

    @property
    def reached_on(self) -> tuple[str, int]:
        """Host and port by which the server's own machine reaches it."""
        host, port = self.listens_on
        return ALL.get(host, host), port


SHARED = ("address", "listen", "max_sites", "plaintext")
"""Settings that are those of the federation, in all of its experiments."""


@dataclass(frozen=True)
class Site:
    """A site as the server knows it."""

    name: str
    slot: int  # its id in the method, drawn at random: all that other sites ever learn of it
    key: str  # by which Flower knows it: the public half of its authentication key, PEM
    seal: str  # the public key that is encrypted to
    has_left: bool = False  # its name stays, for logs and results; its slot is nobody else's ever


def check_experiment(name: str) -> None:
    """Refuse a name that is none of an experiment: it becomes that of a folder, at the server and at sites."""
    is_name = re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,63}", name) is not None
    require(is_name, f"experiment '{name[:100]}': use a-z, 0-9, - and _, 64 characters at most")


class _ExperimentFolder:
    """A folder as one of a federation's experiments sees it: the first, or one with a name."""

    def __init__(self, path: Path, experiment: str, latest: str = "experiment") -> None:
        self.path = path.absolute()
        self.experiment = experiment
        self._latest = self.path / latest  # the file that names the latest experiment

    def of(self, experiment: str) -> Self:
        """Return the folder as another experiment sees it."""
        return type(self)(self.path, "" if experiment == FIRST else experiment)

    def latest(self) -> Self:
        """Return the folder as the experiment sees it that was begun or gone on with last."""
        return self.of(self._latest.read_text() if self._latest.exists() else "")

    def note_latest(self) -> None:
        """Take down that this experiment is begun or goes on."""
        if self.latest().experiment != self.experiment:
            write_atomically(self._latest, self.experiment.encode())


class FederationFolder(_ExperimentFolder):
    """The folder of whoever runs the server."""

    def __init__(self, path: Path, experiment: str = "") -> None:
        super().__init__(path, experiment, "server/experiment")
        self.settings = self.path / "federation.toml"
        self.model = self.path / "model.py"
        self.authority = self.path / "authority"  # signs certificates; not needed while a federation runs
        self.server = self.path / "server"
        self.sites = self.path / "sites"
        self.operations = self.path / "operations"  # files for nginx, systemd and containers
        self.experiments = self.path / "experiments"
        self.place = self.experiments / experiment if experiment else self.server
        self.deliveries = self.place / "deliveries.jsonl"
        self.status = self.place / "status.json"
        self.result = self.place / "result.json"
        self.failure = self.place / "failure.txt"
        self.process = self.place / "serverapp.pid"
        self.run = self.place / "run"
        self.uploaded = self.place / "uploaded"  # the model that each site uploaded last
        self.experiment_settings = self.place / "experiment.toml"
        self.start = self.place / "start.safetensors"  # what it starts from, if that is an earlier experiment
        self._registry = self.server / "sites.json"

    @property
    def has_run(self) -> bool:
        """Whether a round was complete: then there was a delivery log."""
        rounds = self.run / "rounds.jsonl"
        return self.result.exists() or (rounds.exists() and rounds.stat().st_size > 0)

    def require(self) -> None:
        """Refuse a folder that is none of a federation."""
        require(self.settings.exists(), f"{self.path} is no federation: make one with `fedfomo deploy init`")

    def config(self) -> FederationConfig:
        """Read what the federation agrees on in this experiment; where it is reached is the same in all."""
        self.require()
        config = read_toml(self.settings, FederationConfig)
        if not self.experiment:
            return config
        known = self.experiment_settings.exists()
        require(known, f"{self.path} has no experiment '{self.experiment}': `fedfomo deploy run` begins one")
        own = read_toml(self.experiment_settings, FederationConfig)
        return replace(own, **{name: getattr(config, name) for name in SHARED})

    def registry(self) -> list[Site]:
        """Read who belongs to the federation, or did before it left."""
        self.require()
        with reading(self._registry, "restore it from a copy"):
            return [Site(**site) for site in json.loads(self._registry.read_bytes())["sites"]]

    def members(self) -> list[Site]:
        """Read who belongs to the federation now."""
        return [site for site in self.registry() if not site.has_left]

    def identity(self) -> str:
        """Return what tells this federation from any other."""
        with reading(self._registry, "restore it from a copy"):
            return str(json.loads(self._registry.read_bytes())["federation"])

    def write_registry(self, identity: str, sites: list[Site]) -> None:
        """Write who belongs to the federation."""
        content = {"federation": identity, "sites": [asdict(site) for site in sites]}
        write_atomically(self._registry, json.dumps(content, indent=1).encode())

    @contextmanager
    def registry_locked(self) -> Generator[None]:
        """Let no other process change who belongs to the federation."""
        self.require()
        with lock(self.server / "sites.lock"):
            yield


@dataclass(frozen=True)
class SiteProtection(Privacy):
    """What a site settles about its records, in `privacy.toml`."""

    off: bool = False
    """Without protection, and knowingly so: also where records were protected before, or the ledger is lost."""


@dataclass(frozen=True)
class SiteIdentity:
    """What a site is told about itself and the server, in `site.json`."""

    name: str
    federation: str
    address: str
    server_seal: str
    plaintext: bool


class SiteFolder(_ExperimentFolder):
    """The folder that is handed over to a site."""

    def __init__(self, path: Path, experiment: str = "") -> None:
        super().__init__(path, experiment, "memory/experiment")
        self.place = place = self.path / "experiments" / experiment if experiment else self.path
        self.model = self.path / "model.py"
        self.data = self.path / "data.py"
        self.ca = self.path / "ca.crt"
        self.key = self.path / "authentication.key"
        self.seal = self.path / "sealing.key"
        self.node = self.path / "memory" / "node"  # what Flower called the site when it was last on line
        self.words = self.path / "memory" / "words.json"  # the last that the site had to say
        self.memory = place / "memory"
        self.models = place / "models"
        self.scores = place / "scores.jsonl"  # a line for every answer; it stays at the site
        self.asked = self.memory / "asked.json"  # how the federation trains, by its last request
        self.alone = place / "alone"  # what training alone beside it gave
        self.report = place / "report.html"
        self.ledger = self.path / "privacy-bill.json"
        self.privacy_settings = self.path / "privacy.toml"
        self.policy = self.path / "policy.toml"
        self._card = self.path / "site.json"

    def card(self) -> SiteIdentity:
        """Read who the site is."""
        require(self._card.exists(), f"{self.path} is no site's folder: it has no site.json")
        with reading(self._card, "ask for the site's folder again"):
            return SiteIdentity(**json.loads(self._card.read_bytes()))

    def require_files(self) -> None:
        """Refuse a folder that lacks what no site can do without."""
        renewed = "restore it from a copy, or have the site's keys renewed by `fedfomo deploy renew` at the server"
        remedies = {
            **dict.fromkeys((self.ca, self.key, self.seal), renewed),
            self.model: "copy the federation's model.py there",
            self.data: "restore it from a copy, or write it anew: load_data(folder, site) returns this site's data",
        }
        for path, remedy in remedies.items():
            require(path.is_file(), f"{path} is missing: {remedy}")

    @property
    def has_taken_part(self) -> bool:
        """Whether the site has answered before: what it remembers, and the model that it has, come after the ledger."""
        places = (self.path, *(self.path / "experiments").glob("*"))
        return any((place / "models").exists() or any(place.glob("memory/memory-*.parcel")) for place in places)

    def privacy(self) -> SiteProtection:
        """Read what the site has settled about its records; refuse what would only look like protection."""
        path = self.privacy_settings
        settings = read_toml(path, SiteProtection) if path.exists() else SiteProtection()
        if settings.is_on:
            require(not settings.off, f"{path}: it says off = true, and gives a noise or an epsilon: choose one")
            seeded = "the server knows the seed that noise would follow from"
            require(settings.mode == "deployment", f'{path}: mode must be "deployment", for {seeded}')
            limited = settings.epsilon is not None or settings.budget is not None
            require(limited, f"{path}: give a budget, for the server decides how long to train")
        return settings

    def write_card(self, card: SiteIdentity) -> None:
        """Write who the site is."""
        self._card.write_text(json.dumps(asdict(card), indent=1))
