"""The SuperLink's control interface, by Flower's own client: who may take part, and what runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TypeVar

import httpx
from flwr.cli.build import build_fab_from_files
from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor

from fedfomo.errors import InputError

APP = {
    "pyproject.toml": b"""\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "federation"
version = "1.0.0"
description = "A federation of fedfomo"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedfomo"

[tool.flwr.app.components]
serverapp = "federation.server_app:app"
clientapp = "federation.client_app:app"

[tool.flwr.app.config]
""",
    "federation/__init__.py": b'"""What Flower starts; everything else is installed at every site."""\n',
    "federation/server_app.py": b"from fedfomo.deployment import server_app\n\napp = server_app.app\n",
    "federation/client_app.py": b"from fedfomo.deployment import client_app\n\napp = client_app.app\n",
}


Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class ControlError(InputError):
    """The SuperLink did not do what it was asked: because of what that was, or because it is dead."""


class SuperLinkControl:
    """What the server's supervisor asks of its SuperLink."""

    def __init__(self, address: str, authority: bytes | None) -> None:
        interceptors = [RuntimeVersionHttpInterceptor("flwr CLI")]
        self._client = ControlHttpClient.from_server_address(address, authority is None, authority, interceptors)

    def register(self, public_key: str) -> int:
        """Let the owner of a key in, and return what Flower calls it."""
        return int(self._ask(self._client.RegisterNode, RegisterNodeRequest(public_key=public_key.encode())).node_id)

    def unregister(self, node: int) -> None:
        """Turn a node away from now on."""
        self._ask(self._client.UnregisterNode, UnregisterNodeRequest(node_id=node))

    def lets_in(self, node: int) -> bool:
        """Return whether a node is let in."""
        nodes = self._ask(self._client.ListNodes, ListNodesRequest()).nodes_info
        return any(found.node_id == node and found.status != "unregistered" for found in nodes)

    def start_run(self) -> int:
        """Start the federation's run, and return its number."""
        content, _ = build_fab_from_files(APP)
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        return int(self._ask(self._client.StartRun, StartRunRequest(fab=fab_to_proto(fab))).run_id)

    def stop_run(self, run: int) -> None:
        """Stop a run."""
        self._ask(self._client.StopRun, StopRunRequest(run_id=run))

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _ask(self, what: Callable[[Asked], Answer], request: Asked) -> Answer:
        try:
            return what(request)
        except httpx.HTTPStatusError as error:
            raise ControlError(f"the SuperLink refuses {type(request).__name__}: {error.response.text}") from error
        except (httpx.HTTPError, OSError) as error:
            raise ControlError(f"the SuperLink does not answer ({type(error).__name__})") from error
