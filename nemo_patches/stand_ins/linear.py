"""TransformerEngine's linear layers, with a norm before them or without, spread over tensor-parallel ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from nemo_patches.stand_ins.apex_functions import AccumulatingLinear
from nemo_patches.stand_ins.base import ExtraState, set_attributes
from nemo_patches.stand_ins.norms import layer_norm, rms_norm


class Linear(ExtraState):
    """x @ weight.T + bias.

    Column: the outputs are spread, the gradient of the input is summed.  Row: the inputs are spread, the output is summed.
    """

    bias: Any  # a parameter, or an empty tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Any = None,
        tp_size: int = 1,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        rng_tracker_name: str | None = None,
        init_method: Callable[[Tensor], Any] | None = None,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parallel_mode: str | None = None,
        parameters_split: Any = None,
        device: Any = "cuda",
        ub_overlap_ag: bool = False,
        ub_overlap_rs: bool = False,
        ub_overlap_rs_dgrad: bool = False,
        ub_bulk_dgrad: bool = False,
        ub_bulk_wgrad: bool = False,
        ub_name: str | None = None,
        delay_wgrad_compute: bool = False,
        symmetric_ar_type: str | None = None,
        save_original_input: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__()
        overlaps = (ub_overlap_ag, ub_overlap_rs, ub_overlap_rs_dgrad, ub_bulk_dgrad, ub_bulk_wgrad)
        _require_plain(parameters_split, delay_wgrad_compute, symmetric_ar_type, *overlaps)
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        self.tp_size = torch.distributed.get_world_size(tp_group) if tp_group is not None else tp_size
        if tp_group is not None or tp_size == 1:
            self.set_tensor_parallel_group(tp_group)
        self.parallel_mode = parallel_mode
        self.sequence_parallel = self.tp_size > 1 and sequence_parallel
        self.in_features = in_features // self.tp_size if parallel_mode == "row" else in_features
        self.out_features = out_features // self.tp_size if parallel_mode == "column" else out_features
        self.use_bias, self.return_bias = bias, return_bias
        options = {"device": device, "dtype": params_dtype or torch.get_default_dtype()}
        self._make_norm(options)
        self.weight = nn.Parameter(torch.empty(self.out_features, self.in_features, **options))
        if bias:
            self.bias = nn.Parameter(torch.zeros(self.out_features, **options))
        else:
            self.bias = torch.empty(0, **options)  # which is no parameter
        self._draw(init_method, get_rng_state_tracker, rng_tracker_name)
        set_attributes(self.weight, tensor_model_parallel=True, partition_dim=int(parallel_mode == "row"), partition_stride=1)
        if bias and parallel_mode == "row":
            self.bias.sequence_parallel = self.sequence_parallel
        elif bias and parallel_mode == "column":
            set_attributes(self.bias, tensor_model_parallel=True, partition_dim=0, partition_stride=1)

    def _make_norm(self, options: dict[str, Any]) -> None:
        """Parameters that come before the weight."""

    def _draw(self, init_method: Any, tracker: Any, tracker_name: str | None) -> None:
        draw = init_method or (lambda weight: nn.init.normal_(weight, std=0.023))
        if tracker is None:
            draw(self.weight)
            return
        with tracker().fork(*([tracker_name] if tracker_name else [])):
            draw(self.weight)

    def forward(self, x: Tensor, is_first_microbatch: bool | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """(..., num_inputs) -> (..., num_outputs), those of this rank, and the bias where it is left to the caller."""
        from megatron.core.tensor_parallel import mappings

        group = self.tp_group if self.tp_size > 1 else None
        if group is not None and self.parallel_mode == "column":
            if self.sequence_parallel:
                x = mappings.gather_from_sequence_parallel_region(x, group=group)
            else:
                x = mappings.copy_to_tensor_model_parallel_region(x, group=group)
        if self.fuse_wgrad_accumulation and torch.is_grad_enabled():
            output = AccumulatingLinear.apply(x, self.weight)
        else:
            output = F.linear(x, self.weight.to(x.dtype))
        if group is not None and self.parallel_mode == "row":
            if self.sequence_parallel:
                output = mappings.reduce_scatter_to_sequence_parallel_region(output, group=group)
            else:
                output = mappings.reduce_from_tensor_model_parallel_region(output, group=group)
        if self.use_bias and not self.return_bias:
            output = output + self.bias.to(x.dtype)
        return (output, self.bias.to(x.dtype)) if self.return_bias else output


class LayerNormLinear(Linear):
    """A linear layer of a normalised input."""

    eps: float
    normalization: str
    zero_centered_gamma: bool

    def __init__(
        self,
        in_features: int,
        out_features: int,
        eps: float = 1e-5,
        *,
        normalization: str = "LayerNorm",
        return_layernorm_output: bool = False,
        return_layernorm_output_gathered: bool = False,
        zero_centered_gamma: bool = False,
        **arguments: Any,
    ) -> None:
        if normalization not in ("LayerNorm", "RMSNorm"):
            raise AssertionError("Unsupported normalization type!")
        _require_plain(return_layernorm_output, return_layernorm_output_gathered)
        self.__dict__.update(eps=eps, normalization=normalization, zero_centered_gamma=zero_centered_gamma)
        super().__init__(in_features, out_features, **arguments)
        self.layer_norm_weight.sequence_parallel = self.sequence_parallel  # type: ignore[attr-defined]
        if self.layer_norm_bias is not None:
            self.layer_norm_bias.sequence_parallel = self.sequence_parallel  # type: ignore[attr-defined]

    def _make_norm(self, options: dict[str, Any]) -> None:
        self.layer_norm_weight = nn.Parameter(torch.full((self.in_features,), float(not self.zero_centered_gamma), **options))
        has_bias = self.normalization == "LayerNorm"
        self.layer_norm_bias = nn.Parameter(torch.zeros(self.in_features, **options)) if has_bias else None

    def forward(self, x: Tensor, is_first_microbatch: bool | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """(..., num_inputs) -> (..., num_outputs), those of this rank: the norm, then the linear layer."""
        if self.layer_norm_bias is None:
            x = rms_norm(x, self.layer_norm_weight, self.eps, zero_centered_gamma=self.zero_centered_gamma)
        else:
            x = layer_norm(x, self.layer_norm_weight, self.layer_norm_bias, self.eps, zero_centered_gamma=self.zero_centered_gamma)
        return super().forward(x, is_first_microbatch)


def _require_plain(*options: Any) -> None:
    """Refuse what the stand-ins would have to ignore."""
    if any(options):
        raise NotImplementedError("the stand-in for TransformerEngine has neither overlap nor splits")
