"""Random numbers that depend on their purpose only."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedfomo.core.rng import layer_rng, numpy_stream, stream

purposes = st.lists(st.integers(-5, 10**6) | st.text(max_size=5), max_size=4).map(tuple)


def draw(*purpose: str | int) -> list[int]:
    return torch.randint(2**62, (4,), generator=stream(*purpose)).tolist()  # type: ignore[arg-type]


@given(st.integers(0, 2**64), purposes)
def test_a_purpose_always_gives_the_same_numbers(seed: int, purpose: tuple[str | int, ...]) -> None:
    assert draw(seed, *purpose) == draw(seed, *purpose)
    first, second = (numpy_stream(seed, *purpose).integers(2**62, size=4) for _ in range(2))
    assert np.array_equal(first, second)


@given(st.integers(0, 100), purposes, st.integers(0, 100), purposes)
def test_other_purposes_give_other_numbers(
    seed: int, purpose: tuple[str | int, ...], other_seed: int, other: tuple[str | int, ...]
) -> None:
    assert (draw(seed, *purpose) == draw(other_seed, *other)) == ((seed, purpose) == (other_seed, other))


def test_words_and_numbers_do_not_run_together() -> None:
    alike = [("a", 1), ("a1",), ("a", "1"), ("a", "", 1), (1, "a"), ("a", 11), ("a", 1, 1)]
    assert len({tuple(draw(0, *purpose)) for purpose in alike}) == len(alike)


def test_rounds_and_clients_do_not_run_together() -> None:
    seen = {tuple(draw(0, "train", t, client)) for t in range(12) for client in range(12)}
    assert len(seen) == 144


def test_streams_are_the_same_on_every_machine() -> None:
    # The first 63 bits of BLAKE2b over "(0, 'train', 1, 2)"; a change here changes every published number.
    assert stream(0, "train", 1, 2).initial_seed() == 4417424505877223181


def test_streams_do_not_touch_torchs_own_generator() -> None:
    before = torch.get_rng_state()
    draw(0, "anything")
    assert torch.equal(torch.get_rng_state(), before)


def test_layers_draw_from_the_stream_and_leave_no_trace() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with layer_rng(stream(1)):
        first = torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    with layer_rng(stream(1)):
        assert torch.equal(torch.rand(3), first)
    with layer_rng(stream(2)):
        assert not torch.equal(torch.rand(3), first)


def test_torchs_own_generator_is_restored_after_a_failure() -> None:
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="invalid"), layer_rng(stream(1)):
        torch.rand(3).view(7)
    assert torch.equal(torch.get_rng_state(), before)
