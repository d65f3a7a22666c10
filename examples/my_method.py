"""A method of one's own, like FedProx: clients stay near the global model, less and less as rounds go by.

fedfomo compare --methods examples/my_method.py:FadingProx fedavg fedprox fedfomo --seeds 0 1 2
python -c "from fedfomo.testing import check_algorithm; check_algorithm('examples/my_method.py:FadingProx')"
"""

from dataclasses import dataclass

from fedfomo import Client, FedAvg, ProximalTerm, Trained
from fedfomo.algorithms.fedavg import Download, Upload
from fedfomo.core.options import NonNegative


@dataclass(frozen=True)
class FadingProx(FedAvg):
    """FedAvg whose clients are held near the global model in the first rounds, and less in every later one."""

    mu: NonNegative = 0.1
    """Weight μ of the proximal term in the first round."""

    def train(self, client: Client, download: Download, memory: None) -> Trained[Upload, None]:
        """Minimise the loss + μ/2 · (1 − t/T) · ‖θ − θ^G‖², t being the round and T the number of rounds."""
        weight = self.mu * (1 - client.round / client.start.rounds)
        model = client.train(download.model, penalty=ProximalTerm(download.model, weight))
        return Trained(Upload(model, len(client.data.train)), None, model)
