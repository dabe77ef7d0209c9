//! Sentences about one server beside the ring: from where on it is the bottleneck, what goes through
//! it, and what messages cost.

use crate::report::charts::scaling::source_shown;
use crate::report::numbers::{bytes, count, short};
use crate::report::sweep::{Group, title};
use crate::simulate::cell::{Cell, CellSource};

use super::counted;
use super::sweep::{EQUAL_WITHIN, ONE_SERVER, RING, TOLD_MAX, by_simulation};

/// From how many workers on one server is slower than the ring, and what goes through it.
pub(super) fn bottlenecks(groups: &[Group]) -> Vec<String> {
    let mut told: Vec<(String, Vec<String>)> = Vec::new();
    let mut bytes = None;
    for group in groups {
        let source = source_shown(group);
        let both = beside_the_ring(group, source);
        let Some((many, _)) = both.last() else { continue };
        bytes = bytes.or_else(|| bytes_of_both(&both));
        // From there on it stays so.
        let behind = |(ring, server): &(&Cell, &Cell)| {
            ring.images_per_s / server.images_per_s > 1.0 + EQUAL_WITHIN
        };
        let until = both.iter().rposition(|pair| !behind(pair)).map_or(0, |index| index + 1);
        let condition = title(&group.condition, groups);
        let from = match both.get(until) {
            Some((ring, _)) => format!("from {} on", counted(ring.scenario.workers, "worker")),
            None => format!("not even with {}", count(many.scenario.workers)),
        };
        match told.iter_mut().find(|(known, _)| *known == from) {
            Some((_, conditions)) => conditions.push(condition),
            None => told.push((from, vec![condition])),
        }
    }
    if told.is_empty() {
        return Vec::new();
    }
    told.truncate(TOLD_MAX);
    let told: Vec<String> = (told.iter())
        .map(|(from, conditions)| format!("{from} over {}", conditions.join(", ")))
        .collect();
    let sentence = format!("One server is slower than the ring {}.", told.join("; "));
    [Some(sentence), bytes].into_iter().flatten().collect()
}

/// Flat in the ring, linear at the server: what a step takes beyond computing, over the link where
/// its growth with the workers differs most between the two.
pub(super) fn messages_of_both(groups: &[Group]) -> Vec<String> {
    let messages = |cell: &Cell| (cell.step.p50 - cell.compute_ms).max(0.0);
    let ends = groups.iter().filter_map(|group| {
        let both = beside_the_ring(group, source_shown(group));
        let (few, many) = (*both.first()?, *both.last()?);
        let at_server = messages(many.1) - messages(few.1);
        let in_ring = messages(many.0) - messages(few.0);
        (at_server > in_ring).then_some((at_server - in_ring, group, few, many))
    });
    let told = ends.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, group, few, many)| {
        format!(
            "Over {}{}, messages add {} ms to a step of the ring with {} and {} ms with {}; around \
             one server {} ms and {} ms.",
            title(&group.condition, groups),
            by_simulation(source_shown(group)),
            short(messages(few.0)),
            counted(few.0.scenario.workers, "worker"),
            short(messages(many.0)),
            count(many.0.scenario.workers),
            short(messages(few.1)),
            short(messages(many.1)),
        )
    });
    told.into_iter().collect()
}

/// The ring and one server with as many workers, who are at least 2.
fn beside_the_ring(group: &Group, source: CellSource) -> Vec<(&Cell, &Cell)> {
    let ring = group.series(RING, source);
    let servers = group.series(ONE_SERVER, source).into_iter();
    let beside = |server: &Cell| {
        let same = |ring: &&&Cell| ring.scenario.workers == server.scenario.workers;
        ring.iter().find(same).copied()
    };
    servers
        .filter(|server| server.scenario.workers > 1)
        .filter_map(|server| Some((beside(server)?, server)))
        .collect()
}

/// Flat in the ring, linear at the server: the figures for the fewest and for the most workers.
fn bytes_of_both(both: &[(&Cell, &Cell)]) -> Option<String> {
    let ((few, few_served), (many, many_served)) = (both.first()?, both.last()?);
    if few.scenario.workers == many.scenario.workers {
        return None;
    }
    let through = |cell: &Cell| bytes(cell.busiest_node.sent + cell.busiest_node.received);
    Some(format!(
        "With {} {} go through the server in a step and {} through a worker of the ring; with {} it \
         is {} and {}.",
        counted(few.scenario.workers, "worker"),
        through(few_served),
        through(few),
        count(many.scenario.workers),
        through(many_served),
        through(many),
    ))
}
