"""More models than memory should hold: 10,000 of 122,570 parameters on disk, handed out and replaced."""

from __future__ import annotations

import resource
import tempfile
from pathlib import Path

import torch
from measure import report, seconds

from fedfomo.algorithms.fedfomo import EvaluationWeights, FedFomo, State, Upload
from fedfomo.core import messages
from fedfomo.core.round import Federation, configure_clients, run_round
from fedfomo.engine.tensor_store import References, TensorStore

CLIENTS, PARAMETERS, GROUP = 10_000, 122_570, 20


def fill(files: TensorStore, round: int) -> dict[int, References]:
    """Write every client's model, as workers do."""
    places: dict[int, References] = {}
    for first in range(0, CLIENTS, GROUP):
        models = {str(client): torch.full((PARAMETERS,), float(client)) for client in range(first, first + GROUP)}
        saved = files.save(f"round-{round}-{first}.safetensors", models)
        places |= {int(client): {"model": place} for client, place in saved.items()}
    return places


def main() -> None:
    """Run a round of the server's half: check 10,000 uploads, store them, choose and map 50,000 downloads."""
    algorithm = FedFomo()
    with tempfile.TemporaryDirectory() as folder:
        files = TensorStore(Path(folder), durable=False)
        places: dict[int, References] = {}
        writing = seconds(lambda: places.update(fill(files, 0)))
        federation = Federation(algorithm, CLIENTS, PARAMETERS, seed=0)

        def exchange(round: int, downloads: object):
            for client, place in places.items():
                yield client, Upload(files.load(place)["model"], EvaluationWeights.none())

        state = State.start(CLIENTS)
        played: list[State] = []
        collecting = seconds(lambda: played.append(run_round(federation, state, 0, range(CLIENTS), exchange).state))
        sending = seconds(lambda: configure_clients(federation, played[0], 1, range(CLIENTS)))
        report(
            "model_store",
            {
                "gigabytes on disk": CLIENTS * PARAMETERS * 4 / 1e9,
                "megabytes, this process at most": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                "milliseconds a client, written": 1000 * writing / CLIENTS,
                "milliseconds a client, checked and collected": 1000 * collecting / CLIENTS,
                "milliseconds a client, downloads chosen": 1000 * sending / CLIENTS,
                "megabytes a client": messages.message_size(played[0].models[0])[1] / 1e6,
            },
        )


if __name__ == "__main__":
    main()
