"""Environment ids: ``family/name`` for the built-in families, any other id for environments that the user registers.

    gym/CartPole-v1                    any Gymnasium id
    python/grid:Grid                   a class or function of a Python module that makes an environment
    atari/pong                         Atari 2600 games
    vizdoom/basic                      scenarios of the vizdoom package; vizdoom/path/to/your.cfg
    dm_control/cartpole-swingup        DeepMind Control Suite
    torch/CartPole-v1                  written in PyTorch, stepped on the policy's device
    pettingzoo/connect_four_v3         multi-agent environments of PettingZoo
    dmlab/rooms_watermaze              levels of DeepMind Lab

A family is a module that declares a `Family` (`envs/core/family_interface.py`). The registry imports it when one of its
environments is first used, so that packages of other families need not be installed. A user's environment is one function,
registered by the user's file (``--import my_env.py``):

    @headrace.envs.register("my/corridor")
    def corridor(options, *, render_mode=None):
        return Corridor(**options.kwargs)

Environments are made by `headrace.envs.make`.
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from headrace.config import ConfigError, EnvConfig
from headrace.config.envs import SEPARATOR, tasks_of
from headrace.config.errors import MissingExtra
from headrace.envs.core.construct import complete, construct
from headrace.envs.core.errors import UnknownEnvironment
from headrace.envs.core.family_interface import Env, Family, Observes, ParallelEnv
from headrace.envs.core.imports import NotCarried, source_here
from headrace.envs.core.wrappers import APPLIED_TO_MATCHES, check_applied, preprocess

# -- built-in families --------------------------------------------------------------------------------------------------


_LAB = "https://github.com/google-deepmind/lab/blob/master/docs/users/build.md"
FAMILIES: dict[str, tuple[str, str]] = {
    "gym": ("headrace.envs.families.gym", ""),
    "atari": ("headrace.envs.atari.family", 'pip install "headrace[atari]"'),
    "vizdoom": ("headrace.envs.vizdoom.family", 'pip install "headrace[vizdoom]"'),
    "dm_control": ("headrace.envs.families.dm_control", 'pip install "headrace[dm-control]"'),
    "torch": ("headrace.envs.families.torch_envs", ""),
    "pettingzoo": ("headrace.envs.families.pettingzoo", 'pip install "headrace[pettingzoo]"'),
    "dmlab": ("headrace.envs.families.dmlab", f"build deepmind_lab as {_LAB} says"),
    "python": ("headrace.envs.families.python", ""),
}
"""By name: the family's module, and how to install the packages that it needs; empty if those of Headrace are all."""


def _family(name: str) -> Family:
    if name not in FAMILIES:
        raise UnknownEnvironment(f"there is no environment family {name!r}; there are {', '.join(FAMILIES)}")
    module, how = FAMILIES[name]
    try:
        family: Family = importlib.import_module(module).FAMILY
    except ImportError as error:
        if not how or (error.name or "").startswith("headrace"):
            raise
        raise MissingExtra(f"{name} environments need packages that are not installed: {how}") from error
    return family


# -- environments that the user registers -------------------------------------------------------------------------------


_registered: dict[str, Family] = {}
_Factory = TypeVar("_Factory", bound=Callable[..., Any])


def _register(
    env_id: str,
    defaults: Mapping[str, Any] | None,
    made_by: Callable[[Any], dict[str, Any]],
    kind: Observes | None = None,
) -> Callable[[_Factory], _Factory]:
    """A decorator that registers a user's function as a family of its own. `made_by`: from the function, how the family makes
    environments."""
    if (prefix := env_id.partition("/")[0]) in FAMILIES:
        raise ConfigError(f"{env_id!r}: {prefix!r} is a built-in family; choose another prefix")
    if SEPARATOR in env_id:
        raise ConfigError(f"{env_id!r}: a comma separates tasks; choose an id without one")

    def add(factory: _Factory) -> _Factory:
        source = source_here()

        def code(name: str) -> Sequence[str]:
            if source is None:
                raise NotCarried(name)
            return (source,)

        _registered[env_id] = Family(
            defaults=lambda name: dict(defaults or {}), observes=lambda name: kind, code=code, **made_by(factory)
        )
        return factory

    return add


def register(
    env_id: str, *, defaults: Mapping[str, Any] | None = None, observes: Observes | None = None
) -> Callable[[_Factory], _Factory]:
    """Decorator: register a function ``(options: EnvConfig, *, render_mode=None)``, or a class, that makes one environment. The
    settings for frame skip, images, frame stack and step limit are applied to the result. A class, or a function without
    parameters that have no default, gets `options.kwargs` as its arguments.

    `defaults` are dotted configuration overrides, e.g. ``{"learning.learning_rate": 3e-4}``. `observes`: whether algorithms use
    their defaults for "images" or for "vectors"; None: one environment is made to find out. Registering an id again replaces the
    environment. Processes of a run import the module that registers it. Raises `ConfigError` for ids of the built-in families.
    """

    def make(factory: Any, name: str, options: EnvConfig, *, render_mode: str | None = None) -> Env:
        return preprocess(complete(construct(factory, options, render_mode)), options)

    return _register(env_id, defaults, lambda factory: {"make": partial(make, factory)}, observes)


def register_vector(
    env_id: str, *, defaults: Mapping[str, Any] | None = None, applies: Collection[str] = ()
) -> Callable[[_Factory], _Factory]:
    """Like `register`, for a function ``(options, num_envs)`` that makes a `gymnasium.vector.VectorEnv` of so many environments,
    whose ``metadata["autoreset_mode"]`` must be set.

    Rewards are scaled and clipped; other settings are refused, except those that the function `applies` itself, such
    as ["max_episode_steps"]. It cannot be watched, since there is no single environment to render.
    """

    def make(factory: Any, name: str, options: EnvConfig, num_envs: int) -> Any:
        check_applied(env_id, options, applies)
        return _as_many(factory(options, num_envs), num_envs, env_id)

    return _register(env_id, defaults, lambda factory: {"make": None, "make_vector": partial(make, factory)})


def register_tensor(
    env_id: str, *, defaults: Mapping[str, Any] | None = None, applies: Collection[str] = ()
) -> Callable[[_Factory], _Factory]:
    """Like `register`, for a function ``(options, num_envs, device)`` that makes environments which take and give torch tensors
    on the device ("cpu", "cuda", "cuda:1"): a `headrace.envs.groups.tensor.TensorEnv`.

    Rewards are scaled and clipped; for other settings and `applies` see `register_vector`. They cannot be watched,
    since there is no single environment to render.
    """

    def make(factory: Any, name: str, options: EnvConfig, num_envs: int, device: str) -> Any:
        check_applied(env_id, options, applies)
        return _as_many(factory(options, num_envs, device), num_envs, env_id)

    return _register(env_id, defaults, lambda factory: {"make": None, "make_tensor": partial(make, factory)})


def _as_many(envs: Any, num_envs: int, env_id: str) -> Any:
    """These environments. Raises `ConfigError` unless there are `num_envs` of them."""
    if envs.num_envs != num_envs:
        made = f"the registered function made {envs.num_envs} environments, and {num_envs} were asked for"
        raise ConfigError(f"{env_id}: {made}: make as many as its argument says")
    return envs


def register_parallel(
    env_id: str, *, agents: int, defaults: Mapping[str, Any] | None = None, applies: Collection[str] = ()
) -> Callable[[_Factory], _Factory]:
    """Like `register`, for a function ``(options, *, render_mode=None)`` that makes a multi-agent environment (one match) with
    PettingZoo's ParallelEnv interface (`headrace.envs.groups.multi_agent`). `agents`: how many `possible_agents` it has.
    `applies`: ["frameskip"] if the function applies that setting, which is refused otherwise."""

    def make(factory: Any, name: str, options: EnvConfig, *, render_mode: str | None = None) -> ParallelEnv:
        check_applied(env_id, options, {*APPLIED_TO_MATCHES, *applies})
        env = construct(factory, options, render_mode)
        if len(env.possible_agents) != agents:
            names = f"the environment has possible_agents {list(env.possible_agents)}"
            raise ConfigError(f"{env_id} was registered with agents={agents}; {names}")
        return env

    own = {"envs.num_agents": agents, **(defaults or {})}
    return _register(env_id, own, lambda factory: {"make": None, "make_parallel": partial(make, factory)})


# -- looking ids up -----------------------------------------------------------------------------------------------------


def list_ids(family: str | None = None) -> list[str]:
    """Ids of one family. Without `family`: of the user's environments and of all families whose packages are installed."""
    if family is not None:
        return [f"{family}/{name}" for name in _family(family).ids()]
    found = sorted(_registered)
    for name in FAMILIES:
        try:
            found += list_ids(name)
        except MissingExtra:
            continue
    return found


def check_id(env_id: str) -> None:
    """Raise `UnknownEnvironment` if there is no such id, `MissingExtra` if the packages it needs are not installed. Checks each
    of several tasks."""
    for task in tasks_of(env_id):
        prefix, _, name = task.partition("/")
        if task not in _registered and not (prefix in FAMILIES and _knows(_family(prefix), name)):
            raise UnknownEnvironment(f"there is no environment {task!r}; {_nearest(task)}")


def _knows(family: Family, name: str) -> bool:
    return name in family.ids() if family.knows is None else family.knows(name)


def family_of(env_id: str) -> tuple[Family, str]:
    """The family of an environment, and its name there. Raises what `check_id` raises."""
    if env_id in _registered:
        return _registered[env_id], env_id
    prefix, _, name = env_id.partition("/")
    return _family(prefix), name


def check_one(env_id: str) -> None:
    """Like `check_id`, but raises `ConfigError` for several tasks."""
    check_id(env_id)
    if SEPARATOR in env_id:
        raise ConfigError(f"{env_id!r} names several tasks; name one of them")


def code_of(env_id: str) -> tuple[str, ...]:
    """The files and modules that another process imports to know these environments. Raises what `check_id` raises, and
    `ConfigError` if no import helps, with what to do."""
    check_id(env_id)
    own = (family.code(name) for family, name in map(family_of, tasks_of(env_id)))
    return tuple(dict.fromkeys(source for sources in own for source in sources))


def with_absolute_path(env_id: str) -> str:
    """Make the path absolute in an id that names a file (vizdoom/my.cfg): a run may be evaluated from another directory."""
    return SEPARATOR.join(_with_absolute_path(task) for task in tasks_of(env_id))


def _with_absolute_path(env_id: str) -> str:
    prefix, _, name = env_id.partition("/")
    is_file = env_id not in _registered and name.endswith(".cfg") and Path(name).is_file()
    return f"{prefix}/{Path(name).resolve()}" if is_file else env_id


def _nearest(env_id: str) -> str:
    if (game := _atari_game(env_id)) is not None:
        return f"it is {game} here"
    if env_id.startswith("python/"):
        return "a class or a function of a module is python/MODULE:NAME"
    if env_id.endswith(".cfg"):
        doom, _, path = env_id.partition("vizdoom/")
        return f"a configuration file of Doom is vizdoom/{env_id}" if doom else f"there is no file {path}"
    own = "your own: give the file that registers it by --import, or name it python/MODULE:NAME"
    by_lower = {known.lower(): known for known in list_ids()}
    # "pong" finds "atari/pong", and of equal names the first family's
    by_lower |= {known.rpartition("/")[2].lower(): known for known in reversed(by_lower.values())}
    nearest = [by_lower[match] for match in difflib.get_close_matches(env_id.lower(), by_lower, n=5, cutoff=0.5)]
    if nearest:
        return f"nearest: {', '.join(dict.fromkeys(nearest))}; {own}"
    return f"ids are family/name with the families {', '.join(FAMILIES)}; `headrace envs` lists them; {own}"


def _atari_game(env_id: str) -> str | None:
    """The game of another library's id, such as ALE/MsPacman-v5, PongNoFrameskip-v4 or atari_pong."""
    name = re.sub(r"(NoFrameskip|Deterministic)?(-v\d+)?$", "", env_id.rpartition("/")[2].rpartition(":")[2])
    try:
        games = {game.partition("/")[2].replace("_", ""): game for game in list_ids("atari")}
    except MissingExtra:
        return None
    return games.get(name.removeprefix("atari_").replace("_", "").lower())


def is_known(env_id: str) -> bool:
    """Whether `check_id` accepts the id in this process."""
    try:
        check_id(env_id)
    except ConfigError:
        return False
    return True


def observes(env_id: str) -> Observes | None:
    """Whether an environment, or the first of several tasks, observes images or vectors. None: one must be made to know it.
    Raises what `check_id` raises."""
    check_id(env_id)
    family, name = family_of(tasks_of(env_id)[0])
    return family.observes(name)
