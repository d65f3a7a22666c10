"""A method of one's own, like FedProx: clients stay near the global model, less and less as rounds go by.

fedfomo compare --methods examples/my_method.py:FadingProx fedavg fedprox fedfomo --seeds 0 1 2
python -c "from fedfomo.testing import check_algorithm; check_algorithm('examples/my_method.py:FadingProx')"
"""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from fedfomo import Client, FedAvg, Personalised, ProximalTerm, Trained
from fedfomo.algorithms.fedavg import Download, Upload


@dataclass(frozen=True)
class FadingProx(FedAvg):
    """FedAvg whose clients are held near the global model at first, and let go in the end."""

    mu: Annotated[float, Meta(ge=0)] = 0.1
    """Weight of the proximal term in the first round."""

    def personalise(self, client: Client, download: Download, memory: None) -> Personalised[None]:
        """Use the global model."""
        return Personalised(download.model, None)

    def train(self, client: Client, download: Download, memory: None) -> Trained[Upload, None]:
        """Train on the loss + μ/2 · (1 − t/T) · ‖θ − θ^G‖²."""
        weight = self.mu * (1 - client.round / client.start.rounds)
        model = client.train(download.model, penalty=ProximalTerm(download.model, weight))
        return Trained(Upload(model, len(client.data.train)), None, model)
