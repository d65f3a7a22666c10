"""The page in a real browser: it loads silently, and what a reader touches answers."""

import base64
import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedfomo
from cli_calls import call
from fedfomo.algorithms.fedfomo import FedFomo
from fedfomo.core.model import Score
from fedfomo.report.build import build_report_data
from fedfomo.report.data import ClientFacts, FinalResult, ReportInput, Reproduce
from fedfomo.report.page import write_report
from fedfomo.report.per_example import PerExampleScores
from in_memory_transport import make_federation, run_federation

WAIT = """
const done = arguments[arguments.length - 1];
const look = () => (document.documentElement.dataset.drawn ? done() : setTimeout(look, 30));
look();
"""
CELLS = "return JSON.stringify(document.getElementById('plot-matrix').data[0].z)"
DISTURB = """
const slider = document.getElementById('round');
slider.value = arguments[0];
slider.dispatchEvent(new Event('input'));
"""


def open_page(browser: Any, page: Path, width: int = 1280) -> None:
    size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(page.as_uri())
    browser.execute_async_script(WAIT)


def requests_of(browser: Any) -> list[str]:
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return [url for url in sent if not url.startswith("data:")]


def test_it_loads_without_a_word_on_the_console_and_without_the_network(browser: Any, page: Path) -> None:
    open_page(browser, page)
    assert browser.get_log("browser") == []
    assert requests_of(browser) == [page.as_uri()]
    shown = [s.get_attribute("id") for s in browser.find_elements("css selector", "section")]
    wanted = ["verdict", "sentences", "gains", "cross", "matrix", "client", "give", "cost", "health", "reproduce"]
    assert shown == wanted


def test_the_counts_stand_beside_what_chance_alone_would_count(browser: Any, tmp_path: Path) -> None:
    open_page(browser, write_report(build_report_data(large_source()), tmp_path / "page.html"))
    verdict = browser.find_element("id", "verdict").text
    assert "By chance alone, about 2.5 of 100 would look clearly better, and as many clearly worse." in verdict
    assert [word for word in ("clearly better", "undecided", "clearly worse") if word not in verdict] == []


def test_who_stayed_is_said_to_have_been_helped_by_nothing_its_own_training_included(browser: Any, page: Path) -> None:
    open_page(browser, page)
    health = browser.find_element("id", "health").text
    assert "kept their model in some round: neither training nor a received model lowered their loss" in health


def test_the_slider_and_play_move_the_matrix(browser: Any, page: Path) -> None:
    open_page(browser, page)
    last = browser.execute_script(CELLS)
    browser.execute_script(DISTURB, 0)
    first = browser.execute_script(CELLS)
    assert first != last
    assert browser.find_element("id", "round-shown").text == "1 of 4"
    browser.execute_script("document.querySelector('input[value=weight]').click()")
    weights = json.loads(browser.execute_script(CELLS))
    assert weights != json.loads(first)
    browser.execute_script("document.getElementById('play').click()")
    browser.execute_async_script("setTimeout(arguments[0], 1500)")
    assert browser.find_element("id", "round-shown").text != "1 of 4"


def test_keys_are_enough_to_move_through_rounds_and_clients(browser: Any, page: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    open_page(browser, page)
    matrix = browser.find_element("id", "plot-matrix")
    before = browser.find_element("id", "chooser").get_attribute("value")
    browser.execute_script("arguments[0].focus()", matrix)
    matrix.send_keys(Keys.ARROW_LEFT)
    assert browser.find_element("id", "round-shown").text == "3 of 4"
    matrix.send_keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_UP)
    assert browser.find_element("id", "chooser").get_attribute("value") != before


def test_choosing_a_client_updates_the_other_charts(browser: Any, page: Path) -> None:
    open_page(browser, page)
    charts = ("flow", "test-course", "labels", "give-and-take")

    def drawn() -> list[str]:
        script = "return JSON.stringify(document.getElementById('plot-' + arguments[0]).data)"
        return [browser.execute_script(script, chart) for chart in charts]

    def choose(client: int) -> list[str]:
        script = (
            "const c = document.getElementById('chooser'); c.value = arguments[0]; c.dispatchEvent(new Event('change'))"
        )
        browser.execute_script(script, client)
        return drawn()

    one, other = choose(0), choose(5)
    assert all(a != b for a, b in zip(one, other, strict=True))
    assert "client 5" in browser.find_element("id", "client-title").text
    assert browser.current_url.endswith("#client=5")


def test_dark_mode_follows_the_system_and_the_button(browser: Any, page: Path) -> None:
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    open_page(browser, page)
    background = "return getComputedStyle(document.body).backgroundColor"
    ink = "return document.getElementById('plot-gains')._fullLayout.font.color"
    assert browser.execute_script(background) == "rgb(18, 21, 24)"
    bright = browser.execute_script(ink)
    browser.find_element("id", "theme").click()
    assert browser.execute_script(background) == "rgb(248, 248, 245)"
    assert browser.execute_script(ink) != bright


def test_it_prints_light_and_within_the_page(browser: Any, page: Path) -> None:
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    open_page(browser, page)
    browser.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    assert browser.execute_script("return document.documentElement.dataset.theme") == "light"
    widths = browser.execute_script("return [...document.querySelectorAll('.plot')].map((p) => p._fullLayout.width)")
    assert max(widths) <= 680
    browser.execute_script("window.dispatchEvent(new Event('afterprint'))")
    assert browser.execute_script("return document.documentElement.dataset.theme") == "dark"
    printed = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert printed.startswith(b"%PDF")
    assert len(printed) > 50_000


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_window(browser: Any, page: Path, width: int) -> None:
    open_page(browser, page, width)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


def test_every_chart_has_its_numbers(browser: Any, page: Path) -> None:
    open_page(browser, page)
    rows = browser.execute_script("""
        return [...document.querySelectorAll('figure details')].map((details) => {
            details.open = true;
            return details;
        }).length
    """)
    browser.execute_async_script("setTimeout(arguments[0], 300)")
    filled = browser.execute_script(
        "return [...document.querySelectorAll('figure details tbody')].map((b) => b.rows.length)"
    )
    assert len(filled) == rows == 11
    assert min(filled) > 0


def test_a_comparison_is_set_against_any_method(browser: Any, comparison: Path, tmp_path: Path) -> None:
    call("report", "compare", str(comparison), "--out", str(tmp_path / "comparison.html"))
    open_page(browser, tmp_path / "comparison.html")
    assert browser.get_log("browser") == []
    assert requests_of(browser) == [(tmp_path / "comparison.html").as_uri()]
    before = browser.find_element("css selector", "#overview table").text
    script = "const c = document.getElementById('against'); c.value = 'fedavg'; c.dispatchEvent(new Event('change'))"
    browser.execute_script(script)
    assert browser.find_element("css selector", "#overview table").text != before


@pytest.mark.parametrize("method", ["local", "fedavg"])
def test_methods_that_know_nobody_have_a_report_too(
    browser: Any, comparison: Path, tmp_path: Path, method: str
) -> None:
    call("report", str(comparison), "--method", method, "--out", str(tmp_path / "page.html"))
    open_page(browser, tmp_path / "page.html")
    assert browser.get_log("browser") == []
    assert browser.find_elements("id", "matrix") == []  # nobody's models were chosen by anybody


def test_a_real_federation_has_a_page_of_what_its_server_knows(browser: Any, tmp_path: Path) -> None:
    folder = make_federation(tmp_path, rounds=3)
    run_federation(folder)
    call("report", str(folder.path))
    open_page(browser, folder.path / "report.html")
    assert browser.get_log("browser") == []
    values = [value for row in json.loads(browser.execute_script(CELLS)) for value in row]
    assert sum(value is None for value in values) == 3  # nobody is set against itself
    assert "score reported by the sites" in browser.find_element("id", "verdict").text
    assert "Up to each site" in browser.find_element("id", "verdict").text
    assert "It has 4 test examples" in browser.find_element("id", "client").text


def test_names_are_shown_and_not_obeyed(browser: Any, tmp_path: Path) -> None:
    rng = torch.Generator().manual_seed(0)
    names = ["<img src=x onerror=alert(1)>", "a <b>bold<:b> name", "</script><script>alert(2)<:script>"]
    data = {name.replace("/", ":"): ((torch.randn(20, 2, generator=rng), torch.arange(20) % 2),) * 2 for name in names}
    result = fedfomo.federate(lambda: nn.Linear(2, 2), data, rounds=2, workers=0, baselines=())
    open_page(browser, result.report(tmp_path / "page.html"))
    assert browser.get_log("browser") == []
    assert names[0] in browser.find_element("id", "sentences").text


def test_a_federation_whose_report_failed_has_a_page_of_scores(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*arguments: object) -> None:
        raise ZeroDivisionError("no such thing")

    monkeypatch.setattr("fedfomo.report.final_results.score_examples", failing)
    part = torch.randn(20, 2, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2
    sites = {"leeds": (part, part), "turin": (part, part)}
    result = fedfomo.federate(lambda: nn.Linear(2, 2), sites, rounds=1, workers=0, baselines=())
    with pytest.warns(UserWarning, match="scores alone"):
        page = result.report(tmp_path / "page.html")
    open_page(browser, page)
    assert browser.get_log("browser") == []
    assert "trying the models failed (ZeroDivisionError" in browser.find_element("id", "main").text
    assert "leeds: " in browser.find_element("id", "sentences").text


def large_source() -> ReportInput:
    """What a run of 100 clients and 100 rounds leaves behind, made up."""
    rng = random.Random(0)  # noqa: S311
    clients, rounds = 100, 100

    def scores() -> dict[str, Any]:
        return {str(c): {"loss": rng.random(), "metric": rng.random(), "num_examples": 30} for c in range(clients)}

    def upload(client: int) -> dict[str, list[float]]:
        ids = [client, *rng.sample([c for c in range(clients) if c != client], 5)]
        increments = [rng.gauss(0, 1) for _ in ids]
        return {"findings.ids": ids, "findings.increments": increments, "findings.shares": [1 / 6] * 6}

    lines = [
        {
            "round": t,
            "cohort": list(range(clients)),
            "after_update": scores(),
            "after_training": scores(),
            "traffic": {"models_down": 500.0, "models_up": 100.0, "bytes_down": 10**7, "bytes_up": 10**6},
            "refused": {},
            "uploads": {str(c): upload(c) for c in range(clients)},
            "judged": {str(c): [rng.random() for _ in range(7)] for c in range(clients)},
        }
        for t in range(rounds)
    ]
    matrix = [[rng.gauss(0, 1) for _ in range(clients)] for _ in range(clients)]

    def ended(level: float) -> FinalResult:
        figures = [[float(rng.random() < level) for _ in range(30)] for _ in range(clients)]
        end = {c: Score(0.1, sum(row) / 30, 30) for c, row in enumerate(figures)}
        return FinalResult(end, 10**9, 10**6, PerExampleScores(figures, matrix, ""))

    return ReportInput(
        title="made up",
        method="fedfomo",
        algorithm=FedFomo(),
        seed=0,
        rounds_planned=rounds,
        clients=[ClientFacts(f"client {c}", 60, 20, 30, c % 5, c % 5, [6] * 10, [3] * 10) for c in range(clients)],
        lines=lines,
        seconds={t: {"training": 1.0, "scoring": 0.5, "all": 2.0} for t in range(rounds)},
        ended={"local": ended(0.7), "fedavg": ended(0.6), "fedfomo": ended(0.8)},
        affinity=matrix,
        mixing=[[abs(value) for value in row] for row in matrix],
        own_targets=True,
        reproduce=Reproduce("fedfomo run", "", {}, {}),
    )


def drawn_charts(browser: Any) -> set[str]:
    script = "return [...document.querySelectorAll('.js-plotly-plot')].filter((p) => p.offsetHeight).map((p) => p.id)"
    return set(browser.execute_script(script))


def diverged(ended: FinalResult, *clients: int) -> FinalResult:
    """Say of some clients that they ended with models whose figures are not finite."""
    assert ended.examples is not None
    lost = {client: Score(math.nan, math.nan, 30) for client in clients}
    figures = [[math.nan] * 30 if client in clients else row for client, row in enumerate(ended.examples.figures)]
    return replace(ended, scores={**ended.scores, **lost}, examples=replace(ended.examples, figures=figures))


def test_figures_that_are_not_finite_leave_gaps_in_charts_and_are_named(browser: Any, tmp_path: Path) -> None:
    source = large_source()
    methods = {"local": (1,), "fedavg": (0, 2), "fedfomo": (2, 3)}
    ended = {method: diverged(source.ended[method], *clients) for method, clients in methods.items()}
    nothing = [[math.nan] * 100 for _ in range(100)]
    ended["fedfomo"] = replace(ended["fedfomo"], seed_means={0: math.nan, 1: 0.5, 2: 0.7})
    taken = [[math.nan] * 100, *(source.mixing or [])[1:]]
    broken = replace(source, ended=ended, mixing=taken)
    open_page(browser, write_report(build_report_data(source), tmp_path / "whole.html"))
    everything = drawn_charts(browser)
    open_page(browser, write_report(build_report_data(broken), tmp_path / "page.html"))
    assert browser.get_log("browser") == []
    assert drawn_charts(browser) == everything
    told = [sentence for sentence in build_report_data(broken).sentences if "not finite" in sentence]
    assert [sentence.partition(":")[0] for sentence in told] == ["client 2", "client 3"]
    crossed = replace(ended["fedfomo"], examples=PerExampleScores([[1.0] * 30] * 100, nothing, ""))
    empty = build_report_data(replace(broken, ended={**ended, "fedfomo": crossed}))
    open_page(browser, write_report(empty, tmp_path / "page.html"))
    assert browser.get_log("browser") == []
    assert "No model has a finite figure" in browser.find_element("id", "cross").text


def test_a_chart_that_fails_says_so_and_the_others_are_drawn(browser: Any, page: Path, tmp_path: Path) -> None:
    open_page(browser, page)
    everything = drawn_charts(browser)
    broken = tmp_path / "page.html"
    broken.write_text(page.read_text().replace("traces: () => [intervals()", "traces: () => [missing"))
    open_page(browser, broken)
    assert drawn_charts(browser) == everything - {"plot-gains"}
    assert "This chart could not be drawn (ReferenceError" in browser.find_element("id", "gains").text
    logged = browser.get_log("browser")
    assert logged
    assert all("chart gains:" in entry["message"] for entry in logged)
    browser.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    assert browser.execute_script("return document.documentElement.dataset.theme") == "light"


def test_a_hundred_clients_and_rounds_open_quickly(browser: Any, tmp_path: Path) -> None:
    page = write_report(build_report_data(large_source()), tmp_path / "page.html")
    assert page.stat().st_size < 6_000_000
    # A busy machine makes seconds unreliable: what counts is the processor's time until the page can be read.
    browser.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    browser.get(page.as_uri())
    found = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    [seconds] = [metric["value"] for metric in found if metric["name"] == "TaskDuration"]
    assert seconds < 3
    browser.execute_async_script(WAIT)
    assert browser.get_log("browser") == []
