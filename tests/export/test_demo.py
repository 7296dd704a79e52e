"""The page of `headrace share --demo`: its worlds against Gymnasium's in Node, the page itself in Chromium."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from exported_runs import trained

import headrace
from headrace.config import ConfigError
from headrace.export import browser_page
from headrace.export import share as sharing

NODE, BROWSER = shutil.which("node"), shutil.which("chromium") or shutil.which("google-chrome")
IN_NODE = """
const fs = require("fs");
eval(fs.readFileSync(process.argv[1], "utf8") + ";globalThis.W = WORLDS");
const found = JSON.parse(fs.readFileSync(0, "utf8")).map(([world, state, action]) => {
  const [next, reward, done] = W[world].step(state, action);
  return [next, reward, done, W[world].observe(next)];
});
console.log(JSON.stringify({ found, limits: Object.fromEntries(Object.entries(W).map(([id, w]) => [id, w.limit])) }));
"""


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_worlds_are_gymnasiums():
    """Every step of random games: next state, reward, end, observation."""
    asked, wanted = [], []
    for env_id in browser_page.WORLDS:
        env = gymnasium.make(env_id.removeprefix("gym/"))
        env.action_space.seed(0)
        env.reset(seed=0)
        for step in range(400):
            state = np.array(env.unwrapped.state, np.float64)
            action = env.action_space.sample()
            if env_id == "gym/MountainCar-v0":  # towards the goal and the left wall, which random actions never reach
                action = 2 * (state[1] > 0)
            if env_id == "gym/MountainCarContinuous-v0" and step > 40:
                action = np.sign(state[1:]).astype(np.float32)
            observation, reward, terminated, truncated, _ = env.step(action)
            asked.append([env_id, state.tolist(), float(np.ravel(action)[0])])
            wanted.append((np.array(env.unwrapped.state, np.float64), float(reward), terminated, observation))
            if terminated or truncated:
                env.reset()
        env.close()
    command = [NODE, "-e", IN_NODE, str(browser_page.TEMPLATES / "worlds.js")]
    done = json.loads(subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=True).stdout)
    assert done["limits"] == {w: gymnasium.spec(w.removeprefix("gym/")).max_episode_steps for w in browser_page.WORLDS}
    for (env_id, _, _), theirs, (state, reward, ended, observation) in zip(asked, done["found"], wanted, strict=True):
        exact = {"rtol": 1e-12, "atol": 1e-12} if "Continuous" not in env_id else {"rtol": 1e-6, "atol": 1e-7}  # float32 there
        np.testing.assert_allclose(theirs[0], state, err_msg=env_id, **exact)
        np.testing.assert_allclose(theirs[1], reward, rtol=1e-6, err_msg=env_id)
        assert theirs[2] == ended, env_id
        np.testing.assert_allclose(theirs[3], observation, rtol=1e-6, atol=1e-7, err_msg=env_id)
    assert {env_id for (env_id, _, _), (_, _, ended, _) in zip(asked, wanted, strict=True) if ended} >= {
        "gym/CartPole-v1", "gym/MountainCar-v0", "gym/MountainCarContinuous-v0",
    }  # fmt: skip


# -- in a browser -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runtime():
    """The files of onnxruntime-web."""
    try:
        return browser_page.runtime()
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api")
    if BROWSER is None:
        pytest.skip("no Chromium is installed")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield chromium
        chromium.close()


def until(page, condition: str) -> None:
    """Wait for an expression of the page to be true. (The page's content policy forbids what Playwright's own waiting does.)"""
    end = time.monotonic() + 90
    while not page.evaluate(condition):
        assert time.monotonic() < end, f"{condition}: {page.inner_text('#status')}"
        page.wait_for_timeout(20)


def opened(browser, path: Path):
    """The page, and what it said and asked for."""
    page, said, asked = browser.new_page(viewport={"width": 760, "height": 720}), [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    until(page, "demo.log.length > 0")
    return page, said, asked


def balancing(folder: Path) -> str:
    """A CartPole run whose network is a linear controller that keeps the pole up."""
    run = trained("gym/CartPole-v1", folder, **{"policy.core": "none", "policy.activation": "relu"})
    policy = headrace.load_policy(run, device="cpu")
    weights = torch.tensor([0.1, 0.3, 3.0, 1.0])
    with torch.no_grad():
        first = next(m for m in policy.model.trunk.network.modules() if isinstance(m, torch.nn.Linear))
        for parameter in (*policy.model.trunk.network.parameters(), *policy.model.action_head.parameters()):
            parameter.zero_()
        first.weight[0], first.weight[1] = weights, -weights
        policy.model.action_head.linear.weight[1, 0] = policy.model.action_head.linear.weight[0, 1] = 1.0
    shared = Path(run) / "weights"
    shared.mkdir()
    shutil.copy(Path(run) / "config.json", shared)
    sharing.safetensors.torch.save_file(
        {name: tensor.contiguous() for name, tensor in policy.model.state_dict().items()},
        shared / "model.safetensors", {"step": "64"},
    )  # fmt: skip
    return str(shared)


def demo_of(run, runtime, to: Path, name: str = "balancing") -> Path:
    done = headrace.export_policy(run, to / "policy.onnx", exporter="torchscript", episodes=2)
    (to / "demo.html").write_text(browser_page.page(name, done.path.read_bytes(), done.contract, runtime))
    return to / "demo.html"


@pytest.mark.process
def test_the_pole_stays_up_and_the_visitor_pushes(browser, runtime, tmp_path):
    page, said, asked = opened(browser, demo_of(balancing(tmp_path / "run"), runtime, tmp_path, "<b>mine</b>"))
    page.select_option("#speed", "8")
    until(page, "document.getElementById('games').textContent === '1'")
    assert page.inner_text("#last") == "500"
    assert page.inner_text("h1") == "<b>mine</b>"
    # the keyboard: a push moves the cart to its side, a pause stops it, n begins a new game
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("n")
    until(page, "demo.step > 5 && demo.step < 100")
    page.keyboard.down("ArrowRight")
    until(page, "demo.push === 1 && demo.state[0] > 0.3 || demo.games > 1")
    assert page.locator("#right").get_attribute("class") == "held"
    page.keyboard.up("ArrowRight")
    assert page.evaluate("demo.push") == 0
    page.keyboard.press("Space")
    page.wait_for_timeout(300)
    stopped = page.evaluate("demo.log.length + 1e6 * demo.games")
    page.wait_for_timeout(300)
    assert page.evaluate("demo.log.length + 1e6 * demo.games") == stopped
    page.keyboard.press("n")
    until(page, "demo.step === 0")
    assert not said
    assert {url.partition(":")[0] for url in asked} <= {"file", "blob"}
    assert len([url for url in asked if url.startswith("file")]) == 1
    if pictures := os.environ.get("HEADRACE_PICTURES"):
        page.keyboard.press("Space")
        page.wait_for_timeout(1500)
        page.screenshot(path=f"{pictures}/demo.png")
    page.close()


@pytest.mark.process
def test_a_policy_with_memory_acts_in_the_page_as_in_python(browser, runtime, tmp_path):
    """Action for action, through the ends of games, on what the page observed."""
    run = trained("gym/CartPole-v1", tmp_path / "run", **{"policy.core": "gru", "policy.normalize_observations": True})
    page, said, _ = opened(browser, demo_of(run, runtime, tmp_path))
    page.select_option("#speed", "8")
    until(page, "demo.games >= 3")
    log = page.evaluate("demo.log")
    assert not said
    policy, games = headrace.load_policy(run, device="cpu"), 0
    for observation, action, first in log:
        if first:
            policy.reset()
            games += 1
        assert policy.act(np.array(observation, np.float32)) == action
    assert games >= 3
    page.close()


# -- what is refused --------------------------------------------------------------------------------------------------------


@pytest.mark.process
def test_what_a_page_cannot_play_is_said_before_the_work(tmp_path, monkeypatch):
    run = trained("gym/CartPole-v1", tmp_path / "run", **{"envs.frame_stack": 2})
    with pytest.raises(ConfigError, match=r"the plain one; this policy has envs\.frame_stack"):
        sharing.share(run, "me/it", tmp_path / "out", demo=True)
    run = trained("gym/Taxi-v4", tmp_path / "taxi")
    with pytest.raises(ConfigError, match=r"a page can play gym/CartPole-v0.*not gym/Taxi-v4"):
        sharing.share(run, "me/it", tmp_path / "out", demo=True)
    assert not (tmp_path / "out").exists()


def test_without_the_javascript_package(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"npm is not installed here.*npm install onnxruntime-web@1.*--onnxruntime-web"):
        browser_page.runtime()
    with pytest.raises(ConfigError, match="is not the npm package onnxruntime-web"):
        browser_page.runtime(tmp_path)
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\necho no network >&2\nexit 1\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(ConfigError, match=r"npm cannot give onnxruntime-web.*no network"):
        browser_page.runtime()
    npm.write_text(  # other files than the ones of that version
        '#!/bin/sh\nfor last; do :; done\nmkdir -p package/dist\necho 1 > package/dist/ort.wasm.bundle.min.mjs\n'
        'echo 2 > package/dist/ort-wasm-simd-threaded.wasm\ntar czf "$last/a.tgz" package\n'
    )
    with pytest.raises(ConfigError, match=r"npm gave another ort\.wasm\.bundle\.min\.mjs"):
        browser_page.runtime()
    assert not list(tmp_path.glob("headrace/*/*"))
