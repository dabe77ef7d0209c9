//! Sentences about a sweep: who wins where and by how much, where a server becomes the bottleneck,
//! where the ring loses, what is left of the speed-up, and how far to trust the simulation.

use crate::protocol::exchange::Strategy;
use crate::protocol::parameter_server::Mode;
use crate::report::charts::scaling::source_shown;
use crate::report::numbers::{bytes, percent, short};
use crate::report::sweep::{Condition, Group, groups, link_name, median_error, pairs};
use crate::simulate::cell::{Cell, CellSource};
use crate::simulate::scenario::{Compute, ServerCount, Slowdown, Topology};

use super::counted;

/// Less than this share apart, two cells are called equal: medians of short measurements on one
/// machine come out a few percent apart when they are repeated.
const EQUAL_WITHIN: f64 = 0.05;

/// Conditions and losses that are told in words; the table has them all.
const TOLD_MAX: usize = 4;

const RING: Topology = Topology::AllReduce(Strategy::Ring);
const ONE_SERVER: Topology = Topology::Servers { mode: Mode::Sync, servers: ServerCount::Fixed(1) };

pub fn sentences(cells: &[Cell]) -> Vec<String> {
    if cells.is_empty() {
        return Vec::new();
    }
    let groups = groups(cells);
    let all: [fn(&[Group]) -> Vec<String>; 6] =
        [winners, ring_losses, bottlenecks, three_workers, asynchrony, synthetic];
    let mut sentences: Vec<String> = all.iter().flat_map(|about| about(&groups)).collect();
    sentences.extend(agreement(cells));
    sentences
}

/// The condition's link, and whatever else tells it from the other groups.
fn name(condition: &Condition, groups: &[Group]) -> String {
    let differ = |same: fn(&Condition, &Condition) -> bool| {
        groups.iter().any(|other| !same(&other.condition, condition))
    };
    let mut name = link_name(&condition.link);
    if let Some(Slowdown { rank, delay }) = condition.straggler {
        name += &format!(" with worker {rank} slower by {} ms", delay.as_millis());
    }
    if differ(|a, b| a.elements == b.elements) {
        name += &format!(" with gradients of {}", bytes(4.0 * condition.elements as f64));
    }
    if differ(|a, b| a.compute == b.compute) {
        name += match condition.compute {
            Compute::Kernels => " with real compute",
            Compute::Synthetic { .. } => " with synthetic compute",
            Compute::Trace { .. } => " with synthetic compute by a recorded run's times",
        };
    }
    name
}

/// Beside a figure that was not measured.
fn by_simulation(source: CellSource) -> &'static str {
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
    let stages = groups.iter().flat_map(|group| {
        largest(group).into_iter().map(move |(source, largest)| (group, source, largest))
    });
    let told = stages.filter_map(|(group, source, largest)| {
        let ranking = group.ranking(largest, source);
        let (first, second) = (ranking.first()?, ranking.get(1)?);
        let lead = first.images_per_s / second.images_per_s - 1.0;
        let mut text = format!(
            "Over {}, {} is fastest with {}{}: {} images/s",
            name(&group.condition, groups),
            first.scenario.topology,
            counted(largest, "worker"),
            by_simulation(source),
            short(first.images_per_s),
        );
        text += &if lead < EQUAL_WITHIN {
            format!(", as good as equal with {}", second.scenario.topology)
        } else {
            format!(", {} more than {}", percent(lead), second.scenario.topology)
        };
        let server = ranking.iter().find(|cell| cell.scenario.topology == ONE_SERVER);
        if let Some(server) = server.filter(|server| server.images_per_s < first.images_per_s) {
            let times = first.images_per_s / server.images_per_s;
            text += &format!(" and {} times one server", short(times));
        }
        Some(text + ".")
    });
    told.take(TOLD_MAX).collect()
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
            "to {} by {} ({}, {}{})",
            rival.scenario.topology,
            percent(*lead),
            name(&group.condition, groups),
            counted(rival.scenario.workers, "worker"),
            by_simulation(*source),
        ));
    }
    vec![format!(
        "The ring loses in {} of {compared} comparisons: {}.",
        losses.len(),
        told.join(", ")
    )]
}

/// Gradients of all workers count in each step, as in the ring.
fn is_rival(topology: Topology) -> bool {
    match topology {
        Topology::AllReduce(strategy) => strategy != Strategy::Ring,
        Topology::Servers { mode, .. } => mode == Mode::Sync,
    }
}

/// From how many workers on one server is slower than the ring, and what goes through it.
fn bottlenecks(groups: &[Group]) -> Vec<String> {
    let mut sentences = Vec::new();
    for group in groups {
        let source = source_shown(group);
        let (ring, server) = (group.series(RING, source), group.series(ONE_SERVER, source));
        let both: Vec<(&Cell, &Cell)> = (server.iter())
            .filter_map(|server| {
                let same = |ring: &&&Cell| ring.scenario.workers == server.scenario.workers;
                Some((*ring.iter().find(same)?, *server))
            })
            .filter(|(ring, _)| ring.scenario.workers > 1)
            .collect();
        let (Some((few, few_served)), Some((many, many_served))) = (both.first(), both.last())
        else {
            continue;
        };
        // From there on it stays so.
        let slower = |(ring, server): &(&Cell, &Cell)| {
            ring.images_per_s / server.images_per_s - 1.0 > EQUAL_WITHIN
        };
        let until = both.iter().rposition(|pair| !slower(pair)).map_or(0, |index| index + 1);
        let begins = match both.get(until) {
            None => "is no bottleneck up to".to_owned(),
            Some((ring, _)) => {
                let from = ring.scenario.workers;
                format!("is the bottleneck from {from} workers on, of at most")
            }
        };
        let mut text = format!(
            "Over {} one server {begins} {}",
            name(&group.condition, groups),
            counted(many.scenario.workers, "worker"),
        );
        if few.scenario.workers < many.scenario.workers && sentences.is_empty() {
            let through = |cell: &Cell| bytes(cell.busiest_node.sent + cell.busiest_node.received);
            text += &format!(
                "; through it go {} a step with {} and {} with {}, through a worker of the ring {} \
                 and {}",
                through(few_served),
                counted(few.scenario.workers, "worker"),
                through(many_served),
                many.scenario.workers,
                through(few),
                through(many),
            );
        }
        sentences.push(text + ".");
    }
    sentences.truncate(TOLD_MAX);
    sentences
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
                "{} times as fast as one by {} over {} ({} ignoring message-passing costs)",
                short(speed_up.with_messages),
                cell.scenario.topology,
                name(&group.condition, groups),
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

/// What is won by not waiting, and what is paid for it.
fn asynchrony(groups: &[Group]) -> Vec<String> {
    let told = groups.iter().filter_map(|group| {
        let source = source_shown(group);
        let largest = *group.sizes(source).last()?;
        let ranking = group.ranking(largest, source);
        let late = ranking
            .iter()
            .find(|cell| cell.staleness.as_ref().is_some_and(|staleness| staleness.mean > 0.0))?;
        let staleness = late.staleness.as_ref()?;
        let waits = ranking
            .iter()
            .find(|cell| is_rival(cell.scenario.topology) || cell.scenario.topology == RING)?;
        let won = late.images_per_s / waits.images_per_s - 1.0;
        let (how, by) = if won >= 0.0 { ("more", won) } else { ("fewer", -won) };
        Some(format!(
            "Over {}, {} makes {} {how} images/s than {} with {}, from gradients that are {} \
             versions behind on average and {} at most.",
            name(&group.condition, groups),
            late.scenario.topology,
            percent(by),
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
        sentences(cells).join("\n")
    }

    #[test]
    fn the_winner_is_named_with_its_lead() {
        let cells =
            [cell("ring", 8, 6_000.0), cell("server", 8, 2_000.0), cell("auto", 8, 3_000.0)];
        let text = text(&cells);
        let expected = "Over 200mbit/0ms/0%, ring is fastest with 8 workers: 6,000 images/s, 100 % \
                        more than auto and 3 times one server.";
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
        let expected = "The ring loses in 1 of 2 comparisons: to halving-doubling by 50 % (200mbit/0ms/0%, 16 workers).";
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
        let expected = "Over 200mbit/0ms/0% one server is the bottleneck from 8 workers on, of at \
                        most 8 workers; through it go 500 kB a step with 2 workers and 2 MB with 8, \
                        through a worker of the ring 500 kB and 500 kB.";
        assert!(text.contains(expected), "{text}");
        let fine = sentences(&cells[..4]).join("\n");
        assert!(fine.contains("one server is no bottleneck up to 4 workers"), "{fine}");
    }

    #[test]
    fn three_workers_stand_beside_the_book() {
        let cells = [cell("ring", 1, 3_200.0), cell("ring", 3, 6_400.0)];
        let text = text(&cells);
        let expected = "“roughly triple”, are 2 times as fast as one by ring over 200mbit/0ms/0% (3 \
                        ignoring message-passing costs).";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn asynchrony_is_told_with_its_price() {
        let late = Staleness { mean: 2.5, max: 7, histogram: vec![1, 1] };
        let cells =
            [cell("ring", 4, 100.0), Cell { staleness: Some(late), ..cell("async", 4, 130.0) }];
        let text = text(&cells);
        let expected = "async makes 30 % more images/s than ring with 4 workers, from gradients \
                        that are 2.5 versions behind on average and 7 at most.";
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
    fn nothing_says_nothing() {
        assert!(sentences(&[]).is_empty());
    }
}
