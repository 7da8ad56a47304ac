"""Which classes and functions the pickles of a checkpoint may name: data, and nothing that does anything.

Loading a pickle imports and calls what it names, so the lists are closed: what neither torch nor a training framework writes into
that kind of file is refused by its name, whichever package it comes from (numpy and torch have functions that run code, too).
They follow torch's own list for `weights_only`, Megatron's `safe_globals`, and what TransformerEngine keeps of FP8.
"""

from __future__ import annotations

import re
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING  # how `pickle` itself translates the names of its older protocols
from collections.abc import Iterable

STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}

# Torch's numbers that have no storage of their own.
_OTHER_DTYPES = (
    "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu uint16 uint32 uint64 complex32 complex64 complex128"
)


def _names(*lines: str) -> frozenset[str]:
    """Names of modules, one module a line: `module: name name`."""
    pairs = (line.split(": ") for line in lines)
    return frozenset(f"{module}.{name}" for module, names in pairs for name in names.split())


_VALUES = _names(
    f"torch: Size {' '.join(STORAGES.values())} {_OTHER_DTYPES}",
    "collections: OrderedDict",
    "builtins: set bytes",
    "_codecs: encode",
)
TENSORS = _VALUES | _names(
    f"torch: {' '.join(STORAGES)}",
    "torch._utils: _rebuild_parameter _rebuild_tensor_v2 _rebuild_tensor_v3",
    "torch.storage: UntypedStorage",
)
INDEX = _VALUES | _names(
    "torch.distributed.checkpoint.metadata: BytesStorageMetadata ChunkStorageMetadata Metadata MetadataIndex StorageMeta TensorProperties"
    " TensorStorageMetadata _MEM_FORMAT_ENCODING",
    "torch.distributed.checkpoint.filesystem: _StorageInfo _StoragePrefix",
    # Megatron keeps beside the index which rank wrote what, for its next save.
    "torch.distributed.checkpoint.planner: BytesIOWriteData SavePlan TensorWriteData WriteItem WriteItemType",
    "megatron.core.dist_checkpointing.strategies.torch: MCoreMetadata MCoreSavePlan",
    "torch.distributed._shard.sharded_tensor.metadata: TensorProperties MEM_FORMAT_ENCODING",  # of torch before 2.3
    "torch.serialization: _get_layout",
    "pathlib: PosixPath",
    "pathlib._local: PosixPath",
)
STATE = TENSORS | _names(
    *(f"{module}.multiarray: _reconstruct scalar" for module in ("numpy.core", "numpy._core")),
    "numpy: dtype ndarray",
    "numpy.dtypes: UInt32DType",
    "argparse: Namespace",
    "builtins: bytearray complex frozenset",
    "collections: Counter defaultdict deque",
    "datetime: timedelta",
    "io: BytesIO",
    "pathlib: PosixPath PurePosixPath",
    "pathlib._local: PosixPath",
    "signal: Signals",
    "types: SimpleNamespace",
    "torch: Tensor device",
    "torch._C: Generator",
    "torch._tensor: _rebuild_from_type_v2",
    "torch._utils: _rebuild_device_tensor_from_numpy _rebuild_parameter_with_state _rebuild_tensor",
    "torch.nn.parameter: Parameter",
    "torch.serialization: _get_layout",
    "torch.storage: _load_from_bytes",  # `inert_pickle` looks into what it would load
    "torch.torch_version: TorchVersion",
    "megatron.core.rerun_state_machine: Call Caller RerunDiagnostic RerunMode RerunState",
    "megatron.core.optimizer: OptimizerConfig",
    "megatron.core.optimizer.optimizer_config: OptimizerConfig",
    "megatron.core.extensions.transformer_engine: TEDelayedScaling",
    "transformer_engine.common.recipe: DelayedScaling Float8BlockScaling Float8CurrentScaling Format MMParams MXFP8BlockScaling"
    " NVFP4BlockScaling QParams _FormatHelper",
    # NeMo 1 kept its configuration beside the weights.
    "omegaconf.base: ContainerMetadata Metadata",
    "omegaconf.dictconfig: DictConfig",
    "omegaconf.listconfig: ListConfig",
    "omegaconf.nodes: AnyNode BooleanNode FloatNode IntegerNode StringNode",
    "typing: Any",
)
# What Lightning's trainer keeps beside the weights: containers of settings and states of its loops.
LIGHTNING = STATE | _names(
    *(f"{package}.utilities.data: AttributeDict" for package in ("lightning_fabric", "lightning.fabric")),
    *(
        f"{package}.{module}"
        for package in ("pytorch_lightning", "lightning.pytorch")
        for module in (
            "utilities.parsing: AttributeDict",
            "callbacks.model_checkpoint: ModelCheckpoint",
            "callbacks.early_stopping: EarlyStopping",
        )
    ),
)
_ENUMERATION = re.compile(r"megatron\.(?:core|training|legacy)(?:\.[a-z]\w*)*\.enums\.[A-Z]\w*")  # modules of nothing else


def plain_name(module: str, name: str) -> str:
    """Module and name, as Python 3 calls them, of what a pickle names."""
    module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
    return f"{'io' if module == '_io' else module}.{name}"


def unknown_names(names: Iterable[str], known: frozenset[str]) -> list[str]:
    """Those that are not known, sorted.

    Args:
        known: TENSORS, INDEX, STATE or LIGHTNING; enumerations of Megatron are state as well.
    """
    return sorted(name for name in set(names) - known if not (known is STATE and _ENUMERATION.fullmatch(name)))


def refusal(path: object, unknown: Iterable[str]) -> str:
    """Why a file whose pickle names these may not be loaded."""
    return f"{path} asks to run {', '.join(unknown)} when it is loaded, which is not safe; do not load it"
