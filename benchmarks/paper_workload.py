"""The paper's workload: 15 clients of 1,000 CIFAR-shaped images, its CNN, five epochs, five downloads."""

from __future__ import annotations

import copy
import os
from statistics import mean, median

import torch
from measure import RoundTimer, gemm_peak, report, seconds
from reference import ReferenceLoop

from fedfomo.algorithms.fedfomo import FedFomo
from fedfomo.core.data import ClientData, Examples
from fedfomo.core.local_training import Sgd
from fedfomo.core.model import Model, prefers_channels_last
from fedfomo.core.networks import small_cnn
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.simulation.simulate import simulate

CLIENTS, TRAIN, VALIDATION, TEST = 15, 800, 200, 200
EPOCHS, BATCH, DOWNLOADS = 5, 50, 5
# Multiply-adds of one image: two floating-point operations each. What the network leaves out is not counted.
FORWARD = 2 * (28 * 28 * 32 * 27 + 12 * 12 * 64 * 288 + 4 * 4 * 64 * 576 + 1024 * 64 + 64 * 10)
# Going back costs the weights' gradient and the inputs', of which the first layer needs none.
TRAINING = 3 * FORWARD - 2 * 28 * 28 * 32 * 27


def clients() -> list[ClientData]:
    """Make images that are learnable: noise around one pattern per class."""
    rng = torch.Generator().manual_seed(0)
    patterns = torch.randn(10, 3, 32, 32, generator=rng)

    def some(number: int) -> Examples:
        labels = torch.randint(10, (number,), generator=rng)
        return Examples(patterns[labels] + torch.randn(number, 3, 32, 32, generator=rng), labels)

    return [ClientData(some(TRAIN), some(VALIDATION), some(TEST)) for _ in range(CLIENTS)]


def main(repetitions: int = 5) -> None:
    """Measure the engine, the matrix-product peak and the reference loop, one after the other, several times."""
    cores = os.cpu_count() or 1
    data = clients()
    module = small_cnn((3, 32, 32), 10)
    model = Model(copy.deepcopy(module), channels_last=prefers_channels_last(module, data[0].train.inputs))
    problem = FederatedProblem(model, model.read(), data, Sgd(epochs=EPOCHS, batch_size=BATCH), seed=0)
    operations = CLIENTS * (EPOCHS * TRAIN * TRAINING + (DOWNLOADS + 2) * VALIDATION * FORWARD + 2 * TEST * FORWARD)
    loops = {threads: ReferenceLoop(module, data, BATCH, EPOCHS, DOWNLOADS) for threads in (1, cores)}
    engine: list[float] = []
    peaks: list[float] = []
    reference: dict[int, list[float]] = {threads: [] for threads in loops}
    for _ in range(repetitions):
        before = gemm_peak(cores)
        timer = RoundTimer()
        simulate(problem, FedFomo(num_downloads=DOWNLOADS), SimulationConfig(rounds=3, workers=cores), callback=timer)
        engine.append(mean(timer.rounds()[1:]))  # the first round has nothing to download
        peaks.append((before + gemm_peak(cores)) / 2)
        for threads in loops if not any(reference.values()) else [_best(reference)]:
            torch.set_num_threads(threads)
            reference[threads].append(seconds(loops[threads].run_round))
    best = _best(reference)
    shares = [operations / took / peak for took, peak in zip(engine, peaks, strict=True)]
    report(
        "paper_workload",
        {
            "seconds a round": median(engine),
            "share of the matrix-product peak": median(shares),
            "peak, billion operations a second": median(peaks) / 1e9,
            "times faster than the reference loop": median(reference[best]) / median(engine),
            "reference loop, best number of threads": best,
            "reference loop, seconds a round": median(reference[best]),
            "all peaks, billion operations a second": [round(peak / 1e9, 1) for peak in peaks],
            "all shares": [round(share, 3) for share in shares],
            "repetitions": repetitions,
        },
    )


def _best(reference: dict[int, list[float]]) -> int:
    """Return the number of threads that serves the reference loop best; the first repetition tries all."""
    return min(reference, key=lambda threads: reference[threads][0])


if __name__ == "__main__":
    main()
