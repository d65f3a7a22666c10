"""Results made by hand, for pages and figures whose numbers can be checked."""

import json
from collections.abc import Sequence
from pathlib import Path

from experiments.iclr2021.settings import Cell


def keep(
    folder: Path,
    cell: Cell,
    accuracies: Sequence[float | None],
    after_training: float = 0.5,
    epsilons: Sequence[float | None] = (),
    seconds: float = 120.0,
    constants: Sequence[float | None] | None = None,
    refusals: dict[int, int] | None = None,
    taken: Sequence[Sequence[float]] | None = None,
    targets: Sequence[int] | None = None,
) -> None:
    """Write the result of a cell that ended with these accuracies."""
    clients = len(accuracies)
    matrix = [[float(r // 2 == g // 2) - 0.5 for g in range(clients)] for r in range(clients)]
    content = {
        "cell": {"scale": cell.scale},
        "config": {"method": cell.variant.method, "dataset": cell.case.at(cell.scale)["dataset"], "rounds": 20},
        "label_distance": {"l1": 1.0, "official": 1.5},
        "after_update": {"accuracy": accuracies},
        "after_training": {"accuracy": [after_training] * clients},
        "curves": {"after_update": [0.1, 0.3], "after_training": [0.3, 0.5]},
        "constant": [0.5] * clients if constants is None else constants,
        "groups": [client // 2 for client in range(clients)],
        "targets": list(range(clients)) if targets is None else targets,
        "taken": [[0.0] * clients] * clients if taken is None else taken,
        "affinity": {"after_rounds": [1, 2], "matrices": [matrix, matrix]},
        "spent": {client: {"training": epsilon} for client, epsilon in enumerate(epsilons)} or None,
        "refusals": refusals or {},
        "seconds": seconds,
    }
    path = folder / cell.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
