"""What the report of a Flower app says of bytes and privacy, of which its server knows nothing."""

from __future__ import annotations

from pathlib import Path

from fedfomo.algorithms import make_algorithm
from fedfomo.deployment.strategy_report import RoundLog, report_input, write
from fedfomo.report.about import about_run


def test_what_is_not_counted_is_not_told(tmp_path: Path) -> None:
    log = RoundLog("accuracy")
    for number in (1, 2):
        log.begin(number, [0, 1])
        log.add_uploads([0, 1], [0, 1])
    facts = report_input(make_algorithm("fedfomo"), log, ["leeds", "turin"], [[1.0, 0.0], [0.0, 1.0]], "accuracy", 0)
    about = dict(about_run(facts))
    assert "0 B" not in about["What was sent"]
    assert "to the server" not in about["What was sent"]
    assert "Each round and node" in about["What was sent"]
    assert "each site" not in about["Privacy"]
    assert write(facts, tmp_path / "report.html").exists()
