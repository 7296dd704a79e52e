"""Settings of the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.config.ranges import Positive, Width


@dataclass
class PolicyConfig:
    """The network: encoder for each observation, core, heads."""

    encoder: str = "auto"
    """Network that encodes an observation: `nature-cnn`, `impala-shallow`, `impala-resnet`, `vizdoom-simple`, `vizdoom-full`,
    `mlp`, or a name that an imported file registers. `auto`: `nature-cnn` for images, or `impala-resnet` if a
    side has fewer than 36 pixels; `mlp` for vectors. `nature-conv`, `shallow-conv`: the convolutions of `nature-cnn` and of
    `impala-shallow` alone, for the heads of Q-learning."""
    hidden: Width = 512
    """Width of the layer that follows an image encoder."""
    mlp: tuple[Width, ...] = (64, 64)
    """Widths of the layers that encode vector observations."""
    core: Literal["none", "gru", "lstm"] = "none"
    """Recurrent core between the encoder and the heads."""
    core_size: Width = 512
    """Width of the recurrent core."""
    previous_action: bool = False
    """The recurrent core has the previous action as an input (zeros at the first step of an episode). No effect without a
    core."""
    previous_reward: bool = False
    """The recurrent core has the previous reward as an input, clipped to [-1, 1] (0 at the first step of an episode). No effect
    without a core."""
    activation: Literal["relu", "elu", "tanh"] = "relu"
    """Activation function of the encoders."""
    normalize_observations: bool = False
    """Normalise vector observations by their running mean and standard deviation, which are saved with the model. Images are
    always divided by 255."""
    normalize_returns: bool = False
    """The value head predicts returns that are normalised by their running mean and standard deviation, which are saved with the
    model."""
    separate_critic: bool = False
    """The critic has a network of its own, of the same form as the actor's, instead of a head on the actor's. Not with a
    recurrent core."""
    initial_std: Positive = 1.0
    """Standard deviation of continuous actions at the start of training, before they are squashed into their bounds."""
