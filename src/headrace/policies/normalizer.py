"""Running mean and standard deviation, saved with the model."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class RunningMeanStd(nn.Module):
    """Mean and variance of everything `update` has seen, merged batch by batch (Chan, Golub and LeVeque, 1983) in float64.

    Buffers: `mean`, `var` float64 [*shape] and `count` float64 []. Before the first update the map is the identity.

    Args:
        shape: of one sample.
        clip: normalised values are clipped to +-this; None: not clipped, so that `denormalize` is the exact inverse.
        eps: added to the variance.
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...] = (), clip: float | None = 5.0, eps: float = 1e-5):
        super().__init__()
        self.clip = clip
        self.eps = eps
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

        self.sum_over_ranks: Callable[[Tensor], None] | None = None
        """Replaces a tensor by its sum over all ranks, where several learn together: the statistics are those of all batches."""

    @torch.no_grad()
    def update(self, x: Tensor, mask: Tensor | None = None) -> None:
        """Merge the samples of `x` [..., *shape] where `mask` (bool [...]; None: all) is True."""
        lead = x.shape[: x.dim() - self.mean.dim()]
        x = x.double()
        weight = torch.ones(lead, dtype=torch.float64, device=x.device) if mask is None else mask.double()
        weight = weight.reshape(lead + (1,) * self.mean.dim())
        # A masked sample may be anything, NaN included, so it is replaced and not multiplied away.
        x = torch.where(weight > 0, x, 0.0)
        axes = tuple(range(len(lead)))
        n, total = self._sum(weight.sum()), self._sum(x.sum(axes))
        mean = total / n.clamp_min(1.0)
        squares = self._sum(((x - mean).square() * weight).sum(axes))
        count = (self.count + n).clamp_min(1.0)
        delta = mean - self.mean
        squares = squares + self.var * self.count + delta.square() * self.count * n / count
        some = n > 0  # without a branch, so that nothing waits for the device
        self.var.copy_(torch.where(some, squares / count, self.var))
        self.mean.copy_(torch.where(some, self.mean + delta * n / count, self.mean))
        self.count.add_(n)

    def _sum(self, x: Tensor) -> Tensor:
        if self.sum_over_ranks is not None:
            self.sum_over_ranks(x)
        return x

    @property
    def std(self) -> Tensor:
        """float64 [*shape]; never 0."""
        return (self.var + self.eps).sqrt()

    def normalize(self, x: Tensor) -> Tensor:
        """(x - mean) / std in float32, clipped to +-`clip`: [..., *shape]."""
        y = (x - self.mean.float()) / self.std.float()
        return y if self.clip is None else y.clamp(-self.clip, self.clip)

    def denormalize(self, y: Tensor) -> Tensor:
        """mean + std * y in float32: [..., *shape]."""
        return y * self.std.float() + self.mean.float()

    forward = normalize
