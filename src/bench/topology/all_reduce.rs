//! A step among workers: compute, reduce, apply; every worker keeps all parameters.

use super::load::Load;
use super::record::{Records, WindowClock, WorkerRecord, fingerprint};
use super::{JOIN_TIMEOUT, Settings, apply, on_threads, transport};
use crate::bench::BenchError;
use crate::bench::collective::AllReduce;
use crate::net::GroupOptions;
use crate::protocol::collective::Reduction;
use crate::protocol::exchange::Strategy;
use crate::simulate::{NodeBytes, Scenario};
use crate::train::collective::{Collective, Group, Solo};

/// Measures the scenario's workers.
pub(super) fn run(
    scenario: &Scenario,
    settings: &Settings,
    strategy: Strategy,
) -> Result<Records, BenchError> {
    if scenario.workers == 1 {
        let mut load = Load::new(scenario, settings, 0)?;
        return one_result(vec![work(&mut load, &mut Solo::default(), scenario, settings)?]);
    }
    let ends = on_threads(scenario.workers, |rank, socket, key, peers| {
        let mut load = Load::new(scenario, settings, rank)?;
        let mut group = Group::join(GroupOptions {
            socket,
            key: key.clone(),
            rank,
            peers: peers.to_vec(),
            run_id: "bench".into(),
            config_digest: [0; 32],
            join_timeout: JOIN_TIMEOUT,
            strategy,
            transport: transport(scenario, settings),
        })?;
        let end = work(&mut load, &mut group, scenario, settings)?;
        group.close()?;
        Ok(end)
    })?;
    one_result(ends)
}

/// What a worker ends with.
struct End {
    record: WorkerRecord,
    window: WindowClock,
    fingerprint: u64,
}

fn work(
    load: &mut Load,
    group: &mut (impl AllReduce + Collective),
    scenario: &Scenario,
    settings: &Settings,
) -> Result<End, BenchError> {
    let rank = Collective::rank(group);
    let reduction = Reduction::sums(scenario.elements);
    let mut parameters = vec![0.0; scenario.elements];
    let mut vector = vec![0; scenario.elements];
    let mut record = WorkerRecord::default();
    let mut window = WindowClock::default();
    let mut traffic = NodeBytes::default();
    let mut step = 0;
    let mut counted = 0;
    while counted < settings.steps {
        let computed = load.compute(step, rank, &parameters, &mut vector)?;
        vector = group.all_reduce(step as usize, reduction, vector)?;
        apply(&mut parameters, &vector);
        record.mark(computed);
        step += 1;
        if window.is_open() {
            counted += 1;
        } else if step >= settings.warmup as u64 && group.is_settled(scenario.bytes()) {
            // Until here algorithms were tried, and congestion control found its pace.
            window.open();
            traffic = bytes(group);
        }
    }
    window.close();
    let end = bytes(group);
    record.bytes = NodeBytes {
        sent: (end.sent - traffic.sent) / counted as f64,
        received: (end.received - traffic.received) / counted as f64,
    };
    window.images = (counted * settings.batch) as u64;
    Ok(End { record, window, fingerprint: fingerprint(0, &parameters) })
}

fn bytes(group: &impl Collective) -> NodeBytes {
    let traffic = group.traffic();
    NodeBytes { sent: traffic.bytes_sent as f64, received: traffic.bytes_received as f64 }
}

/// What all workers saw, if they agree on the result.
fn one_result(ends: Vec<End>) -> Result<Records, BenchError> {
    let fingerprint = ends[0].fingerprint;
    if ends.iter().any(|end| end.fingerprint != fingerprint) {
        return Err(BenchError::ReplicasDiffer);
    }
    let mut workers = Vec::with_capacity(ends.len());
    let mut window = None;
    for end in ends {
        window.get_or_insert(end.window);
        workers.push(end.record);
    }
    let window = window.expect("there are workers");
    Ok(Records { workers, servers: Vec::new(), window, fingerprint })
}
