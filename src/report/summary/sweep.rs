//! Sentences about a sweep: who wins where and by how much, where a server becomes the bottleneck,
//! where the ring loses, what is left of the speed-up, and how far to trust the simulation.

use crate::protocol::exchange::Strategy;
use crate::protocol::parameter_server::Mode;
use crate::report::charts::scaling::source_shown;
use crate::report::numbers::{percent, short};
use crate::report::sweep::{Condition, Group, groups, median_error, pairs, title};
use crate::simulate::cell::{Cell, CellSource};
use crate::simulate::scenario::{ServerCount, Topology};

use super::counted;
use super::server::{bottlenecks, messages_of_both};

/// Less than this share apart, two cells are called equal: medians of short measurements on one
/// machine come out a few percent apart when they are repeated.
pub(super) const EQUAL_WITHIN: f64 = 0.05;

/// Busier than this share, a machine has no core left for whoever is about to go on.
const BUSY: f64 = 0.9;

/// Conditions and losses that are told in words; the table has them all.
pub(super) const TOLD_MAX: usize = 4;

pub(super) const RING: Topology = Topology::AllReduce(Strategy::Ring);
pub(super) const ONE_SERVER: Topology =
    Topology::Servers { mode: Mode::Sync, servers: ServerCount::Fixed(1) };

pub fn sentences(cells: &[Cell]) -> Vec<String> {
    if cells.is_empty() {
        return Vec::new();
    }
    let groups = groups(cells);
    let mut winners = winners(&groups).into_iter();
    let mut sentences: Vec<String> = winners.next().into_iter().collect();
    type About = fn(&[Group]) -> Vec<String>;
    let all: [About; 7] = [
        messages_of_both,
        ring_losses,
        three_workers,
        synthetic,
        bottlenecks,
        asynchrony,
        busy_machine,
    ];
    sentences.extend(all.iter().flat_map(|about| about(&groups)));
    sentences.extend(winners);
    sentences.extend(agreement(cells));
    sentences
}

/// Beside a figure that was not measured.
pub(super) fn by_simulation(source: CellSource) -> &'static str {
    match source {
        CellSource::Measured => "",
        CellSource::Simulated => ", by simulation",
    }
}

/// The most workers that were measured, and the most that were simulated if they are more.
fn largest(group: &Group) -> Vec<(CellSource, usize)> {
    let most = |source| Some((source, *group.sizes(source).last()?));
    let measured = most(CellSource::Measured);
    let simulated = most(CellSource::Simulated)
        .filter(|(_, workers)| measured.is_none_or(|(_, fewer)| fewer < *workers));
    measured.into_iter().chain(simulated).collect()
}

/// Who is fastest with the most workers, by how much, and how one server fares.
fn winners(groups: &[Group]) -> Vec<String> {
    let mut sizes: Vec<(CellSource, usize)> = groups.iter().flat_map(largest).collect();
    sizes.sort_by_key(|(source, workers)| (*source == CellSource::Simulated, *workers));
    sizes.dedup();
    let sentence = |(source, workers): (CellSource, usize)| {
        let of_size = groups.iter().filter(|group| largest(group).contains(&(source, workers)));
        let told: Vec<String> =
            of_size.filter_map(|group| winner(group, groups, source, workers)).collect();
        if told.is_empty() {
            return None;
        }
        let more = told.len().saturating_sub(TOLD_MAX);
        let mut text = told[..told.len().min(TOLD_MAX)].join("; ");
        if more > 0 {
            text += &format!("; and so on for {}", counted(more, "more condition"));
        }
        let who = counted(workers, "worker");
        Some(format!("With {who}{}, {text}.", by_simulation(source)))
    };
    sizes.into_iter().filter_map(sentence).collect()
}

fn winner(group: &Group, groups: &[Group], source: CellSource, workers: usize) -> Option<String> {
    let ranking = group.ranking(workers, source);
    let (first, second) = (ranking.first()?, ranking.get(1)?);
    let mut text = format!(
        "{} is fastest over {}: {} images/s",
        first.scenario.topology,
        title(&group.condition, groups),
        short(first.images_per_s),
    );
    let lead = first.images_per_s / second.images_per_s;
    let runner_up = second.scenario.topology;
    text += &if lead < 1.0 + EQUAL_WITHIN {
        format!(", as good as equal with {runner_up}")
    } else {
        format!(", {} {runner_up}", more_than(lead))
    };
    let server = ranking.iter().skip(2).find(|cell| cell.scenario.topology == ONE_SERVER);
    if let Some(server) = server {
        text += &format!(" and {} one server", more_than(first.images_per_s / server.images_per_s));
    }
    Some(text)
}

/// A ratio above 1 in words: `12 % more than`, `3.1 times`.
fn more_than(ratio: f64) -> String {
    match ratio {
        ratio if ratio < 2.0 => format!("{} more than", percent(ratio - 1.0)),
        ratio => format!("{} times", short(ratio)),
    }
}

/// Where somebody is faster than the ring, the largest margins first.
fn ring_losses(groups: &[Group]) -> Vec<String> {
    let (mut compared, mut losses) = (0, Vec::new());
    for group in groups {
        let source = source_shown(group);
        // Alone nobody sends anything.
        for workers in group.sizes(source).into_iter().filter(|&workers| workers > 1) {
            let ranking = group.ranking(workers, source);
            let ring = ranking.iter().find(|cell| cell.scenario.topology == RING);
            // What waits for nobody answers another question.
            let rival = ranking.iter().find(|cell| is_rival(cell.scenario.topology));
            let (Some(ring), Some(rival)) = (ring, rival) else { continue };
            compared += 1;
            let lead = rival.images_per_s / ring.images_per_s - 1.0;
            if lead > EQUAL_WITHIN {
                losses.push((lead, group, *rival, source));
            }
        }
    }
    if compared == 0 {
        return Vec::new();
    }
    losses.sort_by(|a, b| b.0.total_cmp(&a.0));
    if losses.is_empty() {
        return vec![format!(
            "Nobody who also waits for all gradients beats the ring by more than {} in any of {} \
             comparisons.",
            percent(EQUAL_WITHIN),
            compared
        )];
    }
    let mut seen: Vec<&Condition> = Vec::new();
    let mut told = Vec::new();
    for (lead, group, rival, source) in &losses {
        if seen.contains(&&group.condition) || told.len() == TOLD_MAX {
            continue;
        }
        seen.push(&group.condition);
        told.push(format!(
            "over {} with {}{}, where {} makes {} times its images/s",
            title(&group.condition, groups),
            counted(rival.scenario.workers, "worker"),
            by_simulation(*source),
            rival.scenario.topology,
            short(1.0 + lead),
        ));
    }
    vec![format!(
        "The ring loses in {} of {compared} comparisons: {}.",
        losses.len(),
        told.join("; ")
    )]
}

/// Gradients of all workers count in each step, as in the ring.
fn is_rival(topology: Topology) -> bool {
    match topology {
        Topology::AllReduce(strategy) => strategy != Strategy::Ring,
        Topology::Servers { mode, .. } => mode == Mode::Sync,
    }
}

/// The book's question: three workers, about three times faster.
fn three_workers(groups: &[Group]) -> Vec<String> {
    let told: Vec<String> = (groups.iter())
        .filter_map(|group| {
            let ranking = group.ranking(3, source_shown(group));
            let ring = ranking.iter().find(|cell| cell.scenario.topology == RING);
            let cell = *ring.or(ranking.first())?;
            let speed_up = group.speed_up(cell)?;
            Some(format!(
                "{} times as fast as one by {} over {} ({} times ignoring message-passing costs)",
                short(speed_up.with_messages),
                cell.scenario.topology,
                title(&group.condition, groups),
                short(speed_up.without_messages),
            ))
        })
        .take(TOLD_MAX)
        .collect();
    match told.is_empty() {
        true => Vec::new(),
        false => vec![format!(
            "Three workers, of whom the book says “roughly triple”, are {}.",
            told.join(", ")
        )],
    }
}

/// What is won by not waiting for all gradients, beside the same servers that do, and what is paid.
fn asynchrony(groups: &[Group]) -> Vec<String> {
    let told = groups.iter().filter_map(|group| {
        let source = source_shown(group);
        let largest = *group.sizes(source).last()?;
        let ranking = group.ranking(largest, source);
        let late = ranking.iter().find(|cell| {
            cell.staleness.as_ref().is_some_and(|staleness| staleness.mean > 0.0)
        })?;
        let Topology::Servers { servers, .. } = late.scenario.topology else { return None };
        let waiting = Topology::Servers { mode: Mode::Sync, servers };
        let waits = ranking.iter().find(|cell| cell.scenario.topology == waiting)?;
        let ratio = late.images_per_s / waits.images_per_s;
        let staleness = late.staleness.as_ref()?;
        Some(format!(
            "Over {}, {} makes {} times the images/s of {} with {}; its gradients are {} versions behind on average \
             and {} at most.",
            title(&group.condition, groups),
            late.scenario.topology,
            short(ratio),
            waits.scenario.topology,
            counted(largest, "worker"),
            short(staleness.mean),
            staleness.max,
        ))
    });
    told.take(TOLD_MAX / 2).collect()
}

/// Said wherever it applies.
fn synthetic(groups: &[Group]) -> Vec<String> {
    let synthetic = groups.iter().filter(|group| group.condition.is_synthetic()).count();
    if synthetic == 0 {
        return Vec::new();
    }
    let share = if synthetic == groups.len() { "All of this is" } else { "Some of this is" };
    vec![format!(
        "{share} with synthetic compute: workers wait as long as a batch takes instead of computing \
         it, so that many fit one machine; messages are real where they are measured."
    )]
}

/// Where the machine was too small, the figures are the machine's.
fn busy_machine(groups: &[Group]) -> Vec<String> {
    let cells = || {
        let all = groups.iter().flat_map(|group| &group.cells);
        all.filter(|cell| cell.source == CellSource::Measured)
    };
    let busy = cells().filter(|cell| cell.machine_busy.is_some_and(|share| share > BUSY));
    match (busy.count(), cells().filter(|cell| cell.machine_busy.is_some()).count()) {
        (0, _) => Vec::new(),
        (busy, measured) => vec![format!(
            "In {busy} of {} the machine's cores were more than {} busy: there the machine, too \
             small for so many nodes, is measured, and not the topology.",
            counted(measured, "measured cell"),
            percent(BUSY)
        )],
    }
}

fn agreement(cells: &[Cell]) -> Option<String> {
    let pairs = pairs(cells);
    let median = median_error(&pairs)?;
    let worst = pairs.iter().max_by(|a, b| a.error.abs().total_cmp(&b.error.abs()))?;
    Some(format!(
        "The simulation is within {} of the measured median step in half of {}; the worst is {} off \
         ({}, {}).",
        percent(median),
        counted(pairs.len(), "cell"),
        percent(worst.error.abs()),
        worst.measured.scenario.topology,
        counted(worst.measured.scenario.workers, "worker"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing::{cell, simulated};
    use crate::simulate::cell::Staleness;

    fn text(cells: &[Cell]) -> String {
        sentences(cells).join("\n").replace('\u{a0}', " ")
    }

    #[test]
    fn the_winner_is_named_with_its_lead() {
        let cells =
            [cell("ring", 8, 6_000.0), cell("server", 8, 2_000.0), cell("auto", 8, 3_000.0)];
        let text = text(&cells);
        let expected = "With 8 workers, ring is fastest over 200mbit: 6,000 images/s, 2 \
                        times auto and 3 times one server.";
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("synthetic compute"), "{text}");
        assert!(text.contains("Nobody who also waits"), "{text}");
    }

    #[test]
    fn small_leads_are_no_victories() {
        let cells = [cell("ring", 8, 103.0), cell("server*4", 8, 100.0)];
        let text = text(&cells);
        assert!(text.contains("as good as equal with server*4"), "{text}");
        assert!(!text.contains("loses"), "{text}");
    }

    #[test]
    fn the_rings_losses_are_told_and_counted() {
        let cells = [
            cell("ring", 2, 100.0),
            cell("halving-doubling", 2, 99.0),
            cell("ring", 16, 100.0),
            cell("halving-doubling", 16, 150.0),
            // It does not wait for all gradients.
            cell("async", 16, 400.0),
        ];
        let text = text(&cells);
        let expected = "The ring loses in 1 of 2 comparisons: over 200mbit with 16 workers, \
                        where halving-doubling makes 1.5 times its images/s.";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn a_server_is_the_bottleneck_from_where_it_stays_behind() {
        let mut cells = vec![
            cell("ring", 2, 100.0),
            cell("server", 2, 80.0),
            cell("ring", 4, 200.0),
            cell("server", 4, 210.0),
            cell("ring", 8, 400.0),
            cell("server", 8, 210.0),
        ];
        cells[5].busiest_node.sent = 1e6;
        cells[5].busiest_node.received = 1e6;
        let text = text(&cells);
        let expected = "One server is slower than the ring from 8 workers on over \
                        200mbit.\nWith 2 workers 500 kB go through the server in a step \
                        and 500 kB through a worker of the ring; with 8 it is 2 MB and 500 kB.";
        assert!(text.contains(expected), "{text}");
        let fine = sentences(&cells[..4]).join("\n");
        assert!(fine.contains("slower than the ring not even with 4 over"), "{fine}");
    }

    #[test]
    fn messages_are_flat_in_the_ring_and_linear_at_the_server() {
        // Of a step 10 ms are computed by 2 workers, and 2.5 ms by 8.
        let step = |topology, workers, ms: f64| cell(topology, workers, 64e3 / ms);
        let cells = [
            step("ring", 2, 20.0),
            step("server", 2, 30.0),
            step("ring", 8, 13.5),
            step("server", 8, 82.5),
        ];
        let text = text(&cells);
        let expected = "Over 200mbit, messages add 10 ms to a step of the ring with 2 workers \
                        and 11 ms with 8; around one server 20 ms and 80 ms.";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn three_workers_stand_beside_the_book() {
        let cells = [cell("ring", 1, 3_200.0), cell("ring", 3, 6_400.0)];
        let text = text(&cells);
        let expected = "“roughly triple”, are 2 times as fast as one by ring over 200mbit (3 \
                        times ignoring message-passing costs).";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn asynchrony_is_told_with_its_price() {
        let late = Staleness { mean: 2.5, max: 7, histogram: vec![1, 1] };
        let cells =
            [cell("server", 4, 100.0), Cell { staleness: Some(late), ..cell("async", 4, 130.0) }];
        let text = text(&cells);
        let expected = "async makes 1.3 times the images/s of server with 4 workers; its \
                        gradients are 2.5 versions behind on average and 7 at most.";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn the_simulation_is_held_against_the_measurement() {
        let cells = [cell("ring", 2, 100.0), simulated("ring", 2, 80.0)];
        let text = text(&cells);
        assert!(
            text.contains("within 25 % of the measured median step in half of 1 cell"),
            "{text}"
        );
    }

    #[test]
    fn a_machine_that_is_too_small_is_told_of() {
        let cells = [
            Cell { machine_busy: Some(0.99), ..cell("ring", 16, 100.0) },
            Cell { machine_busy: Some(0.3), ..cell("ring", 2, 100.0) },
            Cell {
                machine_busy: Some(0.99),
                source: CellSource::Simulated,
                ..cell("ring", 4, 100.0)
            },
        ];
        let text = text(&cells);
        assert!(text.contains("In 1 of 2 measured cells the machine's cores were"), "{text}");
    }

    #[test]
    fn nothing_says_nothing() {
        assert!(sentences(&[]).is_empty());
    }
}
