"""Turn games.json into two headers: one score keeper per game for core/, and the table of all games for host/.

Usage: generate_games.py games.json FOLDER

Writes FOLDER/score_keepers.hpp and FOLDER/game_table.hpp. The rules of a game are expressions over the 128 bytes of RAM;
games.json explains them under "schema". Every rule becomes one block of plain C++ in a switch over the game, so that the
same code runs on the CPU and on an accelerator. Rules that do not fit an expression (the key "special") call a function of
core/games_special.hpp named after the game.
"""

import json
import re
import sys
from pathlib import Path

REPORTS = {
    "raw": "kRaw",
    "zero_when_terminal": "kZeroWhenTerminal",
    "one_until_terminal": "kOneUntilTerminal",
    "always_one": "kAlwaysOne",
    "always_zero": "kAlwaysZero",
}
BYTE = re.compile(r"\$([0-9A-F]{2})(?:&([0-9A-F]{2}))?(?:>>(\d))?$")
STORED = {name: f"k.{name}" for name in ("prev_score", "reward", "terminal", "lives")}


class Keeper:
    """Writes the score keeper of one game."""

    def __init__(self, game: dict):
        self.game = game
        # A name read before it is computed in a frame means the value of the frame before, which the keeper stores.
        self.names = dict(STORED) | {name: f"k.state[{i}]" for i, name in enumerate(game.get("state", {}))}

    def value(self, v) -> str:
        if isinstance(v, int):
            return str(v)
        if isinstance(v, str):
            return self.byte_or_name(v)
        if isinstance(v, list) or "all" in v or "any" in v:
            return f"({self.condition(v)} ? 1 : 0)"
        match v:
            case {"bcd": cells}:
                return "(" + " + ".join(f"{100**i} * bcd({self.value(c)})" for i, c in enumerate(cells)) + ")"
            case {"digits": cells, **rest}:
                blank = rest.get("blank", -1)
                return "(" + " + ".join(f"{10**i} * digit({self.value(c)}, {blank})" for i, c in enumerate(cells)) + ")"
            case {"signed": x}:
                return f"static_cast<int32_t>(static_cast<int8_t>({self.value(x)}))"
            case {"add": terms}:
                return "(" + " + ".join(map(self.value, terms)) + ")"
            case {"sub": [x, y]}:
                return f"({self.value(x)} - {self.value(y)})"
            case {"mul": [x, y]}:
                return f"({self.value(x)} * {self.value(y)})"
            case {"shr": [x, n]}:
                return f"({self.value(x)} >> {n})"
            case {"table": x, "map": entries, **rest}:
                text = self.value(rest["else"]) if "else" in rest else self.value(x)
                for key, result in reversed(entries.items()):
                    text = f"({self.value(x)} == {key} ? {self.value(result)} : {text})"
                return text
            case {"if": c, "then": x, "else": y}:
                return f"({self.condition(c)} ? {self.value(x)} : {self.value(y)})"
        raise ValueError(f"unknown value {v!r}")

    def byte_or_name(self, text: str) -> str:
        if not text.startswith("$"):
            return self.names[text]
        match = BYTE.match(text)
        if match is None:
            raise ValueError(f"unknown RAM byte {text!r}")
        address, mask, shift = match.groups()
        value = f"ram[0x{int(address, 16) - 0x80:02X}]"
        if mask:
            value = f"({value} & 0x{mask})"
        return f"({value} >> {shift})" if shift else f"int32_t({value})"

    def condition(self, c) -> str:
        match c:
            case [x, ("==" | "!=" | "<" | "<=" | ">" | ">=") as op, y]:
                return f"({self.value(x)} {op} {self.value(y)})"
            case {"all": parts}:
                return "(" + " && ".join(map(self.condition, parts)) + ")"
            case {"any": parts}:
                return "(" + " || ".join(map(self.condition, parts)) + ")"
            case {"if": test, "then": x, "else": y}:
                return f"({self.condition(test)} ? {self.condition(x)} : {self.condition(y)})"
        raise ValueError(f"unknown condition {c!r}")

    def assignments(self, steps: list[dict]) -> list[str]:
        lines = []
        for step in steps:
            guard = f"if {self.condition(step['when'])} " if "when" in step else ""
            lines.append(f"{guard}{self.names[step['set']]} = {self.value(step['to'])};")
        return lines

    def local(self, name: str, value: str) -> str:
        self.names[name] = name
        return f"[[maybe_unused]] const int32_t {name} = {value};"

    def reward(self) -> list[str]:
        """The reward and, unless the score is held, the score it is measured from next time."""
        rule = self.game["reward"]
        match rule:
            case "delta":
                return ["k.reward = delta;", "k.prev_score = score;"]
            case {"delta": {"hold_if": c, **rest}}:
                held = self.value(rest.get("hold_value", 0))
                return [
                    f"if {self.condition(c)} k.reward = {held};",
                    "else { k.reward = delta; k.prev_score = score; }",
                ]
            case {"delta": limits}:
                lines = ["k.reward = delta;", "k.prev_score = score;"]
                if "wrap" in limits:
                    lines.append(f"if (k.reward < 0) k.reward += {limits['wrap']};")
                if "min" in limits:
                    lines.append(f"if (k.reward < {limits['min']}) k.reward = {limits['min']};")
                if "max" in limits:
                    lines.append(f"if (k.reward > {limits['max']}) k.reward = {limits['max']};")
                return lines
        return [f"k.reward = {self.value(rule)};", "k.prev_score = score;"]

    def body(self) -> list[str]:
        game = self.game
        lines = self.assignments(game.get("before", []))
        lines += [self.local(name, self.value(value)) for name, value in game.get("vars", [])]
        lines.append(self.local("score", self.value(game.get("score", 0))))
        lines.append(self.local("delta", "score - k.prev_score"))
        lines.append(f"k.terminal = {self.condition(game['terminal'])};")
        lines += self.reward()
        if "lives" in game:
            lines.append(f"k.lives = {self.value(game['lives'])};")
        return lines + self.assignments(game.get("after", []))


def modes_of(game: dict) -> list[tuple[int, int]]:
    """All (mode, SELECT presses); the presses are -1 where the procedure of the game decides them."""
    modes = game["modes"]
    if isinstance(modes, dict):
        modes = [plus + base for plus in modes["plus"] for base in modes["base"]]
    setting = game.get("mode_setting", {})
    presses = {int(mode): n for mode, n in setting.get("frames", {}).items() if isinstance(n, int)}
    return [(mode, presses.get(mode, -1)) for mode in modes]


def braces(items) -> str:
    return "{" + ", ".join(map(str, items)) + "}"


def initialiser(fields: dict) -> str:
    return "{" + ", ".join(f".{key} = {value}" for key, value in fields.items()) + "}"


def facts(game: dict) -> str:
    """What core/ has to know about a game: an aggregate initialiser of GameFacts."""
    actions = range(18) if game["minimal_actions"] == "all" else game["minimal_actions"]
    starting = game.get("starting_actions", [])
    setting = game.get("mode_setting", {})
    fields = {
        "left": f"Controller::k{game['controllers'][0].capitalize()}",
        "right": f"Controller::k{game['controllers'][1].capitalize()}",
        "swap_ports": int(game.get("swap") == "ports"),
        "swap_paddles": int(game.get("swap") == "paddles"),
        "pal": int(game["tv"] == "PAL"),
        "hmove_blanks": int(game["hmove_blanks"]),
        "keeps_memory": int(game.get("keeps_memory", False)),
        "height": game["height"],
        "first_row": game["ystart"],
        "paddle_max": game.get("paddle_max", 790196),
        "minimal_actions": hex(sum(1 << a for a in actions)),
        "legal_actions": hex(sum(1 << a for a in game.get("legal_actions", range(18)))),
        "starting_actions": braces(braces(pair) for pair in starting),
        "num_starting_actions": len(starting),
        "mode_procedure": f"ModeProcedure::k{setting.get('procedure', 'Select') if setting else 'Fixed'}",
        "select_hold": setting.get("select_hold", setting.get("select_hold_estimate", 2)),
        "mode_resets": setting.get("resets", 1),
        "mode_byte": int(setting.get("mode_byte", ["$80"])[0][1:], 16) - 0x80,
        "lives_report": f"LivesReport::{REPORTS[game['lives_report']]}",
    }
    return initialiser(fields)


def listing(name: str, game: dict, mode_index: int) -> str:
    """One row of the table of games: an aggregate initialiser of GameListing."""
    fields = {
        "name": f'"{name}"',
        "md5": f'"{game["md5"]}"',
        "rom_size": game["size"],
        "mapper": f"Mapper::k{game['mapper']}",
        "mode_begin": mode_index,
        "num_modes": len(modes_of(game)),
        "default_mode": game["default_mode"],
        "difficulties": hex(sum(1 << d for d in game["difficulties"])),
        "facts": facts(game),
    }
    return initialiser(fields) + ","


def game_table(games: dict) -> str:
    """The header for host/: all games and their modes."""
    rows, modes = [], []
    for name, game in games.items():
        rows.append("    " + listing(name, game, len(modes)))
        modes += modes_of(game)
    lines = [
        "// Generated by generate_games.py from games.json.",
        "#pragma once",
        '#include "atari/host/game_listing.hpp"',
        "",
        "namespace headrace::atari {",
        "",
        f"inline constexpr int kNumGames = {len(rows)};",
        f"inline constexpr GameListing kGames[kNumGames] = {{\n{chr(10).join(rows)}\n}};",
        f"inline constexpr ModeSetting kModes[] = {braces(braces(m) for m in modes)};",
        "",
        "}  // namespace headrace::atari",
        "",
    ]
    return "\n".join(lines)


def score_keepers(games: dict) -> str:
    """The header for core/: reset_keeper and keep_score."""
    resets, keepers = [], []
    for index, (name, game) in enumerate(games.items()):
        initial = [f"k.state[{i}] = {value};" for i, value in enumerate(game.get("state", {}).values())]
        if "lives_initial" in game:
            initial.append(f"k.lives = {game['lives_initial']};")
        if "special" in game:
            initial.append(f"special::reset_{name}(k);")
            body = [f"special::{name}(ram, cart_ram, mode, k);"]
        else:
            body = Keeper(game).body()
        if initial:
            resets.append(f"    case {index}: " + " ".join(initial) + " break;")
        keepers.append("\n      ".join([f"    case {index}: {{  // {name}", *body, "break;\n    }"]))
    lines = [
        "// Generated by generate_games.py from games.json.",
        "#pragma once",
        '#include "atari/core/games.hpp"',
        '#include "atari/core/games_special.hpp"',
        "",
        "namespace headrace::atari {",
        "",
        "// State of the score keeper after its reset.",
        "HR_HD inline void reset_keeper(int game, Keeper& k) {",
        "  k = Keeper{};",
        "  switch (game) {",
        *resets,
        "    default: break;",
        "  }",
        "}",
        "",
        "// One frame of score keeping, on the RAM ($80..$FF) as the frame left it.",
        "HR_HD inline void keep_score(int game, const uint8_t* ram, [[maybe_unused]] const uint8_t* cart_ram,",
        "                             [[maybe_unused]] int mode, Keeper& k) {",
        "  switch (game) {",
        *keepers,
        "    default: break;",
        "  }",
        "}",
        "",
        "}  // namespace headrace::atari",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    source, folder = map(Path, sys.argv[1:])
    games = json.loads(source.read_text(encoding="utf-8"))["games"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "score_keepers.hpp").write_text(score_keepers(games), encoding="utf-8")
    (folder / "game_table.hpp").write_text(game_table(games), encoding="utf-8")


if __name__ == "__main__":
    main()
