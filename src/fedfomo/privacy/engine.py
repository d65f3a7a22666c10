"""Privacy of a run: noise, trainers, evaluators and budgets of its clients."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fedfomo.core.data import ClientData
from fedfomo.core.local_training import GradientTrainer
from fedfomo.core.model import Model
from fedfomo.core.rng import stream
from fedfomo.errors import require
from fedfomo.privacy.accountant import EpsilonSpent, Ledger, Query, Records, added, calibrate_noise, epsilon_of, spent
from fedfomo.privacy.config import Privacy
from fedfomo.privacy.dp_sgd import DpSgd, refuse_unfit
from fedfomo.privacy.private_data import BudgetTracker, SeededNoise, SystemNoise
from fedfomo.privacy.private_evaluation import PrivateEvaluator


@dataclass(frozen=True)
class PrivacyEngine:
    """Privacy as it applies to the clients of a run."""

    privacy: Privacy
    noise: float  # σ of training, given or solved
    before: Ledger = field(default_factory=dict[Query, int])  # queries on every client's records before the run

    @classmethod
    def of(
        cls,
        privacy: Privacy,
        trainer: GradientTrainer,
        num_examples: Sequence[int],
        rounds: int,
        before: Ledger | None = None,
    ) -> PrivacyEngine:
        """Solve for the noise if ε is given: the client that needs the most decides."""
        before = before or {}
        if privacy.noise is not None:
            return cls(privacy, privacy.noise, before)
        plain = DpSgd(trainer, 0.0, privacy.clip)
        sizes = {number for number in num_examples if number > 0} or {1}
        # To a first approximation ε grows with chance · √steps; few records, and few steps too many, cost most.
        costliest = sorted(sizes, key=lambda number: -plain.chance(number) * plain.steps(number) ** 0.5)[:3]
        target = privacy.epsilon or 0.0

        def epsilon(noise: float) -> float:
            ledgers = [
                added(
                    before,
                    {Query("training", noise, plain.chance(number)): trainer.epochs * plain.steps(number)},
                    rounds,
                )
                for number in costliest
            ]
            return max(epsilon_of(ledger, "training", privacy.delta, privacy.accountant) for ledger in ledgers)

        # A method that trains more than once a round would exceed the target: there, the budget holds it.
        kept = replace(privacy, budget=target if privacy.budget is None else privacy.budget)
        require(
            epsilon_of(before, "training", privacy.delta, privacy.accountant) < target,
            f"the noisy statistics of the inputs alone exceed privacy.epsilon {target}: give them more noise",
        )
        return cls(kept, calibrate_noise(epsilon, target), before)

    def trainer(self, trainer: GradientTrainer) -> DpSgd:
        """Return how clients train."""
        return DpSgd(trainer, self.noise, self.privacy.clip)

    def evaluator(self) -> PrivateEvaluator:
        """Return how clients evaluate models."""
        return PrivateEvaluator(self.privacy.validation_noise, self.privacy.validation_clip)

    def seed(self, seed: int) -> int:
        """Return what decides a client's draws in one round: in deployment, nothing that could be known."""
        return seed if self.privacy.mode == "research" else secrets.randbits(63)

    def tracker(self, seed: int, round: int, client: int, before: Ledger, attempts: int = 1) -> BudgetTracker:
        """Return a client's tracker for one round, which is charged once per attempt."""
        is_research = self.privacy.mode == "research"
        noise = SeededNoise(stream(seed, "noise", round, client)) if is_research else SystemNoise()
        return BudgetTracker(noise, before, self.affords, attempts)

    def affords(self, ledger: Ledger) -> bool:
        """Return whether a ledger stays within the budget; the quick accountant, never too low, is asked first.

        Evaluations without noise, for which no guarantee is asked, are left out: what is trained on the same records
        is not.
        """
        budget, delta = self.privacy.budget, self.privacy.delta
        if budget is None:
            return True
        if self.privacy.validation_noise is None:
            ledger = {query: n for query, n in ledger.items() if (query.records, query.noise) != ("validation", 0)}
        kinds: tuple[Records, ...] = ("training", "validation")
        accountants = dict.fromkeys(("rdp", self.privacy.accountant))
        ledger = added(self.before, ledger)
        return all(any(epsilon_of(ledger, kind, delta, by) <= budget for by in accountants) for kind in kinds)

    def spent(self, ledger: Ledger) -> EpsilonSpent:
        """Return the ε that a run's ledger adds up to, on top of what went before the run."""
        return spent(added(self.before, ledger), self.privacy.delta, self.privacy.accountant)

    def check(self, model: Model, clients: Sequence[ClientData]) -> None:
        """Refuse, before anything is computed, what no noise would make private."""
        delta = self.privacy.delta
        for client, data in enumerate(clients):
            kinds = [("training", data.train)]
            if self.privacy.validation_noise is not None:
                kinds.append(("validation", data.validation))
            for what, examples in kinds:
                small = len(examples) == 0 or delta < 1 / len(examples)
                require(
                    small,
                    f"privacy.delta {delta} is not below 1/{len(examples)}: client {client} has {len(examples)} {what}"
                    " records, and one of them could be given away whole; choose a smaller delta",
                )
        refuse_unfit(model, max((data.train for data in clients), key=len))  # which may be empty, at a site alone
