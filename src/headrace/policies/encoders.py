"""Encoders: from named observations to one feature vector.

Every named observation has its own encoder, images a convolutional one and everything else an MLP; their features are
concatenated in the order of the specification. Weights start orthogonal with gain sqrt(2), biases at zero.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headrace.config import ConfigError, PolicyConfig
from headrace.envs.core.contract import ArraySpec
from headrace.policies.activations import ACTIVATIONS
from headrace.policies.errors import made, named
from headrace.policies.pixels import channels_last
from headrace.policies.registry import NETWORKS

if TYPE_CHECKING:
    from headrace.policies.registry import MakeNetwork

Shape = tuple[int, ...]
Layers = tuple[tuple[int, int, int], ...]  # convolutions: channels, kernel, stride


def make_network(observation: dict[str, ArraySpec], config: PolicyConfig) -> nn.Module:
    """The network that `config.encoder` names. Raises `ConfigError`, with the nearest names, if there is none, and `AgentFault`
    if the user's own function makes none."""
    if config.encoder not in NETWORKS:
        names = sorted(NETWORKS)
        near = difflib.get_close_matches(config.encoder, names, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise ConfigError(f"there is no network {config.encoder!r}; {hint}known: {', '.join(names)}")
    make = NETWORKS[config.encoder]
    network = made(
        make, named(make, "", "policy.encoder", config.encoder), "(observation, config)", lambda: make(observation, config),
        lambda network: isinstance(network, nn.Module), "a torch.nn.Module with the attribute out_features",
    )  # fmt: skip
    out_features(network)
    return network


def out_features(network: nn.Module) -> int:
    """F of a network. Raises `ConfigError` if it has no such attribute."""
    width = getattr(network, "out_features", None)
    if not isinstance(width, int):
        raise ConfigError(f"the network {type(network).__name__} lacks the integer attribute out_features: its features per row")
    return width


def orthogonal_(layer: nn.Linear | nn.Conv2d, gain: float = math.sqrt(2)) -> nn.Linear | nn.Conv2d:
    """Orthogonal weights times `gain`, zero bias, in place; returns the layer."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def mlp(width: int, layers: tuple[int, ...], activation: str) -> nn.Sequential:
    """Linear layers of the given widths, each with the activation after it; the identity if there are none."""
    modules: list[nn.Module] = []
    for out in layers:
        modules += [orthogonal_(nn.Linear(width, out)), ACTIVATIONS[activation]()]
        width = out
    return nn.Sequential(*modules)


class PixelConv2d(nn.Conv2d):
    """A first layer for uint8 images: the division by 255 is done to the small weight, not to the large batch of images."""

    def forward(self, image: Tensor) -> Tensor:
        """[N, C, H, W], any dtype, 0..255 -> [N, out, H', W']."""
        device = image.device.type
        # Straight to bf16 under autocast, instead of by way of float32: 0..255 are exact there too.
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else self.weight.dtype
        factor = self.factor(image, dtype)
        stride = [s // factor for s in self.stride]
        # Channels last, as the convolution wants it: it would convert once more for its backward pass.
        return F.conv2d(channels_last(image, dtype, factor), self.scaled(self.weight, factor), self.bias, stride, self.padding)

    @staticmethod
    def scaled(weight: Tensor, factor: int) -> Tensor:
        """The weight that is computed with."""
        weight = weight / 255.0
        return weight if factor == 1 else F.pixel_unshuffle(weight, factor)

    def factor(self: nn.Conv2d, image: Tensor, dtype: torch.dtype) -> int:
        """By which image and weight are unshuffled, 1: not at all. With kernels of k strides a convolution is one of k steps over
        squares of stride x stride pixels. In bf16 on a CPU that takes two thirds of the time, since oneDNN's kernels want more
        than four channels; in float32 as long, and in another order of addition."""
        (s, other), fits = self.stride, (*self.kernel_size, *image.shape[-2:])
        plain = s == other and not any(self.padding) and image.device.type == "cpu" and dtype == torch.bfloat16
        return s if plain and all(side % s == 0 for side in fits) else 1


class ConvEncoder(nn.Module):
    """Convolutions and, unless `hidden` is None, a linear layer with an activation: uint8 [N, C, H, W] -> [N, out_features]."""

    def __init__(self, shape: Shape, layers: nn.Module, activation: str, hidden: int | None = None):
        super().__init__()
        self.convolutions = layers
        width = _flat_width(layers, shape)
        self.linear = None if hidden is None else orthogonal_(nn.Linear(width, hidden))
        self.activation = ACTIVATIONS[activation]()
        self.out_features = hidden or width

    def forward(self, image: Tensor) -> Tensor:
        features = self.convolutions(image)
        if features.requires_grad and not torch.compiler.is_compiling():
            # Its gradient comes back plane by plane. The activation's would be made element by element of two orders.
            features.register_hook(lambda gradient: gradient.contiguous(memory_format=torch.channels_last))
        flat = features.flatten(1)
        return flat if self.linear is None else self.activation(self.linear(flat))


def convolutions(channels: int, layers: Layers, activation: str) -> nn.Sequential:
    """Convolutions of images with `channels` channels, an activation after each."""
    modules: list[nn.Module] = []
    for i, (out, kernel, stride) in enumerate(layers):
        convolution = (PixelConv2d if i == 0 else nn.Conv2d)(channels, out, kernel, stride)
        modules += [orthogonal_(convolution), ACTIVATIONS[activation]()]
        channels = out
    return nn.Sequential(*modules)


class ResidualBlock(nn.Module):
    """x + conv(act(conv(act(x)))), the pre-activation block of IMPALA's deep network."""

    def __init__(self, channels: int, activation: str):
        super().__init__()
        self.residual = nn.Sequential(
            ACTIVATIONS[activation](),
            orthogonal_(nn.Conv2d(channels, channels, 3, padding=1)),
            ACTIVATIONS[activation](),
            orthogonal_(nn.Conv2d(channels, channels, 3, padding=1)),
        )

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> the same shape."""
        return x + self.residual(x)


def residual_stages(channels: int, activation: str) -> nn.Sequential:
    """IMPALA's deep network (Espeholt et al., 2018, figure 3): three stages of convolution, pooling and two residual blocks."""
    modules: list[nn.Module] = []
    for i, out in enumerate(RESIDUAL_STAGES):
        modules += [
            orthogonal_((PixelConv2d if i == 0 else nn.Conv2d)(channels, out, 3, padding=1)),
            nn.MaxPool2d(3, 2, padding=1),
            ResidualBlock(out, activation),
            ResidualBlock(out, activation),
        ]
        channels = out
    return nn.Sequential(*modules, ACTIVATIONS[activation]())


NARROW = 512  # numbers in a layer of a small MLP


class VectorEncoder(nn.Module):
    """An MLP over the flattened observation times `scale`: [N, ...] -> [N, last width]. Where no layer is wider than `NARROW`, it
    is in float32 under autocast, too: positions need more than bf16's 8 bits, and small products in bf16 take longer."""

    def __init__(self, shape: Shape, layers: tuple[int, ...], activation: str, scale: float = 1.0):
        super().__init__()
        width = math.prod(shape)
        self.scale, self.in_float32 = scale, max(width, *layers, 0) <= NARROW
        self.mlp = mlp(width, layers, activation)
        self.out_features = layers[-1] if layers else width

    def forward(self, x: Tensor) -> Tensor:
        """Any dtype [N, ...] -> [N, out_features]."""
        x = x.flatten(1).float()
        x = x if self.scale == 1.0 else x * self.scale
        device = x.device.type
        if not self.in_float32 or not torch.is_autocast_enabled(device):
            return self.mlp(x)
        with torch.autocast(device, enabled=False):
            return self.mlp(x).to(torch.get_autocast_dtype(device))  # as the features beside them


class MultiEncoder(nn.Module):
    """One encoder for each named observation, features concatenated: dict of [N, ...] -> [N, out_features]."""

    def __init__(self, encoders: dict[str, nn.Module]):
        super().__init__()
        if not encoders:
            raise ConfigError("the environment has no observation to encode besides the action mask")
        self.names = tuple(encoders)
        self.encoders = nn.ModuleList(encoders.values())  # not a ModuleDict: observation names may contain dots
        self.out_features = sum(map(out_features, encoders.values()))

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """dict of [N, ...] -> [N, out_features]."""
        features = [encoder(obs[name]) for name, encoder in zip(self.names, self.encoders, strict=True)]
        return features[0] if len(features) == 1 else torch.cat(features, dim=-1)


class TwoNetworks(nn.Module):
    """The actor's network and the critic's, of the same form: dict of [N, ...] -> [N, 2 F], the actor's features first."""

    def __init__(self, actor: nn.Module, critic: nn.Module):
        super().__init__()
        self.actor, self.critic = actor, critic
        self.out_features = out_features(actor) + out_features(critic)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return torch.cat((self.actor(obs), self.critic(obs)), -1)


NATURE_LAYERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # Mnih et al., 2015 (Nature 518)
NATURE_LEAST = 36  # pixels on a side that its convolutions need
SHALLOW_LAYERS = ((16, 8, 4), (32, 4, 2))
"""Mnih et al., 2013 (arXiv 1312.5602); the shallow network of IMPALA: a third of the Nature CNN's arithmetic."""
VIZDOOM_LAYERS = ((32, 8, 4), (64, 4, 2), (128, 3, 2))  # Petrenko et al., 2020 (Sample Factory): both of its VizDoom networks
RESIDUAL_STAGES = (16, 32, 32)  # channels of the stages of IMPALA's deep network
MEASUREMENT_LAYERS = (128, 128)  # the MLP over game variables of the full VizDoom network


def _network(image: Callable[[Shape, PolicyConfig], nn.Module], vector_layers: tuple[int, ...] | None = None) -> MakeNetwork:
    """Networks with `image(shape, config)` for each image, and for each vector an MLP: `vector_layers`, or `policy.mlp`."""

    def make(observation: dict[str, ArraySpec], config: PolicyConfig) -> nn.Module:
        layers = config.mlp if vector_layers is None else vector_layers
        return MultiEncoder(
            {
                name: image(spec.shape, config) if spec.is_image else VectorEncoder(spec.shape, layers, config.activation)
                for name, spec in observation.items()
            }
        )

    return make


def _convolutional(layers: Layers, linear: bool = True) -> Callable[[Shape, PolicyConfig], nn.Module]:
    """These convolutions, with a linear layer of width `policy.hidden` or without."""
    return lambda shape, c: ConvEncoder(
        shape, convolutions(shape[0], layers, c.activation), c.activation, c.hidden if linear else None
    )


def _residual(shape: Shape, config: PolicyConfig) -> nn.Module:
    return ConvEncoder(shape, residual_stages(shape[0], config.activation), config.activation, config.hidden)


def _fitting(shape: Shape, config: PolicyConfig) -> nn.Module:
    """Nature's network, or for images that are too small for it IMPALA's."""
    return (_convolutional(NATURE_LAYERS) if min(shape[1:]) >= NATURE_LEAST else _residual)(shape, config)


NETWORKS |= {
    "auto": _network(_fitting),
    "nature-cnn": _network(_convolutional(NATURE_LAYERS)),
    "impala-shallow": _network(_convolutional(SHALLOW_LAYERS)),
    # Without linear layers, for dueling heads, whose streams each have one of their own.
    "nature-conv": _network(_convolutional(NATURE_LAYERS, linear=False)),
    "shallow-conv": _network(_convolutional(SHALLOW_LAYERS, linear=False)),
    "vizdoom-simple": _network(_convolutional(VIZDOOM_LAYERS)),
    "vizdoom-full": _network(_convolutional(VIZDOOM_LAYERS), MEASUREMENT_LAYERS),
    "impala-resnet": _network(_residual),
    "mlp": _network(lambda shape, c: VectorEncoder(shape, c.mlp, c.activation, scale=1 / 255)),
}


def _flat_width(convolutions: nn.Module, shape: Shape) -> int:
    """Numbers that come out of the convolutions for one image of the given shape."""
    with torch.no_grad():
        try:
            return convolutions(torch.zeros(1, *shape)).numel()
        except RuntimeError as error:
            raise ConfigError(
                f"images of shape {shape} are too small for this network: {error}. Enlarge them by envs.resize, or choose "
                "policy.encoder impala-resnet or mlp"
            ) from error
