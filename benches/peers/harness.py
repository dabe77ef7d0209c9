"""Runs programs alternately, bounded in time, and turns pairs of figures into a Markdown table."""

import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

# How often a growing file is looked at: well under the seconds that are measured with it.
POLL_S = 0.01

# What a program gets for leaving by itself after a polite signal.
GRACE_S = 10.0


class RunFailed(Exception):
    """A program did not deliver; the text names the command and shows the end of its stderr."""


@dataclass
class Run:
    """One finished program."""

    command: list[str]
    stdout: str
    wall_s: float
    # One-minute load average just before the start: tells a quiet machine from a busy one.
    load: float


def run(command, timeout_s, until=None):
    """Runs `command` to its end, or until `until(seconds_since_start, stdout_path)` is true.

    The program gets a session of its own, so that whatever it started ends with it.
    """
    command = [str(part) for part in command]
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        out, err = Path(folder) / "stdout", Path(folder) / "stderr"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            began = time.perf_counter()
            try:
                process = subprocess.Popen(
                    command, stdout=stdout, stderr=stderr, start_new_session=True
                )
            except OSError as error:
                raise RunFailed(f"{command[0]}: {error.strerror}; give its path") from error
            try:
                satisfied = _wait(process, out, began, timeout_s, until)
                wall_s = time.perf_counter() - began
            finally:
                _end(process)
        if process.returncode != 0 and not satisfied:
            tail = "\n".join(err.read_text(errors="replace").splitlines()[-15:])
            late = wall_s >= timeout_s
            ended = f"not done after {timeout_s} s" if late else f"exit {process.returncode}"
            raise RunFailed(f"{' '.join(command)}: {ended}\n{tail}")
        return Run(command, out.read_text(), wall_s, load)


def _wait(process, out, began, timeout_s, until):
    """Whether `until` became true; False when the program ended or its time was over."""
    if until is None:
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pass
        return False
    while process.poll() is None and time.perf_counter() - began < timeout_s:
        if until(time.perf_counter() - began, out):
            return True
        time.sleep(POLL_S)
    # The last lines may have come with the end.
    return until(time.perf_counter() - began, out)


def _end(process):
    """Ends a program that still runs, with everything it has started."""
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def json_lines(text):
    """The objects of a text that has one a line, among other lines."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


class GrowingLines:
    """The whole JSON lines of a file that another program is writing."""

    def __init__(self):
        self.offset = 0

    def read(self, path):
        """What has been completed since the last call."""
        try:
            with open(path, "rb") as file:
                file.seek(self.offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        return json_lines(whole.decode())


@dataclass
class Comparison:
    """Pairs of one figure, ours and a peer's, in the order in which they were measured."""

    label: str
    unit: str
    # Whether more is better; a ratio above 1 means that annulet is ahead either way.
    more_is_better: bool
    pairs: list[tuple[float, float]] = field(default_factory=list)

    def ratios(self):
        return [o / p if self.more_is_better else p / o for o, p in self.pairs]

    def row(self):
        ours, peers = zip(*self.pairs)
        return [
            f"{self.label}, {self.unit}",
            figure(statistics.median(ours)),
            figure(statistics.median(peers)),
            " ".join(f"{ratio:.2f}" for ratio in self.ratios()),
            f"**{statistics.median(self.ratios()):.2f}**",
        ]


def alternate(pairs, ours, peer):
    """Yields (ours(), peer()) `pairs` times; who goes first changes from pair to pair.

    A machine that drifts one way for the whole time then favours neither side.
    """
    for pair in range(pairs):
        progress(f"pair {pair + 1} of {pairs}")
        if pair % 2 == 0:
            mine = ours()
            theirs = peer()
        else:
            theirs = peer()
            mine = ours()
        yield mine, theirs


def comparison_table(peer, comparisons):
    header = ["measure", "annulet (median)", f"{peer} (median)", "ratio by pair", "median ratio"]
    return table(header, [comparison.row() for comparison in comparisons])


def table(header, rows):
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def figure(value):
    """A number with three digits that count, and thousands apart."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def machine():
    """Where the figures come from, for the raw file and the line under the table."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
    }


def _cpu_name():
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def write_raw(path, content):
    """Every figure and every report that a table was made from."""
    Path(path).write_text(json.dumps({"machine": machine(), **content}, indent=1) + "\n")
    progress(f"raw figures: {path}")


def progress(text):
    print(text, file=sys.stderr, flush=True)
