"""Calls what the user's code gives to make one environment, and completes what that returns."""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium

from headrace.config import ConfigError, EnvConfig
from headrace.envs.core.family_interface import Env


def construct(make: Any, options: EnvConfig, render_mode: str | None = None) -> Any:
    """Call a function of the form ``make(options, *, render_mode=None)``, or with `options.kwargs` any other function or class,
    which gets a `render_mode` if it takes one and one is asked for."""
    try:
        parameters = inspect.signature(make).parameters
    except ValueError:  # of a class in C++
        parameters = {}  # type: ignore[assignment]
    first = next(iter(parameters.values()), None)
    required = (
        first is not None and first.kind in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD) and first.default is first.empty
    )
    plain = inspect.isclass(make) or (first is not None and first.name in options.kwargs)
    takes_options = first is not None and (first.name == "options" or (required and not plain))
    takes_mode = "render_mode" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    mode = {"render_mode": render_mode} if takes_mode and (takes_options or render_mode is not None) else {}
    return make(options, **mode) if takes_options else make(**{**options.kwargs, **mode})


def complete(env: Any) -> Env:
    """The environment itself, or as a `gymnasium.Env` if it has the methods of one without being one.

    Raises `ConfigError` for an environment of several agents and for a vector environment, and `TypeError` for what is none.
    """
    if hasattr(env, "possible_agents"):
        raise ConfigError(
            f"{type(env).__qualname__} is an environment of several agents: register a function that makes it with "
            "@headrace.envs.register_parallel(ID, agents=NUMBER), and train ID (docs/multi-agent.md)"
        )
    if isinstance(env, gymnasium.vector.VectorEnv):
        raise ConfigError(
            f"{type(env).__qualname__} is a vector environment: register a function (options, num_envs) that makes it with "
            "@headrace.envs.register_vector(ID), and train ID (docs/extending.md)"
        )
    if missing := [name for name in ("observation_space", "action_space", "reset", "step") if not hasattr(env, name)]:
        raise TypeError(f"{env!r:.80} has no {', '.join(missing)}; a gymnasium.Env has")
    return env if isinstance(env, gymnasium.Env) else Completed(env)


class Completed(gymnasium.Env):
    """An object with spaces, `reset` and `step` as a `gymnasium.Env`; what else it lacks is Gymnasium's default."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.metadata = getattr(env, "metadata", None) or {}
        self.render_mode = getattr(env, "render_mode", None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["env"], name)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.env.reset(seed=seed, **({} if options is None else {"options": options}))

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return self.env.step(action)

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        if hasattr(self.env, "close"):
            self.env.close()
