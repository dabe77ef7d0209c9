//! The emulated link against the kernel's own shaper: two network namespaces with a cable between
//! them, slowed by `tc tbf` or by `--link`.
//!
//! It needs root, `ip` and `tc`. Where one of them is missing it says so on standard error, past the
//! test harness, and checks nothing.
#![cfg(target_os = "linux")]

mod common;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// Megabits a second, of the shaper and of the emulated card.
const RATE: &str = "200mbit";

/// How far the emulated link may be from the kernel's: what is asked of it.
const TOLERANCE: f64 = 0.05;

/// A transfer of 16 MiB: 0.7 s, beside which the 1.3 ms that a bucket of 32 KiB lets pass at once and
/// a few milliseconds of a busy scheduler are nothing.
const BYTES: &str = "16M";

/// Turns of both, interleaved. The best of each counts: what disturbs a transfer only makes it slower.
const ROUNDS: usize = 3;

#[test]
fn the_emulated_rate_is_that_of_the_kernel_s_token_bucket() {
    let cable = match Cable::new() {
        Ok(cable) => cable,
        Err(reason) => {
            // Past the harness, which keeps what a passing test prints to itself.
            let _ = writeln!(
                std::io::stderr(),
                "\nSKIPPED: the emulated link was NOT compared with tc tbf: {reason}\n"
            );
            return;
        }
    };
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("cluster.key");
    let made = common::annulet().arg("key").arg(&key).output().unwrap();
    assert!(made.status.success());
    let (mut kernel, mut emulated) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..ROUNDS {
        cable.shape(true);
        kernel = kernel.min(cable.transfer(&key, "loopback"));
        cable.shape(false);
        emulated = emulated.min(cable.transfer(&key, RATE));
    }
    let ratio = emulated / kernel;
    assert!(
        (1.0 - TOLERANCE..=1.0 + TOLERANCE).contains(&ratio),
        "by tbf {kernel:.0} us, emulated {emulated:.0} us: {ratio:.3}"
    );
}

/// Two namespaces and a cable, taken away when this is dropped.
struct Cable {
    namespaces: [String; 2],
}

impl Drop for Cable {
    fn drop(&mut self) {
        for namespace in &self.namespaces {
            let _ = tool("ip", &["netns", "del", namespace]);
        }
    }
}

const DEVICE: &str = "cable";

impl Cable {
    /// The cable, or why there is none.
    fn new() -> Result<Cable, String> {
        let name = |end| format!("annulet-{}-{end}", std::process::id());
        let cable = Cable { namespaces: [name("a"), name("b")] };
        let [a, b] = &cable.namespaces;
        for namespace in [a, b] {
            tool("ip", &["netns", "add", namespace])?;
        }
        let far = ["peer", "name", DEVICE, "netns", b];
        tool("ip", &[&["-n", a, "link", "add", DEVICE, "type", "veth"][..], &far].concat())?;
        for (namespace, address) in cable.namespaces.iter().zip(ADDRESSES) {
            let address = format!("{address}/24");
            tool("ip", &["-n", namespace, "addr", "add", &address, "dev", DEVICE])?;
            tool("ip", &["-n", namespace, "link", "set", DEVICE, "up"])?;
        }
        // Whether the kernel has the shaper.
        tool("tc", &shaper(a, "add"))?;
        tool("tc", &shaper(a, "del"))?;
        Ok(cable)
    }

    /// Lets the kernel slow both directions, or lets them be.
    fn shape(&self, on: bool) {
        for namespace in &self.namespaces {
            tool("tc", &shaper(namespace, if on { "add" } else { "del" })).unwrap();
        }
    }

    /// Microseconds of the fastest all-reduce of two workers, one at each end, of which each sends
    /// and receives the whole vector's bytes.
    fn transfer(&self, key: &Path, link: &str) -> f64 {
        let report = key.with_file_name("report.json");
        let mut ends: Vec<Child> = (0..2)
            .map(|rank| {
                let mut command = Command::new("ip");
                command
                    .args(["netns", "exec", &self.namespaces[rank]])
                    .arg(env!("CARGO_BIN_EXE_annulet"))
                    .args(["bench", "collective", "--algorithm", "ring", "--link", link])
                    .args(["-b", BYTES, "-e", BYTES, "-n", "3", "-w", "1"])
                    .args(["--rank", &rank.to_string(), "--join-timeout", "30"])
                    .args([
                        "--peers",
                        &ADDRESSES.map(|address| format!("{address}:4400")).join(","),
                    ])
                    .arg("--cluster-key")
                    .arg(key)
                    .arg("-J")
                    .arg(&report)
                    .stdout(Stdio::null());
                command.spawn().unwrap()
            })
            .collect();
        for end in &mut ends {
            assert!(end.wait().unwrap().success(), "--link {link}");
        }
        let report: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
        let times = report["rows"][0]["times_us"].as_array().unwrap();
        times.iter().map(|time| time.as_f64().unwrap()).fold(f64::INFINITY, f64::min)
    }
}

/// Of a network that nobody else has.
const ADDRESSES: [&str; 2] = ["10.213.77.1", "10.213.77.2"];

fn shaper<'a>(namespace: &'a str, verb: &'a str) -> Vec<&'a str> {
    let place = ["-n", namespace, "qdisc", verb, "dev", DEVICE, "root"];
    let settings = ["tbf", "rate", RATE, "burst", "32kb", "latency", "50ms"];
    place
        .into_iter()
        .chain(if verb == "add" { &settings[..] } else { &[] }.iter().copied())
        .collect()
}

/// Runs a system tool; why it failed.
fn tool(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    let reason = String::from_utf8_lossy(&output.stderr);
    let what = || format!("{program} {}: {}", arguments.join(" "), reason.trim());
    output.status.success().then_some(()).ok_or_else(what)
}
