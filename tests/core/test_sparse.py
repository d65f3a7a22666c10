"""Sparse tables of clients by clients."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedfomo.core.sparse import SparseMatrix
from toy_problems import ids, numbers

entries = st.dictionaries(st.integers(0, 5), st.dictionaries(st.integers(0, 5), st.floats(-9, 9)))


def test_worked_by_hand() -> None:
    table = SparseMatrix.identity(3).add_rows({2: (ids(0, 2), numbers(5.0, 1.0))})
    assert table.dense().tolist() == [[1, 0, 0], [0, 1, 0], [5, 0, 2]]
    assert table.starts.tolist() == [0, 1, 2, 4]
    assert [part.tolist() for part in table.row(2)] == [[0, 2], [5.0, 2.0]]
    assert table.submatrix(ids(0, 2)).tolist() == [[1, 0], [5, 2]]
    assert SparseMatrix.zeros(2).dense().tolist() == [[0, 0], [0, 0]]


@given(st.lists(entries, max_size=4))
def test_a_sparse_table_adds_up_as_a_dense_one_does(rounds: list[dict[int, dict[int, float]]]) -> None:
    sparse, dense = SparseMatrix.identity(6), torch.eye(6, dtype=torch.float64)
    for increments in rounds:
        before = sparse.dense()
        rows = {client: (ids(*row), numbers(*row.values())) for client, row in increments.items()}
        after = sparse.add_rows(rows)
        assert torch.equal(sparse.dense(), before), "the table before has changed"
        sparse = after
        for client, (columns, values) in rows.items():
            dense[client].index_add_(0, columns, values)
        assert torch.equal(sparse.dense(), dense)
        for client in range(6):
            columns, values = sparse.row(client)
            assert columns.tolist() == sorted(set(columns.tolist()))
            assert torch.equal(dense[client][columns], values)


def test_what_is_added_twice_in_one_row_counts_twice() -> None:
    assert SparseMatrix.zeros(2).add_rows({0: (ids(1, 1), numbers(2.0, 3.0))}).dense().tolist() == [[0, 5], [0, 0]]
