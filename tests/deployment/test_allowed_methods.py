"""Every method computes over the wire what the simulator computes."""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
from torch import Tensor

from federations import same, simulated
from fedfomo.algorithms import ALGORITHMS, make_algorithm
from fedfomo.core import messages
from fedfomo.core.algorithm import messages_of
from fedfomo.core.round import configure_clients, run_round
from fedfomo.deployment.encryption import MessageCipher, Purpose
from fedfomo.deployment.protocol import Envelope, most_bytes, most_numbers
from fedfomo.deployment.settings import SiteFolder
from fedfomo.errors import InputError
from in_memory_transport import Answer, honest, make_federation, models_of, run_federation
from toy_problems import ROUNDS, InProcess, federation_of, points_problem

QUICK = ("fedfomo", "fedfomo-plus", "fedavg", "apfl-logits", "local", "mocha")
# One needs the true groups, which only a scenario knows; the other sends examples.
WITHOUT = ("oracle", "fedavg-shared")


def _equals_the_simulator(place: Path, method: str) -> bool:
    folder = make_federation(place, method=method, rounds=3)
    return same(run_federation(folder), simulated(folder))


@pytest.mark.parametrize("method", QUICK)
def test_a_federation_equals_the_simulator_bit_for_bit(tmp_path: Path, method: str) -> None:
    assert _equals_the_simulator(tmp_path, method)


@pytest.mark.deployment
@pytest.mark.parametrize("method", sorted(set(ALGORITHMS) - set(QUICK) - set(WITHOUT)))
def test_so_does_every_other_method(tmp_path: Path, method: str) -> None:
    assert _equals_the_simulator(tmp_path, method)


def test_a_method_that_needs_a_scenario_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="group"):
        run_federation(make_federation(tmp_path, method="oracle"))


def test_a_server_does_not_play_a_method_that_sends_examples(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'fedavg-shared' sends examples"):
        make_federation(tmp_path / "refused", method="fedavg-shared")
    assert not (tmp_path / "refused").exists()
    folder = make_federation(tmp_path, method="fedavg")
    folder.settings.write_text(folder.settings.read_text().replace('"fedavg"', '"fedavg-shared"'))
    with pytest.raises(InputError, match="'fedavg-shared' sends examples"):
        run_federation(folder)
    assert models_of(folder) == {}


def test_a_site_refuses_a_method_that_sends_examples_whatever_the_server_says(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_federation(tmp_path, method="fedavg", rounds=1)
    server = MessageCipher.read(folder.server / "sealing.key")
    answers: list[Envelope] = []

    def change(name: str, number: int, order: bytes, answer: Answer) -> Any:
        site = MessageCipher.read(SiteFolder(folder.sites / name).seal)
        asked = Envelope.read(site.decrypt(server.public_key, order, Purpose.REQUEST))
        asked = Envelope({**asked.header, "method": "fedavg-shared"}, asked.tensors)
        encrypted = answer(server.encrypt(site.public_key, asked.to_bytes(), Purpose.REQUEST))
        answers.append(Envelope.read(server.decrypt(site.public_key, encrypted, Purpose.ANSWER)))
        return honest(name, number, order, answer)

    run_federation(folder, change)
    assert answers
    assert all("'fedavg-shared' sends examples" in answer.header["fault"] for answer in answers)
    assert not any(answer.tensors for answer in answers)
    assert "'fedavg-shared' sends examples" in caplog.text


@pytest.mark.parametrize("method", ALGORITHMS)
def test_a_method_whose_uploads_can_hold_anything_says_that_it_sends_examples(method: str) -> None:
    algorithm = make_algorithm(method)
    assert _holds_anything(messages_of(algorithm).upload) == algorithm.uploads_examples


@pytest.mark.parametrize("method", sorted(set(ALGORITHMS) - set(WITHOUT)))
def test_no_honest_upload_is_refused_for_its_size(method: str) -> None:
    algorithm = make_algorithm(method)
    problem = points_problem().split(algorithm)
    federation, clients = federation_of(problem, algorithm), range(len(problem.clients))
    begin = algorithm.start_server(problem.start(ROUNDS))
    state = run_round(federation, begin, 0, clients, InProcess(problem, algorithm)).state
    downloads = configure_clients(federation, state, 1, clients)
    longest = max([len(problem.initial), *(t.numel() for d in downloads.values() for t in messages.pack(d).values())])
    most = most_numbers(messages_of(algorithm).upload, longest, len(clients))
    for _, upload in InProcess(problem, algorithm)(1, downloads):
        for bits in (8, 32):
            content = Envelope({}, messages.pack(upload)).to_bytes(bits)
            assert len(content) < most_bytes(most)
            assert Envelope.read(content, most).tensors.keys() == messages.pack(upload).keys()


def _holds_anything(schema: Any) -> bool:
    """Tell whether a message has a tensor of no particular kind."""
    if get_origin(schema) is Annotated:
        return False
    inner = get_type_hints(schema, include_extras=True).values() if is_dataclass(schema) else get_args(schema)
    return schema is Tensor or any(_holds_anything(part) for part in inner)


# The others keep one table a client, or wait until they have heard of everybody.
@pytest.mark.parametrize("method", ["fedfomo", "cfl", "fl-hc", "mocha-linear", "mocha-repository"])
def test_room_for_more_sites_changes_nothing(tmp_path: Path, method: str) -> None:
    folder = make_federation(tmp_path, method=method, rounds=8, max_sites=7)
    folder.write_registry(folder.identity(), [replace(site, slot=n) for n, site in enumerate(folder.registry())])
    assert same(run_federation(folder), simulated(folder))
