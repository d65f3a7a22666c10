"""Figures are whole vector files, drawn from what is computed."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib import colormaps
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from experiments.iclr2021.figures import FAINT, _plot, draw, matrix_colours
from experiments.iclr2021.paper_tables import FIGURES
from experiments.iclr2021.results import Results
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
    assert not [path for path in drawing.iter(f"{SVG}path") if "nan" in path.get("d", "")]


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


def test_the_same_results_make_the_same_file(tmp_path: Path) -> None:
    for cell in FIGURES["weights"].cells("lite")[:1]:
        keep(tmp_path, cell, [0.5] * 4)
    first, second = (draw("weights", Results(tmp_path), tmp_path / name)[0].read_bytes() for name in "ab")
    assert first == second


def test_rows_of_a_matrix_are_light_for_what_is_valued_and_dark_for_what_harms() -> None:
    colours = matrix_colours([[9.0, 2.0, -4.0], [0.0, 9.0, 0.0], [1.0, -1.0, 9.0]]).tolist()
    light, dark = list(colormaps["viridis"](1.0)), list(colormaps["viridis"](0.0))
    white, grey = list(to_rgba("white")), list(to_rgba(FAINT))
    assert colours == [[white, light, dark], [grey, white, grey], [light, dark, white]]


def test_points_without_a_value_are_left_out() -> None:
    axes = Figure().subplots()
    _plot(axes, {"a": [(0.0, 1.0), (1.0, None), (3.0, 2.0)]}, "t")
    assert axes.lines[0].get_xydata().tolist() == [[0.0, 1.0], [3.0, 2.0]]  # pyright: ignore
