"""What makes the forward pass of a model that does not learn fast: its weights in the form in which they are computed with.

A model that acts gets new weights once per update and computes with them for hundreds of small batches; a target network keeps
its weights for hundreds of updates. Autocast, and oneDNN's kernels, bring the weights into another form in every pass. For a
batch of eight that takes as long as the arithmetic, for one of 32 half as long. Here it is done once for each change. What comes
out is the same, bit for bit, but for a single image in float32, whose last convolutions PyTorch would not leave to oneDNN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from headrace.policies.cores import RecurrentCore
from headrace.policies.encoders import ConvEncoder, PixelConv2d
from headrace.policies.packing import KERNELS, Product, has_kernels
from headrace.policies.pixels import channels_last


def prepare_for_acting(model: nn.Module) -> None:
    """Change the layers of a model that will not learn any more. Its `state_dict` keeps its names, and new weights may be copied
    into its parameters at any time. Weights that autocast would convert are bf16 afterwards."""
    in_bf16 = [part for part in model.modules() if getattr(part, "precision", "float32") == "bf16"]
    for part in in_bf16:
        for layer in cast(Any, part).layers_under_autocast():
            for parameter in layer.parameters(recurse=False):
                parameter.data = parameter.data.to(torch.bfloat16)
    if any(parameter.device.type != "cpu" for parameter in model.parameters()) or not has_kernels(bool(in_bf16)):
        return
    for layer in model.modules():
        dtypes = {parameter.dtype for parameter in layer.parameters(recurse=False)}
        kind = _PACKED.get(type(layer))
        if kind is not None and (dtypes == {torch.bfloat16} or kind in _IN_FLOAT32) and _is_plain(layer):
            layer.__class__ = kind
    for encoder in model.modules():
        if isinstance(encoder, ConvEncoder) and isinstance(encoder.convolutions, nn.Sequential):
            _fuse(encoder.convolutions)


def _is_plain(layer: nn.Module) -> bool:
    """Whether it is no convolution, or one that pads with zeros, as many as it says."""
    return not isinstance(layer, nn.Conv2d) or (layer.padding_mode == "zeros" and not isinstance(layer.padding, str))


def _fuse(layers: nn.Sequential) -> None:
    """Let convolutions apply the ReLU that follows them."""
    for i in range(len(layers) - 1):
        if isinstance(layers[i], PackedConv2d) and type(layers[i + 1]) is nn.ReLU:
            cast(PackedConv2d, layers[i]).activation = "relu"
            layers[i + 1] = nn.Identity()


def _packed(layer: nn.Module, name: str, pack: Callable[[Tensor], Tensor]) -> Tensor:
    """The layer's weight `name` as `pack` makes it; made anew only when the weight has changed."""
    weight = getattr(layer, name)
    made: dict[str, tuple[int, Tensor]] = layer.__dict__.setdefault("_made", {})
    version, packed = made.get(name, (-1, weight))
    if version != weight._version:
        packed = pack(weight.detach())
        made[name] = weight._version, packed
    return packed


def _linear(layer: nn.Module, name: str, bias: Tensor | None, x: Tensor) -> Tensor:
    """`torch.nn.functional.linear` with the layer's weight `name`, in bf16."""
    packed = _packed(layer, name, lambda weight: KERNELS._reorder_linear_weight(weight, x.numel() // x.shape[-1]))
    return KERNELS._linear_pointwise(x.to(torch.bfloat16), packed, bias, "none", [], "")


class PackedLinear(nn.Linear):
    """A linear layer in bf16. (In float32 the packed kernel adds in another order than PyTorch's.)"""

    def forward(self, x: Tensor) -> Tensor:
        return _linear(self, "weight", self.bias, x) if x.dim() > 1 else super().forward(x)


class PackedCore(RecurrentCore):
    """A recurrent core in bf16."""

    def _from_inputs(self, x: Tensor) -> Tensor:
        return _linear(self, "weight_ih", self.bias_ih, x)

    def _from_state(self, inputs: Tensor) -> Product:
        return lambda h: _linear(self, "weight_hh", self.bias_hh, h)


class PackedConv2d(nn.Conv2d):
    """A convolution in bf16 or float32."""

    activation = "none"

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4:
            return super().forward(x)
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else self.weight.dtype
        x, factor = self._input(x, dtype)
        how = [self.padding, [stride // factor for stride in self.stride], self.dilation, self.groups]

        def pack(weight: Tensor) -> Tensor:
            weight = self._scaled(weight, factor).to(dtype).contiguous(memory_format=torch.channels_last)
            return cast(Tensor, KERNELS._reorder_convolution_weight(weight, *how, x.shape))

        bias = None if self.bias is None else self.bias.to(dtype)
        return KERNELS._convolution_pointwise(x, _packed(self, "weight", pack), bias, *how, self.activation, [], "")

    def _scaled(self, weight: Tensor, factor: int) -> Tensor:
        return weight

    def _input(self, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, int]:
        return x.to(dtype), 1


class PackedPixelConv2d(PackedConv2d):
    """What a `PixelConv2d` becomes."""

    def _scaled(self, weight: Tensor, factor: int) -> Tensor:
        return PixelConv2d.scaled(weight, factor)

    def _input(self, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, int]:
        factor = PixelConv2d.factor(self, x, dtype)
        return channels_last(x, dtype, factor), factor


_PACKED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: PackedLinear, RecurrentCore: PackedCore, nn.Conv2d: PackedConv2d, PixelConv2d: PackedPixelConv2d,
}  # fmt: skip
_IN_FLOAT32 = (PackedConv2d, PackedPixelConv2d)
