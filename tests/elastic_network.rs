//! Groups without a launcher: workers started by hand that lose some of their number, take in others
//! and go on, to the result of the quiet run.

#![cfg(unix)]

mod common;

use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::OnceLock;

use serde_json::Value;
use tempfile::TempDir;

use common::processes::{Launcher, exit_code, logged_steps, signal, stderr_of, wait_for};
use common::{annulet, params_sha256, train};

const STEPS: &str = "300";
const RUN: &[&str] = &[
    "--dataset",
    "synthetic",
    "--kernels",
    "reference",
    "--train-limit",
    "320",
    "--test-limit",
    "20",
    "--batch",
    "32",
    "--steps",
    STEPS,
];

/// Six seconds at least for a run in which rank 1 stays: it takes so much longer in each step, so
/// that what is to happen happens before the run is over.
const SLOW: [&str; 2] = ["--straggler", "1:20"];

/// Where nobody stands still or dies, no busy machine must look dead; and whoever waited for this
/// would not be done in time.
const PATIENT: [&str; 2] = ["--failure-timeout", "60"];

/// The result of a run to which nothing happens, by a single worker.
fn quiet_sha256() -> &'static str {
    static QUIET: OnceLock<String> = OnceLock::new();
    QUIET.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        params_sha256(&train(&folder.path().join("run"), RUN)).to_owned()
    })
}

/// Workers that were started by hand; those that still run are killed with it.
struct Group {
    folder: TempDir,
    peers: Vec<String>,
    workers: Vec<Launcher>,
}

impl Group {
    /// Starts so many and waits until they have made some steps.
    fn start(count: usize, more: &[&str]) -> Group {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("key");
        assert!(annulet().arg("key").arg(&key).output().unwrap().status.success());
        // All ports are bound at one time, so that they differ.
        let sockets: Vec<UdpSocket> =
            (0..count).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        let address = |socket: &UdpSocket| socket.local_addr().unwrap().to_string();
        let peers: Vec<String> = sockets.iter().map(address).collect();
        drop(sockets);
        let mut group = Group { folder, peers, workers: Vec::new() };
        let peers = group.peers.join(",");
        for (rank, listen) in group.peers.clone().iter().enumerate() {
            let rank = rank.to_string();
            let place = ["--rank", &rank, "--peers", &peers, "--listen", listen];
            group.spawn(&[&place, RUN, more].concat());
        }
        wait_for("the first steps", || logged_steps(&group.out(0)) > 2);
        group
    }

    /// Starts another one, which comes by the address of the worker of this rank.
    fn join(&mut self, contact: usize, more: &[&str]) {
        let contact = self.peers[contact].clone();
        self.spawn(&[&["--join", &contact, "--listen", "127.0.0.1:0"], more].concat());
    }

    fn spawn(&mut self, arguments: &[&str]) {
        let child = annulet()
            .arg("worker")
            .arg("--cluster-key")
            .arg(self.folder.path().join("key"))
            .arg("--out")
            .arg(self.out(self.workers.len()))
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        self.workers.push(Launcher(child));
    }

    /// The folder of the worker that was started as this one, from 0.
    fn out(&self, worker: usize) -> PathBuf {
        self.folder.path().join(worker.to_string())
    }

    fn signal(&self, worker: usize, name: &str) {
        signal(self.workers[worker].0.id(), name);
    }

    /// Waits for a worker's end, and returns its exit code and what it said.
    fn end_of(&mut self, worker: usize) -> (Option<i32>, String) {
        let child = &mut self.workers[worker].0;
        (exit_code(child), stderr_of(child))
    }

    /// Waits for these workers' ends, all of them good, and returns `run.json`, which the first one
    /// has written and which has the quiet run's result.
    fn finish(&mut self, workers: &[usize]) -> Value {
        for &worker in workers {
            let (code, text) = self.end_of(worker);
            assert_eq!(code, Some(0), "worker {worker}: {text}");
        }
        let json = std::fs::read(self.out(workers[0]).join("run.json")).unwrap();
        let run: Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(params_sha256(&run), quiet_sha256(), "{run}");
        run
    }
}

/// Kinds of the changes, in the order of the views, and the reason of the last one.
fn changes(run: &Value) -> (Vec<&str>, &str) {
    let views = run["views"].as_array().unwrap().iter();
    let changes: Vec<&Value> = views.flat_map(|view| view["changes"].as_array().unwrap()).collect();
    let kinds = changes.iter().map(|change| change["kind"].as_str().unwrap()).collect();
    (kinds, changes.last().map_or("", |change| change["why"].as_str().unwrap()))
}

fn has_checkpoint(folder: &PathBuf) -> bool {
    std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .any(|entry| entry.unwrap().file_name().to_string_lossy().starts_with("checkpoint-"))
}

#[test]
fn the_first_one_may_be_killed() {
    let mut group = Group::start(3, &SLOW);
    group.signal(0, "KILL");
    let run = group.finish(&[1, 2]);
    assert_eq!(run["workers"], 2);
    let (kinds, why) = changes(&run);
    assert_eq!(kinds, ["left"]);
    assert!(why.contains("nothing came from it"), "{why}");
}

#[test]
fn another_one_may_be_killed() {
    let mut group = Group::start(3, &SLOW);
    group.signal(2, "KILL");
    let run = group.finish(&[0, 1]);
    assert_eq!(run["workers"], 2);
    assert_eq!(changes(&run).0, ["left"]);
}

/// Nobody tells that a process was killed, and its port just falls silent, as with a machine that
/// lost its power. The others miss it after the failure timeout, which is the default of 3 s here.
#[test]
#[ignore = "takes a minute, and prints how long rings stand still"]
fn rings_stand_still_for_the_failure_timeout() {
    let mut ms: Vec<f64> = [0, 1, 2, 0, 1, 2]
        .into_iter()
        .map(|victim| {
            let mut group = Group::start(3, &SLOW);
            group.signal(victim, "KILL");
            let others: Vec<usize> = (0..3).filter(|&worker| worker != victim).collect();
            let run = group.finish(&others);
            let (kinds, why) = changes(&run);
            assert_eq!(kinds, ["left"]);
            assert!(why.contains("nothing came from it"), "{why}");
            run["views"].as_array().unwrap().last().unwrap()["stood_still_ms"].as_f64().unwrap()
        })
        .collect();
    ms.sort_by(f64::total_cmp);
    let (median, worst) = (ms[ms.len() / 2], ms[ms.len() - 1]);
    println!("stood still {median:.0} ms, worst {worst:.0} ms, in {} runs", ms.len());
}

#[test]
fn of_two_only_rank_0_goes_on_alone() {
    let mut group = Group::start(2, &SLOW);
    group.signal(1, "KILL");
    assert_eq!(group.finish(&[0])["workers"], 1);

    let mut group = Group::start(2, &SLOW);
    group.signal(0, "KILL");
    let (code, text) = group.end_of(1);
    assert_eq!(code, Some(5), "{text}");
    assert!(text.contains("lost the quorum: 1 of 2 workers"), "{text}");
    assert!(text.contains("missing: worker 0 (") && text.contains("nothing came"), "{text}");
    assert!(has_checkpoint(&group.out(1)), "{text}");
}

#[test]
fn a_terminated_worker_leaves_as_planned() {
    let mut group = Group::start(3, &[SLOW, PATIENT].concat());
    // The writer.
    group.signal(0, "TERM");
    let (code, text) = group.end_of(0);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("left as it was asked to"), "{text}");
    let run = group.finish(&[1, 2]);
    assert_eq!(run["workers"], 2);
    assert_eq!(changes(&run), (vec!["left"], "it was asked to leave"));
}

#[test]
fn a_worker_may_come_later() {
    let mut group = Group::start(2, &[&SLOW[..], &PATIENT, &["--max-workers", "3"]].concat());
    group.join(1, &[RUN, &["--lr", "0.2"]].concat());
    let (code, text) = group.end_of(2);
    assert_eq!(code, Some(5), "{text}");
    assert!(
        text.contains("lr differs: worker ") && text.contains("has 0.2, worker 1 has 0.05;"),
        "{text}"
    );

    group.join(1, &[RUN, &PATIENT].concat());
    let run = group.finish(&[0, 1, 3]);
    assert_eq!(run["workers"], 3);
    let (kinds, why) = changes(&run);
    assert_eq!(kinds, ["came"]);
    assert!(why.starts_with("it asked to join from 127.0.0.1:"), "{why}");
}

#[test]
fn no_more_come_than_there_is_room_for() {
    let mut group = Group::start(2, &[&SLOW[..], &PATIENT, &["--max-workers", "2"]].concat());
    group.join(0, &[RUN, &["--join-timeout", "1"]].concat());
    let (code, text) = group.end_of(2);
    assert_eq!(code, Some(5), "{text}");
    assert!(text.contains("there are 2 workers, as many as --max-workers allows"), "{text}");
    assert_eq!(changes(&group.finish(&[0, 1])).0, [""; 0]);
}

#[test]
fn a_worker_that_stood_still_comes_again() {
    let mut group = Group::start(3, &SLOW);
    // The writer.
    group.signal(0, "STOP");
    wait_for("the others to go on", || logged_steps(&group.out(1)) > 2);
    group.signal(0, "CONT");
    let run = group.finish(&[1, 0, 2]);
    assert_eq!(run["workers"], 3);
    assert_eq!(changes(&run).0, ["left", "came"]);
    // Others write now.
    assert!(!has_checkpoint(&group.out(0)));
}
