"""What is used of Flower beside its documented interface, for the versions it was tried with."""

from __future__ import annotations

import inspect
from importlib.metadata import requires, version

import pytest
from flwr.cli.build import build_fab_from_files
from flwr.supercore.constant import MAX_TIMESTAMP_DIFF_SECONDS, MIN_TIMESTAMP_DIFF_SECONDS
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.protobuf.client import ProtobufClient
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.superlink.grid.http_grid import HttpGrid
from flwr.supernode.fleet_http_client import FleetHttpClient

from fedfomo.deployment.superlink_control import APP


def test_this_is_a_version_that_was_tried() -> None:
    assert version("flwr").startswith(("1.41.", "1.42."))
    assert any(line.startswith("flwr<1.43,>=1.41") for line in requires("fedfomo") or [])


def test_the_grid_has_the_client_that_replies_are_fetched_by() -> None:
    grid = HttpGrid("127.0.0.1:1", insecure=True, token="x")  # noqa: S106
    assert grid.node.node_id == 1
    client = grid._runtime_client
    assert isinstance(client, RuntimeHttpClient)
    assert client._client.event_hooks == {"request": [], "response": []}
    for name in ("PullMessages", "PullObject", "ConfirmMessageReceived"):
        assert hasattr(client, name)


def test_the_clients_of_nodes_and_of_the_supervisor_are_made_alike() -> None:
    for kind in (FleetHttpClient, ControlHttpClient):
        assert issubclass(kind, ProtobufClient)
    made = inspect.signature(ProtobufClient.from_server_address).parameters
    assert list(made)[:4] == ["server_address", "insecure", "root_certificates", "interceptors"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_app_that_flower_wants_to_have_is_one() -> None:
    content, _ = build_fab_from_files(APP)
    assert 0 < len(content) < 10_000


def test_clocks_may_differ_by_what_is_said() -> None:
    assert (MIN_TIMESTAMP_DIFF_SECONDS, MAX_TIMESTAMP_DIFF_SECONDS) == (-5, 305)
