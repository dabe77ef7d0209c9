"""Tests of the harness with stand-ins for the programs: `python3 -m unittest` in this folder."""

import json
import os
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

from harness import Comparison, GrowingLines, RunFailed, alternate, figure, run

HERE = Path(__file__).resolve().parent

# Stands for `annulet train`: two epochs, then run.json; with --endless it waits to be ended.
ANNULET = """
    import json, pathlib, signal, sys, time
    flags = dict(zip(sys.argv[2:], sys.argv[3:]))
    metrics = pathlib.Path(flags["--out"], "metrics.jsonl").open("w")
    for epoch, accuracy in enumerate([0.85, 0.90], 1):
        line = {"kind": "epoch", "epoch": epoch, "test_accuracy": accuracy}
        print(json.dumps(line), file=metrics, flush=True)
    if "--endless" in sys.argv:
        signal.pause()
    print(json.dumps({
        "version": "0", "adapter": "stub", "images_per_s": 3000.0, "first_step_ms": 500.0,
        "test_accuracy": 0.9, "params_sha256": flags["--workers"],
    }, indent=1))
"""

# Stands for a Python with torch.
TORCH = """
    import json, sys
    for epoch, accuracy in enumerate([0.85, 0.89, 0.91], 1):
        print(json.dumps({
            "version": "0", "kind": "epoch", "epoch": epoch, "test_accuracy": accuracy,
            "images_per_s": 1000.0,
        }), flush=True)
        if sys.argv[2] != "accuracy":
            break
"""


class Ratios(unittest.TestCase):
    def test_above_one_means_that_annulet_is_ahead(self):
        rate = Comparison("", "images/s", True, [(30.0, 10.0), (20.0, 10.0), (10.0, 10.0)])
        self.assertEqual(rate.ratios(), [3.0, 2.0, 1.0])
        self.assertEqual(rate.row()[-1], "**2.00**")
        seconds = Comparison("", "s", False, [(2.0, 8.0)])
        self.assertEqual(seconds.ratios(), [4.0])

    def test_median_of_ratios_is_not_the_ratio_of_medians(self):
        # The machine was twice as fast in the second pair; the ratio of medians would be 1.
        drift = Comparison("", "images/s", True, [(10.0, 5.0), (20.0, 10.0), (10.0, 20.0)])
        self.assertEqual(drift.row()[-1], "**2.00**")

    def test_figures_keep_three_digits(self):
        self.assertEqual([figure(v) for v in (12345.6, 99.96, 1.234)], ["12,346", "100", "1.23"])


class Running(unittest.TestCase):
    def test_the_side_that_goes_first_changes(self):
        order = []
        pairs = list(alternate(3, lambda: order.append("a") or 1, lambda: order.append("p") or 2))
        self.assertEqual("".join(order), "appaap")
        self.assertEqual(pairs, [(1, 2)] * 3)

    def test_a_failure_names_the_command_and_what_it_said(self):
        with self.assertRaisesRegex(RunFailed, r"(?s)python.*exit 3.*no adapter"):
            code = "import sys; print('no adapter', file=sys.stderr); sys.exit(3)"
            run([sys.executable, "-c", code], timeout_s=60)
        with self.assertRaisesRegex(RunFailed, "/nowhere/annulet"):
            run(["/nowhere/annulet"], timeout_s=60)

    def test_a_program_past_its_time_is_ended_with_its_children(self):
        with tempfile.TemporaryDirectory() as folder:
            pipe = Path(folder) / "pipe"
            os.mkfifo(pipe)
            # The child holds the pipe open; its end is seen as the end of the file.
            script = f"sleep 600 > {pipe} & wait"
            with self.assertRaisesRegex(RunFailed, "not done after 0.5 s"):
                reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
                run(["sh", "-c", script], timeout_s=0.5)
            os.set_blocking(reader, True)
            self.assertEqual(os.read(reader, 1), b"")
            os.close(reader)

    def test_lines_count_once_they_are_whole(self):
        with tempfile.TemporaryDirectory() as folder:
            path, lines = Path(folder) / "lines", GrowingLines()
            self.assertEqual(lines.read(path), [])
            path.write_text('{"a": 1}\n{"a"')
            self.assertEqual(lines.read(path), [{"a": 1}])
            path.write_text('{"a": 1}\n{"a": 2}\n')
            self.assertEqual(lines.read(path), [{"a": 2}])


class Comparing(unittest.TestCase):
    def compare(self, *flags):
        """What compare.py prints with the stand-ins, and its raw figures."""
        with tempfile.TemporaryDirectory() as folder:
            raw = Path(folder) / "raw.json"
            programs = {name: Path(folder) / name for name in ("annulet", "torch")}
            for name, text in (("annulet", ANNULET), ("torch", TORCH)):
                programs[name].write_text(f"#!{sys.executable}\n{textwrap.dedent(text)}")
                programs[name].chmod(0o755)
            command = [sys.executable, HERE / "compare.py", *flags, "--raw", raw]
            command += ["--annulet", programs["annulet"], "--python", programs["torch"]]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stdout, json.loads(raw.read_text())

    def test_step(self):
        text, raw = self.compare("step", "--pairs", "2", "--batches", "64")
        self.assertIn("| batch 64, images/s | 3,000 | 1,000 | 3.00 3.00 | **3.00** |", text)
        sides = [one["side"] for one in raw["runs"]]
        self.assertEqual(sides, ["annulet", "torch", "torch", "annulet"])

    def test_ddp_notices_different_bits(self):
        text, _ = self.compare("ddp", "--pairs", "2", "--workers", "2")
        self.assertIn("2 annulet runs: equal", text)
        text, _ = self.compare("ddp", "--pairs", "1", "--workers", "2", "4")
        self.assertIn("2 annulet runs: NOT EQUAL", text)

    def test_time_to_accuracy_ends_a_run_that_has_it(self):
        endless = "--annulet-flag=--endless"
        text, raw = self.compare("time-to-accuracy", "--seeds", "5", "--target", "0.9", endless)
        self.assertRegex(text, r"\| seed 5 \| \d\.\d \(2\) \| \d\.\d \(3\) \| ")
        self.assertEqual([len(one["epochs_seen"]) for one in raw["runs"]], [2, 3])

    def test_accuracy_that_is_not_reached(self):
        text, _ = self.compare("time-to-accuracy", "--seeds", "5", "--target", "0.905")
        self.assertIn("| not in 2 epochs |", text)


if __name__ == "__main__":
    unittest.main()
