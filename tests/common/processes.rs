//! Launchers and their worker processes: started, found, signalled, waited for.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// No test waits longer; what it waits for takes a few seconds on a quiet machine.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// A variable that the children inherit, by which they are found.
const MARK: &str = "TEST_MARK";

/// A launcher that does not outlive its test, even one that fails.
pub struct Launcher(pub Child);

impl Drop for Launcher {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts `annulet train` on the synthetic digits, with the reference kernels unless it only waits
/// (`--compute`), and waits until it has made some steps.
pub fn start(out: &Path, mark: &str, arguments: &[&str]) -> Launcher {
    let waits = arguments.contains(&"--compute");
    let kernels: &[&str] = if waits { &[] } else { &["--kernels", "reference"] };
    let child = super::annulet()
        .env(MARK, mark)
        .args(["train", "--dataset", "synthetic"])
        .args(kernels)
        .args(arguments)
        .arg("--out")
        .arg(out)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let child = Launcher(child);
    wait_for("the first steps", || logged_steps(out) > 2);
    child
}

/// Lines of the run's `metrics.jsonl`: one for the first step, each tenth, and each epoch.
pub fn logged_steps(out: &Path) -> usize {
    std::fs::read_to_string(out.join("metrics.jsonl")).map_or(0, |text| text.lines().count())
}

pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Process ids of the workers that carry the mark (not the launcher), in the order in which they
/// were started: that of their first ranks, as long as process ids grow.
pub fn workers(mark: &str) -> Vec<u32> {
    let needle = format!("{MARK}={mark}\0");
    let mut found: Vec<u32> = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| {
            let read =
                |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
            let command = String::from_utf8_lossy(&read("cmdline")).into_owned();
            let environment = String::from_utf8_lossy(&read("environ")).into_owned();
            command.contains("--launched") && format!("{environment}\0").contains(&needle)
        })
        .collect();
    found.sort_unstable();
    found
}

pub fn signal(pid: u32, name: &str) {
    assert!(reaches_with_signal(pid, name), "process {pid} is gone");
}

/// Whether the process was there to be signalled: one that was just found may have ended since.
pub fn reaches_with_signal(pid: u32, name: &str) -> bool {
    Command::new("kill").args(["-s", name, &pid.to_string()]).status().unwrap().success()
}

pub fn stderr_of(child: &mut Child) -> String {
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    text
}

/// Waits for the end and returns the exit code.
pub fn exit_code(child: &mut Child) -> Option<i32> {
    let mut status = None;
    wait_for("the launcher's end", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.and_then(|status| status.code())
}
