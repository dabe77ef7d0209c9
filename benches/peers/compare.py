#!/usr/bin/env python3
"""Runs annulet and a peer alternately on the same work and prints one Markdown table.

The table goes to stdout, progress to stderr, every raw figure to a JSON file.
"""

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
from pathlib import Path

from harness import (
    Comparison,
    GrowingLines,
    RunFailed,
    alternate,
    comparison_table,
    json_lines,
    machine,
    progress,
    run,
    table,
    write_raw,
)

HERE = Path(__file__).resolve().parent
BURN_BINARY = HERE / "burn" / "target" / "release" / "annulet-peer-burn"

# Fewer steps than this are no sample of a throughput.
STEPS_MIN = 50

# With more than this load a core before the first run, others are at work on the machine.
LOAD_SHARE_MAX = 0.5


def main():
    arguments = parse_arguments()
    session = Session(arguments)
    # As Ctrl-C does, so that the program that runs is ended and the raw figures are kept.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        print(arguments.compare(session, arguments))
        print(session.footer())
    except RunFailed as error:
        sys.exit(f"compare.py: {error}")
    finally:
        session.write_raw()


class Session:
    """Starts the programs of one comparison and keeps what they report."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.runs = []

    def annulet(self, *flags, watch=None):
        """The run.json of `annulet train`; None where `watch` ended the run."""
        a = self.arguments
        with tempfile.TemporaryDirectory(prefix="annulet-") as folder:
            if watch:
                watch.path = Path(folder) / "metrics.jsonl"
            command = [a.annulet, "train", "--json", "--out", folder, "--dataset", a.data]
            done = run([*command, *flags, *a.annulet_flag], a.timeout, watch)
        report = json.loads(done.stdout) if done.stdout.strip() else None
        self.keep("annulet", done, report, watch)
        return report

    def torch(self, *flags, watch=None):
        """The JSON lines of torch_train.py."""
        a = self.arguments
        command = [a.python, HERE / "torch_train.py", *flags, "--data", a.data]
        done = run(command, a.timeout, watch)
        report = json_lines(done.stdout)
        self.keep("torch", done, report, watch)
        return report

    def burn(self, *flags):
        """The report of the Burn program."""
        a = self.arguments
        done = run([a.burn, *flags, "--data", a.data], a.timeout)
        [report] = json_lines(done.stdout)
        self.keep("burn", done, report, None)
        return report

    def annulet_collective(self, workers, size, iterations):
        """What `annulet bench collective` writes about one size."""
        a = self.arguments
        with tempfile.TemporaryDirectory(prefix="annulet-") as folder:
            path = Path(folder) / "collective.json"
            command = [a.annulet, "bench", "collective", "--workers", workers, "-J", path]
            sweep = ["-b", size, "-e", size, "-n", iterations, "-w", warmup(iterations)]
            done = run([*command, *sweep, *a.annulet_flag], a.timeout)
            report = json.loads(path.read_text())
        self.keep("annulet", done, report, None)
        [row] = report["rows"]
        return right(row, "annulet")

    def peer_collective(self, workers, size, iterations):
        """The JSON line of one size of torch_allreduce.py or mpi_allreduce."""
        a = self.arguments
        if a.peer == "gloo":
            sweep = ["--iters", iterations, "--warmup", warmup(iterations)]
            program = [a.python, HERE / "torch_allreduce.py", "--ranks", workers, *sweep]
            command = [*program, "--bytes", size]
        else:
            launcher = [*a.mpirun.split(), "-np", workers]
            command = [*launcher, a.mpi_program, iterations, warmup(iterations), size]
        done = run(command, a.timeout)
        [report] = json_lines(done.stdout)
        self.keep(a.peer, done, report, None)
        return right(report, a.peer)

    def keep(self, side, done, report, watch):
        self.runs.append(
            {
                "side": side,
                "command": done.command,
                "wall_s": done.wall_s,
                "load": done.load,
                "report": report,
                "epochs_seen": watch.epochs if watch else None,
            }
        )
        progress(f"  {side}: {done.wall_s:.1f} s, load before it {done.load:.1f}")

    def reports(self, side):
        return [r["report"] for r in self.runs if r["side"] == side and r["report"]]

    def footer(self):
        """Where the figures come from."""
        m = machine()
        loads = [r["load"] for r in self.runs]
        parts = [m["date"], f"{m['cores']} cores", m["cpu"], f"load {min(loads):.1f}-{max(loads):.1f}"]
        for report in self.reports("annulet")[:1]:
            parts.append(f"annulet {report['version']}" + computes_on(report))
        for lines in self.reports("torch")[:1]:
            parts.append(f"torch {lines[0]['version']}")
        for report in self.reports("burn")[:1]:
            parts.append(f"burn {report['version']} on {report['adapter']}")
        for report in (self.reports("gloo") + self.reports("mpi"))[:1]:
            parts.append(f"{report['peer']} {report['version']}")
        text = "\n" + "; ".join(parts) + "."
        if loads[0] > LOAD_SHARE_MAX * m["cores"]:
            text += " **The machine was busy at the start: measure again.**"
        return text

    def same_bits(self):
        """Whether all annulet runs ended with the same parameters."""
        runs = self.reports("annulet")
        hashes = {report["params_sha256"] for report in runs}
        if len(runs) < 2:
            return "\nOne annulet run: no params_sha256 to compare."
        verdict = "equal" if len(hashes) == 1 else "NOT EQUAL"
        return f"\nparams_sha256 of the {len(runs)} annulet runs: {verdict}."

    def write_raw(self):
        if self.runs:
            name = self.arguments.compare.__name__
            write_raw(self.arguments.raw or f"peers-{name}.json", {"comparison": name, "runs": self.runs})


def step(session, arguments):
    """One worker against PyTorch eager: images/s of whole steps, batch by batch."""
    comparisons = []
    for batch in arguments.batches:
        steps = max(STEPS_MIN, arguments.images // batch)
        work = ["--batch", batch, "--steps", steps]
        progress(f"batch {batch}, {steps} steps")
        comparison = Comparison(f"batch {batch}", "images/s", more_is_better=True)
        for ours, [theirs] in alternate(
            arguments.pairs,
            lambda: session.annulet("--workers", 1, *work),
            lambda: session.torch("throughput", "--threads", arguments.threads, *work),
        ):
            comparison.pairs.append((ours["images_per_s"], theirs["images_per_s"]))
        comparisons.append(comparison)
    return comparison_table("PyTorch", comparisons)


def burn(session, arguments):
    """One worker against Burn's wgpu backend on the same adapter, at one batch size."""
    rate = Comparison(f"batch {arguments.batch}", "images/s", more_is_better=True)
    first = Comparison("process start to the end of the first step", "s", more_is_better=False)
    steps = max(STEPS_MIN, arguments.images // arguments.batch)
    for ours, theirs in alternate(
        arguments.pairs,
        lambda: session.annulet("--workers", 1, "--batch", arguments.batch, "--steps", steps),
        lambda: session.burn("--batch", arguments.batch, "--steps", arguments.burn_steps),
    ):
        if not theirs["last_loss"] < theirs["first_loss"]:
            raise RunFailed(f"Burn's loss did not fall: {theirs}")
        rate.pairs.append((ours["images_per_s"], theirs["images_per_s"]))
        first.pairs.append((ours["first_step_ms"] / 1e3, theirs["first_step_s"]))
    return comparison_table("Burn", [rate, first])


def ddp(session, arguments):
    """N workers against DistributedDataParallel with N ranks over gloo, global batch fixed."""
    comparisons = []
    steps = max(STEPS_MIN, arguments.images // arguments.batch)
    work = ["--batch", arguments.batch, "--steps", steps]
    for workers in arguments.workers:
        progress(f"{workers} workers")
        comparison = Comparison(f"{workers} workers", "images/s", more_is_better=True)
        for ours, [theirs] in alternate(
            arguments.pairs,
            lambda: session.annulet("--workers", workers, *work),
            lambda: session.torch("ddp", "--ranks", workers, *work),
        ):
            comparison.pairs.append((ours["images_per_s"], theirs["images_per_s"]))
        comparisons.append(comparison)
    return comparison_table("DDP gloo", comparisons) + "\n" + session.same_bits()


def collective(session, arguments):
    """The all-reduce alone against Gloo's or Open MPI's: median microseconds by workers and size."""
    comparisons = []
    for workers in arguments.workers:
        for size in arguments.bytes:
            iterations = arguments.iters if size < LARGE_BYTES else arguments.large_iters
            progress(f"{workers} workers, {size} bytes, {iterations} iterations")
            comparison = Comparison(f"n = {workers}, {size} B", "us", more_is_better=False)
            for ours, theirs in alternate(
                arguments.pairs,
                lambda: session.annulet_collective(workers, size, iterations),
                lambda: session.peer_collective(workers, size, iterations),
            ):
                medians = (statistics.median(side["times_us"]) for side in (ours, theirs))
                comparison.pairs.append(tuple(medians))
            comparisons.append(comparison)
    return comparison_table({"gloo": "Gloo", "mpi": "Open MPI"}[arguments.peer], comparisons)


# From here on an all-reduce takes long enough for a few iterations to tell.
LARGE_BYTES = 4 << 20


def warmup(iterations):
    return max(3, iterations // 10)


def right(report, side):
    """The report, if all its results were right."""
    if report["wrong"]:
        raise RunFailed(f"{side}: {report['wrong']} wrong elements of {report['bytes']} bytes")
    return report


def computes_on(report):
    if "adapter" not in report:
        return ""
    return f" on {report['adapter']} ({report.get('kernels', '?')} kernels)"


def accuracy(session, arguments):
    """Final test accuracy, seed by seed; the two draw different numbers from equal seeds."""
    found = []
    for index, seed in enumerate(arguments.seeds):
        work = training_flags(arguments, seed)
        runs = [
            lambda: ("annulet", session.annulet("--workers", arguments.workers, *work)),
            lambda: ("torch", session.torch("accuracy", "--threads", arguments.threads, *work)[-1]),
        ]
        progress(f"seed {seed}")
        # As in `alternate`: the side that goes first changes.
        reports = dict(start() for start in (runs if index % 2 == 0 else reversed(runs)))
        found.append(tuple(100 * reports[side]["test_accuracy"] for side in ("annulet", "torch")))

    rows = [[f"seed {s}", *difference_row(o, p)] for s, (o, p) in zip(arguments.seeds, found)]
    ours, theirs = (statistics.mean(side) for side in zip(*found))
    rows.append([f"mean of {len(found)}", *difference_row(ours, theirs)])
    return table(["test accuracy, %", "annulet", "PyTorch", "difference, points"], rows)


def difference_row(ours, theirs):
    return [f"{ours:.2f}", f"{theirs:.2f}", f"{ours - theirs:+.2f}"]


def time_to_accuracy(session, arguments):
    """Seconds from process start to a test accuracy, with an evaluation after every epoch."""
    rows, ratios = [], []
    for pair, seed in enumerate(arguments.seeds):
        work = training_flags(arguments, seed)
        ours, theirs = AccuracyWatch(arguments.target), AccuracyWatch(arguments.target)
        runs = [
            lambda: session.annulet("--workers", arguments.workers, *work, watch=ours),
            lambda: session.torch("accuracy", "--threads", arguments.threads, *work, watch=theirs),
        ]
        progress(f"seed {seed}")
        for start in runs if pair % 2 == 0 else reversed(runs):
            start()
        ratio = None
        if ours.reached_s is not None and theirs.reached_s is not None:
            ratio = theirs.reached_s / ours.reached_s
            ratios.append(ratio)
        rows.append([f"seed {seed}", str(ours), str(theirs), f"{ratio:.2f}" if ratio else "-"])
    median = f"**{statistics.median(ratios):.2f}**" if ratios else "-"
    rows.append([f"median of {len(ratios)}", "", "", median])
    goal = f"seconds to {100 * arguments.target:g} %"
    return table([goal, "annulet (epoch)", "PyTorch (epoch)", "ratio"], rows)


class AccuracyWatch:
    """Looks at the epochs of a run as they are written; true once one has the accuracy."""

    def __init__(self, target):
        self.target = target
        # Where the lines are written; the program's stdout unless set.
        self.path = None
        self.lines = GrowingLines()
        self.epochs = []
        self.reached_s = None

    def __call__(self, seconds, stdout):
        for line in self.lines.read(self.path or stdout):
            if line.get("kind") != "epoch" or self.reached_s is not None:
                continue
            self.epochs.append({"seen_s": seconds, **line})
            if line["test_accuracy"] >= self.target:
                self.reached_s = seconds
        return self.reached_s is not None

    def __str__(self):
        if self.reached_s is None:
            return f"not in {len(self.epochs)} epochs"
        return f"{self.reached_s:.1f} ({len(self.epochs)})"


def training_flags(arguments, seed):
    """Flags that both sides understand."""
    return [
        *("--seed", seed),
        *("--epochs", arguments.epochs),
        *("--batch", arguments.batch),
        *("--lr", arguments.lr),
        *("--weight-decay", arguments.weight_decay),
    ]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(compare, **defaults):
        """A subcommand; `defaults` are its options beside those that all have."""
        sub = commands.add_parser(
            compare.__name__.replace("_", "-"), help=compare.__doc__, description=compare.__doc__
        )
        sub.set_defaults(compare=compare)
        sub.add_argument("--annulet", default=os.environ.get("ANNULET", "annulet"),
                         help="annulet's binary [$ANNULET, else the one on the PATH]")
        sub.add_argument("--annulet-flag", action="append", default=[], metavar="FLAG",
                         help="a further flag for annulet, as --annulet-flag=--kernels=portable")
        sub.add_argument("--python", default=sys.executable, help="a Python that has torch")
        sub.add_argument("--data", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
        sub.add_argument("--timeout", type=number, default=900, help="seconds for one run")
        sub.add_argument("--raw", type=Path, help="file for the raw figures [peers-COMMAND.json]")
        for name, default in defaults.items():
            several = isinstance(default, list)
            kind = type(default[0] if several else default)
            sub.add_argument(f"--{name.replace('_', '-')}", default=default,
                             type=number if kind is int else kind, nargs="+" if several else None,
                             help=f"{OPTIONS[name]} [%(default)s]")
        return sub

    command(step, pairs=5, batches=[32, 64, 128, 256, 1024], threads=2, images=60_000)
    command(burn, pairs=3, batch=128, images=60_000, burn_steps=50).add_argument(
        "--burn", type=Path, default=BURN_BINARY, help="the built Burn program"
    )
    command(ddp, pairs=5, workers=[2, 4], batch=128, images=60_000)
    sub = command(collective, pairs=3, workers=[2, 4], bytes=[4, 246_824, 16 << 20], iters=200,
                  large_iters=20)
    sub.add_argument("--peer", choices=["gloo", "mpi"], default="gloo")
    sub.add_argument("--mpirun", default="mpirun", metavar="COMMAND",
                     help="Open MPI's launcher with its flags [%(default)s]")
    sub.add_argument("--mpi-program", type=Path, default=HERE / "mpi_allreduce",
                     help="the built mpi_allreduce.c")
    shared = {"batch": 128, "epochs": 10, "lr": 0.05, "weight_decay": 5e-4, "workers": 1, "threads": 2}
    command(accuracy, seeds=[0, 1, 2], **shared)
    command(time_to_accuracy, seeds=[0, 1, 2], target=0.9, **shared)
    return parser.parse_args()


OPTIONS = {
    "batch": "samples of one update, over all workers",
    "batches": "batch sizes",
    "burn_steps": "Burn's timed steps",
    "bytes": "sizes of the vector",
    "iters": "all-reduces of one run",
    "large_iters": f"the same from {LARGE_BYTES >> 20} MiB on",
    "epochs": "passes over the training data",
    "images": "images of one timed run",
    "lr": "peak learning rate",
    "pairs": "pairs of runs",
    "seeds": "a pair of runs for each",
    "target": "test accuracy, 0 to 1",
    "threads": "PyTorch's threads",
    "weight_decay": "both sides' weight decay",
    "workers": "annulet's workers",
}


def number(text):
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return value


if __name__ == "__main__":
    main()
