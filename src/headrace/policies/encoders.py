"""Encoders: from named observations to one feature vector.

Every named observation has its own encoder, images a convolutional one and everything else an MLP; their features are
concatenated in the order of the specification. Weights start orthogonal with gain sqrt(2), biases at zero.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headrace.config import ConfigError, PolicyConfig
from headrace.envs.core.contract import ArraySpec
from headrace.policies.activations import ACTIVATIONS
from headrace.policies.registry import NETWORKS, register_network


def network_names() -> list[str]:
    """The names of all networks, sorted."""
    return sorted(NETWORKS)


def make_network(observation: dict[str, ArraySpec], config: PolicyConfig) -> nn.Module:
    """The network that `config.encoder` names. Raises `ConfigError`, with the nearest names, if there is none."""
    if config.encoder not in NETWORKS:
        names = network_names()
        near = difflib.get_close_matches(config.encoder, names, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise ConfigError(f"there is no network {config.encoder!r}; {hint}known: {', '.join(names)}")
    network = NETWORKS[config.encoder](observation, config)
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
        weight = self.weight / 255.0
        device = image.device.type
        # Straight to bf16 under autocast, instead of by way of float32: 0..255 are exact there too.
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        # Channels last, as the convolution wants it: it would convert once more for its backward pass.
        image = image.to(dtype).contiguous(memory_format=torch.channels_last)
        return F.conv2d(image, weight, self.bias, self.stride, self.padding)


class ConvEncoder(nn.Module):
    """Convolutions, then a linear layer with an activation."""

    def __init__(self, shape: tuple[int, ...], convolutions: nn.Module, hidden: int, activation: str):
        super().__init__()
        self.convolutions = convolutions
        self.linear = orthogonal_(nn.Linear(_flat_width(self.convolutions, shape), hidden))
        self.activation = ACTIVATIONS[activation]()
        self.out_features = hidden

    def forward(self, image: Tensor) -> Tensor:
        """uint8 [N, C, H, W] -> [N, hidden]."""
        return self.activation(self.linear(self.convolutions(image).flatten(1)))


class Convolutions(nn.Module):
    """Convolutions `(channels, kernel, stride)` with an activation after each, flattened; for heads with hidden layers."""

    def __init__(self, shape: tuple[int, ...], layers: tuple[tuple[int, int, int], ...], activation: str):
        super().__init__()
        self.convolutions = convolutions(shape[0], layers, activation)
        self.out_features = _flat_width(self.convolutions, shape)

    def forward(self, image: Tensor) -> Tensor:
        """uint8 [N, C, H, W] -> [N, F]."""
        return self.convolutions(image).flatten(1)


def convolutions(channels: int, layers: tuple[tuple[int, int, int], ...], activation: str) -> nn.Sequential:
    """Convolutions `(channels, kernel, stride)` of images with `channels` channels, an activation after each."""
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


class VectorEncoder(nn.Module):
    """An MLP over the flattened observation times `scale`: [N, ...] -> [N, last width]."""

    def __init__(self, shape: tuple[int, ...], layers: tuple[int, ...], activation: str, scale: float = 1.0):
        super().__init__()
        width = math.prod(shape)
        self.scale = scale
        self.mlp = mlp(width, layers, activation)
        self.out_features = layers[-1] if layers else width

    def forward(self, x: Tensor) -> Tensor:
        """Any dtype [N, ...] -> [N, out_features]."""
        x = x.flatten(1).float()
        return self.mlp(x if self.scale == 1.0 else x * self.scale)


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


NATURE_LAYERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Mnih et al., 2015 (Nature 518)."""
SHALLOW_LAYERS = ((16, 8, 4), (32, 4, 2))
"""Mnih et al., 2013 (arXiv 1312.5602); the shallow network of IMPALA: a third of the Nature CNN's arithmetic."""
VIZDOOM_LAYERS = ((32, 8, 4), (64, 4, 2), (128, 3, 2))
"""Petrenko et al., 2020 (Sample Factory): both of its VizDoom networks."""
RESIDUAL_STAGES = (16, 32, 32)
"""Channels of the stages of IMPALA's deep network."""
MEASUREMENT_LAYERS = (128, 128)
"""The MLP over game variables of the full VizDoom network."""


def _network(
    observation: dict[str, ArraySpec],
    config: PolicyConfig,
    image: Callable[[tuple[int, ...]], nn.Module],
    vector_layers: tuple[int, ...] | None = None,
) -> MultiEncoder:
    layers = config.mlp if vector_layers is None else vector_layers
    return MultiEncoder(
        {
            name: image(spec.shape) if spec.is_image else VectorEncoder(spec.shape, layers, config.activation)
            for name, spec in observation.items()
        }
    )


def _plain(layers: tuple[tuple[int, int, int], ...], c: PolicyConfig) -> Callable[[tuple[int, ...]], nn.Module]:
    """An encoder of images that has these convolutions."""
    return lambda s: ConvEncoder(s, convolutions(s[0], layers, c.activation), c.hidden, c.activation)


@register_network("auto")
@register_network("nature-cnn")
def nature_cnn(observation: dict[str, ArraySpec], config: PolicyConfig) -> nn.Module:
    """The Nature CNN (32@8s4, 64@4s2, 64@3s1, FC `hidden`) for images, an MLP for vectors."""
    return _network(observation, config, _plain(NATURE_LAYERS, config))


@register_network("impala-shallow")
def impala_shallow(observation: dict[str, ArraySpec], config: PolicyConfig) -> nn.Module:
    """IMPALA's shallow network (16@8s4, 32@4s2, FC `hidden`, 256 in the paper) for images, an MLP for vectors."""
    return _network(observation, config, _plain(SHALLOW_LAYERS, config))


@register_network("nature-conv")
def nature_conv(observation: dict[str, ArraySpec], config: PolicyConfig) -> nn.Module:
    """The Nature CNN without its linear layer, for dueling heads, whose streams each have one of their own."""
    return _network(observation, config, lambda s: Convolutions(s, NATURE_LAYERS, config.activation))


@register_network("shallow-conv")
def shallow_conv(observation: dict[str, ArraySpec], config: PolicyConfig) -> nn.Module:
    """IMPALA's shallow network without its linear layer, for dueling heads."""
    return _network(observation, config, lambda s: Convolutions(s, SHALLOW_LAYERS, config.activation))


@register_network("vizdoom-simple")
def vizdoom_simple(observation: dict[str, ArraySpec], config: PolicyConfig) -> nn.Module:
    """32@8s4, 64@4s2, 128@3s2, FC `hidden` for images, an MLP (`policy.mlp`) for vectors."""
    return _network(observation, config, _plain(VIZDOOM_LAYERS, config))


@register_network("vizdoom-full")
def vizdoom_full(observation: dict[str, ArraySpec], config: PolicyConfig) -> nn.Module:
    """The convolutions of `vizdoom-simple`, and a 128-128 MLP over the game variables; `policy.mlp` is not used."""
    return _network(observation, config, _plain(VIZDOOM_LAYERS, config), MEASUREMENT_LAYERS)


@register_network("impala-resnet")
def impala_resnet(observation: dict[str, ArraySpec], config: PolicyConfig) -> nn.Module:
    """IMPALA's residual network (stages 16/32/32, FC `hidden`) for images, an MLP for vectors."""
    c = config
    return _network(observation, c, lambda s: ConvEncoder(s, residual_stages(s[0], c.activation), c.hidden, c.activation))


@register_network("mlp")
def flat_mlp(observation: dict[str, ArraySpec], config: PolicyConfig) -> nn.Module:
    """An MLP for every observation; pixels too, divided by 255."""
    return _network(observation, config, lambda s: VectorEncoder(s, config.mlp, config.activation, scale=1 / 255))


def _flat_width(convolutions: nn.Module, shape: tuple[int, ...]) -> int:
    """Numbers that come out of the convolutions for one image of the given shape."""
    with torch.no_grad():
        try:
            return convolutions(torch.zeros(1, *shape)).numel()
        except RuntimeError as error:
            raise ConfigError(f"images of shape {shape} are too small for this network: {error}") from error
