"""Square tables of clients by clients, of which most entries are zero."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedfomo.core.messages import Ids, Numbers, Offsets


@dataclass(frozen=True)
class SparseMatrix:
    """A receiver × giver table, stored row by row: a client meets few others, however many there are."""

    starts: Offsets  # row i is [starts[i], starts[i + 1])
    columns: Ids  # ascending within a row
    values: Numbers

    @classmethod
    def zeros(cls, size: int) -> SparseMatrix:
        """Return a table without entries."""
        nothing = torch.empty(0, dtype=torch.int64)
        return cls(torch.zeros(size + 1, dtype=torch.int64), nothing, nothing.double())

    @classmethod
    def identity(cls, size: int) -> SparseMatrix:
        """Return diag(1, …, 1)."""
        return cls(torch.arange(size + 1), torch.arange(size), torch.ones(size, dtype=torch.float64))

    @property
    def size(self) -> int:
        """The number of clients."""
        return len(self.starts) - 1

    def row(self, client: int) -> tuple[Tensor, Tensor]:
        """Return the columns and the values of a row's entries."""
        inside = slice(int(self.starts[client]), int(self.starts[client + 1]))
        return self.columns[inside], self.values[inside]

    def dense_row(self, client: int) -> Tensor:
        """Return a whole row, zeros included."""
        columns, values = self.row(client)
        dense = torch.zeros(self.size, dtype=torch.float64)
        dense[columns] = values
        return dense

    def add_rows(self, rows: Mapping[int, tuple[Tensor, Tensor]]) -> SparseMatrix:
        """Return the table with columns and values added to some rows."""
        if not rows:
            return self
        added = [(client, *rows[client]) for client in sorted(rows)]
        keys = torch.cat([self._keys(), *(client * self.size + columns for client, columns, _ in added)])
        places, index = torch.unique(keys, return_inverse=True)
        values = torch.zeros(len(places), dtype=torch.float64)
        # What was there comes first, so each entry is the same running sum that a dense table would hold.
        values.index_add_(0, index, torch.cat([self.values, *(values for _, _, values in added)]))
        receivers = places // self.size
        starts = torch.searchsorted(receivers, torch.arange(self.size + 1))
        return SparseMatrix(starts, places % self.size, values)

    def dense(self) -> Tensor:
        """Return the whole matrix."""
        table = torch.zeros(self.size * self.size, dtype=torch.float64)
        table[self._keys()] = self.values
        return table.view(self.size, self.size)

    def submatrix(self, clients: Tensor) -> Tensor:
        """Return the dense matrix of some clients, in ascending order of their ids."""
        position = torch.full((self.size,), -1, dtype=torch.int64)
        position[clients] = torch.arange(len(clients))
        keys = self._keys()
        receivers, givers = position[keys // self.size], position[self.columns]
        inside = (receivers >= 0) & (givers >= 0)
        table = torch.zeros(len(clients), len(clients), dtype=torch.float64)
        table[receivers[inside], givers[inside]] = self.values[inside]
        return table

    def _keys(self) -> Tensor:
        receivers = torch.repeat_interleave(torch.arange(self.size), self.starts.diff())
        return receivers * self.size + self.columns
