"""A stand-in for a GPU: a device of torch's own kind that computes on the CPU and behaves like CUDA where that matters.

Tensors on `standin` hold a tensor on the CPU. As on CUDA:
- a tensor of the other device is refused, but for a single number;
- work on a stream of its own is not done before another stream, or the host, has waited for it: until then, copies hold
  garbage, on the device and in pinned memory;
- what asks the device for a number, or copies from or to memory that is not pinned, makes the host wait. It is counted.
"""

import contextlib
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

NAME = "standin"
CPU = torch.device("cpu")
GARBAGE = 113

# their results have a size that only the device knows, or are numbers of the host
WAITING = {
    "aten::_local_scalar_dense": "item",
    "aten::nonzero": "nonzero",
    "aten::masked_select": "masked_select",
    "aten::_unique2": "unique",
    "aten::unique_dim": "unique",
    "aten::unique_consecutive": "unique",
    "aten::bincount": "bincount",
    "aten::repeat_interleave.Tensor": "repeat_interleave",
    "aten::equal": "equal",
}


class Traffic:
    """What was asked of the device since `clear`: waits by kind and file, and copies that nobody waits for (their
    number, their bytes), `in` to the device and `out` of it."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.waits: Counter[str] = Counter()
        self.copies: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.kernels = 0

    def wait(self, kind: str) -> None:
        frames = [frame for frame in traceback.extract_stack() if any(part in frame.filename for part in OURS)]
        where = "/".join(Path(frames[-1].filename).parts[-2:]) if frames else "a backward pass"
        self.waits[f"{kind} in {where}"] += 1


OURS = "/orchestrator/", "/methods/"
traffic = Traffic()
pinned_memory: dict[int, Tensor] = {}  # kept, so that no address is used twice


class OnDevice(Tensor):
    """A tensor on the stand-in."""

    held: Tensor
    stream: "Stream | None" = None  # that its memory belongs to, where this is not the computing one

    @staticmethod
    def __new__(cls, held: Tensor) -> "OnDevice":
        made: OnDevice = Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device(NAME, 0),
        )
        made.held = held
        made.stream = backend.current if backend.current is not backend.computing else None
        return made

    def __repr__(self, **how: Any) -> str:  # type: ignore[override]
        return f"{NAME}({self.held})"

    def record_stream(self, stream: Any) -> None:
        self.stream = None

    def tolist(self) -> Any:  # torch refuses it for subclasses
        traffic.wait("tolist")
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return compute(func, args, kwargs or {})


def held(value: Any) -> Any:
    return value.held if isinstance(value, OnDevice) else value


def is_pinned(tensor: Tensor) -> bool:
    return tensor.untyped_storage().data_ptr() in pinned_memory


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """One operation, with tensors or results on the stand-in."""
    name, overload = func._schema.name, func._schema.overload_name
    tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
    if any(value.stream not in (None, backend.current) for value in tensors if isinstance(value, OnDevice)):
        raise RuntimeError(f"{name}: the memory belongs to another stream, which may use it again: record_stream")
    wanted = torch.device(kwargs["device"]).type if kwargs.get("device") is not None else None
    if name in ("aten::_to_copy", "aten::copy_"):
        return copy(func, name, args, kwargs, wanted)
    strangers = [value for value in tensors if not isinstance(value, OnDevice) and value.dim()]
    mixed = strangers and len(strangers) < len(tensors)
    indices = name in (
        "aten::index.Tensor",
        "aten::index",
        "aten::index_put",
        "aten::index_put_",
        "aten::_index_put_impl_",
    )
    if mixed:
        if not indices:
            raise RuntimeError(f"expected all tensors to be on the same device, but found {NAME} and cpu in {name}")
        traffic.wait("copy of indices")
    masks = [value for value in tree_leaves(args[1]) if isinstance(value, Tensor)] if indices else []
    if any(mask.dtype in (torch.bool, torch.uint8) for mask in masks):
        fills = name != "aten::index" and args[2].numel() == 1 and len(masks) == 1  # as torch.where
        if not fills:
            traffic.wait("index by a mask")
    if kind := WAITING.get(name) or WAITING.get(f"{name}.{overload}"):
        traffic.wait(kind)
    traffic.kernels += not func.is_view
    known = {id(value.held): value for value in tensors if isinstance(value, OnDevice)}
    kwargs = {key: held(value) for key, value in kwargs.items()} | ({"device": CPU} if wanted else {})
    kwargs.pop("pin_memory", None)
    found = func(*tree_map(held, args), **kwargs)
    to_host = name == "aten::_local_scalar_dense" or wanted == "cpu"

    def wrapped(value: Any) -> Any:
        if not isinstance(value, Tensor) or to_host:
            return value
        return known[id(value)] if id(value) in known else OnDevice(value)

    return tree_map(wrapped, found)


def copy(func: Any, name: str, args: Any, kwargs: dict[str, Any], wanted: str | None) -> Any:
    """A copy or conversion; between the host and the device it is done later if memory is pinned and nobody waits."""
    if name == "aten::copy_":
        target, source = args[:2]
        unhurried = bool(args[2]) if len(args) > 2 else bool(kwargs.get("non_blocking"))
        inward = isinstance(target, OnDevice)
    else:
        target, source, unhurried = None, args[0], bool(kwargs.get("non_blocking"))
        inward = wanted != "cpu" if wanted else isinstance(source, OnDevice)
        kwargs = {key: value for key, value in kwargs.items() if key != "pin_memory"} | (
            {"device": CPU} if wanted else {}
        )
    outward = isinstance(source, OnDevice)
    crosses = inward != outward
    if crosses and not inward and target is None:
        unhurried = False  # into memory that is not pinned
    host = source if inward else target
    later = crosses and unhurried and host is not None and is_pinned(host)
    if target is None:
        result: Any = func(held(source), **kwargs)
    else:
        result = held(target)
    if later:
        traffic.copies["in" if inward else "out"] += 1
        traffic.bytes["in" if inward else "out"] += source.numel() * source.element_size()
        value = held(source) if inward else held(source).clone()  # the host may write to its memory too early
        result.fill_(GARBAGE)
        backend.current_stream().queue.append(lambda: result.copy_(value))
    elif crosses:
        traffic.wait("copy in" if inward else "copy out")
        backend.computing.drain()
        result.copy_(held(source))
    elif target is not None:
        result.copy_(held(source))
    if target is not None:
        return target
    return OnDevice(result) if inward else result


class Stream:
    """Copies in order, done when someone waits for them."""

    def __init__(self, device: Any = None) -> None:
        self.queue: list[Callable[[], Any]] = []

    def drain(self) -> None:
        while self.queue:
            self.queue.pop(0)()

    def wait_stream(self, other: "Stream") -> None:
        other.drain()


class Event:
    """A place in a stream; waiting for one after which nothing was queued makes the device idle."""

    def __init__(self, blocking: bool = False) -> None:
        self.blocking = blocking

    def record(self, stream: Stream) -> None:
        self.stream, self.kernels, self.queued = stream, traffic.kernels, list(stream.queue)

    def synchronize(self) -> None:
        if self.kernels == traffic.kernels:
            traffic.wait("newest event")
        for work in self.queued:
            if work in self.stream.queue:
                self.stream.queue.remove(work)
                work()


Queue = Stream


class Generator(torch.Generator):
    """Its tensors are on the stand-in."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device(NAME, 0)


class Backend(backend_registration._DummyBackendModule):
    """`torch.standin`."""

    Stream, Event = Stream, Event

    def __init__(self) -> None:
        self.computing = Stream()
        self.current = self.computing

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def current_stream(self, device: Any = None) -> Queue:
        return self.current

    @contextlib.contextmanager
    def stream(self, stream: Queue) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before


class Pinning(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Memory that is asked for as pinned counts as such."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func._schema.name == "aten::is_pinned":
            return is_pinned(args[0])
        if not kwargs.pop("pin_memory", None):
            return func(*args, **kwargs)
        made = func(*args, **kwargs)
        pinned_memory[made.untyped_storage().data_ptr()] = made
        return made


backend = Backend()
_library = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def installed() -> Iterator[torch.device]:
    """The device; within the context, memory counts as pinned where that is asked for."""
    if not hasattr(torch, NAME):
        backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=backend)
        _library.fallback(lambda func, *args, **kwargs: compute(func, args, kwargs), "PrivateUse1")  # type: ignore[no-untyped-call]
        # autocast leaves the device's numbers as they are
        _library.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")  # type: ignore[no-untyped-call]
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # `parameter.data = ...` knows no `held`
    traffic.clear()
    try:
        with Pinning():  # type: ignore[no-untyped-call]
            yield torch.device(NAME, 0)
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before)
        backend.computing.queue.clear()
        pinned_memory.clear()
