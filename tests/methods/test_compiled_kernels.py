"""The Triton kernels compiled for GPUs that are not there: registers, spills, shared memory, their loops."""

import importlib.util
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton")
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
pytestmark = pytest.mark.skipif(not (TOOLS / "nvdisasm").exists(), reason="this triton brings no disassembler")
FLOATS = (
    *("near", "far", "radius", "alpha", "attraction", "repulsion", "slope", "core", "close", "rounding"),
    *("positive_slope", "negative_slope"),
)
LENGTHS = ("count", "other_count", "dimensions", "first", "last", "part_size", "stride")
OF_SIXTEEN = ("dimensions", "part_size", "stride")
"""What Triton finds to be a multiple of 16, as all addresses are, when the embeddings have 512 dimensions."""

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "pairs": ("energy._pairs", {"POWER": True, "GRADIENT": True}),
    "pairs, hinge": ("energy._pairs", {"POWER": False, "GRADIENT": True}),
    "pairs, no gradient": ("energy._pairs", {"POWER": True, "GRADIENT": False}),
    "sums": ("log_sums._sums", {"OWN_LABELS": 1, "LABELS": 1}),
    "weighted": ("log_sums._add_weighted", {"OWN_LABELS": 1, "LABELS": 1, "ANCHORS": False}),
}
SPILLED = {"pairs": 1600, "pairs, hinge": 1600, "pairs, no gradient": 400, "sums": 64, "weighted": 320}
"""The most bytes that a thread may keep in memory, outside the loops of products."""


@dataclass(frozen=True)
class Compiled:
    """Of a kernel: registers and bytes of the stack of a thread, bytes of shared memory of a program, its machine code
    and PTX."""

    registers: int
    stack: int
    shared: int
    code: list[str]
    ptx: str


def compiled(name: str, capability: int, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Compiled:
    """Compile a variant with its own tiles for a compute capability, 90 or 80."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    from triton.backends.compiler import GPUTarget  # type: ignore[import-not-found,unused-ignore]
    from triton.compiler import ASTSource, compile

    from methods.kernels.tiles import TILE

    path, constants = VARIANTS[name]
    module, function = path.split(".")
    kernel = vars(importlib.import_module(f"methods.kernels.{module}"))[function]
    tile = TILE.options()
    constants = constants | {key: value for key, value in tile.items() if key in kernel.arg_names}
    kinds = {"labels": "*i64", "own_labels": "*i64", "other_labels": "*i64", "energies": "*fp64"}
    kinds |= dict.fromkeys(LENGTHS, "i32") | dict.fromkeys(FLOATS, "fp32") | dict.fromkeys(constants, "constexpr")
    kinds = {key: kinds.get(key, "*fp32") for key in kernel.arg_names}
    whole = [at for at, key in enumerate(kernel.arg_names) if kinds[key].startswith("*") or key in OF_SIXTEEN]
    source = ASTSource(kernel, kinds, constants, {(at,): [["tt.divisibility", 16]] for at in whole})
    settings = {key: value for key, value in tile.items() if key not in constants} | options
    made = compile(source, target=GPUTarget("cuda", capability, 32), options=settings)
    file = folder / "kernel.cubin"
    file.write_bytes(made.asm["cubin"])
    usage = output("cuobjdump", "--dump-resource-usage", str(file))
    registers, stack = (int(re.findall(rf"{key}:(\d+)", usage)[-1]) for key in ("REG", "STACK"))
    code = output("nvdisasm", str(file)).splitlines()
    return Compiled(registers, stack, made.metadata.shared, code, made.asm["ptx"])


def output(tool: str, *words: str) -> str:
    return subprocess.run([TOOLS / tool, *words], capture_output=True, text=True, check=True).stdout


def innermost_loops(code: list[str]) -> list[list[str]]:
    """The instructions between a label and a branch back to it that hold no other such loop."""
    labels = {found[1]: at for at, line in enumerate(code) if (found := re.match(r"\s*(\.L_x_\d+):", line))}
    branches = [(found[1], at) for at, line in enumerate(code) if (found := re.search(r"BRA.*`\((\.L_x_\d+)\)", line))]
    loops = [(labels[label], at) for label, at in branches if labels.get(label, at) < at]
    inner = [(a, b) for a, b in loops if not any((a, b) != (c, d) and a <= c and d <= b for c, d in loops)]
    return [code[a:b] for a, b in inner]


def words(code: list[str], instruction: str) -> int:
    """The numbers of 4 bytes that a thread moves by `instruction`."""
    widths = re.findall(rf"\b{instruction}\b((?:\.\w+)*)", "\n".join(code))
    return sum(4 if ".128" in width else 2 if ".64" in width else 1 for width in widths)


def faults(name: str, made: Compiled) -> list[str]:
    """What a kernel should not be."""
    found = []
    if made.registers > 255 or made.shared > 48 * 1024:
        found.append(f"{made.registers} registers and {made.shared} bytes of shared memory")
    if made.stack > SPILLED[name]:
        found.append(f"a thread spills {made.stack} bytes, and may {SPILLED[name]}")
    products = [loop for loop in innermost_loops(made.code) if words(loop, "FFMA") >= 512]
    if len(products) != (2 if "gradient" not in name and name != "sums" else 1):
        found.append(f"{len(products)} loops of products")
    for loop in products:
        if (stored := words(loop, "STL")) or words(loop, "LDL") > 8:
            found.append(f"in a loop of products {stored} numbers are spilled and {words(loop, 'LDL')} read again")
        if "LDGSTS.E.BYPASS.128" not in "\n".join(loop):
            found.append("a loop of products loads by single numbers")
    apart = [loop for loop in innermost_loops(made.code) if words(loop, "FADD") >= 64]  # of points that are close
    found += [f"{loaded} are loaded for 64 differences" for loop in apart if (loaded := words(loop, "LDG")) > 24]
    return found


@pytest.mark.parametrize("capability", [90, pytest.param(80, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in ("pairs", "pairs, hinge"))) for name in VARIANTS]
)
def test_what_kernels_are_compiled_to(
    name: str, capability: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products are fused multiplications and additions of float32 numbers in registers, without atomics."""
    made = compiled(name, capability, tmp_path, monkeypatch)
    print(name, capability, made.registers, made.stack, made.shared)
    assert faults(name, made) == []
    assert made.ptx.count("fma.rn.f32") > 500
    for absent in ("atom.", "red.", "mma", "tf32"):
        assert absent not in made.ptx.replace("shared", "")


def test_a_planted_spill_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With half of the registers that it needs."""
    found = " ".join(faults("sums", compiled("sums", 90, tmp_path, monkeypatch, maxnreg=96)))
    assert "a thread spills" in found and "in a loop of products" in found
