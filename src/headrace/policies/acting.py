"""What makes the forward pass of a model that does not learn fast: its weights in the form in which they are computed with.

A model that acts gets new weights once per update and computes with them for hundreds of small batches; a target network keeps
its weights for hundreds of updates. Autocast, and oneDNN's kernels, bring the weights into another form in every pass. For a
batch of eight that takes as long as the arithmetic, for one of 32 half as long. Here it is done once for each change. What comes
out is the same, bit for bit, but for a single image in float32, whose last convolutions PyTorch would not leave to oneDNN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional

import headrace._native.layers as native
from headrace.policies.activations import ELU
from headrace.policies.cores import LastStep, RecurrentCore
from headrace.policies.encoders import ConvEncoder, MultiEncoder, PixelConv2d, ResidualBlock, TwoNetworks, VectorEncoder
from headrace.policies.normalizer import RunningMeanStd
from headrace.policies.packing import KERNELS, Product, has_kernels
from headrace.policies.pixels import channels_last
from headrace.policies.policy import Trunk


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
    for part in in_bf16:
        _leave_autocast(part)


def _leave_autocast(part: nn.Module) -> None:
    """Let the layers convert what they compute with, where each is of a class that does or need not. Autocast takes up to a tenth
    of the time of a small batch: it is entered and left, and is asked about every operation."""
    for layer in part.modules():
        if isinstance(layer, PackedConv2d):
            layer.dtype = torch.bfloat16
        elif type(layer) is ConvEncoder and _plain_layers(layer):
            layer.__class__ = NativeConvEncoder
        elif type(layer) is VectorEncoder and layer.in_float32:
            layer.__class__ = NarrowEncoder
    narrow = {layer for encoder in part.modules() if isinstance(encoder, NarrowEncoder) for layer in encoder.modules()}
    others = (layer for layer in part.modules() if layer not in narrow)
    if all(type(layer) in _CONVERTING for layer in others):
        cast(Trunk, part).layers_convert = True


def _is_plain(layer: nn.Module) -> bool:
    """Whether it is no convolution, or one that pads with zeros, as many as it says."""
    return not isinstance(layer, nn.Conv2d) or (layer.padding_mode == "zeros" and not isinstance(layer.padding, str))


def _fuse(layers: nn.Sequential) -> None:
    """Let convolutions apply the ReLU that follows them."""
    for i in range(len(layers) - 1):
        if isinstance(layers[i], PackedConv2d) and type(layers[i + 1]) is nn.ReLU:
            cast(PackedConv2d, layers[i]).activation = "relu"
            layers[i + 1] = nn.Identity()


T = TypeVar("T")
_MADE: WeakKeyDictionary[nn.Module, dict[str, tuple[object, object]]] = WeakKeyDictionary()  # not in layers: they may be copied


def _kept(layer: nn.Module, name: str, key: object, make: Callable[[], T]) -> T:
    """What `make` makes of the layer's weights; made anew only when `key` changes."""
    kept = _MADE.setdefault(layer, {})
    found = kept.get(name)
    if found is None or found[0] != key:
        found = kept[name] = key, make()
    return cast(T, found[1])


_PANEL = 32  # outputs whose weights lie together (native/layers/tile.hpp)


def _natively(x: Tensor) -> bool:
    """Whether the native layers are for this input: they compute with one thread, on a processor for which they are."""
    plain = x.is_cpu and not (torch.compiler.is_compiling() or torch.jit.is_tracing())
    return native.IS_FAST and torch.get_num_threads() == 1 and plain


def _panels(weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, int]:
    """Weights [G, F] in bf16 and biases as the native layers take them, and G."""
    outputs, inputs = weight.shape
    padded = functional.pad(weight.detach(), (0, 0, 0, -outputs % _PANEL)).contiguous().view(torch.int32)
    panels = padded.view(-1, _PANEL, inputs // 2).transpose(1, 2).contiguous()
    biases = torch.zeros(len(padded))
    if bias is not None:
        biases[:outputs] = bias.detach().to(torch.bfloat16)
    return panels, biases, outputs


def _linear(layer: nn.Module, weight: Tensor, bias: Tensor | None, name: str, x: Tensor) -> Tensor:
    """`torch.nn.functional.linear` in bf16, for the layer's weight `name`."""
    width, rows = x.shape[-1], x.numel() // x.shape[-1]
    if width == weight.shape[1] and width % 2 == 0 and _natively(x):

        def make() -> native.Network:
            network = native.Network(width)
            network.linear(*_panels(weight, bias), native.Activation.none)
            return network

        key = weight._version, None if bias is None else bias._version
        network, x = _kept(layer, name + " native", key, make), x.to(torch.bfloat16).contiguous()
        y = x.new_empty(*x.shape[:-1], len(weight))
        network.forward(x.data_ptr(), y.data_ptr(), rows)
        return y

    def pack() -> Tensor:
        return cast(Tensor, KERNELS._reorder_linear_weight(weight.detach(), rows))

    packed = _kept(layer, name, weight._version, pack)
    return KERNELS._linear_pointwise(x.to(torch.bfloat16), packed, bias, "none", [], "")


class PackedLinear(nn.Linear):
    """A linear layer in bf16. (In float32 the packed kernel adds in another order than PyTorch's.)"""

    def forward(self, x: Tensor) -> Tensor:
        return _linear(self, self.weight, self.bias, "weight", x) if x.dim() > 1 else super().forward(x)


class PackedCore(RecurrentCore):
    """A recurrent core in bf16."""

    def _from_inputs(self, x: Tensor) -> Tensor:
        return _linear(self, self.weight_ih, self.bias_ih, "weight_ih", x)

    def _from_one_state(self, h: Tensor) -> Tensor:
        return _linear(self, self.weight_hh, self.bias_hh, "weight_hh", h)

    def _from_state(self, inputs: Tensor) -> Product:
        return self._from_one_state


class PackedConv2d(nn.Conv2d):
    """A convolution in bf16 or float32."""

    activation = "none"
    dtype: torch.dtype | None = None  # that it computes in; None: its weight's

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4:
            return super().forward(x)
        weight, bias = self.weight, self.bias
        key = weight._version, -1 if bias is None else bias._version, x.shape[-2:]
        dtype, factor, arguments = _kept(self, "weight", key, lambda: self._pack(x))
        return KERNELS._convolution_pointwise(self._converted(x, dtype, factor), *arguments)

    def _pack(self, x: Tensor) -> tuple[torch.dtype, int, list[Any]]:
        """What changes only with the weights and the size of the images: the type to compute in, the factor of `PixelConv2d`, and
        the kernel's arguments behind the images."""
        dtype = self.dtype or self.weight.dtype
        factor = self._factor(x, dtype)
        how = [self.padding, [stride // factor for stride in self.stride], self.dilation, self.groups]
        weight = self._scaled(self.weight.detach(), factor).to(dtype).contiguous(memory_format=torch.channels_last)
        packed = KERNELS._reorder_convolution_weight(weight, *how, self._converted(x, dtype, factor).shape)
        bias = None if self.bias is None else self.bias.detach().to(dtype)
        return dtype, factor, [packed, bias, *how, self.activation, [], ""]

    def _factor(self, x: Tensor, dtype: torch.dtype) -> int:
        return 1

    def _scaled(self, weight: Tensor, factor: int) -> Tensor:
        return weight

    def _converted(self, x: Tensor, dtype: torch.dtype, factor: int) -> Tensor:
        return x.to(dtype)


class PackedPixelConv2d(PackedConv2d):
    """What a `PixelConv2d` becomes."""

    def _factor(self, x: Tensor, dtype: torch.dtype) -> int:
        return PixelConv2d.factor(self, x, dtype)

    def _scaled(self, weight: Tensor, factor: int) -> Tensor:
        return PixelConv2d.scaled(weight, factor)

    def _converted(self, x: Tensor, dtype: torch.dtype, factor: int) -> Tensor:
        return channels_last(x, dtype, factor)


class NativeConvEncoder(ConvEncoder):
    """What a `ConvEncoder` becomes whose layers are `_plain_layers`: one native function computes them all. As there, uint8
    [N, C, H, W] -> bf16 [N, out_features]."""

    def forward(self, image: Tensor) -> Tensor:
        network = None
        if image.dtype == torch.uint8 and image.is_contiguous() and image.dim() == 4 and _natively(image):
            parameters = _kept(self, "parameters", None, lambda: list(self.parameters()))
            key = [parameter._version for parameter in parameters], image.shape[1:]
            network = _kept(self, "network", key, lambda: self._native_network(image))
        if network is None:
            return super().forward(image)
        y = torch.empty(len(image), network.out_features, dtype=torch.bfloat16)
        network.forward(image.data_ptr(), y.data_ptr(), len(image))
        return y

    def _native_network(self, image: Tensor) -> native.Network | None:
        """The layers for images of this size. None where the native ones have no loops for it, and where the layers do not fit
        it: PyTorch's then raise their errors."""
        layers = cast(list[tuple[PackedConv2d, str]], _plain_layers(self))
        factor = layers[0][0]._factor(image, torch.bfloat16)
        if image.shape[1] not in range(1, 5) or image.shape[1] != layers[0][0].in_channels or factor not in (1, 4):
            return None
        network = native.Network(*image.shape[1:], factor)
        for layer, name in layers:
            factor = layer._factor(image, torch.bfloat16)
            weight = layer._scaled(layer.weight.detach(), factor).to(torch.bfloat16).permute(0, 2, 3, 1).contiguous()
            _, *kernel, channels = weight.shape
            if kernel[1] * channels % 2:
                return None
            how = *kernel, layer.stride[0] // factor, getattr(native.Activation, name)
            network.convolution(*_panels(weight.flatten(1), layer.bias), *how)
        if self.linear is None:
            return network if network.out_features == self.out_features else None
        if network.out_features != self.linear.in_features:
            return None
        activation = getattr(native.Activation, _ACTIVATIONS[type(self.activation)])
        network.linear(*_panels(self.linear.weight, self.linear.bias), activation)
        return network


_ACTIVATIONS: dict[type[nn.Module], str] = {nn.ReLU: "relu", ELU: "elu"}


def _plain_layers(encoder: ConvEncoder) -> list[tuple[PackedConv2d, str]] | None:
    """The convolutions, each with its activation, if the native layers have them all."""
    found: list[tuple[PackedConv2d, str]] = []
    for layer in encoder.convolutions if isinstance(encoder.convolutions, nn.Sequential) else ():
        if isinstance(layer, PackedConv2d) and isinstance(layer, PackedPixelConv2d) == (not found):
            simple = not any(layer.padding) and set(layer.dilation) == {1} and layer.groups == 1 and len(set(layer.stride)) == 1
            if not simple:
                return None
            found.append((layer, layer.activation))
        elif isinstance(layer, ELU) and found and found[-1][1] == "none":
            found[-1] = found[-1][0], "elu"
        elif not (isinstance(layer, nn.Identity) and found):
            return None
    linear = encoder.linear
    even = linear is None or (isinstance(linear, PackedLinear) and linear.in_features % 2 == 0)
    return found if found and even and (linear is None or type(encoder.activation) in _ACTIVATIONS) else None


class NarrowEncoder(VectorEncoder):
    """One that stays in float32 under autocast."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).to(torch.bfloat16)


_PACKED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: PackedLinear, RecurrentCore: PackedCore, nn.Conv2d: PackedConv2d, PixelConv2d: PackedPixelConv2d,
}  # fmt: skip
_IN_FLOAT32 = (PackedConv2d, PackedPixelConv2d)
_CONVERTING = {
    *_PACKED.values(), NarrowEncoder, ELU, nn.ReLU, nn.Tanh, nn.GroupNorm, nn.MaxPool2d, nn.Identity, nn.Sequential,
    nn.ModuleList, Trunk, TwoNetworks, MultiEncoder, ConvEncoder, NativeConvEncoder, VectorEncoder, ResidualBlock, LastStep,
    RunningMeanStd,
}  # fmt: skip
"""Layers that convert what they compute with, or compute with what they get."""
