//! What a worker did when: a trace that Chrome's tracing page and Perfetto open.
//!
//! A worker's first and last [`SPANS_KEPT`] spans are kept, some hundred steps each, so that a long
//! run needs no more memory and no larger file than a short one. Each worker writes a part, and the
//! launcher joins the parts of one machine, whose clocks agree. The format is Chrome's "Trace Event
//! Format" (Duda and others, 2016): a process a worker, a thread for what it may do at once.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime};

use serde::{Deserialize, Serialize};

use super::checkpoint::write_atomically;

/// Spans that are kept from the start, and as many from the end.
pub const SPANS_KEPT: usize = 2_048;

/// The joined trace of a run folder.
pub const TIMELINE: &str = "timeline.json";

/// What a worker is busy with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Track {
    /// Until this bucket was read back.
    Compute(usize),
    /// From handing this bucket over until it is back, reduced.
    Communication(usize),
    /// For others, with nothing else to do.
    Waiting,
    Optimizer,
}

impl Track {
    fn category(self) -> &'static str {
        match self {
            Track::Compute(_) => "compute",
            Track::Communication(_) => "communication",
            Track::Waiting => "waiting",
            Track::Optimizer => "optimizer",
        }
    }

    fn name(self) -> String {
        match self {
            Track::Compute(bucket) => format!("compute bucket {bucket}"),
            Track::Communication(bucket) => format!("reduce bucket {bucket}"),
            Track::Waiting => "wait for others".to_owned(),
            Track::Optimizer => "optimizer".to_owned(),
        }
    }

    /// Buckets travel at once, each in a thread of its own; all else comes one after another.
    fn thread(self) -> (u64, String) {
        match self {
            Track::Compute(_) => (0, "compute".to_owned()),
            Track::Optimizer => (1, "optimizer".to_owned()),
            Track::Waiting => (2, "waiting".to_owned()),
            Track::Communication(bucket) => {
                (3 + bucket as u64, format!("communication, bucket {bucket}"))
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Span {
    track: Track,
    step: u64,
    began: Instant,
    ended: Instant,
}

/// Keeps spans, or nothing at all. Clones keep them together.
#[derive(Clone, Debug, Default)]
pub struct Timeline(Option<Arc<Mutex<Recording>>>);

#[derive(Debug)]
struct Recording {
    /// The same moment on both clocks: workers have only the system's in common.
    started: (Instant, SystemTime),
    first: Vec<Span>,
    last: VecDeque<Span>,
}

impl Timeline {
    /// One that keeps spans; the default keeps none and costs nothing.
    pub fn recording() -> Timeline {
        let recording = Recording {
            started: (Instant::now(), SystemTime::now()),
            first: Vec::with_capacity(SPANS_KEPT),
            last: VecDeque::with_capacity(SPANS_KEPT),
        };
        Timeline(Some(Arc::new(Mutex::new(recording))))
    }

    /// Keeps what was done since `began` in the step after `step` others, and returns when it ended.
    pub fn span(&self, track: Track, step: u64, began: Instant) -> Instant {
        let Some(recording) = &self.0 else { return began };
        let span = Span { track, step: step + 1, began, ended: Instant::now() };
        let mut recording = recording.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if recording.first.len() < SPANS_KEPT {
            recording.first.push(span);
        } else {
            if recording.last.len() == SPANS_KEPT {
                recording.last.pop_front();
            }
            recording.last.push_back(span);
        }
        span.ended
    }

    /// The trace so far, of the worker with this number.
    pub fn trace(&self, worker: u64) -> Trace {
        let Some(recording) = &self.0 else { return Trace::default() };
        let recording = recording.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (instant, system) = recording.started;
        let offset = system.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let spans = || recording.first.iter().chain(&recording.last);
        let mut threads: Vec<(u64, String)> = spans().map(|span| span.track.thread()).collect();
        threads.sort();
        threads.dedup();
        let named = |name, thread, text: String| TraceEvent {
            args: Arguments { name: Some(text), step: None },
            ..TraceEvent::of(name, "M", worker, thread)
        };
        let mut events = vec![named("process_name", 0, format!("worker {worker}"))];
        events.extend(threads.into_iter().map(|(id, text)| named("thread_name", id, text)));
        events.extend(spans().map(|span| {
            let at = offset + span.began.saturating_duration_since(instant);
            TraceEvent {
                cat: span.track.category().to_owned(),
                ts: at.as_secs_f64() * 1e6,
                dur: span.ended.saturating_duration_since(span.began).as_secs_f64() * 1e6,
                args: Arguments { name: None, step: Some(span.step) },
                ..TraceEvent::of(&span.track.name(), "X", worker, span.track.thread().0)
            }
        }));
        Trace { trace_events: events, display_time_unit: "ms".to_owned() }
    }
}

/// A trace file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    #[serde(rename = "traceEvents")]
    pub trace_events: Vec<TraceEvent>,
    #[serde(rename = "displayTimeUnit", default)]
    pub display_time_unit: String,
}

/// Something that lasted a while, or the name of a process or thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TraceEvent {
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cat: String,
    /// `X` for what lasted, `M` for names.
    pub ph: String,
    /// The worker.
    pub pid: u64,
    pub tid: u64,
    /// Microseconds.
    #[serde(default)]
    pub ts: f64,
    #[serde(default)]
    pub dur: f64,
    #[serde(default)]
    pub args: Arguments,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Arguments {
    /// Of a process or thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The step, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
}

impl TraceEvent {
    fn of(name: &str, ph: &str, pid: u64, tid: u64) -> TraceEvent {
        TraceEvent {
            name: name.to_owned(),
            cat: String::new(),
            ph: ph.to_owned(),
            pid,
            tid,
            ts: 0.0,
            dur: 0.0,
            args: Arguments::default(),
        }
    }
}

impl Trace {
    /// Joins the traces of several workers; the earliest span begins at 0.
    pub fn joined(traces: impl IntoIterator<Item = Trace>) -> Trace {
        let mut events: Vec<TraceEvent> =
            traces.into_iter().flat_map(|trace| trace.trace_events).collect();
        let spans = events.iter().filter(|event| event.ph == "X").map(|event| event.ts);
        let first = spans.fold(f64::INFINITY, f64::min);
        for event in events.iter_mut().filter(|event| event.ph == "X") {
            // Thousandths of a microsecond are what a double of this size holds.
            event.ts = ((event.ts - first) * 1e3).round() / 1e3;
            event.dur = (event.dur * 1e3).round() / 1e3;
        }
        // Names first, which have no time.
        events.sort_by(|a, b| (a.ph == "X").cmp(&(b.ph == "X")).then(a.ts.total_cmp(&b.ts)));
        Trace { trace_events: events, display_time_unit: "ms".to_owned() }
    }
}

/// The file of a worker's part in a folder.
pub fn part(folder: &Path, worker: u64) -> PathBuf {
    folder.join(format!("timeline-{worker}.json"))
}

/// Writes a worker's part.
pub fn write(path: &Path, trace: &Trace) -> std::io::Result<()> {
    write_atomically(path, serde_json::to_string(trace)?.as_bytes())
}

/// The timeline of a folder: that of the run, or else the parts that workers left; none if there
/// are none.
pub fn read(folder: &Path) -> std::io::Result<Option<Trace>> {
    let whole = folder.join(TIMELINE);
    if whole.exists() {
        return Ok(Some(serde_json::from_slice(&fs::read(whole)?)?));
    }
    let traces: Vec<Trace> = (parts(folder)?.iter())
        .map(|path| Ok(serde_json::from_slice(&fs::read(path)?)?))
        .collect::<std::io::Result<_>>()?;
    Ok((!traces.is_empty()).then(|| Trace::joined(traces)))
}

/// Joins the parts that workers left in a folder into one file, and removes them.
pub fn join_parts(folder: &Path) -> std::io::Result<()> {
    let parts = parts(folder)?;
    // An older run's would be taken for this one's.
    let _ = fs::remove_file(folder.join(TIMELINE));
    if let Some(trace) = read(folder)? {
        write(&folder.join(TIMELINE), &trace)?;
    }
    parts.iter().try_for_each(fs::remove_file)
}

fn parts(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let is_part = |name: &str| {
        let number = name.strip_prefix("timeline-").and_then(|rest| rest.strip_suffix(".json"));
        number.is_some_and(|number| number.parse::<u64>().is_ok())
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(is_part) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_become_events_with_names() {
        let timeline = Timeline::recording();
        let began = Instant::now();
        let ended = timeline.span(Track::Compute(1), 4, began);
        timeline.span(Track::Waiting, 4, ended);
        let json = serde_json::to_value(timeline.trace(2)).unwrap();
        let events = json["traceEvents"].as_array().unwrap();
        assert_eq!(events[0]["args"]["name"], "worker 2");
        let span = events.iter().find(|event| event["name"] == "compute bucket 1").unwrap();
        assert_eq!((&span["ph"], &span["pid"], &span["tid"]), (&"X".into(), &2.into(), &0.into()));
        assert_eq!(span["args"]["step"], 5);
        assert_eq!(json["displayTimeUnit"], "ms");
        let threads = events.iter().filter(|event| event["name"] == "thread_name").count();
        assert_eq!(threads, 2);
    }

    #[test]
    fn a_timeline_that_is_off_keeps_nothing() {
        let began = Instant::now();
        let timeline = Timeline::default();
        assert_eq!(timeline.span(Track::Optimizer, 0, began), began);
        assert!(timeline.trace(0).trace_events.is_empty());
    }

    #[test]
    fn the_first_and_the_last_spans_are_kept() {
        let timeline = Timeline::recording();
        let began = Instant::now();
        (0..10_000).for_each(|step| {
            timeline.span(Track::Optimizer, step, began);
        });
        let trace = timeline.trace(0);
        let steps: Vec<u64> = trace.trace_events.iter().filter_map(|e| e.args.step).collect();
        assert_eq!(steps.len(), 2 * SPANS_KEPT);
        assert_eq!((steps[0], steps[SPANS_KEPT - 1]), (1, SPANS_KEPT as u64));
        assert_eq!(steps[SPANS_KEPT..].first().copied(), Some(10_000 - SPANS_KEPT as u64 + 1));
        assert_eq!(steps.last().copied(), Some(10_000));
    }

    #[test]
    fn parts_are_joined_in_time_from_zero() {
        let folder = tempfile::tempdir().unwrap();
        for worker in [1, 0] {
            let timeline = Timeline::recording();
            timeline.span(Track::Compute(0), worker, Instant::now());
            write(&part(folder.path(), worker), &timeline.trace(worker)).unwrap();
        }
        fs::write(folder.path().join("timeline-x.json"), "no part").unwrap();
        join_parts(folder.path()).unwrap();
        let trace = read(folder.path()).unwrap().unwrap();
        let spans: Vec<&TraceEvent> = trace.trace_events.iter().filter(|e| e.ph == "X").collect();
        // Worker 1 was recorded first.
        assert_eq!(spans.iter().map(|span| span.pid).collect::<Vec<_>>(), [1, 0]);
        assert_eq!(spans[0].ts, 0.0);
        assert!(spans[1].ts >= 0.0);
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(left.len(), 2, "the timeline and what is no part: {left:?}");
    }
}
