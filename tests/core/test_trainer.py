"""Training with torch's optimisers: worked by hand, beside torch's own loop, kept from round to round, and refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adagrad, Adam, AdamW, NAdam, RMSprop
from torch.optim import lr_scheduler as schedules

from fedfomo.algorithms import ALGORITHMS, make_algorithm
from fedfomo.core.local_training import LocalState, Place, ProximalTerm, Sgd, TrainingJob
from fedfomo.core.optimizer_state import encode_state, load_state
from fedfomo.core.rng import stream
from fedfomo.core.trainer import Trainer
from fedfomo.errors import InputError
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from fedfomo.testing.toy_federation import digest_of
from toy_problems import initialised, perceptron, point, points, points_problem, scalar_model, targets, with_batch_norm

STEP = Trainer(lambda params: SGD(params, 0.25), epochs=1)


def train(trainer: Trainer, start: float, *values: float, **job: Any) -> float:
    return trainer.train(scalar_model(), TrainingJob(point(start), targets(*values), 0, stream(0), **job)).item()


def test_a_step_of_torchs_sgd_goes_against_the_gradient() -> None:
    assert train(STEP, 0, 8) == 0 - 0.25 * 2 * (0 - 8)


def test_the_gradient_is_clipped_with_its_penalty() -> None:
    # 2(4 − 8) + 3(4 − 10) = −26, clipped to −2.
    assert train(replace(STEP, clip=2.0), 4, 8, penalty=ProximalTerm(point(10), 3.0)) == 4 + 0.25 * 2


def test_a_schedule_is_stepped_after_every_batch() -> None:
    # Steps of 0.25 and 0.125: 0 → 4 → 4 + 0.125 · 8 = 5.
    def halve(optimizer: torch.optim.Optimizer) -> schedules.LRScheduler:
        return schedules.ExponentialLR(optimizer, 0.5)

    assert train(replace(STEP, schedule=halve, epochs=2), 0, 8) == 5.0


def test_a_schedule_may_ask_for_the_number_of_steps() -> None:
    # LinearLR from 1 to 0 over all 2 steps: 0.25, then 0.125.
    def fall(optimizer: torch.optim.Optimizer, steps: int) -> schedules.LRScheduler:
        return schedules.LinearLR(optimizer, 1.0, 0.0, steps)

    assert train(replace(STEP, schedule=fall, epochs=2), 0, 8) == 5.0
    assert train(replace(STEP, schedule=schedules.CosineAnnealingLR, epochs=2), 0, 8) == pytest.approx(5.0)


def test_what_may_not_move_stays_whatever_the_optimiser_does() -> None:
    trainer = Trainer(lambda params: AdamW(params, 0.1, weight_decay=0.5), epochs=2)
    model, examples = initialised(perceptron), points(20, 0, stream(0))
    start = model.read()
    moving = torch.arange(model.layout.num_trainable) % 2 == 0
    trained = trainer.train(model, TrainingJob(start, examples, 0, stream(1), trainable_mask=moving))
    assert torch.equal(trained[~moving], start[~moving])
    assert not torch.equal(trained[moving], start[moving])


@pytest.mark.parametrize("build", [perceptron, with_batch_norm])
@pytest.mark.parametrize("make", [Adam, AdamW, RMSprop, NAdam, Adagrad])
def test_training_is_torchs_own_loop(make: Callable[..., torch.optim.Optimizer], build: type[nn.Module]) -> None:
    model, examples = initialised(build), points(20, 0, stream(0))
    trained = Trainer(lambda params: make(params, 0.01), epochs=3, batch_size=6).train(
        model, TrainingJob(model.read(), examples, 0, stream(1))
    )
    plain = initialised(build).architecture.train()
    for parameter in plain.parameters():
        parameter.grad = None
    optimizer, rng = make(plain.parameters(), 0.01), stream(1)
    torch.randint(2**62, (), generator=rng)  # the seed of layers that draw
    for _ in range(3):
        for indices in torch.randperm(20, generator=rng).split(6):
            optimizer.zero_grad()
            nn.functional.cross_entropy(plain(examples.inputs[indices]), examples.labels[indices]).backward()
            optimizer.step()
    assert torch.allclose(trained, model.layout.flatten(plain), atol=1e-6)


def kept_after(rounds: int, keeps: bool) -> Tensor:
    """Train the perceptron in so many rounds of one epoch, each from where the last one ended."""
    trainer = Trainer(lambda p: Adam(p, 0.01), schedules.CosineAnnealingLR, epochs=1, batch_size=7, keep_state=keeps)
    model, examples, local = initialised(perceptron), points(20, 0, stream(0)), LocalState()
    theta = model.read()
    for number in range(rounds):
        job = TrainingJob(theta, examples, number, stream(1, number), place=Place(local.name("train"), rounds, local))
        theta = trainer.train(model, job)
        local = LocalState(local.after())
    return theta


def test_kept_state_makes_rounds_one_training() -> None:
    model, examples = initialised(perceptron), points(20, 0, stream(0))
    optimizer = Adam(model.parameters, 0.01)
    schedule = schedules.CosineAnnealingLR(optimizer, 3 * 3)
    for number in range(3):
        rng = stream(1, number)
        torch.randint(2**62, (), generator=rng)
        for batch in examples.shuffled_batches(7, rng):
            model.backward(batch)
            optimizer.step()
            schedule.step()
    assert torch.equal(kept_after(3, keeps=True), model.read())
    assert not torch.equal(kept_after(3, keeps=False), model.read())


@pytest.mark.parametrize(
    "schedule",
    [
        lambda optimizer: schedules.MultiStepLR(optimizer, [2, 3]),
        lambda optimizer, steps: schedules.OneCycleLR(optimizer, 0.1, steps),
        lambda optimizer: schedules.LambdaLR(optimizer, lambda step: 0.9**step),
        lambda optimizer: schedules.SequentialLR(
            optimizer, [schedules.ConstantLR(optimizer), schedules.ExponentialLR(optimizer, 0.5)], [2]
        ),
    ],
)
def test_state_is_kept_without_pickle(schedule: Callable[..., schedules.LRScheduler]) -> None:
    trainer = Trainer(lambda p: AdamW(p, 0.01), schedule)
    parameter = nn.Parameter(torch.tensor([1.0, 2.0]))
    other = nn.Parameter(parameter.detach().clone())
    optimizer, first = trainer._make([parameter], 6)

    def steps(optimizer: torch.optim.Optimizer, schedule: Any, parameter: nn.Parameter, number: int) -> None:
        for number_so_far in range(number):
            parameter.grad = torch.tensor([1.0, -2.0 + number_so_far])
            optimizer.step()
            schedule.step()

    steps(optimizer, first, parameter, 3)
    kept = encode_state(optimizer, first)
    assert all(isinstance(tensor, Tensor) for tensor in kept.values())
    other.data.copy_(parameter.data)
    second_optimizer, second = trainer._make([other], 6)
    load_state(second_optimizer, second, kept)
    steps(optimizer, first, parameter, 3)
    steps(second_optimizer, second, other, 3)
    assert torch.equal(parameter, other)


def problem_with(trainer: Any, **changes: Any) -> Any:
    return replace(points_problem(**changes), trainer=trainer)


ADAM = Trainer(lambda params: Adam(params, 0.01), schedules.CosineAnnealingLR, epochs=2, batch_size=5, clip=1.0)
TWO = SimulationConfig(rounds=2)


@pytest.mark.parametrize("name", [name for name, method in ALGORITHMS.items() if method.steps != "plain"])
def test_every_method_takes_the_optimisers_steps(name: str) -> None:
    """With the step size at zero nothing moves in local training; with it, workers change no bit."""
    problem = problem_with(ADAM)
    algorithm = make_algorithm(name)
    result = digest_of(simulate(problem, algorithm, TWO))
    assert digest_of(simulate(problem, algorithm, replace(TWO, workers=2))) == result
    assert digest_of(simulate(problem_with(replace(ADAM, clip=0.1)), algorithm, TWO)) != result


@pytest.mark.parametrize("name", ["apfl", "apple", "per-fedavg", "pfedme"])
def test_a_method_with_a_loop_of_its_own_steps_as_sgd_does(name: str) -> None:
    sgd = Sgd(0.05, weight_decay=0.0, learning_rate_decay=1.0, batch_size=5, epochs=2)
    torchs = Trainer(lambda params: SGD(params, 0.05), batch_size=5, epochs=2)
    one, other = (simulate(problem_with(each), make_algorithm(name), TWO).models for each in (sgd, torchs))
    assert all(torch.allclose(one[client], other[client], atol=1e-6) for client in one)


@pytest.mark.parametrize("name", ["apfl-logits", "mocha-linear"])
def test_methods_with_steps_of_their_own_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} takes plain steps of its own, .*or choose a method.*fedavg"):
        simulate(problem_with(ADAM), make_algorithm(name), TWO)


@pytest.mark.parametrize("method", ["fedfomo", "ditto", "apfl"])
def test_kept_state_survives_workers_and_resume(method: str, tmp_path: Path) -> None:
    from fedfomo.engine.run_dir import RunDirectory
    from fedfomo.simulation.callbacks import Callback, FinishedRound

    class Interrupt(Callback):
        def round_done(self, finished: FinishedRound) -> None:
            if finished.round == 1:
                raise KeyboardInterrupt

    problem, algorithm = problem_with(replace(ADAM, keep_state=True)), make_algorithm(method)
    plan = SimulationConfig(rounds=4)
    whole = digest_of(simulate(problem, algorithm, plan))
    assert digest_of(simulate(problem_with(ADAM), algorithm, plan)) != whole

    def run(callback: Callback | None) -> str:
        directory = RunDirectory(tmp_path / "run", "digest", print)
        try:
            return digest_of(simulate(problem, algorithm, replace(plan, workers=2), directory, callback))
        finally:
            directory.close()

    (tmp_path / "run").mkdir()
    with pytest.raises(KeyboardInterrupt):
        run(Interrupt())
    assert run(None) == whole


def test_a_transform_varies_every_input_each_time_by_the_seed() -> None:
    seen: list[float] = []

    def shift(inputs: Tensor) -> Tensor:
        seen.append(float(torch.rand(())))
        return inputs + seen[-1]

    model, examples = initialised(perceptron), points(10, 0, stream(0))
    trainer = replace(ADAM, transform=shift)
    torch.manual_seed(0)
    first = trainer.train(model, TrainingJob(model.layout.flatten(model.architecture), examples, 0, stream(1)))
    start = initialised(perceptron).read()
    torch.manual_seed(1)
    second = trainer.train(model, TrainingJob(start, examples, 0, stream(1)))
    assert len(seen) == 2 * 2 * 10
    assert len(set(seen[:20])) == 20
    assert seen[:20] == seen[20:]
    assert torch.equal(first, second)


class Replacing(SGD):
    """Writes new tensors where others write into the old ones."""

    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.data = parameter.data - parameter.grad


@pytest.mark.parametrize(
    ("trainer", "words"),
    [
        (lambda: Trainer(AdamW([nn.Parameter(torch.zeros(1))])), "optimizer must be a function of the parameters"),
        (lambda: Trainer(lambda params: LBFGS(params)), "evaluates the loss several times a step cannot be used"),
        (lambda: Trainer(lambda params: AdamW(params, -1)), "the optimizer cannot train this model"),
        (lambda: Trainer(lambda params: None), "optimizer gave a NoneType"),  # pyright: ignore
        (lambda: Trainer(Replacing), "replaces the parameters' memory"),
        (lambda: replace(ADAM, schedule=schedules.ReduceLROnPlateau), "schedule gave a ReduceLROnPlateau"),
        (lambda: replace(ADAM, clip=0.0), "clip must be above 0"),
        (lambda: replace(ADAM, epochs=0), "epochs must be a whole number of at least 1"),
        (lambda: replace(ADAM, precision="fp16"), "precision must be float32 or bf16"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_computed(trainer: Callable[[], Trainer], words: str) -> None:
    with pytest.raises(InputError, match=words):
        trainer().check(initialised(perceptron))


def test_bfloat16_is_refused_where_the_processor_emulates_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = initialised(perceptron)
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: False)
    with pytest.raises(InputError, match="no bfloat16 instructions"):
        replace(ADAM, amp=True).check(model)


def test_in_bfloat16_losses_are_rounded_and_parameters_are_not() -> None:
    model, examples = initialised(perceptron), points(20, 0, stream(0))
    start = model.read()
    job = TrainingJob(start, examples, 0, stream(1))
    exact, rounded = (each.train(model, replace(job, rng=stream(1))) for each in (ADAM, replace(ADAM, amp=True)))
    assert rounded.dtype == torch.float32
    assert not torch.equal(exact, rounded)
    assert torch.allclose(exact, rounded, atol=0.05)
    assert replace(ADAM, precision="bf16").autocasts


def test_a_trainers_words_tell_one_step_size_from_another() -> None:
    def made(rate: float) -> Trainer:
        return Trainer(lambda params: AdamW(params, rate))

    assert repr(made(0.1)) == repr(made(0.1))
    assert repr(made(0.1)) != repr(made(0.2))
    assert repr(Trainer(AdamW, epochs=3)) == "Trainer(optimizer=AdamW, epochs=3)"
