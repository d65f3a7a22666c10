"""What becomes of what a site has given, once it has left."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from fedfomo.algorithms import cfl, fedfomo, fl_hc
from fedfomo.core.client import ClientId


def without_those_who_left(state: Any, members: Collection[ClientId]) -> Any:
    """Return a state that neither holds nor awaits anything of others than members, as far as that is possible.

    It is where what they gave is kept one by one and need not be there. Other states stay as they are.
    """
    match state:
        case fedfomo.State() if not state.models.keys() <= set(members):
            # An average may be of a single model; the next round makes new ones.
            return replace(
                state,
                models=_only(members, state.models),
                last_uploaders=_among(members, state.last_uploaders),
                averages=(),
            )
        case cfl.State() | fl_hc.State():
            return replace(state, updates=_only(members, state.updates), awaited=_among(members, state.awaited))
        case _:
            return state


def _only(members: Collection[ClientId], by_client: Any) -> Any:
    return {client: kept for client, kept in by_client.items() if client in members}


def _among(members: Collection[ClientId], ids: Any) -> Any:
    return ids.new_tensor([client for client in ids.tolist() if client in members])
