"""Tables of words, numbers and missing values: encoded alike at all sites, by what sites tell and not by records."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedfomo
from fedfomo import federate
from fedfomo.errors import InputError
from fedfomo.sites.load_sites import load_site, load_tables, site_statistics
from fedfomo.sites.table_encoding import TableEncoding
from fedfomo.sites.table_statistics import TableNoise, TableStatistics
from fedfomo.sites.tables import column_of, read_csv

LEEDS = "age,sex,outcome\n1,f,ill\n2,m,well\n3,,ill\n"
TURIN = "sex,age,outcome\nx,5,well\nf,,unsure\n"


def write(folder: Path, **contents: str) -> Path:
    for name, content in contents.items():
        site, _, part = name.partition("__")
        (folder / site).mkdir(exist_ok=True)
        (folder / site / f"{part}.csv").write_text(content)
    return folder


def two_sites(folder: Path) -> Path:
    return write(folder, leeds__train=LEEDS, leeds__target=LEEDS, turin__train=TURIN, turin__target=TURIN)


def test_words_and_missing_values_are_encoded_alike(tmp_path: Path) -> None:
    sites = fedfomo.load_sites(two_sites(tmp_path), label="outcome")
    assert sites.classes == ("ill", "unsure", "well")
    assert sites.encoding is not None
    assert sites.encoding.features == ["age", "age is missing", "sex=f", "sex=m", "sex=x"]
    # The mean age of all training records is (1 + 2 + 3 + 5) / 4.
    assert sites["leeds"][0].inputs.tolist() == [[1, 0, 1, 0, 0], [2, 0, 0, 1, 0], [3, 0, 0, 0, 0]]
    assert sites["turin"][0].inputs.tolist() == [[5, 0, 0, 0, 1], [2.75, 1, 1, 0, 0]]
    assert [sites[name][0].labels.tolist() for name in sites] == [[0, 2, 0], [2, 1]]


def test_numbers_are_scaled_by_the_means_and_deviations_of_all_sites(tmp_path: Path) -> None:
    sites = fedfomo.load_sites(two_sites(tmp_path), label="outcome", standardise=True)
    ages = torch.tensor([1.0, 2.0, 3.0, 5.0])
    deviation = math.sqrt((1.75**2 + 0.75**2 + 0.25**2 + 2.25**2) / 4)
    got = torch.cat([sites["leeds"][0].inputs[:, 0], sites["turin"][0].inputs[:1, 0]])
    assert torch.allclose(got, (ages - 2.75) / deviation)
    assert sites["turin"][0].inputs[1, 0] == 0  # what is missing is the mean


def test_frames_and_parquet_files_are_read_as_csv_files_are(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    two_sites(tmp_path)
    expected = fedfomo.load_sites(tmp_path, label="outcome")
    frames: dict[str, Any] = {}
    for site in ("leeds", "turin"):
        frames[site] = tuple(pandas.read_csv(tmp_path / site / f"{part}.csv") for part in ("train", "target"))
    by_frame = load_tables(frames, label="outcome")
    for part, frame in zip(("train", "target"), frames["leeds"], strict=True):
        frame.to_parquet(tmp_path / "leeds" / f"{part}.parquet")
        (tmp_path / "leeds" / f"{part}.csv").unlink()
    for got in (by_frame, fedfomo.load_sites(tmp_path, label="outcome")):
        assert got.encoding is not None
        assert got.encoding == expected.encoding
        for site in ("leeds", "turin"):
            assert torch.equal(got[site][0].inputs, expected[site][0].inputs)
            assert torch.equal(got[site][0].labels, expected[site][0].labels)


def test_categorical_and_nullable_columns_of_pandas(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "grade": pandas.Categorical(["low", "high", None]),
            "stage": pandas.array([1, None, 3], dtype="Int64"),
            "smokes": [True, False, True],
            "label": [0, 1, 0],
        }
    )
    sites = load_tables({"a": (frame, frame)})
    assert sites.encoding is not None
    assert sites.encoding.features == ["grade=high", "grade=low", "stage", "stage is missing", "smokes"]
    assert sites["a"][0].inputs.tolist() == [[0, 1, 1, 0, 1], [1, 0, 2, 1, 0], [0, 0, 3, 0, 1]]


def test_columns_may_be_left_out_and_codes_be_words(tmp_path: Path) -> None:
    table = "patient,code,age,label\nA17,01,30,0\nB4,2,40,1\n"
    write(tmp_path, leeds__train=table, leeds__target=table)
    sites = fedfomo.load_sites(tmp_path, drop=["patient"], categories=["code"])
    assert sites.encoding is not None
    assert sites.encoding.features == ["code=01", "code=2", "age"]


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ("age,label\n30,0\nabc,1\n", r"leeds/target.csv, line 3, column 'age': 'abc' is no number, as others"),
        ("age,label\nyoung,0\nold,1\n", r"leeds/target.csv, line 2, column 'age': 'young' is no number"),
        ("age,label\n30,0\n31,\n", r"leeds/target.csv, line 3, column 'label': the label is missing"),
        ("age,label\n30,0\n31,0.5\n", r"leeds/target.csv, line 3, column 'label': label 0.5 is no class"),
        ("age,outcome\n30,0\n", r"leeds/target.csv has the columns age, outcome; one of them must be called label"),
        ("label\n0\n", r"have different columns"),
    ],
)
def test_errors_name_file_line_and_column(tmp_path: Path, odd: str, words: str) -> None:
    write(tmp_path, leeds__train="age,label\n1,0\n2,1\n", leeds__target=odd)
    with pytest.raises(InputError, match=words):
        fedfomo.load_sites(tmp_path)


def test_names_of_people_are_no_categories(tmp_path: Path) -> None:
    rows = "".join(f"patient{index},1,0\n" for index in range(1001))
    write(tmp_path, leeds__train="name,age,label\n" + rows, leeds__target="name,age,label\npatient1,1,0\n")
    with pytest.raises(InputError, match=r"column 'name': 1001 different words are too many: leave it out with drop="):
        fedfomo.load_sites(tmp_path)


def test_sites_apart_tell_statistics_and_share_an_encoding(tmp_path: Path) -> None:
    two_sites(tmp_path)
    together = fedfomo.load_sites(tmp_path, label="outcome", standardise=True)
    for site in ("leeds", "turin"):
        site_statistics(tmp_path / site).write(tmp_path / f"{site}.json")
    told = [TableStatistics.read(tmp_path / f"{site}.json") for site in ("leeds", "turin")]
    assert "patient" not in (tmp_path / "leeds.json").read_text()
    TableEncoding.of(told, "outcome", standardise=True).write(tmp_path / "encoding.json")
    for site in ("leeds", "turin"):
        apart = load_site(tmp_path / site, encoding=tmp_path / "encoding.json")
        for one, other in zip(apart, together[site], strict=True):
            assert torch.equal(one.inputs, other.inputs)
            assert torch.equal(one.labels, other.labels)


def test_a_word_that_nobody_told_is_refused_with_its_place(tmp_path: Path) -> None:
    two_sites(tmp_path)
    TableEncoding.of([site_statistics(tmp_path / "leeds")], "outcome").write(tmp_path / "encoding.json")
    with pytest.raises(InputError, match=r"turin/train.csv, line 3, column 'age': a value is missing, where none was"):
        load_site(tmp_path / "turin", encoding=tmp_path / "encoding.json")
    write(tmp_path, turin__train="sex,age,outcome\nx,5,well\n")
    with pytest.raises(InputError, match=r"turin/train.csv, line 2, column 'sex': 'x' is not among f, m"):
        load_site(tmp_path / "turin", encoding=tmp_path / "encoding.json")


def test_noisy_statistics_find_the_same_columns_and_nearly_the_same_figures(tmp_path: Path) -> None:
    rows = "".join(
        f"{20 + index % 60},{'f' if index % 3 else 'm'},{'ill' if index % 4 else 'well'}\n" for index in range(6000)
    )
    write(tmp_path, leeds__train="age,sex,outcome\n" + rows)
    table = read_csv(tmp_path / "leeds" / "train.csv")
    words = {"sex": ["f", "m", "x"], "outcome": ["ill", "well"]}
    told = TableStatistics.private(table, TableNoise(2.0, {"age": (0, 120)}, words))
    exact = TableStatistics.of(table)
    assert told.columns["age"].mean == pytest.approx(exact.columns["age"].mean, abs=1)
    assert told.columns["age"].deviation == pytest.approx(exact.columns["age"].deviation, rel=0.1)
    assert told.columns["sex"].words["f"] == pytest.approx(4000, abs=50)
    assert told.columns["age"].mean != exact.columns["age"].mean
    assert TableEncoding.of([told], "outcome").classes == ("ill", "well")


def test_what_stands_for_a_missing_value() -> None:
    column = column_of(["1", " NA ", "", "NaN", "null", "2.5"])
    assert column.is_missing.tolist() == [False, True, True, True, True, False]
    assert column.numbers[[0, 5]].tolist() == [1, 2.5]


def test_frames_federate(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"size": [1.0, 2.0, 8.0, 9.0] * 10, "kind": ["a", "b"] * 20, "tumour": ["no", "no", "yes", "yes"] * 10}
    )
    sites = load_tables({"leeds": (frame, frame), "turin": (frame, frame)}, label="tumour", standardise=True)
    result = federate(lambda: nn.Linear(3, 2), sites, rounds=5, workers=0)
    assert all(score.metric == 1 for score in result.scores.values())


def test_words_that_name_single_records_do_not_leave_unless_that_is_said(tmp_path: Path) -> None:
    rows = "".join(f"Ann Smith {number},{number % 3},{'ill' if number % 2 else 'well'}\n" for number in range(8))
    write(tmp_path, **{f"leeds__{part}": "name,stage,label\n" + rows for part in ("train", "target")})
    words = r"leeds/train.csv, column 'name': nearly every word is another one \(8 in 8 values\).* drop=\['name'\]"
    with pytest.raises(InputError, match=words):
        site_statistics(tmp_path / "leeds")
    told = site_statistics(tmp_path / "leeds", drop=["name"]).write(tmp_path / "leeds.json")
    assert told.endswith("every word of 'label', and how often it occurs")
    assert "Ann" not in (tmp_path / "leeds.json").read_text()
    told = site_statistics(tmp_path / "leeds", categories=["name"]).write(tmp_path / "leeds.json")
    assert "every word of 'name', 'label'" in told
    numbers = site_statistics(tmp_path / "leeds", drop=["name", "label"]).write(tmp_path / "leeds.json")
    assert numbers.endswith("no word")
    fedfomo.load_sites(tmp_path)  # nothing leaves where all sites are


def test_statistics_do_not_say_where_a_site_keeps_its_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two_sites(tmp_path)
    site_statistics(tmp_path / "leeds").write(tmp_path / "leeds.json")
    monkeypatch.chdir(tmp_path / "turin")
    site_statistics(".").write(tmp_path / "turin.json")
    for site in ("leeds", "turin"):
        assert str(tmp_path) not in (tmp_path / f"{site}.json").read_text()
        assert TableStatistics.read(tmp_path / f"{site}.json").source == f"{site}/train.csv"


@pytest.mark.parametrize("option", ["word labels", "words", "missing values"])
def test_one_site_alone_is_refused_what_others_may_encode_otherwise(option: str, tmp_path: Path) -> None:
    tables = {
        "word labels": ("a,label\n1,cat\n2,dog\n", r"leeds holds words in 'label'"),
        "words": ("a,label\nf,0\nm,1\n", r"leeds holds words in 'a'"),
        "missing values": ("a,label\n1,0\n,1\n", r"leeds holds missing values in 'a'"),
    }
    content, fault = tables[option]
    write(tmp_path, leeds__train=content, leeds__target=content, turin__train=content.replace("cat", "bird"))
    write(tmp_path, turin__target=content)
    words = fault + r", which other sites may encode otherwise: give encoding= with the encoding of all sites"
    with pytest.raises(InputError, match=words):
        load_site(tmp_path / "leeds")
    together = fedfomo.load_sites(tmp_path)
    apart = load_site(tmp_path / "leeds", encoding=together.encoding)
    assert torch.equal(apart[0].labels, together["leeds"][0].labels)


def test_a_table_of_numbers_is_read_by_one_site_alone(tmp_path: Path) -> None:
    write(tmp_path, leeds__train="a,label\n1,0\n", leeds__target="a,label\n2,1\n")
    assert [part.labels.tolist() for part in load_site(tmp_path / "leeds")] == [[0], [1]]
