"""Plays a policy that `headrace export` wrote, with NumPy and onnxruntime alone: neither PyTorch nor Headrace is imported.

    headrace export runs/my-run --to policy.onnx
    pip install numpy onnxruntime gymnasium
    python examples/play_exported.py policy.onnx [--episodes 5] [--seed 0] [--sample]

`ExportedPolicy` is all that a program needs to act; Gymnasium is here for an environment to act in.
"""

import argparse
import json

import numpy as np
import onnxruntime


class ExportedPolicy:
    """Actions for the observations of one environment. The file's metadata say what it takes and gives: its contract."""

    def __init__(self, path, seed=0):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # for one observation at a time more threads only wait for each other
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.contract = json.loads(self.session.get_modelmeta().custom_metadata_map["headrace.contract"])
        self.random = np.random.default_rng(seed)
        self.actions = [output for output in self.contract["outputs"] if output["role"] == "action"]
        self.reset()

    def reset(self):
        """The next observation is the first of an episode."""
        core = self.contract["core"]
        self.core = {"core": np.zeros((1, core["width"]), np.float32), "first": np.ones(1, bool)} if core else {}
        self.last = np.zeros(sum(output["width"] for output in self.actions))

    def act(self, observation, sample=False, reward=0.0):
        """The action for one observation: the best one, or drawn as the policy was trained to draw it. `reward`: the one that
        came with the observation, for a policy that observes it: as the environment gave it."""
        feeds = dict(self.core)
        for entry in self.contract["inputs"]:
            if entry["role"] == "observation":
                feeds[entry["name"]] = np.asarray(part(observation, entry["path"]), entry["dtype"])[None]
            elif entry["role"] == "previous_action":
                feeds[entry["name"]] = self.last.astype(entry["dtype"])[None]
            elif entry["role"] == "previous_reward":
                feeds[entry["name"]] = np.full(1, self.transformed(reward), np.float32)
        names = [output["name"] for output in self.contract["outputs"]]
        outputs = dict(zip(names, self.session.run(names, feeds), strict=True))
        if self.core:
            self.core = {"core": outputs["next_core"], "first": np.zeros(1, bool)}
        if sample:
            self.draw(outputs, feeds)
        taken = [outputs[output["name"]].reshape(-1) - np.ravel(output.get("start", 0)) for output in self.actions]
        self.last = np.concatenate(taken)
        action = {}
        for output in self.actions:
            put(action, output["path"], outputs[output["name"]][0])
        return with_tuples(action.get((), action))

    def transformed(self, reward):
        """A reward as the policy was trained with it."""
        settings = self.contract["environment"]["settings"]
        reward, soft, clip = reward * settings["reward_scale"], settings["reward_soft_clip"], settings["reward_clip"]
        if soft is not None:
            reward = soft * np.tanh(reward / soft) * (0.3 if reward < 0 else 1.0)
        return reward if clip is None else np.clip(reward, -clip, clip)

    def draw(self, outputs, feeds):
        """Replace the best actions by random ones. `feeds`: the inputs, of which a mask says what is allowed."""
        how = self.contract["sampling"]
        if how["kind"] == "epsilon-greedy":
            if self.random.random() < how["epsilon"]:
                output = self.actions[0]
                allowed = np.flatnonzero(feeds.get("action_mask", np.ones(output["n"][0])))
                outputs[output["name"]][:] = self.random.choice(allowed) + output["start"][0]
            return
        logits, number = 0, 0
        for output in self.actions if how["kind"] == "distribution" else []:
            value = outputs[output["name"]]
            flat = value.reshape(-1)
            for i in range(output["width"]):
                if output["space"] == "Box":
                    drawn = self.draw_number(how["numbers"][number], outputs, number)
                    flat[i] = np.rint(drawn) if flat.dtype.kind in "iu" else drawn
                    number += 1
                else:
                    own = outputs["logits"][0, logits : logits + output["n"][i]]
                    logits += output["n"][i]
                    flat[i] = output["start"][i] + np.argmax(own + self.random.gumbel(size=own.shape))

    def draw_number(self, how, outputs, index):
        """One entry of a continuous action."""
        x = outputs["mean"][0, index] + outputs["std"][0, index] * self.random.normal()
        low, high = how["low"], how["high"]
        if how["squashed"]:
            return (low + high) / 2 + (high - low) / 2 * np.tanh(x)
        return np.clip(x, -np.inf if low is None else low, np.inf if high is None else high)


def part(tree, path):
    """What the keys of `path` lead to in an observation of dictionaries and tuples."""
    for key in path:
        tree = tree[key]
    return tree


def put(tree, path, value):
    """The opposite of `part`, for an action; a plain one has the empty path."""
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1] if path else ()] = value


def with_tuples(action):
    """The action with a tuple for each Tuple space: the keys of its parts are numbers."""
    if not isinstance(action, dict):
        return action
    parts = {key: with_tuples(value) for key, value in action.items()}
    return tuple(parts.values()) if all(isinstance(key, int) for key in parts) else parts


def play(policy, env, seed, sample):
    """The return of one episode."""
    observation, _ = env.reset(seed=seed)
    policy.reset()
    total, reward, ended = 0.0, 0.0, False
    while not ended:
        observation, reward, terminated, truncated, _ = env.step(policy.act(observation, sample, reward))
        total, ended = total + float(reward), terminated or truncated
    return total


def main():
    import gymnasium

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", help="the ONNX file")
    parser.add_argument("--episodes", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sample", action="store_true", help="draw actions instead of taking the best")
    asked = parser.parse_args()
    policy = ExportedPolicy(asked.file, asked.seed)
    where = policy.contract["environment"]
    if not where["id"].startswith("gym/"):
        parser.error(f"the policy is for {where['id']}, and this example makes only environments of Gymnasium: call `play`")
    pipeline = policy.contract["observation_pipeline"]
    if others := [step["step"] for step in pipeline if step["step"] != "time limit"]:
        parser.error(f"the policy's environment did what this example does not: {', '.join(others)}; see observation_pipeline")
    limit = next((step["steps"] for step in pipeline), None)
    env = gymnasium.make(where["id"].removeprefix("gym/"), max_episode_steps=limit, **where["settings"]["kwargs"])
    returns = [play(policy, env, asked.seed + episode, asked.sample) for episode in range(asked.episodes)]
    print(f"{where['id']}: returns {', '.join(f'{x:.1f}' for x in returns)}; mean {np.mean(returns):.1f}")


if __name__ == "__main__":
    main()
