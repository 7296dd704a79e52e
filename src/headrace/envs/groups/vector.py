"""`VectorGroup`: the group of a `gymnasium.vector.VectorEnv` in any autoreset mode, also of the native Atari batch."""

from __future__ import annotations

from typing import Any, Literal, cast

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from headrace.config import EnvConfig
from headrace.envs.core.actions import batch_decoder, tensor_decoder
from headrace.envs.core.contract import Array, ObsRow, StepRow, on_host
from headrace.envs.core.errors import EnvironmentFault, cause, faults
from headrace.envs.core.spaces import PLAIN_KEY, leaves, spec_of
from headrace.envs.groups.base import OneAgentGroup, close_all
from headrace.envs.groups.checks import STEP, check_shapes, first_observation, parts_of
from headrace.envs.groups.episode_statistics import LIFE_LOST, numbers_of
from headrace.envs.groups.rewards import reward_transform


class VectorGroup(OneAgentGroup):
    """Steps a `gymnasium.vector.VectorEnv`, whose ``metadata["autoreset_mode"]`` says how it resets.

    NEXT_STEP is the contract's own convention. SAME_STEP, and DISABLED (where the group resets ended environments at once), give
    same-step rows: `spec.autoreset` is "same-step" and the true last observation goes to `StepRow.final_obs`.

    `send` also waits for vector environments with processes of their own (AsyncVectorEnv): Gymnasium has no public way to ask
    whether their step is finished. More rollout workers also step environments in parallel.
    """

    def __init__(
        self, envs: VectorEnv[Any, Any, Any], options: EnvConfig, env_id: str, frameskip: int = 1, in_place: bool = False,
        frame_stack: int | None = None, device: str | None = None,
    ) -> None:  # fmt: skip
        """Raises `UnsupportedSpace`, and `ValueError` if the metadata do not say how the environment resets.

        Args:
            frameskip, frame_stack: see `spec_of`.
            in_place: the environment's `reset` and `step` take ``out`` and write their observations, which are one array, to it.
            device: where the environment takes and gives tensors; it is `in_place` then, with NEXT_STEP autoreset.
        """
        observed, acted = envs.single_observation_space, envs.single_action_space
        self.mode = autoreset_mode(envs)
        autoreset: Literal["next-step", "same-step"] = "next-step" if self.mode is AutoresetMode.NEXT_STEP else "same-step"
        spec = spec_of(observed, acted, env_id, options, frameskip=frameskip, frame_stack=frame_stack, autoreset=autoreset)
        super().__init__(spec, envs.num_envs, leaves(observed), reward_transform(options), device)
        self.envs, self._in_place = envs, in_place
        self._decode = batch_decoder(acted) if device is None else tensor_decoder(acted, device, env_id)
        self._in_game: Array = ~self._ended  # bool [E]: False where the next step only resets

    def _reset(self, seed: int, out: ObsRow) -> None:
        self._in_game[:] = True
        try:
            begun = self.envs.reset(seed=seed, **self._out(out))
            self._put(out.obs, first_observation(begun, dict | list))
            self._statistics.begin(self._by_key(begun[1]))
        except faults() as error:
            raise self._group_fault("reset", error) from error

    def _out(self, rows: ObsRow) -> dict[str, Any]:
        return {"out": rows.obs[PLAIN_KEY]} if self._in_place else {}

    def _step(self, actions: Array, now: StepRow, after: ObsRow) -> None:
        try:
            stepped = self.envs.step(self._decode(actions), **self._out(after))
            observations, reward, terminated, truncated, infos = parts_of(stepped, STEP)
            check_shapes(self.num_envs, reward=reward, terminated=terminated, truncated=truncated)
            self._raw[:], now.terminated[:], now.truncated[:] = reward, terminated, truncated
            infos = self._by_key(infos)
            next_step = self.mode is AutoresetMode.NEXT_STEP
            if not next_step:
                observations = self._write_final(now, observations, infos)
            self._put(after.obs, observations)
            ended = now.terminated | now.truncated
            lasts = infos.get("final_info", infos)  # where the infos of episodes' last steps are
            lost = next((found[LIFE_LOST] for found in (lasts, infos) if LIFE_LOST in found), None)
            if lost is not None and not self.tensors:
                lost = np.asarray(lost, bool)  # Gymnasium makes an array of objects of NumPy's flags
            over = ended if lost is None else ended & ~lost
            if now.episode_info is not None and over.any():
                last = numbers_of(lasts, self.spec.info_metrics, over.shape)
                now.episode_info[over] = np.stack(last, -1)[over]
        except faults() as error:
            raise self._group_fault("step", error) from error
        after.first[:] = self._ended if next_step else ended
        after.valid[:] = ~ended if next_step else True
        started = self._ended
        self._finish(now, after, self._in_game, ended, over)
        if next_step:
            now.reward[started] = 0  # no chosen action led to it: after a lost life it counts only for the game
            self._in_game = ~over

    def _by_key(self, infos: Any) -> dict[str, Any]:
        """The infos by key. Gymnasium's wrapper DictInfoToList turns them into a list of dictionaries, from which the keys that
        this group reads are collected."""
        if isinstance(infos, dict):
            return infos
        if not isinstance(infos, list):
            raise TypeError(f"the infos are a {type(infos).__name__}, but must be a dictionary or a list of dictionaries")
        by_key: dict[str, Any] = {}
        last = [info.get("final_info", info) for info in infos]
        if any(LIFE_LOST in info for info in last):
            by_key[LIFE_LOST] = np.array([bool(info.get(LIFE_LOST)) for info in last])
        for name in self.spec.info_metrics:
            if any(name in info for info in last):
                by_key[name] = np.array([info.get(name, np.nan) for info in last])
        if any("final_obs" in info for info in infos):
            by_key["final_obs"] = np.empty(self.num_envs, object)
            for i, info in enumerate(infos):  # one by one, since NumPy would stack observations of equal shape
                by_key["final_obs"][i] = info.get("final_obs")
        return by_key

    def _write_final(self, now: StepRow, observations: Any, infos: dict[str, Any]) -> Any:
        """Write true last observations where episodes ended; return the observations to act on next."""
        ended = now.terminated | now.truncated
        if not ended.any():
            return observations
        if self.mode is AutoresetMode.DISABLED:
            self._put(now.final_obs, observations, ended)
            observations, _ = self.envs.reset(options={"reset_mask": ended})
        elif infos.get("final_obs") is None:
            raise TypeError("episodes ended, but the infos have no 'final_obs', the last observations of SAME_STEP environments")
        else:
            self._put(now.final_obs, infos["final_obs"], ended)
        self._checks.check(now.final_obs, np.zeros_like(ended))
        return observations

    def _put(self, rows: dict[str, np.ndarray], observations: Any, where: np.ndarray | None = None) -> None:
        """Write batched observations, or only those `where` is true, which may also be an array of objects."""
        for leaf in self._leaves:
            row = rows[leaf.name]
            if observations is row:
                continue  # written in place
            if where is None:
                leaf.put_batch(row, observations)
            elif isinstance(observations, np.ndarray) and observations.dtype == object:
                for i in np.flatnonzero(where):
                    leaf.put_one(row, int(i), observations[i])
            else:
                value = leaf.find(observations)
                for i in np.flatnonzero(where):
                    leaf.put_value(row[i], value[i])

    def _group_fault(self, doing: str, error: BaseException) -> EnvironmentFault:
        """An error that names the whole group: a vector environment does not say which of its environments failed."""
        return EnvironmentFault(
            f"{self.spec.name}, group of {self.num_envs} environments (seeds {self._seed} to {self._seed + self.num_envs - 1}), "
            f"steps {(self._statistics.lengths + 1).tolist()}: {doing} failed: {cause(error)}"
        )

    def get_state(self) -> dict[str, Any] | None:
        """Includes the vector environment's own `get_state()`; None if there is no such method or it returns None."""
        state = self.envs.get_state() if hasattr(self.envs, "get_state") else None
        return None if state is None else self._own_state() | {"in_game": on_host(self._in_game), "envs": state}

    def set_state(self, state: dict[str, Any]) -> None:
        if "in_game" not in state:  # of a checkpoint of an older version
            raise EnvironmentFault(f"{self.spec.name}: the environments were saved one by one, and are stepped in a batch now")
        super().set_state(state)
        self._in_game[:] = state["in_game"]
        try:
            cast(Any, self.envs).set_state(state["envs"])
        except ValueError as error:
            raise EnvironmentFault(f"{self.spec.name}: {error}") from error

    def close(self) -> None:
        close_all([self.envs])


def autoreset_mode(envs: VectorEnv[Any, Any, Any]) -> AutoresetMode:
    """How a vector environment resets ended episodes; raises `ValueError` if its metadata does not say."""
    mode = (envs.metadata or {}).get("autoreset_mode")
    if mode is None:
        raise ValueError(
            f"{type(envs).__name__} does not say how it resets ended episodes: set metadata['autoreset_mode'] to one of "
            f"{', '.join(str(m) for m in AutoresetMode)}"
        )
    return AutoresetMode(mode)
