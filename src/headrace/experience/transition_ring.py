"""Transitions in the memory of a device: a ring of the newest rows of all environments.

    rows      head - R                                                    head
    env 0     | obs action reward ... | obs action reward ... | ... | ... |     every frame once
    env 1     | ...                                                       |

A row is one step of all N environments: their observations (of a stack of images the newest frame), actions and rewards. A
transition is an entry (row, environment). Its frame stack, its n-step return and the observation n steps later are rebuilt from
the rows when it is drawn, by operations on tensors that are the same on every device. A transition can be drawn once the n rows
behind it are there, and until a row that it needs is overwritten.

Sources: prioritized draws and importance weights, Schaul et al. 2016 (arXiv 1511.05952).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from headrace.envs.core.errors import EnvironmentFault
from headrace.experience.replay.buffer import ReplayField
from headrace.experience.replay.layout import OBSERVATION
from headrace.experience.sum_table import SumTable

BEFORE, ZEROS, COPIES = range(3)
"""What the older frames of a row's stack are: the newest ones of the rows before, zeros, or copies of its own newest frame."""
FLOOR = 1e-6  # priorities below are raised to it, so that everything can be drawn
FINAL = "final_obs/"
STEP_FIELDS = ("action", "reward", "terminated", "truncated", "version", "first", "valid")


class TransitionRing:
    """The ring, its priorities, and draws from it.

    Args:
        fields: of the trajectories that are added, `[T + 1 or T, N, ...]` each: shapes and dtypes count.
        observations: how these are stored, see `headrace.experience.replay.layout.observation_fields`.
        rows: of the ring, at least 2 T + n_step + the depth of a stack.
        n_step, gamma: of the returns.
        alpha: exponent of the priorities; 0 draws uniformly.
        name: of the environment, for errors.
    """

    def __init__(
        self, fields: dict[str, Tensor], observations: Mapping[str, ReplayField], rows: int, n_step: int, gamma: float,
        alpha: float, device: str, name: str,
    ):  # fmt: skip
        self.envs, self.rows, self.n_step, self.gamma, self.alpha = fields["valid"].shape[1], rows, n_step, gamma, alpha
        self.device, self._name = device, name
        self._depth = {observed: max(1, field.stack) for observed, field in observations.items()}
        self._stacked = [n for n, depth in self._depth.items() if depth > 1]
        same_step = any(n.startswith(FINAL) for n in fields)

        def memory(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            return torch.zeros((rows, self.envs, *shape), dtype=dtype, device=device)

        self.columns = {n: memory(tuple(fields[n].shape[2:]), fields[n].dtype) for n in STEP_FIELDS}
        for observed, field in observations.items():
            self.columns[observed] = memory(field.shape, fields[observed].dtype)
            if same_step:
                self.columns[_final(observed)] = memory(field.shape, fields[observed].dtype)
        self.columns["older"] = memory((), torch.uint8)
        self._same_step = same_step
        self._margin = max(self._depth.values()) - 1  # rows before a transition that its stack may need
        self.table = SumTable(rows * self.envs, device)  # (priority ^ alpha) of every entry; 0: it cannot be drawn
        self.top = torch.ones((), device=device)  # the largest number that was ever in the table: new transitions get it
        self.head = 0  # rows that were ever added
        self._drawable = False

    # -- adding -------------------------------------------------------------------------------------------------------

    def add(self, fields: dict[str, Tensor]) -> None:
        """Add the first T rows of trajectories of all environments; T divides the number of rows of the ring.

        Raises `EnvironmentFault` for stacks that cannot be rebuilt from single frames.
        """
        T, begin = len(fields["reward"]), self.head % self.rows
        here = slice(begin, begin + T)
        for n in STEP_FIELDS:
            self.columns[n][here] = fields[n][:T]
        for n, depth in self._depth.items():
            self.columns[n][here] = _newest(fields[n][:T], depth)
            if self._same_step:
                self.columns[_final(n)][here] = _newest(fields[FINAL + n.removeprefix(OBSERVATION)], depth)
        self.columns["older"][here] = BEFORE
        head = self.head
        self.head += T
        if self._stacked:
            self._note_first_stacks(fields, head)
            if head <= self._margin:
                self._check_stacks(fields, head)
        # What is overwritten, and the rows whose stacks reached into it.
        self._set_rows(head, torch.zeros(T + self._margin, self.envs, device=self.device))
        start = max(self._margin, head - self.n_step)
        if (count := self.head - self.n_step - start) > 0:
            self._set_rows(start, self._whole(start, count) * self.top)

    def hold_back(self) -> None:
        """Exclude the newest transitions, whose n rows are not all there yet, from draws: the saved ring may have had shorter
        returns."""
        rows = min(self.n_step, self.head)
        self._set_rows(self.head - rows, torch.zeros(rows, self.envs, device=self.device))

    def _set_rows(self, row: int, numbers: Tensor) -> None:
        """Write [K, N] into the table, from this row on."""
        at = row % self.rows
        here = min(len(numbers), self.rows - at)
        self.table.fill(at * self.envs, numbers[:here].flatten())
        if here < len(numbers):
            self.table.fill(0, numbers[here:].flatten())

    def _whole(self, start: int, count: int) -> Tensor:
        """Bool [count, N]: whether a transition starts here, all of whose rows are of one episode."""
        index = torch.arange(start, start + count + self.n_step, device=self.device) % self.rows
        first, valid = self.columns["first"][index], self.columns["valid"][index]
        ended = self.columns["terminated"][index] | self.columns["truncated"][index]
        # Whether the next row does not continue this one: after a stop, episodes may begin anew in the middle.
        astray = ~valid[1:] | (first[1:] & valid[:-1])
        astray = torch.where(ended[:-1], valid[1:] & (not self._same_step), astray)
        whole, running = valid[:count].clone(), torch.ones_like(valid[:count])
        for k in range(self.n_step):
            whole &= ~(running & astray[k : k + count])
            running &= ~ended[k : k + count]
        return whole

    def _note_first_stacks(self, fields: dict[str, Tensor], head: int) -> None:
        """Find out what the older frames of the episodes' first stacks are."""
        row, env = fields["first"][: len(fields["reward"])].to(self.device).nonzero(as_tuple=True)
        for kind in (ZEROS, COPIES, BEFORE):
            if not len(row):
                return
            self.columns["older"][(head + row) % self.rows, env] = kind
            other = self._differ(fields, row, env, head)
            row, env = row[other], env[other]
        if len(row):
            raise EnvironmentFault(
                f"{self._name}, environment {int(env[0])}: the first stack of images of an episode holds frames that are neither "
                "zeros, nor copies of its newest one, nor of the steps before. A replay stores single frames: set "
                "envs.frame_stack to 1 if the images are no stacks"
            )

    def _check_stacks(self, fields: dict[str, Tensor], head: int) -> None:
        """Whether the very first stacks that lie in the ring, of some environments, are made of the frames of successive rows."""
        rows, envs = torch.arange(self.head - head), torch.arange(min(64, self.envs))
        row, env = torch.cartesian_prod(rows[max(0, self._margin - head) :], envs).to(self.device).unbind(1)
        if bool(self._differ(fields, row, env, head).any()):
            raise EnvironmentFault(
                f"{self._name}: images are no stacks of {max(self._depth.values())} successive frames, as which a replay stores "
                "them. Set envs.frame_stack to the number of frames that they hold, or 1"
            )

    def _differ(self, fields: dict[str, Tensor], row: Tensor, env: Tensor, head: int) -> Tensor:
        """Bool [K]: whether stacks are others than those that would be rebuilt."""
        other = torch.zeros(len(row), dtype=torch.bool, device=self.device)
        for n in self._stacked:
            given = fields[n].to(self.device)[row, env]
            other |= (self._observed(n, (head + row) % self.rows, env) != given).flatten(1).any(1)
        return other

    # -- drawing ------------------------------------------------------------------------------------------------------

    @property
    def drawable(self) -> bool:
        """Whether a transition can be drawn. Asks the device until there was one: from then on there always is."""
        self._drawable = self._drawable or bool(self.table.numbers.any())
        return self._drawable

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Keys of transitions, int64 [count], drawn in proportion to the table's numbers. They are good until rows are added."""
        return self.table.draw(count, generator)

    def transitions(self, keys: Tensor, beta: float) -> dict[str, Tensor]:
        """The batch that these keys name: `obs/*` and `next/*` [B, ...] (what was observed n steps later, or the episode's true
        last observation if it ended before), `action` [B, A], `reward` (n-step), `discount` and importance `weights` float32 [B]
        ((N P)^-beta, divided by the batch's largest), `version` int32 [B]."""
        row, env = keys // self.envs, keys % self.envs
        index = (row + torch.arange(self.n_step, device=self.device)[:, None]) % self.rows
        reward, dead = self.columns["reward"][index, env], self.columns["terminated"][index, env]
        ended = dead | self.columns["truncated"][index, env]
        total, discount, steps, over = n_step_returns(reward, self.gamma * ~dead, ended)
        numbers = self.table.numbers[keys]
        batch = {"action": self.columns["action"][row, env], "version": self.columns["version"][row, env]}
        batch |= {"reward": total, "discount": discount, "weights": (numbers / numbers.min()) ** -beta}
        for n in self._depth:
            batch[n] = self._observed(n, row, env)
            batch["next/" + n.removeprefix(OBSERVATION)] = self._observed_after(n, row + steps, env, over)
        return batch

    def _observed(self, name: str, row: Tensor, env: Tensor) -> Tensor:
        """The observations of entries, [B, *shape]: stacks of frames end with their rows'."""
        depth, column = self._depth[name], self.columns[name]
        if depth == 1:
            return column[row, env]
        rows, blank = [row], [torch.zeros_like(row, dtype=torch.bool)]
        for _ in range(depth - 1):
            kind = self.columns["older"][row, env]
            row = torch.where(kind == BEFORE, (row - 1) % self.rows, row)
            rows.append(row)
            blank.append(kind == ZEROS)
        entries = torch.stack(rows[::-1], 1) * self.envs + env[:, None]
        frames = column.flatten(0, 1).index_select(0, entries.flatten()).unflatten(0, entries.shape)
        dark = torch.stack(blank[::-1], 1)
        frames *= ~dark.view(*dark.shape, *[1] * (frames.dim() - 2))
        return frames.flatten(1, 2)

    def _observed_after(self, name: str, row: Tensor, env: Tensor, over: Tensor) -> Tensor:
        """What was observed at `row`, behind a return's last row; where the episode was over, its true last observation."""
        at = row % self.rows
        if not self._same_step:
            return self._observed(name, at, env)
        depth, before = self._depth[name], (row - 1) % self.rows
        final = self.columns[_final(name)][before, env]
        if depth > 1:
            final = torch.cat([self._observed(name, before, env)[:, final.shape[1] :], final], 1)
        return torch.where(over.view(-1, *[1] * (final.dim() - 1)), final, self._observed(name, at, env))

    def set_priorities(self, keys: Tensor, priorities: Tensor) -> None:
        """New priorities, float32 [B], of the transitions with these keys."""
        numbers = priorities.clamp(min=FLOOR) ** self.alpha
        self.table.update(keys, numbers)
        self.top = torch.maximum(self.top, numbers.max())


def _newest(stacks: Tensor, depth: int) -> Tensor:
    """Of [T, N, depth x C, ...] the newest frames, [T, N, C, ...]."""
    return stacks if depth == 1 else stacks[:, :, -(stacks.shape[2] // depth) :]


def _final(name: str) -> str:
    return FINAL + name.removeprefix(OBSERVATION)


def n_step_returns(reward: Tensor, discount: Tensor, last: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """n-step returns of windows of n rows; a window ends early where its episode does.

    Args:
        reward, discount: float32 [n, B]; discount is 0 after termination.
        last: bool [n, B], the episode ended with this row's action.

    Returns: the discounted sum of rewards and what the value behind them is multiplied with, float32 [B]; the number of rows that
    they are of, int64 [B]; and whether the episode ended with the last of these, bool [B].
    """
    total, product = torch.zeros_like(reward[0]), torch.ones_like(reward[0])
    count, running = torch.zeros_like(last[0], dtype=torch.int64), torch.ones_like(last[0])
    for reward_k, discount_k, last_k in zip(reward, discount, last, strict=True):
        total = torch.where(running, total + product * reward_k, total)
        product = torch.where(running, product * discount_k, product)
        count = count + running
        running = running & ~last_k
    return total, product, count, ~running
