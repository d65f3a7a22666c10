"""The final models of a run: a file for each client, or, of very many small ones, files that hold a group each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from fedfomo.core.archives import read_tensors
from fedfomo.core.model import Model
from fedfomo.engine.run_dir import RunDirectory
from fedfomo.runs.records import RunRecord

MOST_FILES = 200  # clients with a file each: to write and sync a thousand would take longer than two of their rounds
GROUP = 100  # clients in a file
CLIENTS = ":clients"  # the tensor that says whose the rows of a group's tensors are; no module has such a name
MOST_GROUPED = 64_000_000  # bytes in a file, which are in memory at once


def write_models(directory: RunDirectory, models: Mapping[int, Tensor], network: Model) -> None:
    """Write every client's model as a state_dict; on disk after the directory's next `sync`."""
    size = max((model.nbytes for model in models.values()), default=0)
    if len(models) <= MOST_FILES or GROUP * size > MOST_GROUPED:
        for client, model in models.items():
            directory.write_tensors(_file(client), network.state_dict(model), durable=False)
            directory.tensors.note_read(model.nbytes)
        return
    groups: dict[str, list[int]] = {}
    for client in models:
        groups.setdefault(_group_file(client), []).append(client)
    for file, clients in groups.items():
        stacked = torch.stack([models[client] for client in clients])
        tensors = {CLIENTS: torch.tensor(clients), **network.stacked_state_dict(stacked)}
        directory.write_tensors(file, tensors, durable=False)
        directory.tensors.note_read(stacked.nbytes)


def read_model(folder: Path, client: int) -> dict[str, Tensor]:
    """Read one client's final state_dict."""
    alone = folder / _file(client)
    return read_tensors(alone) if alone.exists() else _states(folder / _group_file(client))[client]


def load_models(folder: Path, model: Model, record: RunRecord) -> list[Tensor] | None:
    """Read the final models of a finished run, each as one vector; None: not all of them are there."""
    clients, states = sorted(record.after_update), dict[int, dict[str, Tensor]]()
    thetas: list[Tensor] = []
    for client in clients:
        alone, group = folder / _file(client), folder / _group_file(client)
        if not alone.exists() and client not in states:
            states = _states(group) if group.exists() else {}
        state = read_tensors(alone) if alone.exists() else states.get(client)
        if state is None:
            return None
        thetas.append(_theta(model, state))
    return thetas


def _states(file: Path) -> dict[int, dict[str, Tensor]]:
    tensors = read_tensors(file)
    if CLIENTS in tensors:
        clients = tensors.pop(CLIENTS).tolist()
        return {client: {name: t[row] for name, t in tensors.items()} for row, client in enumerate(clients)}
    states: dict[int, dict[str, Tensor]] = {}  # earlier versions named every client's tensors, as "7:weight"
    for key, tensor in tensors.items():
        client, _, name = key.partition(":")
        states.setdefault(int(client), {})[name] = tensor
    return states


def _theta(model: Model, state: Mapping[str, Tensor]) -> Tensor:
    theta = torch.empty(model.layout.size)
    for name, view in model.layout.views(theta).items():
        view.copy_(state[name])
    return theta


def _file(client: int) -> str:
    return f"models/client-{client:05d}.safetensors"


def _group_file(client: int) -> str:
    return f"models/clients-from-{client // GROUP * GROUP:05d}.safetensors"
