"""Sites in files: what their tables say, and what is refused before it misleads."""

from pathlib import Path

import numpy as np
import pytest
import torch

import fedfomo
from cli_calls import call, refused
from fedfomo.errors import InputError

TABLE = "a,b,label\n1,2,0\n3,4,1\n"


def write(folder: Path, **contents: str) -> None:
    """Write files given as site__part, all of them tables."""
    for name, content in contents.items():
        site, _, part = name.partition("__")
        (folder / site).mkdir(exist_ok=True)
        (folder / site / f"{part}.csv").write_text(content)


def test_columns_go_by_their_names_in_the_order_of_the_first_part(tmp_path: Path) -> None:
    write(
        tmp_path,
        leeds__train="b,label,a\n2,0,1\n",
        leeds__target="a,b,label\n3,4,1\n",
        turin__train="label,b,a\n1,6,5\n",
        turin__target="b, a, label\n8,7,0\n",
    )
    sites = fedfomo.load_sites(tmp_path)
    assert [part.inputs.tolist() for part in sites["leeds"]] == [[[2.0, 1.0]], [[4.0, 3.0]]]
    assert [part.inputs.tolist() for part in sites["turin"]] == [[[6.0, 5.0]], [[8.0, 7.0]]]
    assert [part.labels.tolist() for parts in sites.values() for part in parts] == [[0], [1], [1], [0]]


@pytest.mark.parametrize("odd", ["leeds__target", "turin__train", "turin__target"])
def test_other_columns_are_refused_with_both_files_and_what_differs(tmp_path: Path, odd: str) -> None:
    names = ("leeds__train", "leeds__target", "turin__train", "turin__target")
    write(tmp_path, **(dict.fromkeys(names, TABLE) | {odd: "a,c,label\n1,2,0\n"}))
    own = odd.replace("__", "/") + ".csv"
    words = rf"{own} and .*leeds/train.csv have .* \(only in {own}: 'c'; only in leeds/train.csv: 'b'\)"
    with pytest.raises(InputError, match=words):
        fedfomo.load_sites(tmp_path)


def test_a_missing_column_is_told(tmp_path: Path) -> None:
    write(tmp_path, leeds__train=TABLE, leeds__target="a,label\n1,0\n")
    with pytest.raises(InputError, match=r"only in leeds/target.csv: none; only in leeds/train.csv: 'b'"):
        fedfomo.load_sites(tmp_path)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("a,a,label\n1,2,0\n", "several columns called 'a': give each a name of its own"),
        ("a,label,label\n1,2,0\n", "several columns called 'label'"),
        ("a,b,label\n1,2,0\n1,2,inf\n", r"train.csv, line 3, column 'label': the label is not finite"),
        ("a,b,label\n1,2,nan\n", r"train.csv, line 2, column 'label': the label is missing"),
        ("a,b,label\n1,2,0\n1,2,1\n1,2,0.5\n", r"line 4, column 'label': label 0.5 is no class: .* labels=\"numbers\""),
        (
            "a,b,label\n1,2,1\n1,2,-1\n",
            r"line 3, column 'label': label -1 is no class: classes are words, or whole numbers from 0",
        ),
        ("a,b,label\n1,2,1e300\n", r"line 2, column 'label': label 1e\+300 is no class"),
        ("", r"train.csv is empty: it takes a heading"),
    ],
)
def test_tables_that_would_mislead_are_refused(tmp_path: Path, table: str, words: str) -> None:
    write(tmp_path, leeds__train=table, leeds__target=TABLE)
    with pytest.raises(InputError, match=words):
        fedfomo.load_sites(tmp_path)


def test_labels_may_be_numbers_if_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, leeds__train="a,label\n1,0.5\n", leeds__target="a,label\n2,3\n3,4\n")
    train, target = fedfomo.load_sites(tmp_path, labels="numbers")["leeds"]
    assert (train.labels.tolist(), target.labels.tolist()) == ([0.5], [3.0, 4.0])
    assert train.labels.dtype == target.labels.dtype == torch.float32
    assert "label 0.5 is no class" in refused(capsys, "check", str(tmp_path))
    call("check", str(tmp_path), "--labels", "numbers")
    assert "1 sites can federate" in capsys.readouterr().out
    with pytest.raises(InputError, match="labels are classes or numbers, not 'floats'"):
        fedfomo.load_sites(tmp_path, labels="floats")  # type: ignore[arg-type]


def test_a_part_in_two_files_is_refused(tmp_path: Path) -> None:
    write(tmp_path, leeds__train=TABLE, leeds__target=TABLE)
    np.savez(tmp_path / "leeds" / "target.npz", inputs=np.zeros((1, 2)), labels=np.zeros(1))
    with pytest.raises(InputError, match=r"leeds holds both target.csv and target.npz: keep one of them"):
        fedfomo.load_sites(tmp_path)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("train", "target", "test"), r"more than train, target: move test.csv elsewhere"),
        (("train", "validation", "test", "target"), r"more than train, validation, test: move target.csv elsewhere"),
        (("train", "target", "tset"), r"move tset.csv elsewhere, or name the parts otherwise"),
    ],
)
def test_parts_that_nobody_would_read_are_refused(tmp_path: Path, names: tuple[str, ...], words: str) -> None:
    write(tmp_path, **{f"leeds__{name}": TABLE for name in names})
    with pytest.raises(InputError, match=words):
        fedfomo.load_sites(tmp_path)


def test_hidden_files_and_other_kinds_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path, leeds__train=TABLE, leeds__target=TABLE)
    for name in ("._train.csv", ".test.csv", "notes.txt"):
        (tmp_path / "leeds" / name).write_text("")
    assert [len(part) for part in fedfomo.load_sites(tmp_path)["leeds"]] == [2, 2]


def test_what_excel_saves_as_utf_8_is_read(tmp_path: Path) -> None:
    write(tmp_path, leeds__target=TABLE)
    (tmp_path / "leeds" / "train.csv").write_bytes(b"\xef\xbb\xbf" + TABLE.replace("\n", "\r\n").encode())
    assert fedfomo.load_sites(tmp_path)["leeds"][0].inputs.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    (tmp_path / "leeds" / "train.csv").write_bytes(b"\xef\xbb\xbflabel,a,b\r\n1,5,6\r\n")
    assert fedfomo.load_sites(tmp_path)["leeds"][0].labels.tolist() == [1]


@pytest.mark.parametrize("end", ["\n", "\n\n \n", ",,\n"])
def test_records_without_any_value_are_passed_over(tmp_path: Path, end: str) -> None:
    write(tmp_path, leeds__train=TABLE + end, leeds__target=TABLE)
    assert fedfomo.load_sites(tmp_path)["leeds"][0].labels.tolist() == [0, 1]


def test_lines_are_those_of_the_file(tmp_path: Path) -> None:
    """Also behind records that are passed over, and values that span lines."""
    content = 'a,b,label\n\n"1\n",2,0\n,,\n1,x,0\n'
    write(tmp_path, leeds__train=content, leeds__target=TABLE)
    with pytest.raises(InputError, match=r"train.csv, line 6, column 'b': 'x' is no number"):
        fedfomo.load_sites(tmp_path)
    write(tmp_path, leeds__train="a,b,label\n\n1,2,0\n1,2\n")
    with pytest.raises(InputError, match=r"train.csv, line 4: 2 values under 3 headings"):
        fedfomo.load_sites(tmp_path)


@pytest.mark.parametrize(("mark", "name"), [(";", "semicolons"), ("\t", "tabs")])
def test_other_separators_are_named_with_what_to_do(tmp_path: Path, mark: str, name: str) -> None:
    write(tmp_path, leeds__train=f"a{mark}label\n1,5{mark}0\n", leeds__target=TABLE)
    words = f"train.csv: its heading separates columns by {name}: write it with commas .* decimal=','"
    with pytest.raises(InputError, match=words):
        fedfomo.load_sites(tmp_path)


def test_a_semicolon_in_a_heading_is_one(tmp_path: Path) -> None:
    table = '"age (years; at entry)",label\n1,0\n'
    write(tmp_path, leeds__train=table, leeds__target=table)
    assert fedfomo.load_sites(tmp_path)["leeds"][0].inputs.tolist() == [[1.0]]
