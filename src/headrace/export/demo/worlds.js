"use strict";
// The worlds of the page: Gymnasium's classic control, number for number (tests/export/test_demo.py compares them).
//
// A world has `limit` (steps of an episode), `rate` (steps per second), `reset()` -> state, `observe(state)`, and
// `step(state, action, push)` -> [state, reward, terminated]; push is what the visitor adds: -1, 0 or 1. `draw` has the size of
// the canvas in `w` and `h`.

const clip = (x, low, high) => Math.min(Math.max(x, low), high);
const uniform = (low, high) => low + (high - low) * Math.random();
const wrapped = (x) => { while (x > Math.PI) x -= 2 * Math.PI; while (x < -Math.PI) x += 2 * Math.PI; return x; };

function line(ctx, points, width, color) {
  ctx.beginPath(); ctx.lineCap = ctx.lineJoin = "round"; ctx.lineWidth = width; ctx.strokeStyle = color;
  points.forEach(([x, y], i) => (i ? ctx.lineTo(x, y) : ctx.moveTo(x, y)));
  ctx.stroke();
}

function disc(ctx, x, y, radius, color) {
  ctx.beginPath(); ctx.fillStyle = color; ctx.arc(x, y, radius, 0, 2 * Math.PI); ctx.fill();
}

const CARTPOLE = {
  limit: 500, rate: 50, pushes: "the cart",
  reset: () => [0, 0, 0, 0].map(() => uniform(-0.05, 0.05)),
  observe: (s) => s,
  step([x, v, theta, omega], action, push = 0) {
    const total = 0.1 + 1.0, polemass = 0.1 * 0.5, tau = 0.02, force = (action === 1 ? 10 : -10) + 5 * push;
    const cos = Math.cos(theta), sin = Math.sin(theta);
    const temp = (force + polemass * (omega * omega) * sin) / total;
    const alpha = (9.8 * sin - cos * temp) / (0.5 * (4.0 / 3.0 - 0.1 * (cos * cos) / total));
    const a = temp - polemass * alpha * cos / total;
    const s = [x + tau * v, v + tau * a, theta + tau * omega, omega + tau * alpha];
    return [s, 1, Math.abs(s[0]) > 2.4 || Math.abs(s[2]) > 12 * 2 * Math.PI / 360];
  },
  draw(ctx, [x, , theta], w, h, c) {
    const scale = w / 6, ground = h * 0.72, cx = w / 2 + x * scale, long = scale * 1.5;
    line(ctx, [[w * 0.1, ground], [w * 0.9, ground]], 2, c.faint);
    ctx.fillStyle = c.ink; ctx.beginPath(); ctx.roundRect(cx - 42, ground - 34, 84, 34, 6); ctx.fill();
    line(ctx, [[cx, ground - 34], [cx + long * Math.sin(theta), ground - 34 - long * Math.cos(theta)]], 9, c.accent);
    disc(ctx, cx, ground - 34, 5, c.paper);
  },
};

const PENDULUM = {
  limit: 200, rate: 20, pushes: "the pendulum",
  reset: () => [uniform(-Math.PI, Math.PI), uniform(-1, 1)],
  observe: ([theta, omega]) => [Math.cos(theta), Math.sin(theta), omega],
  step([theta, omega], action, push = 0) {
    const u = clip(action, -2, 2), f = Math.fround, turn = 2 * Math.PI;
    const angle = ((theta + Math.PI) % turn + turn) % turn - Math.PI;
    const cost = angle * angle + 0.1 * omega * omega + f(f(0.001) * f(f(u) * f(u)));
    const torque = f(3 * f(u)) + 3 * 1.5 * push;  // u is float32 in Gymnasium
    const next = clip(omega + (3 * 10.0 / 2 * Math.sin(theta) + torque) * 0.05, -8, 8);
    return [[theta + next * 0.05, next], -cost, false];
  },
  draw(ctx, [theta], w, h, c) {
    const long = h * 0.36, x = w / 2, y = h / 2;
    line(ctx, [[x, y], [x + long * Math.sin(theta), y - long * Math.cos(theta)]], 18, c.accent);
    disc(ctx, x, y, 7, c.ink);
  },
};

function hill(ctx, position, w, h, c, goal) {
  const at = (p) => [(p + 1.2) / 1.8 * w * 0.9 + w * 0.05, h * 0.85 - (Math.sin(3 * p) * 0.45 + 0.55) * h * 0.55];
  line(ctx, Array.from({ length: 101 }, (_, i) => at(-1.2 + 1.8 * i / 100)), 3, c.faint);
  const [gx, gy] = at(goal), [x, y] = at(position);
  line(ctx, [[gx, gy], [gx, gy - 50]], 3, c.ink);
  line(ctx, [[gx, gy - 48], [gx + 24, gy - 40], [gx, gy - 32]], 3, c.accent);
  disc(ctx, x, y - 12, 12, c.accent);
}

const MOUNTAIN_CAR = {
  limit: 200, rate: 30, pushes: "the car",
  reset: () => [uniform(-0.6, -0.4), 0],
  observe: (s) => s,
  step([position, velocity], action, push = 0) {
    velocity += (action - 1) * 0.001 + Math.cos(3 * position) * -0.0025 + 0.0005 * push;
    velocity = clip(velocity, -0.07, 0.07);
    position = clip(position + velocity, -1.2, 0.6);
    if (position === -1.2 && velocity < 0) velocity = 0;
    return [[position, velocity], -1, position >= 0.5 && velocity >= 0];
  },
  draw: (ctx, s, w, h, c) => hill(ctx, s[0], w, h, c, 0.5),
};

const MOUNTAIN_CAR_CONTINUOUS = {
  limit: 999, rate: 30, pushes: "the car",
  reset: () => [uniform(-0.6, -0.4), 0],
  observe: (s) => s,
  step([position, velocity], action, push = 0) {
    const force = clip(action, -1, 1);
    velocity = clip(velocity + force * 0.0015 - 0.0025 * Math.cos(3 * position) + 0.0005 * push, -0.07, 0.07);
    position = clip(position + velocity, -1.2, 0.6);
    if (position === -1.2 && velocity < 0) velocity = 0;
    const reached = position >= 0.45 && velocity >= 0;
    return [[position, velocity].map(Math.fround), (reached ? 100 : 0) - action * action * 0.1, reached];
  },
  draw: (ctx, s, w, h, c) => hill(ctx, s[0], w, h, c, 0.45),
};

function acrobotRates([theta1, theta2, rate1, rate2], torque) {
  const { cos, sin, PI } = Math, l = 1, lc = 0.5, m = 1, I = 1, g = 9.8;
  const d1 = m * lc ** 2 + m * (l ** 2 + lc ** 2 + 2 * l * lc * cos(theta2)) + I + I;
  const d2 = m * (lc ** 2 + l * lc * cos(theta2)) + I;
  const phi2 = m * lc * g * cos(theta1 + theta2 - PI / 2);
  const phi1 = -m * l * lc * rate2 ** 2 * sin(theta2) - 2 * m * l * lc * rate2 * rate1 * sin(theta2)
    + (m * lc + m * l) * g * cos(theta1 - PI / 2) + phi2;
  const a2 = (torque + d2 / d1 * phi1 - m * l * lc * rate1 ** 2 * sin(theta2) - phi2) / (m * lc ** 2 + I - d2 ** 2 / d1);
  return [rate1, rate2, -(d2 * a2 + phi1) / d1, a2];
}

const ACROBOT = {
  limit: 500, rate: 15, pushes: "the lower link",
  reset: () => [0, 0, 0, 0].map(() => Math.fround(uniform(-0.1, 0.1))),
  observe: ([a, b, c, d]) => [Math.cos(a), Math.sin(a), Math.cos(b), Math.sin(b), c, d],
  step(s, action, push = 0) {
    const torque = action - 1 + 0.5 * push, dt = 0.2, plus = (k, f) => s.map((x, i) => x + f * k[i]);
    const k1 = acrobotRates(s, torque), k2 = acrobotRates(plus(k1, dt / 2), torque);
    const k3 = acrobotRates(plus(k2, dt / 2), torque), k4 = acrobotRates(plus(k3, dt), torque);
    const n = s.map((x, i) => x + dt / 6 * (k1[i] + 2 * k2[i] + 2 * k3[i] + k4[i]));
    const next = [wrapped(n[0]), wrapped(n[1]), clip(n[2], -4 * Math.PI, 4 * Math.PI), clip(n[3], -9 * Math.PI, 9 * Math.PI)];
    const done = -Math.cos(next[0]) - Math.cos(next[1] + next[0]) > 1;
    return [next, done ? 0 : -1, done];
  },
  draw(ctx, [theta1, theta2], w, h, c) {
    const long = h * 0.2, x = w / 2, y = h * 0.5, a = theta1, b = theta1 + theta2;
    const elbow = [x + long * Math.sin(a), y + long * Math.cos(a)];
    line(ctx, [[w * 0.2, y - long], [w * 0.8, y - long]], 2, c.faint);
    line(ctx, [[x, y], elbow], 12, c.ink);
    line(ctx, [elbow, [elbow[0] + long * Math.sin(b), elbow[1] + long * Math.cos(b)]], 12, c.accent);
    disc(ctx, x, y, 6, c.paper); disc(ctx, ...elbow, 6, c.paper);
  },
};

const WORLDS = {
  "gym/CartPole-v0": { ...CARTPOLE, limit: 200 }, "gym/CartPole-v1": CARTPOLE, "gym/Pendulum-v1": PENDULUM,
  "gym/MountainCar-v0": MOUNTAIN_CAR, "gym/MountainCarContinuous-v0": MOUNTAIN_CAR_CONTINUOUS, "gym/Acrobot-v1": ACROBOT,
};
