"""What the paper says is judged by our numbers: on common seeds, by what chance allows, as far as rivals are there."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from experiments.iclr2021.affinity_recovery import affinity_recovery_of, recovery_table
from experiments.iclr2021.claims import CLAIMS, Finding, Pair, Side, findings
from experiments.iclr2021.paper_tables import CFL, FEDAVG, FOMO_5, FOMO_10, LATENT_5, LOCAL
from experiments.iclr2021.render import claims
from experiments.iclr2021.results import Difference, Results
from experiments.iclr2021.settings import Cell
from fake_results import keep


def test_claims_are_judged_by_the_best_variant_on_common_seeds(tmp_path: Path) -> None:
    for seed, (five, ten, local) in enumerate(((0.8, 0.7, 0.75), (0.6, 0.8, 0.75))):
        keep(tmp_path, Cell(LATENT_5, FOMO_5, "paper", seed), [five])
        keep(tmp_path, Cell(LATENT_5, FOMO_10, "paper", seed), [ten])
        keep(tmp_path, Cell(LATENT_5, LOCAL, "paper", seed), [local])
    keep(tmp_path, Cell(LATENT_5, FOMO_10, "paper", 2), [1.0])  # Local has no such seed
    ahead_of_local, ahead_of_fedavg, *_ = CLAIMS
    (finding,) = findings(ahead_of_local, "paper", Results(tmp_path))
    assert (finding.pair.where, len(finding.lead.values)) == ("D = 5", 2)
    assert finding.pair.papers_lead == pytest.approx(85.534 - 76.52)
    assert finding.lead.mean == pytest.approx(0.0)  # (70 + 80) / 2 of n = 10, the better one, less 75
    assert findings(ahead_of_fedavg, "paper", Results(tmp_path)) == []


def test_a_claim_counts_leads_and_leaves_small_ones_of_one_seed_open(tmp_path: Path) -> None:
    for number, fomo in ((2, 0.62), (3, 0.605), (4, 0.5)):
        case = replace(LATENT_5, distributions=number)
        for variant, accuracy in ((FOMO_5, fomo), (FOMO_10, fomo), (LOCAL, 0.6)):
            keep(tmp_path, Cell(case, variant, "lite"), [accuracy])
    (line, *_) = [line for line in claims(Results(tmp_path)).splitlines() if "Local Training" in line]
    leads = "D = 2 +2.0 (+19.6), D = 3 +0.5 (+17.0), D = 4 −10.0 (+15.3)"
    assert line.endswith(f"| not computed | even in 1, open in 1, no in 1 of 3: {leads}; 2 not computed |")


def test_a_lead_over_several_seeds_is_open_while_its_interval_holds_zero() -> None:
    # Of 2, 4, 6: deviation 2, so the margin is 4.303 × 2 / √3 = 4.97.
    lead = Difference((2.0, 4.0, 6.0))
    assert (lead.mean, lead.margin) == (4.0, pytest.approx(4.968, abs=1e-3))
    assert lead.is_open()
    assert not lead.is_open(-1.0)
    assert Difference((3.0, 4.0, 5.0)).is_clear
    assert not Difference((0.5, 0.5)).is_clear  # too little to matter, however sure
    assert [Difference((value,)).is_clear for value in (4.9, 5.1, -5.1)] == [False, True, True]


@pytest.mark.parametrize(
    ("said", "verdicts"),
    [
        ("ahead", ["no", "no", "open", "even", "open", "yes"]),
        ("competitive", ["no", "open", "open", "open", "yes", "yes"]),
        ("even", ["no", "no", "open", "even", "open", "no"]),
    ],
)
def test_verdicts_of_one_seed(said: Literal["ahead", "competitive", "even"], verdicts: list[str]) -> None:
    pair = Pair("somewhere", Side(LATENT_5, (FOMO_5,)), Side(LATENT_5, (LOCAL,)), said=said)
    leads = (-10.5, -6.0, -2.0, -0.5, 2.0, 6.0)
    assert [Finding(pair, Difference((lead,)), 1, 1).verdict for lead in leads] == verdicts


def test_seeds_that_disagree_do_not_make_it_even() -> None:
    pair = Pair("somewhere", Side(LATENT_5, (FOMO_5,)), Side(LATENT_5, (LOCAL,)))
    assert Finding(pair, Difference((0.5, 20.0, -19.0)), 1, 1).verdict == "open"
    assert Finding(pair, Difference((0.5, 1.0, 0.0)), 1, 1).verdict == "even"


def test_a_rival_that_is_ahead_counts_before_all_are_computed_and_one_that_is_behind_does_not(tmp_path: Path) -> None:
    (every_rival,) = [claim for claim in CLAIMS if claim.words.startswith("Foreign targets: FedFomo is ahead of every")]
    case = every_rival.pairs[0].first.case
    keep(tmp_path, Cell(case, FOMO_5, "paper"), [0.8])
    keep(tmp_path, Cell(case, FEDAVG, "paper"), [0.7])
    (finding,) = findings(every_rival, "paper", Results(tmp_path))
    assert (finding.verdict, finding.rivals, finding.is_complete) == ("so far", 1, False)
    assert "so far in 1 of 1: CIFAR-10 +10.0 against 1 of 9 (+20.4)" in claims(Results(tmp_path))
    keep(tmp_path, Cell(case, CFL, "paper"), [0.9])
    (finding,) = findings(every_rival, "paper", Results(tmp_path))
    assert (finding.verdict, finding.lead.mean) == ("open", pytest.approx(-10))  # n = 10 may yet be ahead
    keep(tmp_path, Cell(case, FOMO_10, "paper"), [0.7])
    (finding,) = findings(every_rival, "paper", Results(tmp_path))
    assert (finding.verdict, finding.lead.mean) == ("no", pytest.approx(-10))


def test_discovery_is_the_share_taken_from_those_who_train_on_the_targets_distribution(tmp_path: Path) -> None:
    assert "Nothing has been computed yet" in recovery_table(Results(tmp_path))
    # Groups 0 0 1 1. Client 0 aims at group 1: 3 of 4 came from there, its own 9 is nobody else's. Client 1 stays in
    # its group and takes all from client 0. The others take nothing.
    taken = [[9.0, 1.0, 2.0, 1.0], [5.0, 0.0, 0.0, 0.0], [0.0] * 4, [0.0] * 4]
    cell = Cell(LATENT_5, FOMO_5, "paper")
    keep(tmp_path, cell, [0.8] * 4, taken=taken, targets=[2, 1, 0, 3])
    run = Results(tmp_path).get(cell)
    assert run is not None
    found = affinity_recovery_of(run)
    assert found is not None
    assert found.moved == pytest.approx(100 * (13 + 5) / (4 * 20))
    assert found.others == pytest.approx(100 * (4 + 5) / (13 + 5))
    assert found.taken == pytest.approx(100 * (3 + 5) / (4 + 5))
    assert found.chance == pytest.approx(100 * (4 * 2 / 3 + 5 / 3) / 9)  # two of three others, one of three
    # The made affinity is 0.5 within a group: 1 → 0 and 3 → 2 are such; 0 and 2 aim at the others, two each, at −0.5.
    assert found.towards == pytest.approx((2 * 0.5 - 4 * 0.5) / 6)
    assert found.elsewhere == pytest.approx((-4 * 0.5 + 2 * 0.5) / 6)
    assert "| FedFomo (n = 5) | all, 1 | 22.5 % | 50.0 % | 88.9 % | 48.1 % | −0.17 | −0.17 |" in recovery_table(
        Results(tmp_path)
    )


def test_a_run_in_which_nobody_took_anything_discovers_nothing(tmp_path: Path) -> None:
    keep(tmp_path, Cell(LATENT_5, FOMO_5, "paper"), [0.8] * 4)
    assert "Nothing has been computed yet" in recovery_table(Results(tmp_path))
