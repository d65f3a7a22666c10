"""The server's transport: the downloads of a round become requests to sites, their checked answers become uploads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from fedfomo.core import messages
from fedfomo.core.algorithm import AnyAlgorithm, messages_of
from fedfomo.core.client import ClientId
from fedfomo.core.messages import Flat
from fedfomo.core.model import Score
from fedfomo.deployment.protocol import Envelope, Header, below, most_numbers, part_of, read_message, read_score
from fedfomo.deployment.site_connections import SiteConnections


class TooFewError(RuntimeError):
    """Fewer sites answered a round than it takes."""


class FlowerTransport:
    """Lets sites run a round, and closes it at the deadline with whoever has answered."""

    def __init__(
        self,
        connections: SiteConnections,
        algorithm: AnyAlgorithm,
        constants: Header,
        initial: Tensor,
        starts: Mapping[ClientId, Tensor],
        deadline: float,
        min_clients: int,
        is_share: bool,
    ) -> None:
        self.nodes: Mapping[ClientId, int] = {}  # of the sites on line
        self.attempt = 0  # which start of the server this is: a number that grows
        self.greeted: set[ClientId] = set()  # sites that know the initial model
        self.answered: list[ClientId] = []  # in the last call
        self.refused: dict[ClientId, str] = {}  # likewise: what arrived was of no use
        self.after_update: dict[ClientId, Score] = {}
        self.after_training: dict[ClientId, Score] = {}
        self._connections = connections
        self._upload = messages_of(algorithm).upload
        self._constants = constants  # of every request's header
        self._initial = initial  # of every site
        self._starts = starts  # but of those that start from a model of their own
        self._deadline = deadline
        self._minimum = min_clients
        self._is_share = is_share  # whether sites report shares of their test examples

    def __call__(self, round: int, downloads: Mapping[ClientId, Any]) -> Iterator[tuple[ClientId, Any]]:
        """Let every site personalise and train; who cannot contribute keeps what it trained to itself."""
        for slot, answer in self._ask("train", round, downloads):
            upload = self._read(slot, round, answer)
            if upload is not None:
                yield slot, upload
        if len(self.answered) < self._minimum:
            raise TooFewError(f"{len(self.answered)} sites answered, {self._minimum} are needed")

    def personalise(self, round: int, downloads: Mapping[ClientId, Any]) -> None:
        """Let every site make the federated update and no more; the models stay there."""
        for _ in self._ask("finish", round, downloads):
            pass

    def _ask(self, kind: str, round: int, downloads: Mapping[ClientId, Any]) -> Iterator[tuple[ClientId, Envelope]]:
        self.answered, self.refused, self.after_update, self.after_training = [], {}, {}, {}
        peers = len(downloads) - 1
        requests = ((slot, self._request(kind, round, slot, download, peers)) for slot, download in downloads.items())
        for slot, answer in self._connections.ask(requests, self.nodes, self._deadline, self._most(downloads)):
            if answer.header.get("is_lost"):
                self.greeted.discard(slot)
                continue
            try:
                told = (answer.header.get(point) for point in ("after_update", "after_training"))
                reported = [read_score(score, self._is_share) for score in told]
            except messages.MessageError as error:
                self._refuse(slot, round, part_of(answer.tensors, "upload"), error)
                continue
            self.greeted.add(slot)
            self.answered.append(slot)
            for scores, score in zip((self.after_update, self.after_training), reported, strict=True):
                if score is not None:
                    scores[slot] = score
            yield slot, answer

    def _most(self, downloads: Mapping[ClientId, Any]) -> int:
        """Return how many numbers an answer may hold: what is uploaded is as long as the model, or as what was sent."""
        sent = [{"": self._initial}, *(messages.pack(download) for download in downloads.values())]
        longest = max((tensor.numel() for flat in sent for tensor in flat.values()), default=0)
        return most_numbers(self._upload, longest, self._constants["num_clients"])

    def _request(self, kind: str, round: int, slot: ClientId, download: Any, peers: int) -> Envelope:
        facts = {"attempt": self.attempt, "kind": kind, "round": round, "slot": slot, "peers": peers}
        header = {**self._constants, **facts}
        start = {"theta": self._starts.get(slot, self._initial)}
        initial = {} if slot in self.greeted else below("initial", start)
        return Envelope(header, {**below("download", messages.pack(download)), **initial})

    def _read(self, slot: ClientId, round: int, answer: Envelope) -> Any:
        if not answer.header.get("uploads"):
            return None
        flat = part_of(answer.tensors, "upload")
        try:
            upload = read_message(self._upload, flat, self._constants["limit"])
        except messages.MessageError as error:
            self._refuse(slot, round, flat, error)
            return None
        return upload

    def log_upload(self, round: int, slot: ClientId, upload: Any, fault: str | None) -> None:
        """Write into the audit log that an upload arrived, and whether it is used."""
        self._connections.note_upload(slot, round, messages.pack(upload), is_refused=fault is not None)

    def _refuse(self, slot: ClientId, round: int, flat: Flat, error: messages.MessageError) -> None:
        self.refused[slot] = str(error)
        self._connections.note_upload(slot, round, flat, is_refused=True)
