"""Pages show ours, the paper's number and the difference; what is missing shows as missing."""

import io
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.iclr2021.paper_tables import (
    DITTO,
    FEDAVG,
    FINE_TUNED,
    FOMO_5,
    FOMO_10,
    LATENT_5,
    LOCAL,
    NEW_5,
    OOD_5,
    ORACLE,
    PAPER_METHODS,
    PFEDME,
    ROUNDED_5,
    TABLES,
)
from experiments.iclr2021.render import page, refresh, table_in_markdown, write_pages
from experiments.iclr2021.results import Results
from experiments.iclr2021.settings import Cell
from experiments.markdown import signed
from fake_results import keep
from fedfomo.errors import InputError


def row_of(markdown: str, label: str) -> list[str]:
    (line,) = [line for line in markdown.splitlines() if line.startswith(f"| {label} |")]
    return [entry.strip() for entry in line.strip("|").split("|")]


def test_a_cell_shows_the_mean_over_clients_and_seeds_and_how_far_it_is_from_the_paper(tmp_path: Path) -> None:
    keep(tmp_path, Cell(LATENT_5, FOMO_5, "paper", 0), [0.8, 0.9, None])  # 85
    keep(tmp_path, Cell(LATENT_5, FOMO_5, "paper", 1), [0.82, 0.92, None])  # 87
    entries = row_of(table_in_markdown(TABLES["table2"], "paper", Results(tmp_path)), "FedFomo (n = 5)")
    assert entries[4] == "**86.00 ± 1.41** (85.050 ± 0.13, +0.95)"
    assert entries[1] == "– (77.823 ± 2.24)"


def test_a_difference_below_zero_has_its_sign(tmp_path: Path) -> None:
    keep(tmp_path, Cell(LATENT_5, LOCAL, "paper"), [0.7])
    entries = row_of(table_in_markdown(TABLES["table2"], "paper", Results(tmp_path)), "Local Training")
    assert entries[4] == "**70.00** (76.52 ± 11.46, −6.52)"


def test_what_rounds_to_nothing_has_no_sign() -> None:
    assert [signed(value) for value in (-0.04, 0.04, -0.06, 0.0)] == ["0.0", "0.0", "−0.1", "0.0"]


def test_scales_are_kept_apart(tmp_path: Path) -> None:
    keep(tmp_path, Cell(LATENT_5, LOCAL, "lite"), [0.7])
    assert "**70.00**" not in table_in_markdown(TABLES["table2"], "paper", Results(tmp_path))
    assert "**70.00**" in table_in_markdown(TABLES["table2"], "lite", Results(tmp_path))


def test_rows_beyond_the_papers_appear_once_computed_and_have_no_number_of_the_paper(tmp_path: Path) -> None:
    table = TABLES["table2"]
    assert "oracle" not in table_in_markdown(table, "paper", Results(tmp_path))
    keep(tmp_path, Cell(LATENT_5, ORACLE, "paper"), [0.9])
    assert row_of(table_in_markdown(table, "paper", Results(tmp_path)), "oracle clusters")[1:] == [
        *["–"] * 3,
        "**90.00**",
        "–",
    ]


def test_a_page_on_precision_shows_differences_of_common_seeds_with_an_interval(tmp_path: Path) -> None:
    for seed, (exact, rounded) in enumerate(((0.7, 0.71), (0.6, 0.59), (0.5, 0.5))):
        keep(tmp_path, Cell(NEW_5, LOCAL, "lite", seed), [exact, exact])
        keep(tmp_path, Cell(ROUNDED_5, LOCAL, "lite", seed), [rounded, rounded])
    keep(tmp_path, Cell(NEW_5, FOMO_5, "lite"), [0.5])
    keep(tmp_path, Cell(ROUNDED_5, FOMO_5, "lite"), [0.4])
    keep(tmp_path, Cell(NEW_5, FEDAVG, "lite"), [0.4])
    shown = page(TABLES["precision"], Results(tmp_path))
    assert "| Local Training | 0.00 | ± 2.48 | +1.00, −1.00, 0.00 |" in shown
    assert "| FedFomo (n = 5) | −10.00 | – | −10.00 |" in shown
    assert "| FedAvg | +" not in shown


def test_private_rows_are_cells_of_their_own(tmp_path: Path) -> None:
    keep(tmp_path, Cell(LATENT_5, FOMO_5, "paper"), [0.9])
    keep(tmp_path, Cell(replace(LATENT_5, noise=1.0), FOMO_5, "paper"), [0.7])
    shown = table_in_markdown(TABLES["table4"], "paper", Results(tmp_path))
    assert row_of(shown, "FedFomo (n = 5), σ = 0")[1] == "– (71.56 ± 1.20)"
    assert row_of(shown, "FedFomo (n = 5), σ = 1")[1] == "**70.00** (71.28 ± 1.06, −1.28)"


def test_budgets_stand_beside_the_papers_and_are_finite_or_missing(tmp_path: Path) -> None:
    noisy = [replace(LATENT_5, noise=noise) for noise in (1.0, 2.0)]
    keep(tmp_path, Cell(noisy[0], FOMO_5, "lite"), [0.7, 0.7], epsilons=[8.0, 9.0])
    keep(tmp_path, Cell(noisy[1], FOMO_5, "lite"), [0.7, 0.7], epsilons=[2.0, None])
    shown = page(TABLES["table4"], Results(tmp_path))
    assert "| FedFomo (n = 5), σ = 1 | **8.50**, at most 9.00 (6.89 ± 0.13) | – (8.20 ± 0.69) |" in shown
    assert "| FedFomo (n = 5), σ = 2 | – (1.70 ± 0.04) | – (1.71 ± 0.15) |" in shown


def test_a_page_shows_both_points_of_evaluation_and_the_command(tmp_path: Path) -> None:
    keep(tmp_path, Cell(LATENT_5, LOCAL, "paper"), [0.7, 0.6], after_training=0.75)
    shown = page(TABLES["table2"], Results(tmp_path))
    assert "| D = 5: Local Training | 65.00 | 65.00 | 75.00 | 60.0 | 0 | 2.0 |" in shown
    assert "python -m experiments.iclr2021 table2 --scale paper --seeds 3 --data FOLDER" in shown
    assert "D = 5, EMD 1.50 (2.80)" in shown


def test_what_a_constant_answer_reaches_stands_below_and_its_clients_are_taken_out(tmp_path: Path) -> None:
    for seed, constants in enumerate(([0.95, 0.5, None], [0.97, 0.5, 0.3])):
        cell = Cell(LATENT_5, LOCAL, "paper", seed)
        keep(tmp_path, cell, [0.95, 0.6, None if seed == 0 else 0.7], constants=constants)
    shown = page(TABLES["table2"], Results(tmp_path))
    # (72.5 + 59) / 2 by a constant; mixed clients have 60, and 65 with the second seed.
    table = table_in_markdown(TABLES["table2"], "paper", Results(tmp_path))
    assert row_of(table, "one constant answer a client")[1:] == ["–", "–", "–", "65.75", "–"]
    assert "| D = 5: Local Training | 76.25 ± 1.77 | 62.50 |" in shown


def test_a_page_names_the_cells_in_which_trainings_diverged(tmp_path: Path) -> None:
    keep(tmp_path, Cell(LATENT_5, LOCAL, "paper"), [0.7])
    assert "diverged" not in page(TABLES["table2"], Results(tmp_path))
    keep(tmp_path, Cell(LATENT_5, FOMO_5, "paper"), [0.7], refusals={4: 2, 5: 1})
    assert "diverged: D = 5: FedFomo (n = 5) (3).\n" in page(TABLES["table2"], Results(tmp_path))


def test_prose_is_left_alone_and_numbers_are_written_anew(tmp_path: Path) -> None:
    results, pages = tmp_path / "results", tmp_path / "pages"
    pages.mkdir()
    words = "# Mine\n\n<!-- begin state -->\nold\n<!-- end state -->\n\nlast words\n"
    (pages / "README.md").write_text(words)
    keep(results, Cell(LATENT_5, FEDAVG, "lite"), [0.3])
    written = write_pages(Results(results), pages)
    assert {path.name for path in written} == {*(f"{name}.md" for name in TABLES), "features.md", "README.md"}
    overview = (pages / "README.md").read_text()
    assert overview.startswith("# Mine\n\n<!-- begin state -->\n| |")
    assert overview.endswith("<!-- end state -->\n\nlast words\n")
    assert "| [table2](table2.md) | CIFAR-10, latent distributions, 15 clients | 0 of 55 | 1 of 55 |" in overview
    assert refresh(overview, Results(results), pages) == overview


def test_the_overview_shows_the_figures_that_are_drawn(tmp_path: Path) -> None:
    block = "<!-- begin figures -->\n<!-- end figures -->"
    assert "None has been drawn yet" in refresh(block, Results(tmp_path), tmp_path)
    (tmp_path / "weights-lite.svg").write_text("<svg/>")
    assert "![Client-to-client weights over rounds](weights-lite.svg)" in refresh(block, Results(tmp_path), tmp_path)


def test_the_comparison_sets_fedfomo_beside_the_best_of_the_others_here_and_in_the_paper(tmp_path: Path) -> None:
    block = "<!-- begin comparison -->\n<!-- end comparison -->"
    for variant, accuracy in ((FOMO_5, 0.86), (FOMO_10, 0.99), (LOCAL, 0.8), (FINE_TUNED, 0.87), (ORACLE, 0.95)):
        keep(tmp_path, Cell(LATENT_5, variant, "paper"), [accuracy])
    assert "Nothing has been computed yet" in refresh(block, Results(tmp_path), tmp_path)  # FedAvg is missing
    keep(tmp_path, Cell(LATENT_5, FEDAVG, "paper"), [0.3])
    for variant in (FOMO_5, LOCAL, FEDAVG):
        keep(tmp_path, Cell(LATENT_5, variant, "lite"), [0.5])

    def lines() -> list[str]:
        return [line for line in refresh(block, Results(tmp_path), tmp_path).splitlines() if "D = 5" in line]

    full, part = lines()
    assert (
        "| a fifth, 1 | 50.0 | 50.0 | 50.0 | Local Training 50.0, of 2 | 0.0 |" in part
    )  # no experiment of the paper's
    assert full == (
        "| CIFAR-10, latent distributions, D = 5 | all, 1 | 86.0 (85.0) | 80.0 (76.5) | 30.0 (32.1)"
        " | FedAvg + fine-tuning 87.0, of 3 (pFedMe 78.7) | −1.0 (+6.4)"
        " | −1.0: FedAvg + fine-tuning 87.0, 1 client |"
    )
    for variant in PAPER_METHODS:
        keep(tmp_path, Cell(LATENT_5, variant, "paper"), [0.3])
    assert len(lines()) == 1  # beside the full protocol with all rivals, a smaller run of the same is not shown


def test_the_comparison_compares_on_common_seeds(tmp_path: Path) -> None:
    for seed, fomo in enumerate((0.7, 0.5, 0.5)):
        for variant, accuracy in ((FOMO_5, fomo), (LOCAL, 0.4), (FEDAVG, 0.3)):
            keep(tmp_path, Cell(LATENT_5, variant, "paper", seed), [accuracy])
    keep(tmp_path, Cell(LATENT_5, DITTO, "paper", 0), [0.6])
    line = refresh("<!-- begin comparison -->\n<!-- end comparison -->", Results(tmp_path), tmp_path).splitlines()[-2]
    assert "| all, 3 | 56.7 (85.0) |" in line
    assert "Ditto 60.0 on 1 of the seeds, with 70.0 of FedFomo, of 3" in line
    assert "| +10.0 (" in line


def test_the_comparison_decides_only_by_several_seeds_and_among_all_of_the_papers_rivals(tmp_path: Path) -> None:
    block = "<!-- begin comparison -->\n<!-- end comparison -->"
    order = (FOMO_5, *(variant for variant in PAPER_METHODS if variant is not FOMO_5))
    for variant in order:
        keep(tmp_path, Cell(LATENT_5, variant, "paper"), [0.9 if variant is FOMO_5 else 0.8])
        assert "**" not in refresh(block, Results(tmp_path), tmp_path)  # one seed decides nothing
    for variant in order:
        keep(tmp_path, Cell(LATENT_5, variant, "paper", 1), [0.9 if variant is FOMO_5 else 0.8])
    assert "**+10.0** (+6.4)" in refresh(block, Results(tmp_path), tmp_path)
    assert "**+10.0**: " in refresh(block, Results(tmp_path), tmp_path)
    (tmp_path / Cell(LATENT_5, PFEDME, "paper").file).unlink()
    (tmp_path / Cell(LATENT_5, PFEDME, "paper", 1).file).unlink()
    assert "**+10.0** (+6.4)" not in refresh(block, Results(tmp_path), tmp_path)


def test_a_number_of_fewer_seeds_than_its_column_has_says_so(tmp_path: Path) -> None:
    for seed in range(3):
        keep(tmp_path, Cell(LATENT_5, FOMO_5, "paper", seed), [0.8])
    keep(tmp_path, Cell(LATENT_5, ORACLE, "paper"), [0.9])
    shown = table_in_markdown(TABLES["table2"], "paper", Results(tmp_path))
    assert row_of(shown, "oracle clusters")[4] == "**90.00**, 1 of 3 seeds"
    assert row_of(shown, "FedFomo (n = 5)")[4].startswith("**80.00 ± 0.00** (85.050")


def test_a_page_says_to_how_many_clients_shuffled_targets_are_foreign(tmp_path: Path) -> None:
    keep(tmp_path, Cell(OOD_5, LOCAL, "paper"), [0.8] * 4, targets=[1, 2, 0, 3])  # groups 0 0 1 1
    shown = page(TABLES["table3"], Results(tmp_path))
    assert "aim at another distribution than the one that they train on: 2 with seed 0." in shown


def test_a_page_leaves_out_scales_that_say_nothing(tmp_path: Path) -> None:
    assert "--scale lite" in page(TABLES["table1"], Results(tmp_path))
    assert "--scale lite" not in page(TABLES["everyone"], Results(tmp_path))


def test_the_comparison_sets_mixed_clients_apart(tmp_path: Path) -> None:
    for variant, accuracies in ((FOMO_5, [0.9, 0.6]), (LOCAL, [0.9, 0.5]), (FEDAVG, [0.1, 0.7])):
        for seed in range(2):
            keep(tmp_path, Cell(LATENT_5, variant, "paper", seed), accuracies, constants=[0.95, 0.4])
    line = refresh("<!-- begin comparison -->\n<!-- end comparison -->", Results(tmp_path), tmp_path).splitlines()[-2]
    assert line.endswith("| Local Training 70.0, of 2 (pFedMe 78.7) | +5.0 (+6.4) | **−10.0**: FedAvg 70.0, 1 client |")


def test_a_curve_is_the_mean_over_seeds_with_one_more_update_at_the_end(tmp_path: Path) -> None:
    cell = Cell(LATENT_5, FOMO_5, "lite")
    keep(tmp_path, cell, [0.6])
    keep(tmp_path, replace(cell, seed=1), [0.8])
    # The second of two rounds had 30 % with either seed; then came the last update.
    assert Results(tmp_path).curve(cell) == [(1.0, pytest.approx(30)), (2.0, pytest.approx(70))]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<!-- begin state -->\n", "is not closed"),
        ("<!-- begin stats -->\n<!-- end stats -->", "did you mean 'state'?"),
    ],
)
def test_a_broken_overview_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words.replace("?", r"\?")):
        refresh(text, Results(tmp_path), tmp_path)


def test_the_committed_pages_are_those_of_the_committed_results(tmp_path: Path) -> None:
    # What is committed, not what lies about: a queue may be writing results at this moment.
    root = Path(__file__).parents[2]
    archive = subprocess.run(
        ["git", "-C", root, "archive", "HEAD", "results", "docs/results", "README.md"], capture_output=True
    )
    if archive.returncode:
        pytest.skip("no results are committed, or this is no repository")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(tmp_path, filter="data")
    committed = tmp_path / "docs" / "results"
    before = {path: path.read_text() for path in (*committed.glob("*.md"), tmp_path / "README.md")}
    for path in write_pages(Results(tmp_path / "results"), committed, tmp_path / "README.md"):
        assert path.read_text() == before[path], f"{path.name}: run `python -m experiments.iclr2021 pages`"
