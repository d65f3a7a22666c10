"""Follow the paper's recipe from images to groups, and say how different clients with such groups are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from experiments.iclr2021.latent_groups.embedding import Progress, Schedule, build_embedding
from fedfomo.datasets.bundled import DataSet
from fedfomo.datasets.config import ScenarioConfig
from fedfomo.datasets.latent_groups import Groups, LatentGroups, find_clusters, principal_components, require_storable
from fedfomo.datasets.scenario_summary import ScenarioSummary, summarise_scenario
from fedfomo.errors import require

NUMBERS = (2, 3, 4, 5, 10)
"""The numbers of groups (D) in the paper's tables."""


def build_groups(
    data: DataSet,
    folder: Path,
    schedule: Schedule,
    numbers: Sequence[int] = NUMBERS,
    report: Callable[[Progress], None] = lambda _: None,
    tell: Callable[[str], None] = lambda _: None,
) -> LatentGroups:
    """Train VGG-11, embed every image, reduce to 256 dimensions, cluster.

    The folder keeps what is done, so that an interrupted build continues where it stopped.
    """
    for number in numbers:
        require_storable(number)
        images = len(data.train) + len(data.test)
        require(number <= images, f"{number} groups of {images} images: give {images} at most")
    embedding = build_embedding(data, folder, schedule, report)
    tell(f"the network classifies {100 * embedding.accuracy:.2f} % of the test images correctly")
    points = principal_components(np.asarray(embedding.rows, dtype=np.float32))
    groups: dict[int, tuple[Groups, Groups]] = {}
    for number in numbers:
        found = find_clusters(points, number)
        groups[number] = found[: len(data.train)], found[len(data.train) :]
        tell(f"{number} groups of {', '.join(f'{size:,}' for size in np.bincount(found).tolist())} images")
    return LatentGroups(data.fingerprint, embedding.accuracy, groups)


def distance_table(data: DataSet, clients: int, seed: int) -> str:
    """Write a Markdown table of the label distances of latent distributions, ours beside the paper's."""
    lines = [
        "| D | groups | images in each group | EMD, Σ\\|p − q\\| | EMD as the authors count it | paper |",
        "| ---: | --- | --- | ---: | ---: | ---: |",
    ]
    wanted = [ScenarioConfig(clients=clients, distributions=number) for number in NUMBERS]
    if data.num_classes in NUMBERS:
        wanted.append(replace(wanted[-1], distributions=data.num_classes, representation="classes"))
    for config in wanted:
        summary = summarise_scenario(config, data, seed)
        sizes = ", ".join(f"{size:,}" for size in _group_sizes(summary))
        kind = "classes" if config.representation == "classes" else "latent"
        paper = "" if summary.emd_published is None else f"{summary.emd_published:.2f}"
        emds = f"{summary.emd_l1:.2f} | {summary.emd_official:.2f}"
        lines.append(f"| {config.distributions} | {kind} | {sizes} | {emds} | {paper} |")
    return "\n".join(lines)


def _group_sizes(summary: ScenarioSummary) -> list[int]:
    sizes: dict[int, int] = {}
    for client in summary.clients:
        if client.group is not None:
            sizes[client.group] = sizes.get(client.group, 0) + client.train + client.validation + client.test
    return [sizes[group] for group in sorted(sizes)]
