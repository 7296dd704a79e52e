"""Optimizers, including two that PyTorch does not have, and gradient clipping."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headrace.config import Config


class LeanAdam(torch.optim.Adam):
    """`torch.optim.Adam(fused=True)` on the CPU with the same kernel, state and results, bit for bit. It skips PyTorch's checks
    and the grouping by device and dtype, which take longer than the step itself on a small network.

    All parameters are of one type.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step for every parameter that has a gradient."""
        if closure is not None:
            return super().step(closure)
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            if not all(self.state[p] for p in parameters):
                self._init_group(group, [], [], [], [], [], [])  # makes the state of new parameters
            states = [self.state[p] for p in parameters]
            steps = [state["step"] for state in states]
            torch._foreach_add_(steps, 1)
            torch._fused_adam_(
                parameters, [p.grad for p in parameters], [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states], [], steps, amsgrad=False, lr=group["lr"], beta1=group["betas"][0],
                beta2=group["betas"][1], weight_decay=0.0, eps=group["eps"], maximize=False, grad_scale=None, found_inf=None,
            )  # fmt: skip
        return None


class RMSprop(Optimizer):
    """RMSProp without momentum, as PyTorch computes it or as TensorFlow 1 does (`tf.train.RMSPropOptimizer`), which IMPALA, Ape-X
    and OpenAI Baselines' A2C were trained with; the original DQN has its epsilon where TensorFlow has it.

        m <- a m + (1 - a) g^2        u <- a u + (1 - a) g; not `centered`: u = 0
        PyTorch:     w <- w - lr g / (sqrt(m - u^2) + eps)        m begins at 0
        TensorFlow:  w <- w - lr g / sqrt(m - u^2 + eps)          m begins at 1, so that the first steps are small

    The variance m - u^2 is kept from falling below 0 by rounding, which `torch.optim.RMSprop` does not do: its steps become NaN
    where a gradient stays the same.

    `lr`: a number, or a tensor [] on the parameters' device for recorded steps. `alpha`: a. `eps`: TensorFlow's is in units of
    squared gradients, PyTorch's in units of gradients.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float | Tensor,
        alpha: float = 0.99,
        eps: float = 0.01,
        centered: bool = False,
        tensorflow: bool = False,
    ):
        super().__init__(params, {"lr": lr, "alpha": alpha, "eps": eps, "centered": centered})
        self._tensorflow = tensorflow

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One step for every parameter that has a gradient."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            gradients: list[Any] = [p.grad for p in parameters]
            for p in parameters:
                if not self.state[p]:
                    self.state[p]["square_avg"] = torch.full_like(p, float(self._tensorflow))
                    if group["centered"]:
                        self.state[p]["grad_avg"] = torch.zeros_like(p)
            squares = [self.state[p]["square_avg"] for p in parameters]
            rest = 1 - group["alpha"]
            torch._foreach_mul_(squares, group["alpha"])
            torch._foreach_addcmul_(squares, gradients, gradients, rest)
            variances = squares
            if group["centered"]:
                means = [self.state[p]["grad_avg"] for p in parameters]
                torch._foreach_lerp_(means, gradients, rest)
                variances = list(torch._foreach_addcmul(squares, means, means, -1))
                torch._foreach_clamp_min_(variances, 0.0)
            if self._tensorflow:
                divisors = torch._foreach_sqrt(torch._foreach_add(variances, group["eps"]))
            else:
                divisors = torch._foreach_add(torch._foreach_sqrt(variances), group["eps"])
            steps = torch._foreach_div(gradients, divisors)
            torch._foreach_mul_(steps, -group["lr"])
            torch._foreach_add_(parameters, steps)


def clip_gradients(parameters: Iterable[nn.Parameter], most: float | None) -> Tensor:
    """`nn.utils.clip_grad_norm_` without the grouping by device and dtype, which takes longer than the arithmetic on a small
    network. Returns the gradient's norm before clipping, []."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return torch.zeros(())
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, 2.0)), 2.0)
    if most is not None:
        torch._foreach_mul_(gradients, (most / (norm + 1e-6)).clamp(max=1.0))
    return norm


def _spare_the_compiler() -> None:
    """Keep PyTorch from importing its compiler, which takes two seconds of processor time, only to exclude these methods from
    what it compiles. Without effect on a process that has imported it, and on a PyTorch whose `torch._compile` does not look for
    what it has made already under this name, as 2.13 does."""
    if "torch._dynamo" not in sys.modules:
        for method in (Optimizer.add_param_group, Optimizer.state_dict, Optimizer.load_state_dict, Optimizer.zero_grad):
            plain = getattr(method, "__wrapped__", method)
            vars(plain).setdefault("__dynamo_disable", plain)


def make_optimizer(model: nn.Module, config: Config) -> Optimizer:
    """The optimizer that `learning.optimizer` names, for all parameters of the model."""
    c = config.learning
    if not c.compile:
        _spare_the_compiler()
    parameters: Any = model.parameters()
    graphs = config.cuda_graphs
    # A recorded step reads the learning rate from the device.
    lr: Any = torch.tensor(c.learning_rate, device=config.device) if graphs else c.learning_rate
    if c.optimizer == "adam" and config.device == "cpu" and len({parameter.dtype for parameter in model.parameters()}) == 1:
        return LeanAdam(parameters, lr=lr, betas=c.adam_betas, eps=c.optimizer_eps, fused=True)
    if c.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=lr, betas=c.adam_betas, eps=c.optimizer_eps, capturable=graphs, fused=True)
    return RMSprop(parameters, lr, c.rmsprop_alpha, c.optimizer_eps, c.rmsprop_centered, tensorflow=c.optimizer == "rmsprop-tf")
