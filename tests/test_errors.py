"""Errors that a user can put right."""

import errno
import json
from pathlib import Path

import pytest

from fedfomo.errors import InputError, disk_sentence, is_disk_fault, naming, reading, require, sentence_of, unknown


def test_what_was_added_on_the_way_is_said_in_the_same_line() -> None:
    error = InputError("no good")
    assert sentence_of(error) == "no good"
    error.add_note("client 7 failed in round 0")
    assert sentence_of(error) == "no good (client 7 failed in round 0)"


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    assert (
        str(unknown("method", "fedfumo", ["local", "fedfomo"])) == "unknown method 'fedfumo': did you mean 'fedfomo'?"
    )


def test_a_name_like_no_other_is_answered_with_all() -> None:
    assert str(unknown("method", "xyz", ["local", "fedavg"])) == "unknown method 'xyz': known: fedavg, local"


def test_what_holds_passes_and_what_does_not_is_said() -> None:
    require(True, "never said")
    with pytest.raises(InputError, match="M must be at least 1, not 0"):
        require(False, "M must be at least 1, not 0")


def test_a_failed_write_names_its_file() -> None:
    def fail() -> None:
        with naming(Path("some/file")):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="some/file") as caught:
        fail()
    assert is_disk_fault(caught.value)
    assert not is_disk_fault(FileNotFoundError(errno.ENOENT, "No such file"))


def test_only_a_disk_that_takes_no_more_is_said_to_refuse_writing() -> None:
    said = {number: disk_sentence(OSError(number, "why", "some/file")) for number in (errno.ENOSPC, errno.EACCES)}
    assert said == {errno.ENOSPC: "cannot write some/file: why", errno.EACCES: "cannot use some/file: why"}


@pytest.mark.parametrize("content", ["", "[", "[" * 100_000, '{"b": 1}', "3", "null", '"text"', "[1]"])
def test_a_damaged_file_is_named_with_the_way_out(content: str) -> None:
    damaged = r"^here.json is damaged \(.*\): make it again$"
    with pytest.raises(InputError, match=damaged), reading(Path("here.json"), "make it again"):
        json.loads(content)["a"]


def test_a_refusal_while_reading_stays_as_it_is() -> None:
    with pytest.raises(InputError, match=r"^something else$"), reading(Path("here.json"), "make it again"):
        raise InputError("something else")
