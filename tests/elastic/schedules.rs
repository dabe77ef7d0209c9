//! Random schedules over real processes: workers are killed, terminated, stopped and woken, and
//! replaced, at random steps. Every run must end with the quiet run's bits.
//!
//! `ANNULET_SCHEDULES=50 cargo test --release --test elastic -- --ignored --nocapture random_schedules`
//! prints a line a schedule, and how long the rings stood still. `ANNULET_FIRST_SCHEDULE` repeats one.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use annulet::protocol::membership::LEAVES;
use serde_json::Value;

use crate::common::params_sha256;
use crate::common::processes::{
    Launcher, exit_code, logged_steps, reaches_with_signal, stderr_of, wait_for, workers,
};
use crate::{RUN, run_json, sha256_after, sha256_of};

const STEPS: &str = "200";

/// Lines of `metrics.jsonl` up to which something happens: 160 of the 200 steps.
const LINES_MAX: usize = 32;

/// Most of a schedule is waited for, so that several of them share a machine well.
const SIDE_BY_SIDE: usize = 3;

/// Every so many-th schedule computes. The steps of the others are waited for without using the CPU:
/// their sums are those of the step's samples all the same, and their result that of every step
/// applied once.
const COMPUTES_EVERY: u64 = 5;
const WAITS: [&str; 2] = ["--compute", "40ms"];

/// What a worker that only stands still is given, in seconds. Deaths are told by the launcher, so
/// where nobody stands still a busy machine is given more.
const FAILURE_TIMEOUT: &str = "2";
const PATIENT: &str = "60";

#[test]
fn a_few_schedules_end_with_the_quiet_runs_result() {
    run(0, 2);
}

#[test]
#[ignore = "takes five seconds a schedule; ANNULET_SCHEDULES says how many"]
fn random_schedules() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    run(number("ANNULET_FIRST_SCHEDULE").unwrap_or(0), number("ANNULET_SCHEDULES").unwrap_or(10));
}

fn run(first: u64, count: u64) {
    let quiet = [sha256_after(STEPS), sha256_of(&[&WAITS[..], &["--steps", STEPS]].concat())];
    let (next, all) = (AtomicU64::new(first), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..SIDE_BY_SIDE {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        return;
                    }
                    let outcome = Schedule::new(seed).run(&quiet);
                    println!("schedule {seed}: {outcome}");
                    all.lock().unwrap().extend(outcome.stood_still);
                }
            });
        }
    });
    let all = all.into_inner().unwrap();
    for cause in [Cause::Told, Cause::Planned, Cause::Timeout, Cause::Missed, Cause::Came] {
        let of_cause = all.iter().filter(|(other, _)| *other == cause);
        let mut ms: Vec<f64> = of_cause.map(|&(_, ms)| ms).collect();
        ms.sort_by(f64::total_cmp);
        if let (Some(median), Some(worst)) = (ms.get(ms.len() / 2), ms.last()) {
            let changes = ms.len();
            println!(
                "{cause:?}: {changes} changes, stood still {median:.0} ms, worst {worst:.0} ms"
            );
        }
    }
}

/// Why a view ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// A killed process, whose end the launcher reported.
    Told,
    /// A terminated worker, which said so before it left.
    Planned,
    /// A worker whose process was stopped: nothing came from it for the failure timeout.
    Timeout,
    /// A worker that was missed in another way, such as by the end of its connection.
    Missed,
    /// A worker came, and nobody left.
    Came,
}

/// What became of a schedule.
#[derive(Default)]
struct Outcome {
    workers: usize,
    killed: usize,
    terminated: usize,
    stopped: usize,
    came: usize,
    stood_still: Vec<(Cause, f64)>,
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Outcome { workers, killed, terminated, stopped, came, stood_still } = self;
        write!(f, "{workers} workers, {killed} killed, {terminated} terminated, ")?;
        write!(f, "{stopped} stopped and woken, {came} came; stood still (ms)")?;
        stood_still.iter().try_for_each(|(cause, ms)| write!(f, " {ms:.0} {cause:?}"))
    }
}

struct Schedule {
    seed: u64,
    random: u64,
}

impl Schedule {
    fn new(seed: u64) -> Schedule {
        Schedule { seed, random: seed + 1 }
    }

    /// A linear congruential generator is random enough to choose victims.
    fn below(&mut self, bound: usize) -> usize {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % bound
    }

    /// Runs it to its end, which must be that of the quiet run that computes, or that waits.
    fn run(&mut self, [computed, waited]: &[String; 2]) -> Outcome {
        let computes = self.seed.is_multiple_of(COMPUTES_EVERY);
        let (quiet, compute): (_, &[&str]) =
            if computes { (computed, &[]) } else { (waited, &WAITS) };
        let folder = tempfile::tempdir().unwrap();
        let (out, mark) = (folder.path().join("run"), format!("schedule-{}", self.seed));
        let mut outcome = Outcome { workers: 2 + self.below(3), ..Outcome::default() };
        let stops = self.below(2) == 1;
        let (size, restarts) = (outcome.workers.to_string(), self.below(3).to_string());
        let timeout = if stops { FAILURE_TIMEOUT } else { PATIENT };
        let arguments = ["--workers", &size, "--steps", STEPS, "--restart", &restarts];
        let more = ["--failure-timeout", timeout];
        let arguments = [&arguments, RUN, &more, compute].concat();
        let mut launcher = crate::common::processes::start(&out, &mark, &arguments);
        // One of the first is spared: those that come may not be there yet.
        let spared = workers(&mark)[self.below(outcome.workers)];
        let events = 1 + self.below(4);
        let mut lines = 3;
        for _ in 0..events {
            lines += self.below(LINES_MAX / events);
            if !reaches(&mut launcher, || logged_steps(&out) >= lines) {
                break;
            }
            let victims: Vec<u32> = workers(&mark).into_iter().filter(|&w| w != spared).collect();
            if victims.is_empty() {
                continue;
            }
            let victim = victims[self.below(victims.len())];
            match self.below(if stops { 3 } else { 2 }) {
                // A victim of before may be about to end, and is then nobody's victim again.
                0 => outcome.killed += usize::from(reaches_with_signal(victim, "KILL")),
                1 => outcome.terminated += usize::from(reaches_with_signal(victim, "TERM")),
                _ if reaches_with_signal(victim, "STOP") => {
                    outcome.stopped += 1;
                    lines = logged_steps(&out) + 3;
                    reaches(&mut launcher, || logged_steps(&out) >= lines);
                    reaches_with_signal(victim, "CONT");
                }
                _ => {}
            }
        }
        let code = exit_code(&mut launcher.0);
        let text = stderr_of(&mut launcher.0);
        assert_eq!(code, Some(0), "schedule {}: {text}", self.seed);
        let run = run_json(&out);
        assert_eq!(params_sha256(&run), quiet, "schedule {}: {text}", self.seed);
        for view in &run["views"].as_array().unwrap()[1..] {
            let changes = view["changes"].as_array().unwrap();
            outcome.came += changes.iter().filter(|change| change["kind"] == "came").count();
            let ms = view["stood_still_ms"].as_f64().unwrap();
            let cause = cause_of(changes);
            if cause == Cause::Missed {
                println!("schedule {}: missed: {view}\n{text}", self.seed);
            }
            outcome.stood_still.push((cause, ms));
        }
        outcome
    }
}

/// Waits for it, unless the run ends before.
fn reaches(launcher: &mut Launcher, mut done: impl FnMut() -> bool) -> bool {
    let mut reached = false;
    wait_for("some steps", || {
        reached = done();
        reached || launcher.0.try_wait().unwrap().is_some()
    });
    reached
}

/// Of several changes, that which took longest counts.
fn cause_of(changes: &[Value]) -> Cause {
    let left = changes.iter().filter(|change| change["kind"] == "left");
    let causes = left.map(|change| match change["why"].as_str().unwrap() {
        why if why.contains("nothing came") || why.contains("did not answer") => Cause::Timeout,
        why if why.contains("process ended") => Cause::Told,
        LEAVES => Cause::Planned,
        _ => Cause::Missed,
    });
    let causes: Vec<Cause> = causes.collect();
    let by_length = [Cause::Timeout, Cause::Missed, Cause::Told, Cause::Planned];
    by_length.into_iter().find(|cause| causes.contains(cause)).unwrap_or(Cause::Came)
}
