"""Models that act compute the same with prepared weights as with plain ones, and take new weights."""

import copy
import itertools

import numpy as np
import pytest
import torch
from torch import nn

from headrace.accelerator.weights import FlatWeights, weights_nbytes
from headrace.envs.make import describe
from headrace.learning.algorithm import make_agent
from headrace.make_config import make_config
from headrace.policies import acting
from headrace.policies.acting import prepare_for_acting
from headrace.policies.cores import RecurrentCore
from headrace.policies.encoders import NATURE_LAYERS, VIZDOOM_LAYERS, ConvEncoder, PixelConv2d, convolutions
from headrace.policies.packing import has_kernels
from headrace.policies.registry import NETWORKS
from headrace.shm.weight_store import WeightStore

PACKED = (acting.PackedLinear, acting.PackedConv2d, acting.PackedCore)
needs_kernels = pytest.mark.skipif(not has_kernels(False), reason="no kernels for packed weights here")


@pytest.mark.parametrize("precision", ["bf16", "float32"])
@pytest.mark.parametrize(
    ("env", "settings"),
    [
        ("vizdoom/basic", {"policy.core": "gru"}),
        ("atari/pong", {"policy.core": "lstm"}),
        ("atari/pong", {"learning.algorithm": "apex-dqn"}),
        ("atari/pong", {"learning.algorithm": "apex-dqn", "q.noisy": True}),
        ("gym/CartPole-v1", {}),
        ("gym/CartPole-v1", {"policy.mlp": (600, 64)}),
    ],
)
@pytest.mark.usefixtures("one_thread")
def test_prepared_models_act_the_same(env, settings, precision):
    """What autocast and kernels do with a weight in every pass may be done once: not a bit of the results changes."""
    config = make_config(env, **{**settings, "learning.precision": precision, "learning.device": "cpu"})
    spec = describe(config.env, config.envs)
    algorithm, model = make_agent(config, spec)
    weights = FlatWeights(model)
    obs = {
        name: torch.from_numpy(np.random.default_rng(0).integers(0, 256, (5, *array.shape)).astype(array.dtype))
        for name, array in spec.observation.items()
    }
    core, first, envs = torch.randn(5, model.core_width), torch.tensor([True, False, False, True, False]), torch.arange(5)

    def act(model: nn.Module, n: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        some = {name: array[:n] for name, array in obs.items()}
        with torch.inference_mode():
            fields, after = algorithm.act(model, some, core[:n], first[:n], envs[:n], torch.Generator().manual_seed(0))
        return fields | {"core": after}

    def assert_same(plain: nn.Module) -> None:
        for n, threads in itertools.product((5, 1, 2), (1, 2)):
            torch.set_num_threads(threads)  # with one, native layers act where the processor has the instructions
            # a single image in float32 is not convolved by oneDNN, unless the weights are packed
            rtol, atol = (1e-4, 1e-5) if n == 1 and precision == "float32" else (0.0, 0.0)
            for (name, expected), got in zip(act(plain, n).items(), act(model, n).values(), strict=True):
                torch.testing.assert_close(got, expected, rtol=rtol, atol=atol, msg=lambda text, name=name: f"{name}: {text}")

    plain, names = copy.deepcopy(model), list(model.state_dict())
    prepare_for_acting(model)
    in_bf16 = precision == "bf16" and (env != "gym/CartPole-v1" or "policy.mlp" in settings)  # narrow MLPs stay in float32
    packs = has_kernels(in_bf16) and (env != "gym/CartPole-v1" or in_bf16)
    assert any(isinstance(layer, PACKED) for layer in model.modules()) == packs
    assert any(p.dtype == torch.bfloat16 for p in model.parameters()) == in_bf16
    assert model.trunk.layers_convert == (precision == "bf16" and has_kernels(True))
    assert list(model.state_dict()) == names
    assert_same(plain)

    # weights from the weight store are float32; those that were converted and packed before are forgotten
    other = make_agent(config, spec)[1]
    store = WeightStore(weights_nbytes(other))
    FlatWeights(other).publish(store, 3)
    assert weights.read(store) == 3
    for (name, mine), theirs in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs.to(mine.dtype)), name
    assert_same(other)

    # as the `device` placement copies them
    for mine, new in zip(model.state_dict().values(), plain.state_dict().values(), strict=True):
        mine.copy_(new)
    assert_same(plain)


class Squashed(nn.Module):
    """A user's network: PyTorch's own functions of products, whose types autocast chooses."""

    out_features = 16

    def __init__(self, observation, config):
        super().__init__()
        (spec,) = observation.values()
        self.linear, self.mixing = nn.Linear(spec.shape[0], 16), nn.Parameter(torch.randn(16, 16))

    def forward(self, obs):
        (x,) = obs.values()
        return torch.softmax(self.linear(x) @ self.mixing, -1)


def test_a_network_of_other_classes_stays_under_autocast(monkeypatch):
    monkeypatch.setitem(NETWORKS, "squashed", Squashed)
    settings = {"policy.encoder": "squashed", "policy.core": "lstm", "learning.precision": "bf16", "learning.device": "cpu"}
    config = make_config("gym/CartPole-v1", **settings)
    _, model = make_agent(config, describe(config.env, config.envs))
    plain = copy.deepcopy(model)
    prepare_for_acting(model)
    assert not model.trunk.layers_convert
    obs, core, first = {"obs": torch.randn(3, 4)}, torch.randn(3, model.core_width), torch.tensor([True, False, False])
    with torch.inference_mode():
        (features, after), rows = plain.features(obs, core, first), {name: x.unsqueeze(0) for name, x in obs.items()}
        (of_row,), after_row = plain.trunk(rows, core, first.unsqueeze(0))
        for mine, row, expected in zip(model.features(obs, core, first), (of_row, after_row), (features, after), strict=True):
            assert torch.equal(mine, expected)
            assert torch.equal(row, expected)  # one step is a trajectory of one row


def test_a_core_with_a_forward_pass_of_its_own_acts_by_it():
    class Halved(RecurrentCore):
        def forward(self, x, state, first):
            outputs, state = super().forward(x, state, first)
            return outputs / 2, state

    config = make_config("gym/CartPole-v1", **{"policy.core": "gru", "learning.device": "cpu"})
    _, model = make_agent(config, describe(config.env, config.envs))
    obs, core, first = {"obs": torch.randn(3, 4)}, torch.randn(3, model.core_width), torch.tensor([True, False, False])
    with torch.inference_mode():
        whole, _ = model.features(obs, core, first)
        model.trunk.core.__class__ = Halved
        half, _ = model.features(obs, core, first)
    assert torch.equal(half, whole / 2)


@pytest.mark.parametrize("precision", ["bf16", "float32"])
def test_a_target_network_computes_what_the_copied_model_did(precision):
    settings = {"learning.algorithm": "apex-dqn", "learning.precision": precision, "learning.device": "cpu", "q.target_period": 2}
    config = make_config("atari/pong", **settings)
    spec = describe(config.env, config.envs)
    algorithm, model = make_agent(config, spec)
    obs = {name: torch.randint(0, 256, (7, *array.shape), dtype=torch.uint8) for name, array in spec.observation.items()}
    target = algorithm.target_of(model)
    assert any(isinstance(layer, PACKED) for layer in target.modules()) == has_kernels(precision == "bf16")
    with torch.no_grad():
        before = model(obs).q
        assert torch.equal(target(obs).q, before)
        for parameter in model.parameters():
            parameter.add_(0.01)
        algorithm.after_update(model, 1)
        assert torch.equal(target(obs).q, before)
        algorithm.after_update(model, 2)
        assert torch.equal(target(obs).q, model(obs).q)
    assert not torch.equal(model(obs).q, before)


@needs_kernels
@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 8, 3),
        nn.Conv2d(4, 8, (3, 5), stride=(2, 1), padding=(1, 2), bias=False),
        nn.Conv2d(4, 8, 3, dilation=2, groups=2),
        nn.Conv2d(4, 8, 3, padding="same"),
        nn.Conv2d(4, 8, 3, padding=1, padding_mode="circular"),
    ],
    ids=["plain", "strides", "groups", "same", "circular"],
)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_every_convolution_is_computed_as_before(layer, memory_format):
    x = torch.randn(3, 4, 12, 12).contiguous(memory_format=memory_format)
    packed = copy.deepcopy(layer)
    prepare_for_acting(packed)
    assert isinstance(packed, acting.PackedConv2d) == (layer.padding_mode == "zeros" and layer.padding != "same")
    with torch.inference_mode():
        for images in (x, x[:1], x[0]):  # the last one is an image without a batch
            torch.testing.assert_close(packed(images), layer(images), rtol=1e-5, atol=1e-6)


@needs_kernels
def test_convolutions_apply_the_relu_behind_them():
    encoder = ConvEncoder((4, 44, 44), convolutions(4, ((8, 8, 4), (8, 4, 2)), "relu"), "relu", 16)
    plain = copy.deepcopy(encoder)
    prepare_for_acting(encoder)
    images = torch.randint(0, 256, (3, 4, 44, 44), dtype=torch.uint8)
    with torch.inference_mode():
        assert torch.equal(encoder(images), plain(images))
        hidden = encoder.convolutions(images)
    assert hidden.min() == 0 < hidden.max()
    assert not any(isinstance(layer, nn.ReLU) for layer in encoder.convolutions)


def test_layers_of_other_classes_and_devices_stay_as_they_are():
    class Special(nn.Conv2d):
        pass

    for model in (nn.Sequential(Special(3, 4, 1)), nn.Sequential(nn.Conv2d(3, 4, 1, device="meta"))):
        before = type(model[0])
        prepare_for_acting(model)
        assert type(model[0]) is before


needs_native_layers = pytest.mark.skipif(not acting.native.IS_FAST, reason="the processor has no AVX512-BF16, or AMX")


def network_of(plain: ConvEncoder) -> nn.Module:
    """`plain` as a model in bf16 that acts has it."""
    for layer in plain.modules():
        if isinstance(layer, nn.Linear) or type(layer) is nn.Conv2d:
            layer.to(torch.bfloat16)
    model = nn.Module()
    model.precision, model.layers_convert, model.encoder = "bf16", False, plain
    model.layers_under_autocast = lambda: iter(())
    prepare_for_acting(model)
    return model.encoder


@needs_native_layers
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("count", [1, 2, 7, 40, 130])
@pytest.mark.parametrize("activation", ["relu", "elu"])
@pytest.mark.parametrize(
    ("shape", "layers", "hidden"),
    [
        ((4, 84, 84), NATURE_LAYERS, 512),
        ((3, 72, 128), VIZDOOM_LAYERS, 512),
        ((1, 44, 84), ((16, 8, 4), (40, 4, 2)), None),  # outputs that fill no panel, planes that come out
        ((2, 37, 50), ((32, 8, 5), (7, 2, 1)), 33),  # a stride for which images are not unshuffled, pixels that no kernel reaches
    ],
)
def test_native_layers_are_the_same_bits_as_autocast(shape, layers, hidden, activation, count):
    plain = ConvEncoder(shape, convolutions(shape[0], layers, activation), activation, hidden)
    for parameter in plain.parameters():
        nn.init.normal_(parameter, std=0.05)
    encoder = network_of(copy.deepcopy(plain))
    assert type(encoder) is acting.NativeConvEncoder
    images = torch.randint(0, 256, (count, *shape), dtype=torch.uint8)
    with torch.inference_mode():
        got = encoder(images)
        assert acting._MADE[encoder]["network"][1] is not None, "the native layers have computed it"
        with torch.autocast("cpu", torch.bfloat16):
            expected = plain(images)
    assert got.dtype == expected.dtype == torch.bfloat16
    assert torch.equal(got, expected)
    assert 0.1 < (expected > 0).float().mean() < 0.9, "both sides of the activation are taken"


@needs_native_layers
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("inputs", "outputs"), [(2, 1), (512, 1536), (576, 1536), (1024, 512), (1026, 512), (2304, 512), (3136, 512)]
)
def test_native_linear_layers_are_the_same_bits_as_autocast(inputs, outputs):
    layer = nn.Linear(inputs, outputs).to(torch.bfloat16)
    packed = copy.deepcopy(layer)
    packed.__class__ = acting.PackedLinear
    with torch.inference_mode():
        for rows in (1, 8, 13, 1000):  # one number in some thousand differs where sums are in another order
            x = torch.randn(rows, inputs).to(torch.bfloat16)
            assert torch.equal(packed(x), nn.functional.linear(x, layer.weight, layer.bias)), rows
    assert "weight native" in acting._MADE[packed]


@needs_native_layers
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("where", ["weight", "bias"])
def test_nan_comes_out_of_native_layers(where):
    encoder = network_of(ConvEncoder((4, 84, 84), convolutions(4, NATURE_LAYERS, "relu"), "relu", 512))
    with torch.no_grad():
        (encoder.linear.weight if where == "weight" else encoder.convolutions[0].bias).view(-1)[0] = torch.nan
    with torch.inference_mode():
        assert encoder(torch.zeros(3, 4, 84, 84, dtype=torch.uint8)).isnan().any(1).all()


@needs_native_layers
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    "layers",
    [
        nn.Sequential(PixelConv2d(4, 8, 8, 4, padding=1), nn.ReLU()),
        nn.Sequential(PixelConv2d(4, 8, 8, 4), nn.Tanh()),
        nn.Sequential(PixelConv2d(4, 8, 8, 4), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2), nn.ReLU()),
        nn.Sequential(PixelConv2d(4, 8, 8, 4), nn.ReLU(), nn.Conv2d(8, 8, 3, dilation=2), nn.ReLU()),
        nn.Sequential(PixelConv2d(4, 8, 8, (4, 2)), nn.ReLU()),
        nn.Sequential(PixelConv2d(4, 8, 8, 4), nn.MaxPool2d(2)),
        nn.Sequential(PixelConv2d(1, 8, 3, 2), nn.ReLU()),  # a row of the kernel has three inputs
        nn.Sequential(PixelConv2d(4, 8, 6, 2), nn.ReLU()),  # squares of two by two pixels
        nn.Sequential(PixelConv2d(6, 8, 8, 4), nn.ReLU()),
    ],
)
def test_other_layers_act_as_before(layers):
    shape = (layers[0].in_channels, 84, 84)
    plain = ConvEncoder(shape, layers, "relu", 16)
    encoder = network_of(copy.deepcopy(plain))
    images = torch.randint(0, 256, (3, *shape), dtype=torch.uint8)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(encoder(images), plain(images))


@needs_native_layers
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("hidden", [None, 16])
@pytest.mark.parametrize("shape", [(3, 84, 84), (4, 84, 88), (4, 20, 20)])
def test_images_of_another_shape_are_pytorchs_to_judge(shape, hidden):
    """Native functions do not check; what does not fit must not reach them."""
    encoder = network_of(ConvEncoder((4, 84, 84), convolutions(4, NATURE_LAYERS, "relu"), "relu", hidden))
    with torch.inference_mode():
        if shape == (4, 84, 88):  # columns that no kernel reaches
            assert encoder(torch.zeros(1, *shape, dtype=torch.uint8)).shape == (1, hidden or 64 * 7 * 7)
            return
        with pytest.raises(RuntimeError):
            encoder(torch.zeros(1, *shape, dtype=torch.uint8))


@pytest.mark.usefixtures("one_thread")
def test_a_model_that_has_acted_can_be_copied():
    config = make_config("atari/pong", "ppo", **{"learning.precision": "bf16", "learning.device": "cpu"})
    _, model = make_agent(config, describe(config.env, config.envs))
    prepare_for_acting(model)
    obs, first = {"obs": torch.randint(0, 256, (3, 4, 84, 84), dtype=torch.uint8)}, torch.zeros(3, dtype=torch.bool)
    with torch.inference_mode():
        before = model.features(obs, torch.empty(3, 0), first)[0]
    other = copy.deepcopy(model)
    with torch.inference_mode():
        next(other.parameters()).zero_()
        assert torch.equal(model.features(obs, torch.empty(3, 0), first)[0], before)
        assert not torch.equal(other.features(obs, torch.empty(3, 0), first)[0], before)
