"""A private training step of the paper's CNN, beside a plain one and Opacus' own ways."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from measure import in_turn, ratios, report, spread
from opacus import GradSampleModule
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from torch import Tensor, nn

from fedfomo.core.data import Examples
from fedfomo.core.local_training import Sgd
from fedfomo.core.model import Model, prefers_channels_last
from fedfomo.core.networks import small_cnn
from fedfomo.core.rng import stream
from fedfomo.privacy.dp_sgd import DpSgd
from fedfomo.privacy.private_data import BudgetTracker, Noise, PrivateExamples, SeededNoise, SystemNoise
from fedfomo.simulation.process_utils import use_huge_pages

BATCH = 50
Step = Callable[[], object]


def ours(module: nn.Module, examples: Examples) -> dict[str, Step]:
    """Return a plain step, and private ones with noise of both kinds."""
    model = Model(copy.deepcopy(module), channels_last=prefers_channels_last(module, examples.inputs))
    sgd = Sgd(batch_size=BATCH)
    trainer = DpSgd(sgd, 1.0, 1.0)

    def private(noise: Noise) -> Step:
        sealed = PrivateExamples(examples, ("training",), BudgetTracker(noise, {}, lambda bill: True))
        return lambda: trainer.gradient(model, sealed)

    return {
        "plain step": lambda: sgd.gradient(model, examples),
        "private step": private(SeededNoise(stream(0, "noise"))),
        "private step, noise of the system": private(SystemNoise()),
    }


def opacus(module: nn.Module, examples: Examples) -> dict[str, Step]:
    """Return Opacus' default and its ghost clipping, in the layout of the module and the examples."""
    with_hooks: Any = GradSampleModule(copy.deepcopy(module).train(), loss_reduction="sum")
    ghost: Any = GradSampleModuleFastGradientClipping(copy.deepcopy(module).train(), loss_reduction="sum")

    def by_hooks() -> list[Tensor]:
        with_hooks.zero_grad()
        nn.functional.cross_entropy(with_hooks(examples.inputs), examples.labels, reduction="sum").backward()
        samples = [parameter.grad_sample for parameter in with_hooks.parameters()]
        norms = torch.stack([sample.flatten(1).norm(dim=1) for sample in samples]).norm(dim=0)
        factors = (1 / (norms + 1e-6)).clamp(max=1.0)
        return [torch.einsum("n,n...", factors, sample) + torch.randn(sample.shape[1:]) for sample in samples]

    def by_ghost() -> list[Tensor]:
        ghost.zero_grad()
        ghost.enable_hooks()
        losses = nn.functional.cross_entropy(ghost(examples.inputs), examples.labels, reduction="none")
        losses.sum().backward(retain_graph=True)
        factors = ghost.get_clipping_coef()
        ghost.zero_grad()
        ghost.disable_hooks()
        (factors * losses).sum().backward()
        return [parameter.grad + torch.randn_like(parameter) for parameter in ghost.parameters()]

    return {"Opacus by hooks, its default": by_hooks, "Opacus by ghost clipping": by_ghost}


def main(repetitions: int = 40) -> None:
    """Time every kind of step in turn, many times: with fifteen repetitions the order was another now and then."""
    torch.set_num_threads(1)
    use_huge_pages()  # as in a worker process
    warnings.filterwarnings("ignore", "Full backward hook is firing")
    rng = torch.Generator().manual_seed(0)
    inputs, labels = torch.randn(BATCH, 3, 32, 32, generator=rng), torch.randint(10, (BATCH,), generator=rng)
    module, examples = small_cnn((3, 32, 32), 10), Examples(inputs, labels)
    last = torch.channels_last
    other_layout = copy.deepcopy(module).to(memory_format=last), Examples(inputs.contiguous(memory_format=last), labels)
    # Timed, though no way out: with channels last, Opacus returns wrong gradients.
    theirs = {f"{name}, channels last and wrong": step for name, step in opacus(*other_layout).items()}
    times = in_turn({**ours(module, examples), **opacus(module, examples), **theirs}, repetitions)
    plain = times.pop("plain step")
    report(
        "private_step",
        {
            "milliseconds, plain step": spread([1000 * took for took in plain]),
            **{f"{name}, in plain steps": ratios(took, plain) for name, took in times.items()},
            "best of Opacus that is right, in private steps": ratios(
                min((took for name, took in times.items() if name in opacus(module, examples)), key=median),
                times["private step"],
            ),
            "repetitions": repetitions,
        },
    )


if __name__ == "__main__":
    main()
