#!/usr/bin/env python3
"""Loads a run folder's event files into the real TensorBoard and compares them with metrics.jsonl.

Twice: with TensorBoard's own reader of event files, and by starting the TensorBoard server on a
free port of this machine and asking it which scalars it has, as its page does. Every step and epoch
of metrics.jsonl must be there with its values. Exit code 1 where something does not hold.

Install: pip install tensorboard
"""

import argparse
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

# Tags, and the field of a metrics line that each is made of.
STEP_TAGS = {
    "train/loss": "loss",
    "train/learning_rate": "lr",
    "time/step_ms": "step_ms",
    "time/compute_ms": "compute_ms",
    "time/comm_ms": "comm_ms",
}
EPOCH_TAGS = {
    "train/epoch_loss": "train_loss",
    "test/loss": "test_loss",
    "test/accuracy": "test_accuracy",
    "time/images_per_s": "images_per_s",
}

# Values travel as 32-bit floats: half a unit in the last of 24 bits.
TOLERANCE = 2.0**-24


def main():
    arguments = parse_arguments()
    expected = expected_scalars(arguments.run / "metrics.jsonl")
    check_reader(arguments.run, expected)
    check_server(arguments.run, expected, arguments.timeout)


def expected_scalars(path):
    """For each tag, its steps and values."""
    try:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
    except (OSError, ValueError) as error:
        fail(f"{path}: {error}")
    expected = {tag: [] for tag in [*STEP_TAGS, *EPOCH_TAGS]}
    for line in lines:
        tags = STEP_TAGS if line["kind"] == "step" else EPOCH_TAGS
        for tag, field in tags.items():
            expected[tag].append((line["step"], line[field]))
    return {tag: points for tag, points in expected.items() if points}


def check_reader(run, expected):
    # Without a limit: by default only a sample of the points is kept.
    accumulator = EventAccumulator(str(run), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    found = set(accumulator.Tags()["scalars"])
    if found != set(expected):
        fail(f"{run}: the reader has the scalars {sorted(found)}, not {sorted(expected)}")
    for tag, points in expected.items():
        compare(run, tag, [(event.step, event.value) for event in accumulator.Scalars(tag)], points)
    points = sum(map(len, expected.values()))
    note(f"{run}: TensorBoard's reader has all {points} points of {len(expected)} scalars")


def check_server(run, expected, timeout):
    """Starts the server, asks it, and ends it in any case."""
    port = free_port()
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(run)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--load_fast", "false"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        url = f"http://127.0.0.1:{port}/data/plugin/scalars"
        tags = wait_for_tags(server, f"{url}/tags", set(expected), timeout)
        (name,) = tags
        for tag, points in expected.items():
            rows = ask(f"{url}/scalars?run={name}&tag={tag}")
            compare(run, tag, [(step, value) for _, step, value in rows], points)
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
    note(f"{run}: the TensorBoard server shows {len(expected)} scalars of run {name!r}")


def wait_for_tags(server, url, expected, timeout):
    until, tags = time.monotonic() + timeout, None
    while time.monotonic() < until:
        if server.poll() is not None:
            fail(f"tensorboard ended: {server.stderr.read().decode(errors='replace')}")
        try:
            tags = ask(url)
        except (urllib.error.URLError, OSError):
            tags = None
        # It reads files after it has begun to answer.
        if tags and len(tags) == 1 and set(next(iter(tags.values()))) == expected:
            return tags
        time.sleep(0.5)
    fail(f"{url}: {tags} after {timeout} s, not {sorted(expected)}")


def ask(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def compare(run, tag, found, expected):
    if [step for step, _ in found] != [step for step, _ in expected]:
        fail(f"{run}: {tag} has the steps {[step for step, _ in found]}")
    for (step, value), (_, other) in zip(found, expected):
        # The negation also catches NaN.
        if not abs(value - other) <= TOLERANCE * abs(other):
            fail(f"{run}: {tag} at step {step} is {value}, metrics.jsonl has {other}")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def note(text):
    print(text, file=sys.stderr)


def fail(text):
    sys.exit(f"check_tensorboard.py: {text}")


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument(
        "--timeout", type=float, default=60, help="seconds for the server [%(default)s]"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
