"""Figures are whole vector files, drawn from what is computed."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from experiments.iclr2021.catalogue import FIGURES
from experiments.iclr2021.charts import SHADES, Curve, colour_of, curves, matrix, ticks
from experiments.iclr2021.figures import draw
from experiments.iclr2021.results import Results
from experiments.iclr2021.svg import FAINT
from fake_results import keep

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_once_its_cells_are_computed(name: str, tmp_path: Path) -> None:
    results = tmp_path / "results"
    assert draw(name, Results(results), tmp_path / "pages") == []
    for cell in FIGURES[name].cells("lite"):
        keep(results, cell, [0.5, 0.6, 0.7, 0.8])
    (path,) = draw(name, Results(results), tmp_path / "pages")
    assert path.name == f"{name}-lite.svg"
    drawing = ElementTree.fromstring(path.read_text())  # noqa: S314  (our own file)
    assert drawing.tag == f"{SVG}svg"
    assert "not computed" not in path.read_text()
    assert "nan" not in path.read_text()


def test_a_figure_with_gaps_says_so(tmp_path: Path) -> None:
    cells = FIGURES["exploration"].cells("paper")
    keep(tmp_path, cells[0], [0.5])
    assert draw("exploration", Results(tmp_path), tmp_path) == []  # a single curve compares nothing
    keep(tmp_path, cells[1], [0.5])
    (path,) = draw("exploration", Results(tmp_path), tmp_path)
    assert "8 of 10 cells are not computed" in path.read_text()


def test_bars_leave_out_what_would_be_an_empty_place_everywhere(tmp_path: Path) -> None:
    cells = [cell for cell in FIGURES["clients"].cells("paper") if cell.case.distributions in (2, 5)]
    for cell in cells:
        if cell.variant.name in ("local", "fedfomo-5"):
            keep(tmp_path, cell, [0.5])
    (path,) = draw("clients", Results(tmp_path), tmp_path)
    drawn = path.read_text()
    assert [f">D = {number}<" in drawn for number in (2, 3, 4, 5, 10)] == [True, False, False, True, False]
    assert [f">{name}<" in drawn for name in ("Local Training", "FedFomo (n = 5)", "MOCHA")] == [True, True, False]


def test_matrices_begin_when_somebody_has_met_somebody(tmp_path: Path) -> None:
    cell = FIGURES["weights"].cells("lite")[0]
    keep(tmp_path, cell, [0.5] * 4)
    path = tmp_path / cell.file
    content = json.loads(path.read_text())
    nobody, some = [[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.5], [0.0, 1.0]]
    content |= {"groups": [0, 1], "affinity": {"after_rounds": [1, 2, 3], "matrices": [nobody, some, some]}}
    path.write_text(json.dumps(content))
    (drawn,) = draw("weights", Results(tmp_path), tmp_path)
    assert [f"after round {number}" in drawn.read_text() for number in (1, 2, 3)] == [False, True, True]


def test_rows_of_a_matrix_are_light_for_what_is_valued_and_dark_for_what_harms() -> None:
    drawn = matrix([[9.0, 2.0, -4.0], [0.0, 9.0, 0.0], [1.0, -1.0, 9.0]], "P", None).body
    elements = ElementTree.fromstring(f"<g>{drawn}</g>").iter("path")  # noqa: S314  (our own drawing)
    paths = {element.get("fill"): element.get("d") for element in elements}
    light, dark = (colour_of(shade) for shade in (SHADES - 1, 0))
    assert paths == {
        light: "M1 0h1v1h-1zM0 2h1v1h-1z",
        dark: "M2 0h1v1h-1zM1 2h1v1h-1z",
        FAINT: "M0 1h1v1h-1zM2 1h1v1h-1z",
    }


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 100.0], [0, 20, 40, 60, 80, 100]),
        ([31.0, 33.9], [31, 32, 33, 34]),
        ([5.0, 5.0], [4.4, 4.6, 4.8, 5.0, 5.2, 5.4, 5.6]),
        ([], [0, 1]),
    ],
)
def test_ticks_are_round_numbers_around_the_values(values: list[float], expected: list[float]) -> None:
    assert ticks(values) == pytest.approx(expected)


def test_points_without_a_value_are_left_out() -> None:
    drawn = curves([Curve("a", [(0.0, 1.0), (1.0, None), (2.0, float("nan")), (3.0, 2.0)], "red")], "t", "x", "y").body
    (line,) = [element for element in drawn.split("<") if 'stroke="red"' in element and "1.6" in element]
    assert len(line.split('points="')[1].split('"')[0].split()) == 2
