"""Messages on the wire, and what is refused at the door."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedfomo.core.messages import (
    Ids,
    MessageError,
    Numbers,
    Parameters,
    Table,
    has_nonfinite_model,
    message_size,
    numbers_in,
    pack,
    unpack,
    validate,
)
from toy_problems import fingerprint, ids, numbers, point


@dataclass(frozen=True)
class Inner:
    count: int
    share: float
    is_new: bool
    models: tuple[Parameters, ...] = ()


@dataclass(frozen=True)
class Message:
    model: Parameters
    weights: Numbers
    clients: Ids
    affinity: Table
    inner: Inner
    optional: Parameters | None = None
    by_client: Mapping[int, Parameters] = field(default_factory=dict)
    parts: tuple[Inner, ...] = ()
    nested: Mapping[int, Inner] = field(default_factory=dict)


def floats(dtype: torch.dtype, shape: tuple[int, ...]) -> st.SearchStrategy[Tensor]:
    """Every bit pattern counts: NaN, infinities, −0 and the smallest numbers too."""
    width = 32 if dtype == torch.float32 else 64
    size = math.prod(shape)
    return st.lists(st.floats(width=width), min_size=size, max_size=size).map(
        lambda values: torch.tensor(values, dtype=dtype).view(shape)
    )


sizes = st.integers(0, 4)
vectors = sizes.flatmap(lambda size: floats(torch.float32, (size,)))
integers = st.integers(-(2**63), 2**63 - 1)
inners = st.builds(Inner, integers, st.floats(), st.booleans(), st.lists(vectors, max_size=3).map(tuple))
messages = st.builds(
    Message,
    model=vectors,
    weights=sizes.flatmap(lambda size: floats(torch.float64, (size,))),
    clients=st.lists(integers, max_size=4).map(lambda values: torch.tensor(values, dtype=torch.int64)),
    affinity=st.tuples(sizes, sizes).flatmap(lambda shape: floats(torch.float64, shape)),
    inner=inners,
    optional=st.none() | vectors,
    by_client=st.dictionaries(st.integers(0, 2000), vectors, max_size=3),
    parts=st.lists(inners, max_size=3).map(tuple),
    nested=st.dictionaries(st.integers(0, 20), inners, max_size=2),
)


INNER = Inner(3, 0.25, True, (point(5, 6),))


def message(**changes: object) -> Message:
    whole = Message(
        point(1, 2), numbers(0.5, 1), ids(0, 2), torch.eye(2).double(), Inner(3, 0.25, True, (point(5, 6),))
    )
    return replace(whole, **changes)


@given(messages)
def test_what_is_packed_is_unpacked_bit_for_bit(sent: Message) -> None:
    received = unpack(Message, pack(sent))
    assert fingerprint(received) == fingerprint(sent)
    assert received.optional is None or sent.optional is not None
    assert list(received.by_client) == sorted(sent.by_client)
    assert type(received.inner.is_new) is bool
    assert received.inner.count == sent.inner.count
    assert len(received.parts) == len(sent.parts)


@given(messages, st.data())
def test_a_missing_field_is_missed(sent: Message, data: st.DataObject) -> None:
    flat = pack(sent)
    required = [name for name in flat if name.split(".")[0] in {"model", "weights", "clients", "affinity"}]
    required += ["inner.count", "inner.share", "inner.is_new"]
    dropped = data.draw(st.sampled_from(required))
    del flat[dropped]
    with pytest.raises(MessageError, match=f"field '{dropped}' is missing"):
        unpack(Message, flat)


@given(messages, st.sampled_from(["more", "model.0", "inner.other", "optional.x", "by_client.3.x", "weights."]))
def test_a_field_too_many_is_refused(sent: Message, name: str) -> None:
    with pytest.raises(MessageError):
        unpack(Message, {**pack(sent), name: point(1)})


def test_fields_have_readable_names() -> None:
    sent = message(by_client={7: point(1, 1)}, parts=(Inner(1, 1.0, False),))
    assert list(pack(sent)) == [
        "model",
        "weights",
        "clients",
        "affinity",
        "inner.count",
        "inner.share",
        "inner.is_new",
        "inner.models.0",
        "by_client.7",
        "parts.0.count",
        "parts.0.share",
        "parts.0.is_new",
    ]


def test_packing_copies_nothing() -> None:
    sent = message()
    assert pack(sent)["model"].data_ptr() == sent.model.data_ptr()


@pytest.mark.parametrize(
    ("name", "tensor", "complaint"),
    [
        ("model", numbers(1.0, 2.0), r"'model' is float64\[2\], not parameters"),
        ("model", torch.ones(1, 2), r"'model' is float32\[1, 2\], not parameters"),
        ("weights", point(1), r"'weights' is float32\[1\], not numbers"),
        ("clients", torch.tensor([1], dtype=torch.int32), r"'clients' is int32\[1\], not ids"),
        ("affinity", numbers(1.0), r"'affinity' is float64\[1\], not table"),
        ("inner.count", torch.tensor(1.0), r"'inner.count' is float32\[\], not one int"),
        ("inner.count", ids(1), r"'inner.count' is int64\[1\], not one int"),
        ("inner.share", torch.tensor(1.0), r"'inner.share' is float32\[\], not one float"),
        ("inner.is_new", torch.tensor(1), r"'inner.is_new' is int64\[\], not one bool"),
        ("inner.models.0", ids(1), r"'inner.models.0' is int64\[1\], not parameters"),
        ("optional", ids(1), r"'optional' is int64\[1\], not parameters"),
    ],
)
def test_a_field_of_another_kind_is_refused_by_name(name: str, tensor: Tensor, complaint: str) -> None:
    with pytest.raises(MessageError, match=complaint):
        unpack(Message, {**pack(message()), name: tensor})


@pytest.mark.parametrize(
    "name",
    [
        "inner.models.2",  # a gap: there is a 0, and no 1
        "inner.models.99999",
        "inner.models.-1",
        "inner.models.00",
        "inner.models.+1",
        "inner.models.1_0",
        "inner.models. 1",
        "inner.models.one",
        "inner.models.",
        "inner.models.0.0",
        "inner.models.1.1.1.1.1.1",
        "inner.models." + "9" * 5000,
        "inner.models.٣",
        "by_client.03",
        "by_client.x",
        "by_client",
        "parts.0.count",  # a part without its other fields
        "parts.1.share",
        "a" + ".b" * 5000,
        "",
    ],
)
def test_names_made_up_by_a_sender_are_refused(name: str) -> None:
    with pytest.raises(MessageError):
        unpack(Message, {**pack(message()), name: point(1, 2)})


def test_nothing_is_what_local_training_sends() -> None:
    assert pack(None) == {}
    assert unpack(type(None), {}) is None
    with pytest.raises(MessageError, match="unexpected field 'model'"):
        unpack(type(None), {"model": point(1)})


def test_objects_that_no_message_can_carry_are_refused_by_the_sender() -> None:
    for value in ("text", [1], {1, 2}, 1j):
        with pytest.raises(TypeError, match="which no message can carry"):
            pack((value,))


def test_schemas_that_no_message_can_follow_are_refused() -> None:
    with pytest.raises(TypeError, match="which no message can carry"):
        unpack(str, {"": point(1)})


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({}, None),
        ({"model": point(1, math.nan)}, "'model' is not finite"),
        ({"model": point(1, -math.inf)}, "'model' is not finite"),
        ({"weights": numbers(math.inf, 0)}, "'weights' is not finite"),
        ({"affinity": torch.full((2, 2), math.nan).double()}, "'affinity' is not finite"),
        ({"inner": Inner(1, math.nan, True)}, "'inner.share' is not finite"),
        ({"inner": Inner(1, 1.0, True, (point(1, 2), point(math.nan, 2)))}, "'inner.models.1' is not finite"),
        ({"optional": point(math.inf, 0)}, "'optional' is not finite"),
        ({"by_client": {4: point(math.nan, 0)}}, "'by_client.4' is not finite"),
        ({"nested": {4: Inner(1, math.inf, True)}}, "'nested.4.share' is not finite"),
        ({"model": point(1)}, "'model' has 1 coordinates, the model has 2"),
        ({"model": torch.empty(0)}, "'model' has 0 coordinates, the model has 2"),
        ({"inner": Inner(1, 1.0, True, (point(1, 2, 3),))}, "'inner.models.0' has 3 coordinates, the model has 2"),
        ({"clients": ids(0, 3)}, "'clients' names a client that does not exist"),
        ({"clients": ids(-1)}, "'clients' names a client that does not exist"),
        ({"clients": ids()}, "'clients' has 0 entries, its neighbour 2"),
        ({"clients": ids(), "weights": numbers()}, None),
        ({"inner": Inner(-1, 1.0, True)}, "'inner.count' is below zero"),
        ({"optional": point(1, 2, 3)}, "'optional' has 3 coordinates, the model has 2"),
        ({"model": numbers(1, 2)}, "'model' is float64[2], not parameters"),
        ({"weights": torch.eye(2).double()}, "'weights' is float64[2, 2], not numbers"),
    ],
)
def test_what_is_unfit_for_use_is_named(changes: dict[str, object], fault: str | None) -> None:
    assert validate(Message, message(**changes), model_size=2, num_clients=3) == fault


@dataclass(frozen=True)
class Lists:
    by_client: Mapping[int, Ids]
    several: tuple[Numbers, ...]
    anything: Tensor


def test_lists_in_a_tuple_or_mapping_may_differ_in_length() -> None:
    sent = Lists({0: ids(1), 2: ids(0, 1)}, (numbers(1), numbers()), torch.zeros(3))
    assert validate(Lists, unpack(Lists, pack(sent)), model_size=2, num_clients=3) is None
    strangers = replace(sent, by_client={0: ids(3)})
    assert validate(Lists, strangers, model_size=2, num_clients=3) == "'by_client.0' names a client that does not exist"


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fn, torch.uint16])
def test_numbers_that_no_file_holds_are_refused(dtype: torch.dtype) -> None:
    sent = Lists({}, (), torch.zeros(3, dtype=dtype))
    with pytest.raises(MessageError, match="which no message carries"):
        unpack(Lists, pack(sent))
    assert "which no message carries" in str(validate(Lists, sent, model_size=2, num_clients=3))


def test_nobody_has_an_id_below_zero() -> None:
    with pytest.raises(MessageError, match="not numbered"):
        unpack(Lists, {"anything": point(1), "by_client.-1": ids(1)})


def test_sizes_are_counted_in_bytes_and_in_models() -> None:
    sent = message(optional=point(1, 1))
    # Three models of two float32, two weights, two ids, a 2 × 2 table, and three plain values of 8, 8 and 1 byte.
    assert message_size(sent) == (3 * 2, 3 * 2 * 4 + 2 * 8 + 2 * 8 + 4 * 8 + 8 + 8 + 1)
    assert message_size(None) == (0, 0)


def test_everything_but_models_can_be_logged() -> None:
    assert numbers_in(Message, message()) == {
        "weights": [0.5, 1.0],
        "clients": [0, 2],
        "affinity": [[1.0, 0.0], [0.0, 1.0]],
        "inner.count": 3,
        "inner.share": 0.25,
        "inner.is_new": True,
    }


def test_tensors_of_no_declared_kind_are_not_logged() -> None:
    assert numbers_in(Lists, Lists({1: ids(3)}, (), torch.zeros(2, dtype=torch.uint8))) == {"by_client.1": [3]}


def test_models_are_broken_by_what_is_no_number_and_other_numbers_may_be_undefined() -> None:
    assert not has_nonfinite_model({0: torch.zeros(2), 1: torch.tensor([math.nan], dtype=torch.float64)})
    assert has_nonfinite_model({0: torch.zeros(2), 1: torch.tensor([0.0, math.inf])})
    assert not has_nonfinite_model(None)
