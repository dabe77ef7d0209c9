//! The report's page as a browser sees it, and what a run leaves for other programs.

mod common;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use annulet::simulate::cell::{Cell, CellSource, NodeBytes, Staleness, StepTimes};
use annulet::simulate::scenario::{Compute, Scenario};
use common::{annulet, train};
use serde_json::Value;

/// How long a browser may take for a page; it takes a second.
const BROWSER_TIMEOUT: Duration = Duration::from_secs(90);

/// Names that a browser of this family has.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// A run of two workers with its timeline, and a sweep, measured and simulated.
fn page(folder: &Path) -> PathBuf {
    let (run, sweep) = (folder.join("run <1> & more"), folder.join("sweep"));
    let arguments = ["--workers", "2", "--kernels", "reference", "--timeline", "--steps", "12"];
    let data = ["--dataset", "synthetic", "--train-limit", "200", "--test-limit", "20"];
    train(&run, &[&arguments[..], &data, &["--batch", "20"]].concat());
    fs::create_dir(&sweep).unwrap();
    let cells: String =
        cells().iter().map(|cell| serde_json::to_string(cell).unwrap() + "\n").collect();
    fs::write(sweep.join("cells.jsonl"), cells).unwrap();
    let page = folder.join("report.html");
    let output =
        annulet().arg("report").args([&run, &sweep]).arg("-o").arg(&page).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    page
}

fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for link in ["200mbit", "1gbit/5ms"] {
        for topology in ["ring", "halving-doubling", "server", "server*workers", "async"] {
            for (workers, source) in [
                (1, CellSource::Measured),
                (3, CellSource::Measured),
                (16, CellSource::Measured),
                (16, CellSource::Simulated),
                (1_024, CellSource::Simulated),
            ] {
                let compute_ms = 20.0 / workers as f64;
                let step_ms = compute_ms + topology.len() as f64 + workers as f64 / 10.0;
                let histogram = vec![5, 3, 1];
                let staleness = Staleness { mean: 0.6, max: 2, histogram };
                cells.push(Cell {
                    scenario: Scenario {
                        workers,
                        topology: topology.parse().unwrap(),
                        link: link.parse().unwrap(),
                        compute: Compute::Synthetic { batch: Duration::from_millis(20) },
                        elements: 61_706,
                        straggler: None,
                    },
                    source,
                    batch: 64,
                    wall_s: 1.0,
                    images_per_s: 64e3 / step_ms,
                    step: StepTimes { p50: step_ms, p99: step_ms, samples: Vec::new() },
                    compute_ms,
                    busiest_node: NodeBytes { sent: 1e5, received: 1e5 },
                    waited_ms: step_ms - compute_ms,
                    staleness: (topology == "async").then_some(staleness),
                    machine_busy: None,
                });
            }
        }
    }
    cells
}

fn browser() -> Option<PathBuf> {
    let paths = std::env::var_os("PATH")?;
    std::env::split_paths(&paths)
        .flat_map(|folder| BROWSERS.map(|name| folder.join(name)))
        .find(|path| path.is_file())
}

/// The page's document once it is shown, and what the browser said meanwhile.
fn show(browser: &Path, page: &Path, size: &str, dark: bool) -> (String, String) {
    let profile = tempfile::tempdir().unwrap();
    let said = profile.path().join("said");
    let mut child = Command::new(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            "--dump-dom",
        ])
        .arg(format!("--window-size={size}"))
        .arg(format!("--blink-settings=preferredColorScheme={}", u8::from(!dark)))
        .arg(format!("--user-data-dir={}", profile.path().join("profile").display()))
        .arg(format!("file://{}", page.display()))
        .stdout(Stdio::piped())
        .stderr(fs::File::create(&said).unwrap())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut text = String::new();
        let _ = stdout.read_to_string(&mut text);
        let _ = sender.send(text);
    });
    let document = receiver.recv_timeout(BROWSER_TIMEOUT);
    let _ = child.kill();
    let _ = child.wait();
    let said = fs::read_to_string(said).unwrap_or_default();
    (document.unwrap_or_else(|_| panic!("the browser did not end: {said}")), said)
}

#[test]
fn a_browser_shows_all_charts_without_a_complaint() {
    let folder = tempfile::tempdir().unwrap();
    let page = page(folder.path());
    let Some(browser) = browser() else {
        eprintln!("SKIPPED: none of {BROWSERS:?} is in PATH; install chromium to test the page");
        return;
    };
    // The same page with a question, which the page itself forbids to ask.
    let html = fs::read_to_string(&page).unwrap();
    let (before, rest) = html.split_once("<meta http-equiv=\"Content-Security-Policy\"").unwrap();
    let probe = "<script>document.body.dataset.widths=\
                 [document.documentElement.scrollWidth,innerWidth].join(' ')</script></body>";
    let asking = format!("{before}{}", rest.split_once('>').unwrap().1.replace("</body>", probe));
    let asking_page = folder.path().join("asking.html");
    fs::write(&asking_page, asking).unwrap();

    for (size, dark) in [("390,844", true), ("1280,900", false)] {
        let (document, said) = show(&browser, &page, size, dark);
        let complaints: Vec<&str> = said.lines().filter(|line| line.contains("CONSOLE")).collect();
        assert!(complaints.is_empty(), "{complaints:?}");
        for id in [
            "loss",
            "accuracy",
            "scaling",
            "crossovers",
            "step-time",
            "busiest-node",
            "staleness",
            "timeline",
            "agreement",
        ] {
            let figure = document.split_once(&format!("<figure id=\"{id}\">"));
            let figure = figure.unwrap_or_else(|| panic!("no {id}")).1;
            let figure = figure.split_once("</figure>").unwrap().0;
            assert!(figure.contains("role=\"img\""), "no image in {id}");
        }
        assert!(document.contains("run &lt;1&gt; &amp; more"), "the run's name");

        let (document, _) = show(&browser, &asking_page, size, dark);
        let widths = document.split_once("data-widths=\"").unwrap().1.split_once('"').unwrap().0;
        let (content, window) = widths.split_once(' ').unwrap();
        let widths = [content, window].map(|width| width.parse::<u32>().unwrap());
        assert!(widths[0] <= widths[1], "wider than the window: {widths:?}");
    }
}

#[test]
fn a_timeline_is_a_trace_of_all_workers() {
    let folder = tempfile::tempdir().unwrap();
    page(folder.path());
    let text = fs::read(folder.path().join("run <1> & more/timeline.json")).unwrap();
    let trace: Value = serde_json::from_slice(&text).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    for worker in 0..2 {
        for category in ["compute", "communication", "waiting", "optimizer"] {
            let steps: Vec<u64> = events
                .iter()
                .filter(|event| event["pid"] == worker && event["cat"] == category)
                .map(|event| event["args"]["step"].as_u64().unwrap())
                .collect();
            assert!((1..=12).all(|step| steps.contains(&step)), "{worker} {category}: {steps:?}");
        }
    }
    let spans = events.iter().filter(|event| event["ph"] == "X");
    assert!(spans.clone().all(|span| span["dur"].as_f64().unwrap() >= 0.0));
    let first = spans.map(|span| span["ts"].as_f64().unwrap()).fold(f64::INFINITY, f64::min);
    assert_eq!(first, 0.0);
}

#[test]
fn a_run_leaves_an_event_file_and_no_parts() {
    let folder = tempfile::tempdir().unwrap();
    page(folder.path());
    let names: Vec<String> = fs::read_dir(folder.path().join("run <1> & more"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let events = names.iter().filter(|name| name.starts_with("events.out.tfevents."));
    assert_eq!(events.count(), 1, "{names:?}");
    assert!(!names.iter().any(|name| name.starts_with("timeline-")), "{names:?}");
}

#[test]
fn what_is_no_run_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let output = annulet().arg("report").arg(folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("no run and no sweep; name a folder"), "{error}");
}
