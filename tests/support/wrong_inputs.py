"""Wrong search files and command lines, and what is said of each."""

from typing import NamedTuple

from orchestrator.config.files import MAX_BYTES, MAX_DEPTH

HEAD = "method: pfml\ndataset: glyphs-small\nnum_trials: 2\n"


SPACE = "space: {delta: {low: 0.1, high: 0.3}}\n"


GOOD = HEAD + SPACE


class Case(NamedTuple):
    """A search file, or a command (`{file}`: of a good one), and what its only line must say."""

    text: str | bytes
    says: tuple[str, ...]
    command: str = "search {file}"


def file(text: str | bytes, *says: str) -> Case:
    return Case(text, says)


def given(key: str, value: str, *says: str) -> Case:
    """A search file that is good but for a top-level key."""
    kept = [line for line in GOOD.splitlines(True) if not line.startswith(f"{key}:")]
    return Case("".join(kept) + f"{key}: {value}\n", (key, *(says or (value,))))


def setting(key: str, value: str, *says: str) -> Case:
    return Case(f"{GOOD}settings: {{{key}: {value}}}\n", ("line 5", key, *(says or (value,))))


def searched(key: str, value: str, *says: str) -> Case:
    return Case(f"{HEAD}space:\n  {key}: {value}\n", (f"line 5: space.{key}", *says))


def command(line: str, *says: str) -> Case:
    return Case(GOOD, says, line)


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)


DIGITS = "9" * 400


MANY = "9" * 6000


WRONG_TYPES = {
    "description": ["3", "[a]", "{a: b}", "true", "null"],
    "method": ["3", "[pfml]", "{pfml: null}", "null", "true"],
    "dataset": ["3", "[glyphs]", "{a: b}", "null", "1.5"],
    "settings": ["3", "words", "[lr]", "null", "false"],
    "space": ["3", "words", "null", "true"],
    "algorithm": ["3", "[tpe]", "{tpe: 1}", "null"],
    "num_trials": ["two", "1.5", "[3]", "{a: 1}", "true", ".nan", ".inf"],
    "budget": ["3", "hours", "[hours]", "null"],
    "start_from": ["3", "demo", "{delta: 0.2}", "null"],
    "scheduler": ["3", "[asha]", "null", "true"],
    "objective": ["3", "[val/map_at_r]", "null"],
    "objectives": ["3", "val/map_at_r", "{a: b}"],
    "seed": ["one", "1.5", "[1]", "{a: 1}"],
    "max_concurrent": ["many", "1.5", "[2]"],
    "workers": ["many", "1.5", "[2]", "true"],
    "gpus_per_trial": ["half", "[1]", "{a: 1}"],
    "retry": ["many", "1.5", "[2]", "true"],
    "resources": ["3", "special", "[special]", "null"],
    "node_labels": ["3", "spot", "[spot]", "null"],
    "final": ["3", "perhaps", "[true]"],
    "final_workers": ["many", "1.5"],
    "final_trials": ["many", "[1]"],
    "final_seeds": ["many", "2.5"],
    "final_protocol": ["3", "[same]"],
}


TOO_MUCH = {
    "num_trials": ["0", "-3", "1000001", "1e12"],
    "seed": ["-1", "2147483648", "99999999999999999999"],
    "max_concurrent": ["0", "10001"],
    "workers": ["0", "1000000"],
    "final_workers": ["0", "1000000"],
    "final_trials": ["0", "1000000"],
    "final_seeds": ["0", "1000000"],
    "retry": ["-1", "101"],
    "gpus_per_trial": ["0", "-1", "2", ".nan", ".inf"],
}


SETTINGS = {
    "threads": ["0", "-1", "1000000", "1.5", "many", "[1]", "{a: 1}", "null"],
    "loader_threads": ["-1", "257"],
    "epochs": ["0", "1000001", "1e12", "1.5", "true"],
    "classes_per_batch": ["0", "65537", "1e12", "[4]"],
    "images_per_class": ["0", "1e12", "1000000000000"],
    "class_subset": ["1", "100000000"],
    "embedding_dim": ["0", "65537", "1e6"],
    "warmup_epochs": ["-1", "1000001"],
    "lr_step_epochs": ["-1", "1000001"],
    "validate_every": ["3", "0 epochs", "1234567890 steps", "[1 epoch]"],
    "checkpoint_every": ["3", "0 minutes", "5 epochs", "-1 hours"],
    "proxies_per_class": ["-1", "10001", "1e9"],
    "lr": ["0", "-1", ".nan", ".inf", "-.inf", "1e999", "fast", "2024-01-01", "{low: 0.1}", "[0.1]"],
    "validation_share": ["-0.1", "0.95"],
    "label_noise": ["1", "-1"],
    "optimizer": ["sdg", "3", "null"],
    "backbone": ["resnet5", "3"],
    "augmentation": ["afine", "null"],
    "weights_sha256": ["abc"],
    "device": ["tpu"],
    "seed": ["-1", "2147483648"],
}


CASES: list[Case] = [
    *(given(key, value, f"{key}: ") for key, values in WRONG_TYPES.items() for value in values),
    *(given(key, value, f"{key}: ") for key, values in TOO_MUCH.items() for value in values),
    *(setting(key, value, f"{key}: ") for key, values in SETTINGS.items() for value in values),
    setting("checkpoint_every", "30", "30: should read like '30 seconds', '10 minutes' or '1 hour'"),
    setting("validate_every", "3", "3: should read like '1 epoch' or '25 steps'"),
    # a batch of many images, each of the two numbers within its own bounds
    file(f"{GOOD}settings: {{classes_per_batch: 60000, images_per_class: 60000}}\n", "line 5", "3,600,000,000 images"),
    # the space
    searched("delta", "3", "3 should be a list of choices or a range"),
    searched("delta", "words", "'words' should be a list"),
    searched("delta", "null", "null should be a list"),
    searched("delta", "{choices: 3}", "choices: 3: should be a list of values"),
    searched("delta", "{choices: words}", "choices: 'words': should be a list of values"),
    searched("delta", "{choices: true}", "choices: true"),
    searched("delta", "{choices: []}", "an empty list"),
    searched("delta", "{choices: {}}", "an empty list"),
    searched("delta", "{choices: [[0.1]]}", "[0.1] should be a single value"),
    searched("delta", "[[[[0.1]]]]", "should be a single value"),
    searched("delta", "{low: [0.1], high: 0.2}", "low: [0.1]"),
    searched("delta", "{low: words, high: 0.2}", "low: 'words'"),
    searched("delta", "{low: .nan, high: 0.2}", "low: nan"),
    searched("delta", "{low: 0.1, high: .inf}", "high: inf"),
    searched("delta", "{low: 0.1, high: 0.2, step: 0}", "step: 0"),
    searched("delta", "{low: 0.1, high: 0.2, step: -1}", "step: -1"),
    searched("delta", "{low: 0.1, high: 0.2, step: .nan}", "step: nan"),
    searched("delta", "{low: 0.1, high: 0.2, log: maybe}", "log: 'maybe'"),
    searched("delta", "{low: 0.1, high: 0.2, type: double}", "type: 'double'"),
    searched("delta", "{type: categorical}", "an empty list"),
    searched("delta", "{low: 0.1, hihg: 0.2}", "hihg", "did you mean 'high'"),
    searched("delta", "{1: 2}", "1: no such key"),
    searched("proxies_per_class", "{low: 0, high: 1e12}", "10000"),
    searched("epochs", "{low: 1, high: 100000000}", "epochs: 100000000"),
    searched("threads", "[1, 1000000]", "threads: 1000000"),
    searched("delta", f"[{'0.' + '1' * 50}, 5]", "delta: 5"),
    searched("method", "{choices: 3}", "3 should be a list of methods' names"),
    searched("method", "{choices: [1, 2]}", "[1, 2] should be a list of methods' names"),
    searched("method", "[[pfml]]", "should be a list of methods' names"),
    searched("method", "[]", "should be a list of methods' names"),
    searched("method", "[pmfl, proxy_anchor]", "'pmfl'", "did you mean 'pfml'"),
    searched("method", "{choices: {pfml: 3, proxy_anchor: null}}", "should map settings to ranges, not be a int"),
    searched("method", "{choices: {pfml: {detla: [0.1]}}}", "detla", "did you mean 'delta'"),
    file(HEAD + "space: [3]\n", "line 4: space[0]: should map settings to ranges"),
    file(HEAD + "space: [{delta: 3}]\nalgorithm: grid\n", "line 4: space[0].delta: 3"),
    # sections
    given("budget", "{hours: words}", "hours: 'words'"),
    given("budget", "{hours: 0}", "hours: 0"),
    given("budget", "{hours: 1e7}", "hours: 10000000.0"),
    given("budget", "{epochs: 1e12}", "epochs: 1000000000000.0"),
    given("budget", "{epochs: 10000000000}", "epochs: 10000000000"),
    given("budget", "{1: 2}", "1: no such limit"),
    file(GOOD + "budget: {[a]: 2}\n", "line 5: a key should be a word"),
    given("budget", "{trials_without_improvement: 0}", "trials_without_improvement: 0"),
    given("scheduler", "{name: [asha]}", "name: ['asha']"),
    given("scheduler", "{name: asha, grace_validations: 0}", "grace_validations: 0"),
    given("scheduler", "{name: asha, grace_validations: 1e12}", "grace_validations: 1000000000000.0"),
    given("scheduler", "{name: asha, reduction_factor: 100000000}", "reduction_factor: 100000000"),
    given("scheduler", "{name: median, startup_trials: 100000000}", "startup_trials: 100000000"),
    given("scheduler", "{1: 2}", "1: no such key"),
    given("objective", "{metric: 3}", "metric: 3"),
    given("objective", "{metric: [a]}", "metric: ['a']"),
    given("objective", "{mode: 3}", "mode: 3"),
    given("objective", "{1: 2}", "1: no such key"),
    given("objectives", "[]", "0 given; two are needed"),
    given("objectives", "[[a], {b: c}]", "['a'] should be a name or a mapping"),
    given("objectives", "[{metric: {a: b}}, val/map_at_r]", "metric: {'a': 'b'}"),
    given("start_from", "[3]", "point 1: 3"),
    given("start_from", "[[0.2]]", "point 1: [0.2]"),
    given("start_from", "[null]", "point 1: null"),
    given("start_from", "[{delta: [0.2]}]", "delta: [0.2] should be a number"),
    given("start_from", "[{delta: .nan}]", "delta: nan"),
    given("start_from", "[{1: 2}]", "delta: is missing"),
    # what is no file of ours
    file("", "is empty"),
    file("# nothing\n", "is empty"),
    file("---\n...\n", "is empty"),
    file("3\n", "should be a mapping of keys to values"),
    file("- a\n", "should be a mapping"),
    file(GOOD + "---\n" + GOOD, "line 5: not YAML: several documents"),
    file(GOOD.encode("utf-16"), "not UTF-8 text"),
    file(GOOD.encode("utf-16-le"), "not YAML"),
    file(b"\x89PNG\r\n\x1a\n\x00\x00", "not UTF-8 text"),
    file(b"\x00\x01\x02", "not YAML"),
    file(b"PK\x03\x04" + bytes(50), "not YAML"),
    file(GOOD + "x: [1, 2\n", "line"),
    file(GOOD + "\tx: 1\n", "line"),
    file(GOOD + "%YAML 1.1\n", "line 6: not YAML"),
    file(GOOD + "settings: {lr: !!float x}\n", "line"),
    file(GOOD + "method: pfml\n", "line 5: not YAML", "duplicate key"),
    file(GOOD + "settings: {lr: 1, lr: 2}\n", "duplicate key"),
    file(GOOD + "settings: !!python/object:os.system {}\n", "line 5", "!!python/object:os.system"),
    file(GOOD + "settings: !secret {}\n", "line 5", "!secret"),
    file(GOOD + "settings: !!set {lr}\n", "line 5", "!!set"),
    file(GOOD + "settings: {lr: !!binary aGk=}\n", "line 5", "!!binary"),
    file(GOOD + "? [a, b]\n: 3\n", "line 5: a key should be a word"),
    file(GOOD + "1: 3\n", "line 5: 1: no such key of a search"),
    file(GOOD + "null: 3\n", "None: no such key of a search"),
    file(GOOD + "2024-01-01: 3\n", "line 5: 2024-01-01: no such key"),
    file(GOOD + "nmu_trials: 3\n", "line 5: nmu_trials: no such key", "did you mean 'num_trials'"),
    file(GOOD + f"{'k' * 1000}: 3\n", "no such key", "(1,001 characters)"),
    file(GOOD + "x: *nobody\n", "line 5: not YAML"),
    file(GOOD + "x: &x [*x]\n", "line 5: contains itself"),
    file(GOOD + "settings: &x {lr: *x}\n", "contains itself"),
    file(GOOD + BOMB, "more than 100,000 values"),
    file(GOOD + f"x: {'[' * 500}{']' * 500}\n", f"nested more than {MAX_DEPTH} deep"),
    file(GOOD + f"x: {'[' * 20_000}{']' * 20_000}\n", f"nested more than {MAX_DEPTH} deep"),
    file(GOOD + f"x: {'{a: ' * 500}1{'}' * 500}\n", f"nested more than {MAX_DEPTH} deep"),
    file(GOOD + f"x: {'[' * 20_000}\n", f"nested more than {MAX_DEPTH} deep"),
    file(GOOD + "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 99)), "nested more than"),
    file(GOOD + f"settings: {{threads: {DIGITS}}}\n", "line 5", "more than 30 digits"),
    file(GOOD + f"settings: {{threads: {MANY}}}\n", "line 5", "more than 30 digits"),
    file(GOOD + f"settings: {{threads: -0x{DIGITS}}}\n", "line 5"),
    file(GOOD + f"settings: {{lr: 1.{MANY}e{MANY}}}\n", "line 5"),
    file(GOOD + f"settings: {{backbone: {'r' * 50_000}}}\n", "line 5", "(50,002 characters)"),
    file(GOOD + f"settings: {{lr: [{', '.join('1' * 300)}]}}\n", "line 5", "characters)"),
    file(GOOD + "#" * MAX_BYTES, "more than 1,048,576 bytes"),
    # command lines
    *(
        command(f"search {{file}} --set {key}={value}", f"error: --set: {key}: ")
        for key, value in [
            ("threads", "1000000"),
            ("epochs", "1e12"),
            ("images_per_class", "1e12"),
            ("lr", ".nan"),
            ("threads", "null"),
            ("threads", "[1]"),
            ("threads", "'{a: 1}'"),
            ("classes_per_batch", "true"),
            ("proxies_per_class", "10001"),
            ("lr", "'{}'"),
            ("optimizer", "2024-01-01"),
            ("detla", "0.2"),
        ]
    ),
    command(f"search {{file}} --set threads={DIGITS}", "--set threads", "more than 30 digits"),
    command(f"search {{file}} --set threads={MANY}", "--set threads", "more than 30 digits"),
    command(f"search {{file}} --set lr={'[' * 500}{']' * 500}", "--set lr", "nested more than"),
    command(f"search {{file}} --set lr={'[' * 4000}{']' * 4000}", "--set lr", "nested more than"),
    command(f"search {{file}} --set lr={'x' * 20_000}", "--set lr", "at most 10,000 characters"),
    command("search {file} --set 'lr=&a [*a]'", "--set lr", "contains itself"),
    command("search {file} --set 'lr=!!python/name:os.system x'", "--set lr", "not a supported type of value"),
    command("search {file} --set '{a: b}=3'", "--set: {a: b}: no such setting"),
    command("search {file} --set method=3", "--set: method: 3"),
    command("search {file} --set method=pmfl", "'pmfl'", "did you mean 'pfml'"),
    command("search {file} --set dataset=null", "--set: dataset: null"),
    *(
        command(f"search {{file}} {option} {value}", f"error: {option}: ")
        for option, value in [
            ("--num-trials", "1000001"),
            ("--num-trials", MANY),
            ("--epochs", "10000000"),
            ("--max-concurrent", "100000"),
            ("--workers", "1000000"),
            ("--final-workers", "5000"),
            ("--final-trials", "100000"),
            ("--final-seeds", "100000"),
            ("--epochs", "1e3"),
            ("--algorithm", "tbe"),
            ("--name", "'a b'"),
            ("--name", "'a\u2028b'"),
            ("--name", "'a\nb'"),
            ("--name", "x" * 300),
            ("--budget", "hours=1e9"),
            ("--budget", "epochs=.nan"),
            ("--budget", "hour=3"),
            ("--budget", "hours=[1]"),
        ]
    ),
    command(f"search {{file}} --seed {DIGITS}", "--seed: "),
    command("search {file} --seed 2147483648", "seed: 2147483648"),
    command("search {file} --budget hours=" + MANY, "--budget hours", "more than 30 digits"),
    command("search {file} --dataset 'no such\u2028set'", "unknown data set 'no such set'"),
    command("search {file} --dataset ../../etc", "unknown data set '../../etc'"),
    command("train --method pfml --dataset glyphs-small --repeats 1000000", "--repeats: "),
    command("train --method pfml --dataset glyphs-small --set threads=1024", "threads: 1024", "CPUs"),
    command("train --method contrastive --dataset glyphs-small --set memory_size=1e12", "memory_size: "),
    command("benchmark --methods pfml,proxy_anchor --num-trials 10000000", "--num-trials: "),
    command("datasets prepare folder --source . --name x --size 100000", "--size: "),
    command("datasets prepare folder --source . --name x --workers 100000", "--workers: "),
    command(f"search {'x' * 5000}", "unknown search", "(5,002 characters)"),
]
