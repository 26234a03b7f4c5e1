"""What the kernels share: the sizes of their tiles, how rows are shared out, and products of rows.

A program owns a block of rows and walks over the other rows, tile by tile; no matrix of all pairs is ever in memory.
Nothing is added up by atomics, and the order of each sum depends on the shapes only: the same inputs give the same bits
on the same GPU. Products are float32's, without TF32.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True)
class Tile:
    """The sizes of a kernel's work, powers of two of at least 16.

    `rows` are owned by a program, `others` in a tile; a product takes `depth` numbers of each row at a time, and a
    gradient `width` dimensions. A program has `warps` warps and loads `stages` steps ahead. Where the owned rows make
    fewer programs than `programs`, each walks over a part of the other rows only.
    """

    rows: int = 128
    others: int = 128
    depth: int = 16
    width: int = 128
    warps: int = 8
    stages: int = 3
    programs: int = 1024

    def grid(self, owned: int, others: int) -> tuple[int, int, int]:
        """The blocks of owned rows, the parts of the others, and the others of a part, a multiple of `others`."""
        blocks, tiles = triton.cdiv(owned, self.rows), triton.cdiv(others, self.others)
        of_part = triton.cdiv(tiles, max(1, min(self.programs // blocks, tiles)))
        return blocks, triton.cdiv(tiles, of_part), of_part * self.others

    def by_dimension(self, points: Tensor) -> Tensor:
        """(N, D) as (D, M), of which the threads of a product read neighbouring numbers; M is N rounded up to whole
        tiles, with zeros."""
        count, dimensions = points.shape
        columns = points.new_zeros(dimensions, triton.cdiv(count, self.others) * self.others)
        columns[:, :count] = points.T
        return columns

    def options(self) -> dict[str, int | bool]:
        """What a kernel is compiled with."""
        sizes = {"ROWS": self.rows, "OTHERS": self.others, "DEPTH": self.depth, "WIDTH": self.width}
        return sizes | {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": True}


TILE = Tile()
"""Compiled for an H100 or A100 the loops of products keep their sums in registers; the speed is not measured yet."""


@triton.jit
def products(
    x, columns, x_in, others, stride, dimensions, ROWS: tl.constexpr, OTHERS: tl.constexpr, DEPTH: tl.constexpr
):
    """x_i . y_j, (ROWS, OTHERS): x (ROWS, 1) points to rows, of which those that are not `in` give 0; the y_j are the
    columns `others` of `columns`, see `by_dimension`."""
    sums = tl.zeros((ROWS, OTHERS), tl.float32)
    for start in range(0, dimensions, DEPTH):
        at = start + tl.arange(0, DEPTH)
        a = tl.load(x + at[None, :], mask=x_in[:, None] & (at < dimensions)[None, :], other=0.0)
        place = at.to(tl.int64)[:, None] * stride + others[None, :]
        b = tl.load(columns + place, mask=(at < dimensions)[:, None], other=0.0)
        sums = tl.dot(a, b, sums, input_precision="ieee")
    return sums


@triton.jit
def add_products(
    to,
    weights,
    scratch,
    others,
    first,
    end,
    x_in,
    dimensions,
    ROWS: tl.constexpr,
    OTHERS: tl.constexpr,
    DEPTH: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Add sum_j weights_ij y_j to the rows that `to` (ROWS, 1) points to; y_j are the rows from `first` on of `others`.

    The weights go through `scratch`, memory of the program's own, since a product takes few of their columns at a time.
    """
    row_start = tl.arange(0, ROWS)[:, None] * OTHERS
    tl.store(scratch + row_start + tl.arange(0, OTHERS)[None, :], weights)
    tl.debug_barrier()
    for start in range(0, dimensions, WIDTH):
        at = start + tl.arange(0, WIDTH)[None, :]
        inside = x_in[:, None] & (at < dimensions)
        total = tl.load(to + at, mask=inside, other=0.0)
        for begin in range(0, OTHERS, DEPTH):
            these = begin + tl.arange(0, DEPTH)
            a = tl.load(scratch + row_start + these[None, :])
            rows = (first + these)[:, None]
            b = tl.load(others + rows.to(tl.int64) * dimensions + at, mask=(rows < end) & (at < dimensions), other=0.0)
            total = tl.dot(a, b, total, input_precision="ieee")
        tl.store(to + at, total, mask=inside)
    tl.debug_barrier()
