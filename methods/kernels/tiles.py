"""What the kernels share: the sizes of their tiles, how rows are shared out, and products of rows.

A program owns a block of rows and walks over the other rows, tile by tile; no matrix of all pairs is ever in memory.
Nothing is added up by atomics, and the order of each sum depends on the shapes only: the same inputs give the same bits
on the same GPU. Products are float32's, without TF32.
"""

from dataclasses import dataclass

import triton
import triton.language as tl


@dataclass(frozen=True)
class Tile:
    """The sizes of a kernel's work, powers of two of at least 16.

    `rows` are owned by a program, `others` in a tile; a product takes `depth` numbers of each row at a time, and a
    gradient `width` dimensions. A program has `warps` warps and loads `stages` steps ahead. Where the owned rows make
    fewer programs than `programs`, each walks over a part of the other rows only.
    """

    rows: int = 128
    others: int = 64
    depth: int = 16
    width: int = 64
    warps: int = 8
    stages: int = 3
    programs: int = 256

    def parts(self, owned: int, others: int) -> int:
        """Into how many parts the walk over the others is cut."""
        blocks, tiles = -(-owned // self.rows), -(-others // self.others)
        return max(1, min(self.programs // blocks, tiles))

    def options(self) -> dict[str, int | bool]:
        """What a kernel is compiled with."""
        sizes = {"ROWS": self.rows, "OTHERS": self.others, "DEPTH": self.depth, "WIDTH": self.width}
        return sizes | {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": True}


TILE = Tile()


@triton.jit
def products(x, y, x_in, y_in, dimensions, ROWS: tl.constexpr, OTHERS: tl.constexpr, DEPTH: tl.constexpr):
    """x_i . y_j, (ROWS, OTHERS): x (ROWS, 1) and y (OTHERS, 1) point to the rows; those that are not `in` give 0."""
    found = tl.zeros((ROWS, OTHERS), tl.float32)
    for start in range(0, dimensions, DEPTH):
        at = start + tl.arange(0, DEPTH)[None, :]
        a = tl.load(x + at, mask=x_in[:, None] & (at < dimensions), other=0.0)
        b = tl.load(y + at, mask=y_in[:, None] & (at < dimensions), other=0.0)
        found = tl.dot(a, tl.trans(b), found, input_precision="ieee")
    return found


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
    mine = tl.arange(0, ROWS)[:, None] * OTHERS
    tl.store(scratch + mine + tl.arange(0, OTHERS)[None, :], weights)
    tl.debug_barrier()
    for start in range(0, dimensions, WIDTH):
        at = start + tl.arange(0, WIDTH)[None, :]
        inside = x_in[:, None] & (at < dimensions)
        total = tl.load(to + at, mask=inside, other=0.0)
        for begin in range(0, OTHERS, DEPTH):
            these = begin + tl.arange(0, DEPTH)
            a = tl.load(scratch + mine + these[None, :])
            rows = (first + these)[:, None]
            b = tl.load(others + rows.to(tl.int64) * dimensions + at, mask=(rows < end) & (at < dimensions), other=0.0)
            total = tl.dot(a, b, total, input_precision="ieee")
        tl.store(to + at, total, mask=inside)
    tl.debug_barrier()
