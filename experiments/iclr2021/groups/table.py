"""Write what is known of the built groups as Markdown: `python -m experiments.iclr2021.groups.table`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from experiments.iclr2021.groups.group_facts import CLASS_NAMES, name_classes
from fedfomo.datasets.scenario_summary import PUBLISHED_EMD

HERE = Path(__file__).parent


def main() -> None:
    """Write one table for every set, and the composition of its groups."""
    for name in CLASS_NAMES:
        file = HERE / "built" / f"{name}.json"
        if file.exists():
            sys.stdout.write("\n".join(_section(name, json.loads(file.read_text()))) + "\n\n")


def _section(name: str, facts: dict[str, Any]) -> list[str]:
    lines = [
        f"**{name}** at {facts['side']} pixels",
        "",
        "| file | accuracy | D | images in each group | EMD | paper | of one class | informative | mixed | constant |",
        "| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for way in ("imagenet", "trained_layer"):
        for number, group in facts[way]["groups"].items():
            cells = (
                f"`{facts[way]['file']}`",
                f"{100 * facts[way]['accuracy']:.2f}",
                number,
                ", ".join(f"{size:,}" for size in group["sizes"]),
                f"{group['label_distance_authors']:.2f}",
                f"{PUBLISHED_EMD[name][int(number)]:.2f}" if name in PUBLISHED_EMD else "–",
                f"{group['single_class_groups']} of {number}",
                str(group["informative_clients"]),
                str(group["mixed_clients"]),
                f"{group['constant_answer']:.1f}",
            )
            lines.append(f"| {' | '.join(cells)} |")
    for way in ("imagenet", "trained_layer"):
        lines += ["", f"`{facts[way]['file']}`, D = 5:", ""]
        group = facts[way]["groups"]["5"]
        lines += [
            f"- {size:,}: {classes}"
            for size, classes in zip(group["sizes"], name_classes(group["counts"], CLASS_NAMES[name]), strict=True)
        ]
    return lines


if __name__ == "__main__":
    main()
