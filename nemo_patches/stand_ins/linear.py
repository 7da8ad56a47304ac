"""TransformerEngine's linear layers, with a norm before them or without, spread over tensor-parallel ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from nemo_patches.fake_devices.fusion import one_kernel
from nemo_patches.stand_ins.base import ANY, ExtraState, require_defaults, set_attributes
from nemo_patches.stand_ins.norms import layer_norm, rms_norm


@one_kernel
def accumulate_weight_gradient(inputs: Tensor, gradient: Tensor, main_grad: Tensor) -> None:
    """Add the gradient of a linear layer's weight to what has been accumulated, in the precision of that.

    Args:
        inputs: (..., inputs)
        gradient: (..., outputs), of the output.
        main_grad: (outputs, inputs)
    """
    main_grad.add_(gradient.flatten(0, -2).T.to(main_grad.dtype) @ inputs.flatten(0, -2).to(main_grad.dtype))


class AccumulatingLinear(torch.autograd.Function):
    """x @ weight.T, whose backward pass adds to `weight.main_grad` and tells Megatron so."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """The product, (..., num_outputs) of x (..., num_inputs) and weight (num_outputs, num_inputs)."""
        ctx.save_for_backward(x, weight)
        ctx.parameter = weight  # what is saved loses the attributes
        return F.linear(x, weight.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:  # type: ignore[override]
        """Of the input, in the shape of it; the weight's are zeros that keep autograd's hooks going."""
        x, weight = ctx.saved_tensors
        dummy = None
        if weight.requires_grad:
            accumulate_weight_gradient(x, gradient, ctx.parameter.main_grad)
            ctx.parameter.grad_added_to_main_grad = True
            dummy = torch.zeros_like(weight)
        return gradient @ weight.to(gradient.dtype), dummy


_NO_OVERLAP = dict.fromkeys(("ub_overlap_ag", "ub_overlap_rs", "ub_overlap_rs_dgrad", "ub_bulk_dgrad", "ub_bulk_wgrad"), False)
_TAKEN = _NO_OVERLAP | {
    "ub_name": ANY,
    "parameters_split": None,
    "delay_wgrad_compute": False,
    "symmetric_ar_type": None,
    "save_original_input": ANY,
    "name": ANY,
}


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
        device: Any = "cuda",
        **others: Any,
    ) -> None:
        super().__init__()
        require_defaults("TransformerEngine's Linear", others, _TAKEN)
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
            self.bias = torch.empty(0, **options)  # which is not a parameter
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
        before, after = (
            (mappings.gather_from_sequence_parallel_region, mappings.reduce_scatter_to_sequence_parallel_region)
            if self.sequence_parallel
            else (mappings.copy_to_tensor_model_parallel_region, mappings.reduce_from_tensor_model_parallel_region)
        )
        if group is not None and self.parallel_mode == "column":
            x = before(x, group=group)
        if self.fuse_wgrad_accumulation and torch.is_grad_enabled():
            output = AccumulatingLinear.apply(x, self.weight)
        else:
            output = F.linear(x, self.weight.to(x.dtype))
        if group is not None and self.parallel_mode == "row":
            output = after(output, group=group)
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
        zero_centered_gamma: bool = False,
        return_layernorm_output: bool = False,
        return_layernorm_output_gathered: bool = False,
        **arguments: Any,
    ) -> None:
        if normalization not in ("LayerNorm", "RMSNorm"):
            raise AssertionError("Unsupported normalization type!")
        if return_layernorm_output or return_layernorm_output_gathered:
            raise NotImplementedError("the stand-in for TransformerEngine gives no output of the norm alone")
        self.__dict__.update(eps=eps, normalization=normalization, zero_centered_gamma=zero_centered_gamma)
        super().__init__(in_features, out_features, **arguments)
        for parameter in [self.layer_norm_weight, *([] if self.layer_norm_bias is None else [self.layer_norm_bias])]:
            parameter.sequence_parallel = self.sequence_parallel  # type: ignore[attr-defined]

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
