"""Words that a command cannot read are answered by one line that says what to write."""

import pytest

from headrace import cli

TRAIN = "train --env gym/CartPole-v1"
IMPORT = "--import takes Python files or modules, with spaces between them: --import FILE"


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (f"{TRAIN} --sampling.num-workers x", "--sampling.num-workers takes a whole number: --sampling.num-workers 2"),
        (f"{TRAIN} --num_workers=x", "--sampling.num-workers takes a whole number: --sampling.num-workers 2"),
        (f"{TRAIN} --total-steps 1M", "--learning.total-steps takes a whole number: --learning.total-steps 1000000"),
        (f"{TRAIN} --total-steps 2.5e6", "--learning.total-steps takes a whole number: --learning.total-steps 2500000"),
        (f"{TRAIN} --total-steps 1,000,000", "--learning.total-steps takes a whole number: --learning.total-steps 1000000"),
        (f"{TRAIN} --seed 1.5", "--seed takes a whole number: --seed 0"),
        (f"{TRAIN} --learning.learning-rate", "--learning.learning-rate takes a number: --learning.learning-rate 0.0001"),
        (f"{TRAIN} --gamma 0,95", "--learning.gamma takes a number: --learning.gamma 0.95"),
        (f"{TRAIN} --run.max-minutes 30s", "--run.max-minutes takes a number (minutes) or None: --run.max-minutes 0.5"),
        (f"{TRAIN} --run.log-interval 2min", "--run.log-interval takes a number (seconds): --run.log-interval 120"),
        (f"{TRAIN} --run.goal max", "--run.goal takes a number or None: --run.goal GOAL"),
        (
            f"{TRAIN} --placement Serial",
            "--sampling.placement takes served, inline, serial or device: --sampling.placement serial",
        ),
        (f"{TRAIN} --envs.kwargs {{a:1}}", """--envs.kwargs takes a JSON object: --envs.kwargs '{"name": 1}'"""),
        (f"{TRAIN} --policy.mlp 64,32 --seed 1", "--policy.mlp takes numbers, with spaces between them: --policy.mlp 64 32"),
        (f"{TRAIN} --resize 64", "--envs.resize takes 2 numbers, with spaces between them: --envs.resize 64 64"),
        (f"{TRAIN} --run.video yes", "--run.video takes no value: --run.video or --run.no-video"),
        (f"{TRAIN} --grayscale yes", "--envs.grayscale takes True, False or None: --envs.grayscale True"),
        (f"{TRAIN} --steps 1000", "there is no flag --steps; did you mean --learning.total-steps?"),
        (f"{TRAIN} -n 4", "there is no flag -n; headrace train --help shows every flag"),
        (f"{TRAIN} more", "train does not take 'more' here: headrace train --help shows what it takes"),
        ("train --env", "--env takes text: --env atari/pong"),
        (f"{TRAIN} --import --seed 1", IMPORT),
        ("eval a --import", IMPORT),
        ("watch a --import=", IMPORT),
        ("envs --import b.py --import", IMPORT),
        ("compare x --folder a --budget 5s --import --seed 1", IMPORT),
        ("eval", "eval needs RUN: headrace eval RUN"),
        ("eval a --episodes ten", "--episodes takes a whole number: --episodes 100"),
        ("eval --json a b", "eval does not take 'b' here: headrace eval --help shows what it takes"),
        ("eval a --episode 10", "there is no flag --episode; did you mean --episodes?"),
        ("eval a --checkpoint b --episodes ten", "--episodes takes a whole number: --episodes 100"),
        ("watch a --video", "--video takes a path or None: --video VIDEO"),
        (
            "tune gym/CartPole-v1 --batch-sizes 64,128",
            "--batch-sizes takes numbers, with spaces between them: --batch-sizes 64 128",
        ),
        ("compare x", "compare needs --folder and --budget: headrace compare ENV --folder FOLDER --budget BUDGET"),
        (
            "compare x --folder a --budget 5s --num-workers x",
            "--sampling.num-workers takes a whole number: --sampling.num-workers 2",
        ),
        ("compare --num-workers 2 x", "the environment comes first: headrace compare ENV ..."),
        ("search x --folder a --budget 5s --trials many", "--trials takes a whole number: --trials 30"),
        ("report a --reference", "--reference takes text: --reference ENV=LOW:HIGH"),
        ("serve-envs --num-envs 4", "serve-envs needs --env: headrace serve-envs --env ENV"),
    ],
)
def test_one_line_that_says_what_to_write(command, answer, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(command.split()) == 2
    assert capsys.readouterr().err == f"headrace: {answer}\n"
