"""What an epoch of the paper's CNN costs one core, piece by piece: layout, memory pages, precision, batches, stacks.

Two processes compute side by side, as two workers do: one with large memory pages and one without.
"""

from __future__ import annotations

import copy
import json
import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier

import torch
from measure import processor_seconds, ratios, report, spread
from reference import ReferenceLoop

from fedfomo.core import model as models
from fedfomo.core.data import ClientData, Examples
from fedfomo.core.device import Precision, bfloat16_instructions
from fedfomo.core.local_training import Sgd, TrainingJob
from fedfomo.core.model import Model
from fedfomo.core.networks import small_cnn
from fedfomo.core.rng import stream
from fedfomo.core.vectorised import Stack
from fedfomo.simulation.process_utils import use_huge_pages

TRAIN, SCORED, BATCH, STACKED = 400, 1024, 50, 4
Work = Callable[[], object]


def _some(number: int) -> Examples:
    rng = torch.Generator().manual_seed(0)
    return Examples(torch.randn(number, 3, 32, 32, generator=rng), torch.randint(10, (number,), generator=rng))


def _loop(channels_last: bool) -> Work:
    examples = _some(TRAIN)
    client = ClientData(examples, examples.take(torch.arange(0)), examples.take(torch.arange(0)))
    loop = ReferenceLoop(small_cnn((3, 32, 32), 10), [client], BATCH, 1, 0, channels_last)
    return loop.train_first


def _epoch(precision: Precision) -> Work:
    model, examples = Model(small_cnn((3, 32, 32), 10), channels_last=True, precision=precision), _some(TRAIN)
    theta, sgd = model.read(), Sgd(batch_size=BATCH, epochs=1)
    return lambda: sgd.train(model, TrainingJob(theta, examples, 0, stream(1)))


def _scoring(batch: int) -> Work:
    model, examples = Model(small_cnn((3, 32, 32), 10), channels_last=True), _some(SCORED)
    theta = model.read()

    def score() -> None:
        usual, models.EVALUATION_BATCH = models.EVALUATION_BATCH, batch
        model.loss(theta, examples)
        models.EVALUATION_BATCH = usual

    return score


def _clients(stacked: bool) -> Work:
    model, sgd = Model(small_cnn((3, 32, 32), 10), channels_last=True), Sgd(batch_size=BATCH, epochs=1)
    examples = [_some(TRAIN // STACKED) for _ in range(STACKED)]
    theta, stack = model.read(), Stack(copy.deepcopy(model))

    def train() -> None:
        tasks = [TrainingJob(theta, own, 0, stream(number)) for number, own in enumerate(examples)]
        stack.train(sgd, tasks) if stacked else [sgd.train(model, task) for task in tasks]

    return train


def contenders() -> dict[str, Work]:
    """Return everything that takes turns."""
    return {
        "loop": _loop(channels_last=False),
        "loop, channels last": _loop(channels_last=True),
        "engine": _epoch("float32"),
        **({"engine, bf16": _epoch("bf16")} if bfloat16_instructions() else {}),
        "scoring by 200": _scoring(200),
        "scoring by 512": _scoring(512),
        "clients one by one": _clients(stacked=False),
        "clients stacked": _clients(stacked=True),
    }


def _measure(has_large_pages: bool, repetitions: int, barrier: Barrier, answer: Connection) -> None:
    torch.set_num_threads(1)
    if has_large_pages:
        use_huge_pages()
    found = contenders()
    times: dict[str, list[float]] = {name: [] for name in found}
    for work in found.values():
        work()
    for _ in range(repetitions):
        for name, work in found.items():
            barrier.wait()
            times[name].append(processor_seconds(work))
    answer.send_bytes(json.dumps(times).encode())


def main(repetitions: int = 9) -> None:
    """Measure in two processes at once."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(2)
    answers: list[Connection] = []
    for has_large_pages in (True, False):
        ours, theirs = context.Pipe()
        context.Process(target=_measure, args=(has_large_pages, repetitions, barrier, theirs)).start()
        answers.append(ours)
    large, small = (json.loads(answer.recv_bytes()) for answer in answers)
    engine = large["engine"]
    report(
        "training_step",
        {
            "milliseconds a step, engine": spread([1000 * took * BATCH / TRAIN for took in engine]),
            "loop as usual, in the engine's time": ratios(small["loop"], engine),
            "of that, channels last": ratios(small["loop"], small["loop, channels last"]),
            "of that, large pages": ratios(small["engine"], engine),
            "the loop with both, in the engine's time": ratios(large["loop, channels last"], engine),
            **({"bf16: times faster": ratios(engine, large["engine, bf16"])} if "engine, bf16" in large else {}),
            "scoring in batches of 512: speed against 200": ratios(large["scoring by 200"], large["scoring by 512"]),
            f"{STACKED} clients of convolutions stacked: speed against one by one": ratios(
                large["clients one by one"], large["clients stacked"]
            ),
            "repetitions": repetitions,
        },
    )


if __name__ == "__main__":
    main()
