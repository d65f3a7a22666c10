"""Sites of one data set: by a column, by a function, or as the data set has its own clients (LEAF, Hugging Face)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from fedfomo.core.data import Examples
from fedfomo.core.given_data import as_examples
from fedfomo.core.lazy_data import LazyExamples
from fedfomo.core.rng import stream
from fedfomo.errors import InputError, listed, reading, require
from fedfomo.sites.load_sites import Labels, Sites, load_sites
from fedfomo.sites.tables import is_frame

TARGET_FRACTION = 0.4  # of a site's examples: they judge and test models


class Rows(Dataset[Any]):
    """The rows of a data set that gives dicts, as pairs (input, label).

    For `datasets.Dataset` of Hugging Face, and the partitions that `flwr-datasets` loads.
    """

    def __init__(
        self,
        rows: Any,
        inputs: str | Sequence[str],
        label: str = "label",
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        names = (inputs,) if isinstance(inputs, str) else tuple(inputs)
        known = getattr(rows, "column_names", None) or [*rows[0]]
        for name in (*names, label):
            require(name in known, f"the data set has no column '{name}': it has {listed([*known])}")
        self.rows, self.names, self.label, self.transform = rows, names, label, transform
        self.is_one = isinstance(inputs, str)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        row = self.rows[index]
        values = {name: _plain(row[name]) for name in self.names}
        given = values[self.names[0]] if self.is_one else values
        return (given if self.transform is None else self.transform(given)), row[self.label]

    @property
    def targets(self) -> Any:
        """All labels, without reading the inputs; None where that cannot be had."""
        return self.rows[self.label] if hasattr(self.rows, "column_names") else None


def partition(
    data: Any,
    by: str | Sequence[Any] | Callable[[int], Any],
    *,
    target_fraction: float = TARGET_FRACTION,
    seed: int = 0,
    inputs: str | Sequence[str] | None = None,
    label: str = "label",
    labels: Labels = "classes",
    **options: Any,
) -> Sites:
    """Make sites of one data set, each of the examples that belong to it: (train, target), divided at random.

    Args:
        data: A DataFrame, a data set of Hugging Face, a `Dataset`, or a pair (inputs, labels).
        by: The name of a column; or to whom each example belongs: a list, or a function of the example's index.
        target_fraction: Share of a site's examples that judge and test models.
        seed: Decides the division.
        inputs: Columns that are the input, of a data set of Hugging Face.
        label: The column that holds labels.
        labels: For a DataFrame, what labels are: classes or numbers.
        options: For a DataFrame, further arguments of `load_sites`.
    """
    require(0 < target_fraction < 1, f"target_fraction must be between 0 and 1, not {target_fraction}")
    size = len(data[1]) if isinstance(data, tuple) else len(data)
    owners = _owners(data, by, size)
    shares = _divided(owners, target_fraction, seed)
    if is_frame(data):
        frame = cast(Any, data)
        rest = frame.drop(columns=[by]) if isinstance(by, str) else frame
        frames = {name: tuple(rest.iloc[part.tolist()] for part in parts) for name, parts in shares.items()}
        return load_sites(frames, labels, label=label, **options)
    require(not options, f"{listed([*options])}: only tables take these")
    whole = _whole(data, inputs, label)
    return Sites({name: tuple(whole.take(part) for part in parts) for name, parts in shares.items()})


def load_leaf(folder: Path | str, inputs: Callable[[list[Any]], Tensor] | None = None) -> Sites:
    """Read the JSON of LEAF (Caldas et al., 2018): folders train and test, in whose files each user is a site.

    `inputs` makes one tensor of a user's list of x, such as indices of words; by default these are numbers.
    """
    folder = Path(folder)
    parts = [_users_in(folder / name, inputs) for name in ("train", "test")]
    lone = sorted(parts[0].keys() ^ parts[1].keys())
    require(not lone, f"{folder}: {listed(lone)} have no data in both train and test: divide each user's samples")
    return Sites({user: (parts[0][user], parts[1][user]) for user in parts[0]})


def _users_in(folder: Path, inputs: Callable[[list[Any]], Tensor] | None) -> dict[str, Examples]:
    files = sorted(folder.glob("*.json"))
    require(bool(files), f"{folder} holds no .json files")
    found: dict[str, Examples] = {}
    for path in files:
        with reading(path, "give a file as LEAF writes it: users, and user_data with x and y for each"):
            content = json.loads(path.read_bytes())
            for user in content["users"]:
                own = content["user_data"][user]
                require(user not in found, f"{path}: user '{user}' is in another file too")
                x = inputs(own["x"]) if inputs is not None else torch.as_tensor(own["x"])
                found[user] = as_examples((x, torch.as_tensor(own["y"])))
    return found


def _owners(data: Any, by: str | Sequence[Any] | Callable[[int], Any], size: int) -> list[str]:
    if isinstance(by, str):
        names = [str(name) for name in (data.columns if is_frame(data) else getattr(data, "column_names", ()))]
        require(bool(names), f"by='{by}' names a column, which {type(data).__name__} does not have: give a function")
        require(by in names, f"there is no column '{by}': there are {listed(names)}")
        values: Any = data[by]
    else:
        values = [by(index) for index in range(size)] if callable(by) else by
    owners = [str(value) for value in (values.tolist() if hasattr(values, "tolist") else values)]
    require(len(owners) == size, f"{len(owners)} owners for {size} examples")
    return owners


def _divided(owners: Sequence[str], fraction: float, seed: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Divide the examples of each owner."""
    shares: dict[str, tuple[Tensor, Tensor]] = {}
    every = np.array(owners, dtype=object)
    for name in sorted(set(owners)):
        own = torch.from_numpy(np.flatnonzero(every == name))
        if len(own) < 2:
            raise InputError(f"'{name}' has one example, and needs at least two: leave it out, or join it to another")
        order = own[torch.randperm(len(own), generator=stream(seed, "partition", name))]
        cut = min(max(1, round((1 - fraction) * len(own))), len(own) - 1)
        shares[name] = order[:cut], order[cut:]
    return shares


def _whole(data: Any, inputs: str | Sequence[str] | None, label: str) -> Examples:
    if not hasattr(data, "column_names"):
        return as_examples(data)
    columns = listed(list(data.column_names))
    if inputs is None:
        raise InputError(f"say which columns are the input, with inputs=: there are {columns}")
    return LazyExamples(Rows(data, inputs, label))


def _plain(value: Any) -> Any:
    """Turn an image of Pillow into a tensor."""
    if not hasattr(value, "convert"):
        return value
    return torch.from_numpy(np.asarray(value.convert("RGB")).copy()).permute(2, 0, 1).float().div_(255)
