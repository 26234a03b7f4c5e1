"""The energy of all pairs and its gradient in one kernel: PFML's potential, and CPML's.

It is what `methods.pfml` computes by torch in blocks, with the same care: a pair that may exert a force and is closer
than CLOSE of the largest norm is measured by the true differences of its points, its force too. A tile without any
force costs its distances only.
"""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from methods.kernels.tiles import TILE, Tile, add_products, products
from methods.potentials import CORE_RADIUS, InversePower, Potential, SquaredHinge

CLOSE = 0.2
LARGEST = 1e24
"""Of psi's constants, whose forces must be numbers in float32."""


def check_potential(potential: Potential) -> tuple[float, float, float]:
    """psi at distance 0 in one class and at infinity across classes, and the repulsion's slope in its core.

    ValueError if the kernel does not have the potential, or cannot compute it in float32.
    """
    attraction, repulsion = potential.constants()
    if isinstance(potential, SquaredHinge):
        return attraction, repulsion, 0.0
    if not isinstance(potential, InversePower):
        raise ValueError(f"the kernel does not have the potential {type(potential).__name__}")
    slope = potential.alpha * CORE_RADIUS ** (-potential.alpha - 1)
    if (largest := max(-attraction, repulsion, slope, potential.delta**-2)) > LARGEST:
        raise ValueError(
            f"delta: {potential.delta} and alpha: {potential.alpha} give {largest:.1e}, too much for float32"
        )
    return attraction, repulsion, slope


def excess_energy(
    points: Tensor,
    labels: Tensor,
    potential: Potential,
    share: tuple[int, int],
    needs_gradient: bool,
    tile: Tile = TILE,
) -> tuple[Tensor, Tensor | None]:
    """The energy of all ordered pairs beyond psi's constants, a float64, and its gradient (N, D), float32 or None.

    points (N, D) float32, labels (N,) integers. A share (i, n) has a n-th of the points, each with all others: energies
    and gradients of all shares add up. NaN if a point is not finite.

    Raises:
        ValueError: if the points are not float32, or from `check_potential`.
    """
    if points.dtype != torch.float32:
        raise ValueError(f"the Triton kernels compute in float32, and the points are {points.dtype}")
    power = isinstance(potential, InversePower)
    alpha = potential.alpha if isinstance(potential, InversePower) else 0.0
    attraction, repulsion, slope = check_potential(potential)
    points, labels = points.contiguous(), labels.contiguous()
    count, dimensions = points.shape
    first, last = (count * part // share[1] for part in (share[0], share[0] + 1))
    if first == last:
        return points.new_zeros((), dtype=torch.float64), torch.zeros_like(points) if needs_gradient else None
    squares = torch.linalg.vector_norm(points, dim=1).square_()
    limit = squares.max()
    blocks, parts, part_size = tile.grid(last - first, count)
    columns = tile.by_dimension(points)
    energies = points.new_empty((blocks, parts, tile.rows), dtype=torch.float64)
    gradients = points.new_zeros((parts, last - first, dimensions) if needs_gradient else (0,))
    scratch = points.new_empty((blocks, parts, tile.rows, tile.others) if needs_gradient else (0,))
    _pairs[blocks, parts](
        points,
        columns,
        columns.shape[1],
        labels,
        squares,
        limit,
        energies,
        gradients,
        scratch,
        count,
        dimensions,
        first,
        last,
        part_size,
        potential.delta**2,
        potential.delta_rep**2,
        potential.delta_rep,
        alpha,
        attraction,
        repulsion,
        slope,
        CORE_RADIUS,
        CLOSE**2,
        16 * torch.finfo(torch.float32).eps,
        POWER=power,
        GRADIENT=needs_gradient,
        **tile.options(),
    )
    nothing = limit * 0  # not a number if a point is not: comparisons would silently leave its pairs out
    if not needs_gradient:
        return energies.sum() + nothing, None
    gradient = gradients[0] if parts == 1 else gradients.sum(0)
    gradient = gradient if last - first == count else F.pad(gradient, (0, 0, first, count - last))
    return energies.sum() + nothing, gradient.add_(nothing)


@triton.jit(do_not_specialize=["count", "first", "last"])
def _pairs(
    points,
    columns,
    stride,
    labels,
    squares,
    limit,
    energies,
    gradients,
    scratch,
    count,
    dimensions,
    first,
    last,
    part_size,
    near,
    far,
    radius,
    alpha,
    attraction,
    repulsion,
    slope,
    core,
    close,
    rounding,
    POWER: tl.constexpr,
    GRADIENT: tl.constexpr,
    ROWS: tl.constexpr,
    OTHERS: tl.constexpr,
    DEPTH: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Program (block, part): the energies of a block of rows with a part of all points, and their gradient on these
    rows, which no other program writes."""
    block, part = tl.program_id(0), tl.program_id(1)
    program = block * tl.num_programs(1) + part
    rows = first + block * ROWS + tl.arange(0, ROWS)
    row_in = rows < last
    x = points + rows.to(tl.int64)[:, None] * dimensions
    row_labels = tl.load(labels + rows, mask=row_in, other=0)
    row_squares = tl.load(squares + rows, mask=row_in, other=0.0)
    largest = tl.load(limit)

    owned = part.to(tl.int64) * (last - first) + rows.to(tl.int64) - first
    to = gradients + owned[:, None] * dimensions
    scratch += program.to(tl.int64) * ROWS * OTHERS
    energy = tl.zeros((ROWS,), tl.float64)
    pulled = tl.zeros((ROWS,), tl.float32)

    end = tl.minimum((part + 1) * part_size, count)
    for start in range(part * part_size, end, OTHERS):
        others = start + tl.arange(0, OTHERS)
        other_in = others < end
        same = row_labels[:, None] == tl.load(labels + others, mask=other_in, other=0)[None, :]
        squared = row_squares[:, None] + tl.load(squares + others, mask=other_in, other=0.0)[None, :]
        squared -= 2 * products(x, columns, row_in, others, stride, dimensions, ROWS, OTHERS, DEPTH)
        margin = rounding * largest
        reach = tl.where(same, squared >= near - margin, squared < far + margin)
        reach = reach & row_in[:, None] & other_in[None, :]
        if tl.max(reach.to(tl.int32)) > 0:
            listed = reach & (squared <= close * largest)
            crowded = tl.max(listed.to(tl.int32)) > 0
            if crowded:
                exact = tl.where(listed, 0.0, squared)  # in the registers of the products: its loads are few and packed
                for at in range(dimensions):
                    apart = _apart(columns, at, tl.minimum(rows, last - 1), others, stride)
                    exact += apart * apart
                squared = tl.where(listed, exact, squared)
            excess, rate = _psi(
                squared, same, near, far, radius, alpha, attraction, repulsion, slope, core, POWER=POWER
            )
            active = reach & tl.where(same, squared >= near, squared < far)
            energy += tl.sum(tl.where(active, excess, 0.0), 1).to(tl.float64)
            if GRADIENT:
                rate = tl.where(active, 2 * rate, 0.0)
                if crowded:
                    force = tl.where(listed, rate, 0.0)
                    rate = tl.where(listed, 0.0, rate)
                    for at in range(dimensions):
                        apart = _apart(columns, at, tl.minimum(rows, last - 1), others, stride)
                        sums = tl.load(to + at, mask=row_in[:, None], other=0.0)
                        tl.debug_barrier()  # several threads hold a row: all have read it before one writes
                        tl.store(to + at, sums + tl.sum(force * apart, 1)[:, None], mask=row_in[:, None])
                pulled += tl.sum(rate, 1)
                add_products(to, -rate, scratch, points, start, end, row_in, dimensions, ROWS, OTHERS, DEPTH, WIDTH)

    tl.store(energies + program * ROWS + tl.arange(0, ROWS), energy)
    if GRADIENT:
        for begin in range(0, dimensions, WIDTH):
            at = begin + tl.arange(0, WIDTH)[None, :]
            inside = row_in[:, None] & (at < dimensions)
            point = tl.load(x + at, mask=inside, other=0.0)
            tl.store(to + at, tl.load(to + at, mask=inside, other=0.0) + pulled[:, None] * point, mask=inside)


@triton.jit
def _apart(columns, at, rows, others, stride):
    """x_i - y_j in dimension `at`, (ROWS, OTHERS), of neighbours in memory; past the last point anything."""
    place = columns + tl.cast(at, tl.int64) * stride
    return tl.load(place + rows)[:, None] - tl.load(place + others)[None, :]


@triton.jit
def _psi(squared, same, near, far, radius, alpha, attraction, repulsion, slope, core, POWER: tl.constexpr):
    """psi less its constant, and psi'(d)/d, as `methods.potentials` defines them, where a pair exerts a force."""
    squared = tl.maximum(squared, 0.0)
    distance = tl.sqrt(squared)
    over = 1 / tl.where(distance > 0, distance, 1.0)
    if POWER:
        clamped = tl.where(same, tl.maximum(squared, near), tl.maximum(tl.minimum(squared, far), core * core))
        size = tl.exp2(-0.5 * alpha * tl.log2(clamped))
        depth = tl.maximum(core - tl.minimum(distance, radius), 0.0)
        excess = tl.where(same, -size - attraction, size + slope * depth - repulsion)
        steeper = tl.where(distance < core, tl.where(distance > 0, core * over, 0.0), 1.0)
        rate = alpha * size / clamped * tl.where(same, 1.0, -steeper)
    else:
        overlap = tl.maximum(radius - distance, 0.0)
        excess = tl.where(same, squared - near, overlap * overlap)
        rate = tl.where(same, 2.0, tl.where(distance > 0, -2 * overlap * over, 0.0))
    return excess, rate
