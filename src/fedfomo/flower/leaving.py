"""What becomes of the models of a site that has left."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from fedfomo.algorithms.fedfomo import State
from fedfomo.client import ClientId


def with_models_of(state: Any, members: Collection[ClientId]) -> Any:
    """Return a state in which the models of all but members are gone.

    That is possible where they are kept one by one and not needed to be there, as FedFomo does; other states stay.
    """
    if not isinstance(state, State) or state.models.keys() <= set(members):
        return state
    models = {client: model for client, model in state.models.items() if client in members}
    uploaders = [client for client in state.last_uploaders.tolist() if client in members]
    return replace(state, models=models, last_uploaders=state.last_uploaders.new_tensor(uploaders))
