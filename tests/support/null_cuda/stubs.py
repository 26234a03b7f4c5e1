"""The entry points of CUDA's libraries that runtime.c and driver.c leave out: functions that do nothing and succeed."""

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

CUDA = re.compile(r"(__)?(cuda|cublas|cusparse|cusolver|cufft)\w+")
PRODUCT = re.compile(
    r"gemm|matmul$|trsm|getr|geqrf|gemv|[sdcz]dot|dot|spmm|spmv|syevd|syevj|potr|gesvd|ormqr|xsyev|xgeev", re.IGNORECASE
)
"""Of cuBLAS, cuSOLVER and cuSPARSE: counted as a product."""
NO_PRODUCT = re.compile(r"buffer|create|destroy|desc", re.IGNORECASE)


def undefined_symbols(libraries: Iterable[Path]) -> set[str]:
    """CUDA's functions that shared libraries expect from others."""
    listing = subprocess.run(
        ["nm", "--dynamic", "--undefined-only", "--without-symbol-versions", *map(str, libraries)],
        capture_output=True,
        text=True,
        check=True,
    )
    names = {line.split()[-1] for line in listing.stdout.splitlines() if " U " in line}
    return {name for name in names if CUDA.fullmatch(name)}


def prototypes(headers: Iterable[Path]) -> dict[str, list[str]]:
    """The parameters of each function of cuSOLVER and cuSPARSE, by its name."""
    text = "".join(header.read_text(errors="replace") for header in headers if header.exists())
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
    declarations = re.finditer(r"\b(cu(?:solver|sparse)\w+)\s*\(([^;{}]*?)\)\s*;", text)
    return {match[1]: match[2].split(",") for match in declarations}


def stub(name: str, parameters: list[str] | None) -> str:
    """A function that succeeds: makes a handle, gives a name, needs no buffer, counts a product, or does nothing."""
    if PRODUCT.search(name) and not NO_PRODUCT.search(name):
        counted = "__sync_fetch_and_add(&null_counts.products, 1); __sync_fetch_and_add(&null_counts.launches, 1);"
        return f"int {name}() {{ {counted} return 0; }}"
    if "Create" in name:
        return f"int {name}(void **handle) {{ static char pool[4096]; *handle = pool; return 0; }}"
    if re.search(r"GetErrorString|GetStatusString|ErrorName", name):
        return f'const char *{name}() {{ return "an error of the null device"; }}'
    if parameters is None or "buffersize" not in name.lower():
        return f"int {name}() {{ return 0; }}"
    sizes = [
        f"*({kind[1] or kind[2]} *)p{i} = 0;"
        for i, parameter in enumerate(parameters)
        if (kind := re.search(r"\b(int)\s*\*\s*\w*(?:lwork|size|bytes)|\b(size_t)\s*\*", parameter, re.IGNORECASE))
    ]
    taken = ", ".join(f"long p{i}" for i in range(len(parameters)))
    return f"int {name}({taken}) {{ {' '.join(sizes)} return 0; }}"


def runtime_stubs(source: str, libraries: Iterable[Path], headers: Iterable[Path]) -> str:
    """C code of what `libraries` need and `source` does not define."""
    defined = set(re.findall(r"\b((?:__)?(?:cuda|cublas)\w+)\(", source))
    known = prototypes(headers)
    names = sorted(undefined_symbols(libraries) - defined)
    counts = "#include <stddef.h>\nextern struct { long launches, products; } null_counts;"
    return "\n".join([counts, *(stub(name, known.get(name)) for name in names)]) + "\n"


def driver_stubs(source: str, header: Path) -> str:
    """C code of what the driver's header declares and `source` does not define."""
    text = header.read_text()
    names = set(re.findall(r"CUresult\s+CUDAAPI\s+(cu[A-Z]\w+)\s*\(", text))
    names |= set(re.findall(r"\b(cu[A-Z]\w+_v\d(?:_ptsz|_ptds)?)\b", text))
    defined = set(re.findall(r"^int (cu[A-Z]\w+)\(", source, re.MULTILINE))
    return "".join(f"int {name}() {{ return 0; }}\n" for name in sorted(names - defined))
