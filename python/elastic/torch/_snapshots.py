"""The state of a training in memory that outlives its processes."""

from __future__ import annotations

import ctypes
import functools
import io
import pickle
import random
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from elastic.worker import snapshot

_KINDS = {
    torch.float16: snapshot.FLOAT16,
    torch.bfloat16: snapshot.BFLOAT16,
    torch.float32: snapshot.FLOAT32,
    torch.float64: snapshot.FLOAT64,
    torch.complex64: snapshot.FLOAT32,
    torch.complex128: snapshot.FLOAT64,
}


class Snapshots:
    """Keeps the state of this rank in memory that outlives its process.

        snapshots = Snapshots(model=model, optimizer=optimizer, scheduler=scheduler)
        step = load_my_checkpoint()  # 0: there is none
        step = snapshots.restore(newer_than=step) or step
        while step < steps:
            train_one_step()
            step += 1
            snapshots.save(step)

    Each argument has ``state_dict()`` and ``load_state_dict()``, or is a ``torch.Generator``. The
    state of the random generators of torch, numpy and Python is kept as well. Every rank saves
    after the same steps. Under another launcher nothing is saved, and ``restore()`` returns None.
    It is no checkpoint: it ends with the job. ``with Snapshots(...) as snapshots:`` is the same.

    ``replicated``: the arguments have the same state on every rank, as those of a plain DDP model,
    so a round of any size continues from the state of any rank. Unless every rank gets what it
    saved itself, the random generators then stay as the script has seeded them.
    """

    def __init__(self, *, replicated: bool = False, **stateful: Any) -> None:
        for name, one in stateful.items():
            if not _has_state(one):
                raise TypeError(
                    f"{name} is a {type(one).__name__}, which has no state_dict() and "
                    "load_state_dict(): leave it out, or pass an object that has them"
                )
        self._stateful = stateful
        self._replicated = replicated

    def __enter__(self) -> Snapshots:
        return self

    def __exit__(self, *exception: object) -> None:
        """Holds nothing to release: the snapshots are for the next process of this rank."""

    def save(self, step: int) -> bool:
        """Copies the state after ``step`` steps; False if it was not kept, for a reason that is
        logged once.

        The state must not change meanwhile. Raises ``TypeError`` for a tensor that cannot be
        copied, such as a sparse one.
        """
        state = {
            "stateful": {name: _state_of(one) for name, one in self._stateful.items()},
            "generators": _generators(),
        }
        writer = _Writer()
        writer.dump(state)
        parts = [(writer.structure(), snapshot.BYTES), *writer.parts]
        return snapshot.save_parts(step, parts, self._replicated)

    def restore(self, newer_than: int = -1) -> int | None:
        """Loads the state from which all ranks of this round continue, and returns its step.

        None if there is none: in the first round, with another world size or after the loss of a
        node without copies unless ``replicated``; or none after more than ``newer_than`` steps.
        Call it before the first ``save()``, on every rank.
        """
        found = snapshot.restore_parts()
        if found is None or found[0] <= newer_than:
            return None
        step, (structure, *parts), is_own = found
        if not is_own and not self._replicated:
            raise ValueError(
                "the snapshot is of another rank, which saved it with replicated=True: pass that "
                "to the Snapshots of every rank or of none"
            )
        reader = _Reader(structure, parts)
        reader.meshes = self._meshes
        state = reader.load()
        missing = self._stateful.keys() ^ state["stateful"].keys()
        if missing:
            raise ValueError(
                f"the snapshot and this object differ in {', '.join(sorted(missing))}: pass the "
                "same names in every round"
            )
        for name, one in self._stateful.items():
            _load(one, state["stateful"][name])
        if is_own:
            _set_generators(state["generators"])
        return step

    def _meshes(self) -> dict[str, Any]:
        """The device meshes on which the tensors of these objects are distributed."""
        finder = _Meshes(io.BytesIO())
        finder.dump([_state_of(one) for one in self._stateful.values()])
        return finder.found


def _has_state(one: Any) -> bool:
    if isinstance(one, torch.Generator):
        return True
    return callable(getattr(one, "state_dict", None)) and callable(
        getattr(one, "load_state_dict", None)
    )


def _state_of(one: Any) -> Any:
    return one.get_state() if isinstance(one, torch.Generator) else one.state_dict()


def _load(one: Any, state: Any) -> None:
    if isinstance(one, torch.Generator):
        one.set_state(state)
    else:
        one.load_state_dict(state)


def _generators() -> dict[str, Any]:
    found: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if "numpy" in sys.modules:
        found["numpy"] = sys.modules["numpy"].random.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found["cuda"] = torch.cuda.get_rng_state_all()
    return found


def _set_generators(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    if "numpy" in state:
        import numpy

        numpy.random.set_state(state["numpy"])
    if "cuda" in state:
        for device, one in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(one.cpu(), device)


class _Writer(pickle.Pickler):
    """Pickles a state without its tensors. They become parts, each once even if it occurs often."""

    def __init__(self) -> None:
        self._bytes = io.BytesIO()
        super().__init__(self._bytes, protocol=pickle.HIGHEST_PROTOCOL)
        self.parts: list[snapshot.Part] = []
        self._kept: list[torch.Tensor] = []  # their memory is used until the save
        self._known: dict[Any, int] = {}

    def structure(self) -> bytes:
        return self._bytes.getvalue()

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, torch.Tensor):
            return None
        if hasattr(obj, "to_local"):
            return self._distributed(obj)
        return self._plain(obj)

    def _distributed(self, tensor: Any) -> Any:
        """A DTensor: this rank's part of it, which only the same rank reads again."""
        whole = (tuple(tensor.shape), tensor.stride())
        return self._plain(tensor.to_local()), _key_of(tensor.device_mesh), tensor.placements, whole

    def _plain(self, obj: torch.Tensor) -> Any:
        _check(obj)
        tensor = obj.detach()
        key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device)
        index = self._known.get(key) if tensor.numel() else None
        if index is None:
            index = self._known[key] = len(self.parts)
            self.parts.append(self._part_of(tensor, _KINDS.get(tensor.dtype, snapshot.BYTES)))
            self._kept.append(tensor)  # its address stays its own
        return index, tensor.dtype, tuple(tensor.shape), tensor.device.type

    def _part_of(self, tensor: torch.Tensor, kind: int) -> snapshot.Part:
        size = tensor.numel() * tensor.element_size()
        if _is_on_cuda(tensor):
            _pinned_files()
        if not _is_on_host(tensor):  # from the device to the snapshot, without memory between
            return functools.partial(_copy_to, tensor), kind, size
        plain = tensor.resolve_conj().resolve_neg().contiguous()
        self._kept.append(plain)
        return (ctypes.c_char * size).from_address(plain.data_ptr()) if size else b"", kind


def _is_on_host(tensor: torch.Tensor) -> bool:
    return bool(tensor.device.type == "cpu")


def _copy_to(tensor: torch.Tensor, memory: memoryview) -> None:
    target = torch.frombuffer(memory, dtype=torch.uint8).view(tensor.dtype).view(tensor.shape)
    if _is_on_cuda(tensor):
        _pinned_files().pin(target.data_ptr())
    target.copy_(tensor)


def _is_on_cuda(tensor: torch.Tensor) -> bool:
    return bool(tensor.device.type == "cuda")


class _PinnedFiles:
    """Registers the files of snapshots with CUDA, which then copies to them without a buffer.

    A file is registered when it is first written to, and until it is unmapped: CUDA would write to
    the former pages if other memory had its address. If CUDA refuses, its copies take longer.
    """

    def __init__(self) -> None:
        self._files: dict[int, int] = {}
        self._tried: dict[int, bool] = {}  # by address: whether it is registered

    def observe(self, address: int, size: int, is_mapped: int) -> None:
        if is_mapped:
            self._files[address] = size
            return
        self._files.pop(address, None)
        if self._tried.pop(address, False):
            torch.cuda.cudart().cudaHostUnregister(address)

    def pin(self, address: int) -> None:
        for begin, size in self._files.items():
            if begin <= address < begin + size and begin not in self._tried:
                self._tried[begin] = _register(begin, size)


def _register(begin: int, size: int) -> bool:
    if int(torch.cuda.cudart().cudaHostRegister(begin, size, 0)) == 0:
        return True
    # Otherwise torch finds the refusal, and reports it for the next kernel that it launches.
    with suppress(OSError, AttributeError):
        major = str(torch.version.cuda).partition(".")[0]
        ctypes.CDLL(f"libcudart.so.{major}").cudaGetLastError()
    return False


@functools.cache
def _pinned_files() -> _PinnedFiles:
    files = _PinnedFiles()
    snapshot.observe(files.observe)
    return files


def _check(tensor: torch.Tensor) -> None:
    what = ""
    if tensor.layout is not torch.strided:
        what = "a sparse tensor"
    elif tensor.is_quantized:
        what = "a quantised tensor"
    elif tensor.device.type == "meta":
        what = "a tensor on the meta device"
    if what:
        raise TypeError(
            f"a snapshot cannot hold {what} (shape {tuple(tensor.shape)}): leave the object out "
            "that has it, or convert it in an object of your own with state_dict()"
        )


def _key_of(mesh: Any) -> Any:
    return mesh.device_type, mesh.mesh.tolist(), mesh.mesh_dim_names


class _Meshes(pickle.Pickler):
    """Finds the device meshes in a state; what it writes is not read."""

    def __init__(self, out: io.BytesIO) -> None:
        super().__init__(out)
        self.found: dict[str, Any] = {}

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, torch.Tensor):
            return None
        if hasattr(obj, "to_local"):
            self.found[repr(_key_of(obj.device_mesh))] = obj.device_mesh
        return 0


class _Reader(pickle.Unpickler):
    """Reads what a ``_Writer`` has written. The tensors have memory of their own."""

    def __init__(self, structure: memoryview, parts: list[memoryview]) -> None:
        super().__init__(io.BytesIO(structure))
        self._parts = parts
        self._tensors: dict[int, torch.Tensor] = {}
        self.meshes: Callable[[], dict[str, Any]] = dict  # is called for the first DTensor
        self._known_meshes: dict[str, Any] | None = None

    def persistent_load(self, pid: Any) -> torch.Tensor:
        return self._plain(*pid) if isinstance(pid[0], int) else self._distributed(*pid)

    def _distributed(self, local: Any, key: Any, placements: Any, whole: Any) -> torch.Tensor:
        from torch.distributed.tensor import DTensor

        if self._known_meshes is None:
            self._known_meshes = self.meshes()
        mesh = self._known_meshes.get(repr(key))
        if mesh is None:
            raise ValueError(
                f"no tensor of these objects is distributed on the device mesh {key} of the "
                "snapshot: build them in the same way in every round"
            )
        shape, stride = torch.Size(whole[0]), whole[1]
        return DTensor.from_local(
            self._plain(*local), mesh, placements, run_check=False, shape=shape, stride=stride
        )

    def _plain(self, index: int, dtype: Any, shape: Any, device: str) -> torch.Tensor:
        if index not in self._tensors:
            part = bytearray(self._parts[index])
            if part:
                tensor = torch.frombuffer(part, dtype=torch.uint8).view(dtype).reshape(shape)
            else:
                tensor = torch.empty(shape, dtype=dtype)
            self._tensors[index] = tensor if device == "cpu" else tensor.to(device)
        return self._tensors[index]
