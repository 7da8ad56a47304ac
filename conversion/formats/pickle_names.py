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
    "uint16",
    "uint32",
    "uint64",
    "complex32",
    "complex64",
    "complex128",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
)
_DTYPES = {f"torch.{dtype}" for dtype in (*STORAGES.values(), "float8_e4m3fn", "float8_e5m2", *_OTHER_DTYPES)}
_CONTAINERS = {"collections.OrderedDict", "torch.Size", "builtins.set", "builtins.bytes", "_codecs.encode"}

TENSORS = frozenset(
    {
        *_DTYPES,
        *_CONTAINERS,
        "torch._utils._rebuild_parameter",
        "torch._utils._rebuild_tensor_v2",
        "torch._utils._rebuild_tensor_v3",
        "torch.storage.UntypedStorage",
        *(f"torch.{name}" for name in STORAGES),
    }
)

_INDEX_CLASSES = (
    "BytesStorageMetadata",
    "ChunkStorageMetadata",
    "Metadata",
    "MetadataIndex",
    "StorageMeta",
    "TensorProperties",
    "TensorStorageMetadata",
    "_MEM_FORMAT_ENCODING",
)
# Megatron keeps beside the index which rank wrote what, for its next save.
_PLAN_CLASSES = ("BytesIOWriteData", "SavePlan", "TensorWriteData", "WriteItem", "WriteItemType")
_OLDER_INDEX = "torch.distributed._shard.sharded_tensor.metadata"  # of torch before 2.3
INDEX = frozenset(
    {
        *_DTYPES,
        *_CONTAINERS,
        *(f"torch.distributed.checkpoint.metadata.{name}" for name in _INDEX_CLASSES),
        *(f"torch.distributed.checkpoint.filesystem.{name}" for name in ("_StorageInfo", "_StoragePrefix")),
        *(f"torch.distributed.checkpoint.planner.{name}" for name in _PLAN_CLASSES),
        *(f"megatron.core.dist_checkpointing.strategies.torch.{name}" for name in ("MCoreMetadata", "MCoreSavePlan")),
        f"{_OLDER_INDEX}.TensorProperties",
        f"{_OLDER_INDEX}.MEM_FORMAT_ENCODING",
        "torch.serialization._get_layout",
        "pathlib.PosixPath",
        "pathlib._local.PosixPath",
    }
)

_ARRAYS = (
    *(f"{module}.{name}" for module in ("numpy.core.multiarray", "numpy._core.multiarray") for name in ("_reconstruct", "scalar")),
    "numpy.dtype",
    "numpy.dtypes.UInt32DType",
    "numpy.ndarray",
)
_PLAIN = (
    "argparse.Namespace",
    "builtins.bytearray",
    "builtins.complex",
    "builtins.frozenset",
    "collections.Counter",
    "collections.defaultdict",
    "collections.deque",
    "datetime.timedelta",
    "io.BytesIO",
    "pathlib.PosixPath",
    "pathlib.PurePosixPath",
    "pathlib._local.PosixPath",
    "signal.Signals",
    "types.SimpleNamespace",
)
_TORCH_STATE = (
    "torch._C.Generator",
    "torch._tensor._rebuild_from_type_v2",
    "torch._utils._rebuild_device_tensor_from_numpy",
    "torch._utils._rebuild_parameter_with_state",
    "torch._utils._rebuild_tensor",
    "torch.Tensor",
    "torch.device",
    "torch.nn.parameter.Parameter",
    "torch.serialization._get_layout",
    "torch.storage._load_from_bytes",  # `inert_pickle` looks into what it would load
    "torch.torch_version.TorchVersion",
)
_MEGATRON_STATE = (
    *(f"megatron.core.rerun_state_machine.{name}" for name in ("Call", "Caller", "RerunDiagnostic", "RerunMode", "RerunState")),
    "megatron.core.optimizer.OptimizerConfig",
    "megatron.core.optimizer.optimizer_config.OptimizerConfig",
    "megatron.core.extensions.transformer_engine.TEDelayedScaling",
)
_FP8_RECIPES = (
    "DelayedScaling",
    "Float8BlockScaling",
    "Float8CurrentScaling",
    "Format",
    "MMParams",
    "MXFP8BlockScaling",
    "NVFP4BlockScaling",
    "QParams",
    "_FormatHelper",
)
_SETTINGS = (  # NeMo 1 kept its configuration beside the weights
    "omegaconf.base.ContainerMetadata",
    "omegaconf.base.Metadata",
    "omegaconf.dictconfig.DictConfig",
    "omegaconf.listconfig.ListConfig",
    *(f"omegaconf.nodes.{kind}Node" for kind in ("Any", "Boolean", "Float", "Integer", "String")),
    "typing.Any",
)
STATE = frozenset(
    {
        *TENSORS,
        *_ARRAYS,
        *_PLAIN,
        *_TORCH_STATE,
        *_MEGATRON_STATE,
        *_SETTINGS,
        *(f"transformer_engine.common.recipe.{name}" for name in _FP8_RECIPES),
    }
)
# What Lightning's trainer keeps beside the weights: containers of settings and states of its loops.
LIGHTNING = frozenset(
    {
        *STATE,
        *(f"{package}.utilities.parsing.AttributeDict" for package in ("pytorch_lightning", "lightning.pytorch")),
        *(f"{package}.utilities.data.AttributeDict" for package in ("lightning_fabric", "lightning.fabric")),
        *(f"{package}.callbacks.model_checkpoint.ModelCheckpoint" for package in ("pytorch_lightning", "lightning.pytorch")),
        *(f"{package}.callbacks.early_stopping.EarlyStopping" for package in ("pytorch_lightning", "lightning.pytorch")),
    }
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
