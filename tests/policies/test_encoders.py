import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from headrace.config import ConfigError, PolicyConfig
from headrace.envs.core.contract import ArraySpec
from headrace.policies.activations import ELU
from headrace.policies.encoders import NATURE_LAYERS, ConvEncoder, PixelConv2d, convolutions, make_network
from headrace.policies.registry import NETWORKS, register_network

UINT8, FLOAT32 = np.dtype(np.uint8), np.dtype(np.float32)
ATARI = {"obs": ArraySpec((4, 84, 84), UINT8)}
DOOM = {"obs": ArraySpec((3, 72, 128), UINT8), "measurements": ArraySpec((23,), FLOAT32)}


def observations(spec, n=2):
    rng = np.random.default_rng(0)
    pixels = {name: rng.integers(0, 256, (n, *a.shape)) for name, a in spec.items() if a.is_image}
    numbers = {name: rng.normal(size=(n, *a.shape)) for name, a in spec.items() if not a.is_image}
    return {name: torch.as_tensor((pixels | numbers)[name].astype(a.dtype)) for name, a in spec.items()}


def count(network):
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(
    ("name", "spec", "features", "parameters"),
    [
        # Convolutions and one linear layer, weights and biases, from the papers' tables.
        ("nature-cnn", ATARI, 512, 4 * 32 * 64 + 32 + 32 * 64 * 16 + 64 + 64 * 64 * 9 + 64 + 3136 * 512 + 512),
        ("auto", ATARI, 512, 4 * 32 * 64 + 32 + 32 * 64 * 16 + 64 + 64 * 64 * 9 + 64 + 3136 * 512 + 512),
        (
            "vizdoom-simple", {"obs": DOOM["obs"]}, 512,
            3 * 32 * 64 + 32 + 32 * 64 * 16 + 64 + 64 * 128 * 9 + 128 + 128 * 3 * 6 * 512 + 512,
        ),
        (
            "vizdoom-full", DOOM, 512 + 128,
            3 * 32 * 64 + 32 + 32 * 64 * 16 + 64 + 64 * 128 * 9 + 128 + 128 * 3 * 6 * 512 + 512 + 24 * 128 + 129 * 128,
        ),
        (
            "impala-resnet", ATARI, 512,
            (4 * 9 + 1) * 16 + 4 * (16 * 9 + 1) * 16 + (16 * 9 + 1) * 32 + 9 * (32 * 9 + 1) * 32 + (11 * 11 * 32 + 1) * 512,
        ),
        ("mlp", {"obs": ArraySpec((5,), FLOAT32)}, 64, 6 * 64 + 65 * 64),
    ],
)  # fmt: skip
def test_networks_have_the_published_sizes(name, spec, features, parameters):
    network = make_network(spec, PolicyConfig(encoder=name))
    assert network.out_features == features
    assert network(observations(spec)).shape == (2, features)
    assert count(network) == parameters


@pytest.mark.parametrize("name", ["nature-cnn", "impala-shallow", "vizdoom-simple", "vizdoom-full", "impala-resnet", "mlp"])
def test_every_network_takes_dictionaries_of_images_and_vectors(name):
    spec = DOOM | {"matrix": ArraySpec((2, 3), FLOAT32), "bytes": ArraySpec((7,), UINT8)}
    network = make_network(spec, PolicyConfig(encoder=name, mlp=(16, 8)))
    obs = observations(spec) | {"bytes": torch.zeros(2, 7, dtype=torch.uint8)}
    features = network(obs)
    assert features.shape == (2, network.out_features)
    for observed in spec:
        changed = obs | {observed: obs[observed] + 1}
        assert not torch.equal(network(changed), features), f"{observed} has no influence"


def test_pixels_are_divided_by_255():
    layer = PixelConv2d(3, 8, 4, 2)
    image = torch.randint(0, 256, (5, 3, 20, 20), dtype=torch.uint8)
    expected = nn.functional.conv2d(image.float() / 255, layer.weight, layer.bias, 2)
    torch.testing.assert_close(layer(image), expected)
    gradients = []
    for output in (layer(image), expected):
        layer.zero_grad()
        output.square().sum().backward()
        gradients.append(layer.weight.grad.clone())
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-3)
    network = make_network({"obs": ArraySpec((1, 4, 4), UINT8)}, PolicyConfig(encoder="mlp", mlp=()))
    assert network({"obs": torch.full((1, 1, 4, 4), 255, dtype=torch.uint8)}).tolist() == [[1.0] * 16]


@pytest.mark.parametrize(("size", "kernel", "stride", "factor"), [
    ((84, 84), 8, 4, 4), ((72, 128), 8, 4, 4), ((84, 84), 4, 2, 2), ((88, 88), 8, 8, 8),
    ((84, 84), 3, 1, 1), ((84, 84), 6, 4, 1), ((82, 84), 8, 4, 1), ((84, 84), 8, (4, 2), 1),
])  # fmt: skip
def test_a_convolution_of_whole_strides_is_one_of_squares_in_bf16(size, kernel, stride, factor):
    layer = PixelConv2d(3, 8, kernel, stride)
    image = torch.randint(0, 256, (5, 3, *size), dtype=torch.uint8)
    assert layer.factor(image, torch.bfloat16) == factor
    assert layer.factor(image, torch.float32) == 1
    expected = nn.functional.conv2d(image.float() / 255, layer.weight, layer.bias, stride)
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(image)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, rtol=0.02, atol=0.02)
    gradients, upstream = [], torch.randn_like(expected)
    for output in (found.float(), expected):
        layer.zero_grad()
        output.backward(upstream)
        gradients.append(layer.weight.grad.clone())
    error, size_of = (gradients[0] - gradients[1]).norm(), gradients[1].norm()
    assert error < 0.02 * size_of


def test_the_last_activation_gets_its_gradient_in_the_layout_of_its_output():
    encoder = ConvEncoder((4, 84, 84), convolutions(4, NATURE_LAYERS, "relu"), "relu", 16)
    seen = []
    encoder.convolutions[-1].register_full_backward_hook(lambda layer, before, after: seen.append(after[0].clone()))
    encoder(torch.randint(0, 256, (3, 4, 84, 84), dtype=torch.uint8)).sum().backward()
    (gradient,) = seen
    assert gradient.is_contiguous(memory_format=torch.channels_last)
    assert not gradient.is_contiguous()


@pytest.mark.parametrize(("activation", "module"), [("relu", nn.ReLU), ("elu", ELU), ("tanh", nn.Tanh)])
def test_the_activation_is_the_configured_one(activation, module):
    network = make_network(DOOM, PolicyConfig(encoder="vizdoom-full", activation=activation))
    activations = {type(m) for m in network.modules() if isinstance(m, nn.ReLU | ELU | nn.Tanh)}
    assert activations == {module}


def test_weights_start_orthogonal_with_gain_sqrt_2():
    network = make_network({"obs": ArraySpec((64,), FLOAT32)}, PolicyConfig(encoder="mlp", mlp=(32,)))
    weight = next(network.parameters())
    torch.testing.assert_close(weight @ weight.T, 2 * torch.eye(32), rtol=1e-4, atol=1e-5)


def test_images_too_small_for_the_network_are_refused():
    small = {"obs": ArraySpec((3, 16, 16), UINT8)}
    with pytest.raises(ConfigError, match="too small") as refused:
        make_network(small, PolicyConfig(encoder="nature-cnn"))
    for encoder in ("impala-resnet", "mlp"):
        assert encoder in str(refused.value)
        make_network(small, PolicyConfig(encoder=encoder))({"obs": torch.zeros(1, 3, 16, 16, dtype=torch.uint8)})


@pytest.mark.parametrize(("shape", "name"), [((3, 35, 64), "impala-resnet"), ((3, 36, 36), "nature-cnn")])
def test_auto_takes_a_network_that_fits_the_image(shape, name):
    observation = {"obs": ArraySpec(shape, UINT8)}
    chosen, named = make_network(observation, PolicyConfig()), make_network(observation, PolicyConfig(encoder=name))
    assert [p.shape for p in chosen.parameters()] == [p.shape for p in named.parameters()]
    assert chosen({"obs": torch.zeros(1, *shape, dtype=torch.uint8)}).shape == (1, 512)


def test_no_observation_is_refused():
    with pytest.raises(ConfigError, match="no observation"):
        make_network({}, PolicyConfig())


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean nature-cnn"):
        make_network(ATARI, PolicyConfig(encoder="natur-cnn"))


def test_a_user_registers_a_network_with_one_function():
    @register_network("pooled")
    def pooled(observation, config):
        channels = observation["obs"].shape[0]

        class Pooled(nn.Module):
            out_features = channels

            def forward(self, obs):
                return obs["obs"].float().mean((2, 3))

        return Pooled()

    network = make_network(ATARI, PolicyConfig(encoder="pooled"))
    assert network(observations(ATARI)).shape == (2, 4)
    assert "pooled" in NETWORKS
    register_network("pooled")(pooled)  # importing the same file twice is no conflict
    with pytest.raises(ValueError, match="pooled"):
        register_network("pooled")(lambda observation, config: nn.Identity())


def test_registering_does_not_load_torch():
    program = "import sys; from headrace.policies import register_network; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_network_must_say_how_many_features_it_has():
    register_network("silent")(lambda observation, config: nn.Identity())
    with pytest.raises(ConfigError, match="out_features"):
        make_network(ATARI, PolicyConfig(encoder="silent"))
