//! Cells as tables: CSV for programs, Markdown and text for people.

use std::fmt::Write;

use crate::simulate::{Cell, Scaling, Topology};

/// A column: its name in CSV, its head for people, and what it says of a cell.
type Column = (&'static str, &'static str, fn(&Cell, Option<Scaling>) -> String);

/// What tells groups of cells apart: each has a table of its own for people.
const GROUP: [Column; 4] = [
    ("link", "link", |cell, _| cell.scenario.link.to_string()),
    ("compute", "compute", |cell, _| cell.scenario.compute.to_string()),
    ("elements", "elements", |cell, _| cell.scenario.elements.to_string()),
    ("straggler", "straggler", |cell, _| {
        cell.scenario.straggler.map_or("none".to_owned(), |straggler| straggler.to_string())
    }),
];

const FIGURES: [Column; 16] = [
    ("topology", "topology", |cell, _| cell.scenario.topology.to_string()),
    ("workers", "workers", |cell, _| cell.scenario.workers.to_string()),
    ("servers", "servers", |cell, _| cell.scenario.servers().to_string()),
    ("step_p50_ms", "p50 ms", |cell, _| format!("{:.2}", cell.step.p50)),
    ("step_p99_ms", "p99 ms", |cell, _| format!("{:.2}", cell.step.p99)),
    ("images_per_s", "images/s", |cell, _| format!("{:.0}", cell.images_per_s)),
    ("speedup", "speed-up", |_, scaling| ratio(scaling.map(|s| s.speedup))),
    ("speedup_ignoring_messages", "ignoring messages", |_, scaling| {
        ratio(scaling.map(|s| s.speedup_without_messages))
    }),
    ("efficiency", "efficiency", |_, scaling| ratio(scaling.map(|s| s.efficiency))),
    ("compute_ms", "compute ms", |cell, _| format!("{:.2}", cell.compute_ms)),
    ("waited_ms", "waited ms", |cell, _| format!("{:.2}", cell.waited_ms)),
    ("busiest_sent_bytes", "sent B", |cell, _| format!("{:.0}", cell.busiest_node.sent)),
    ("busiest_received_bytes", "received B", |cell, _| {
        format!("{:.0}", cell.busiest_node.received)
    }),
    ("staleness_mean", "stale", |cell, _| {
        ratio(cell.staleness.as_ref().map(|staleness| staleness.mean))
    }),
    ("staleness_max", "stalest", |cell, _| {
        cell.staleness.as_ref().map_or(String::new(), |staleness| staleness.max.to_string())
    }),
    ("machine_busy", "busy", |cell, _| ratio(cell.machine_busy)),
];

fn ratio(value: Option<f64>) -> String {
    value.map_or(String::new(), |value| format!("{value:.2}"))
}

/// One line a cell, with a head; what is not known is empty.
pub fn csv(cells: &[Cell]) -> String {
    let columns: Vec<&Column> = GROUP.iter().chain(&FIGURES).collect();
    let mut text = columns.iter().map(|column| column.0).collect::<Vec<_>>().join(",");
    text.push('\n');
    for cell in cells {
        let scaling = Scaling::of(cell, cells);
        let row: Vec<String> = columns.iter().map(|column| column.2(cell, scaling)).collect();
        debug_assert!(row.iter().all(|field| !field.contains([',', '"', '\n'])));
        text += &row.join(",");
        text.push('\n');
    }
    text
}

/// A table for each link, compute, size and straggler.
pub fn markdown(cells: &[Cell]) -> String {
    let mut text = String::from("# Topologies\n");
    for Group { title, rows } in groups(cells) {
        let _ = write!(text, "\n## {title}\n\n|");
        FIGURES.iter().for_each(|column| text += &format!(" {} |", column.1));
        text += "\n|";
        FIGURES.iter().enumerate().for_each(|(i, _)| text += if i == 0 { "---|" } else { "---:|" });
        for row in rows {
            text += "\n|";
            row.iter().for_each(|field| text += &format!(" {field} |"));
        }
        text.push('\n');
    }
    let _ = write!(text, "\n{LEGEND}\n");
    text
}

/// The same for a terminal.
pub fn text(cells: &[Cell]) -> String {
    let mut text = String::new();
    for Group { title, rows } in groups(cells) {
        let _ = writeln!(text, "# {title}");
        let width = |column: usize| {
            let head = FIGURES[column].1.len();
            rows.iter().map(|row| row[column].len()).fold(head, usize::max)
        };
        let widths: Vec<usize> = (0..FIGURES.len()).map(width).collect();
        let mut line = |fields: &mut dyn Iterator<Item = &str>| {
            for (i, (field, width)) in fields.zip(&widths).enumerate() {
                let _ = match i {
                    0 => write!(text, "{field:<width$}"),
                    _ => write!(text, "  {field:>width$}"),
                };
            }
            text.push('\n');
        };
        line(&mut FIGURES.iter().map(|column| column.1));
        for row in &rows {
            line(&mut row.iter().map(String::as_str));
        }
        text.push('\n');
    }
    let _ = writeln!(text, "{LEGEND}");
    text
}

const LEGEND: &str = "speed-up: over one worker alone; ignoring messages: if they cost nothing; \
     sent, received: of the busiest node, a step; stale: versions a gradient was late; busy: share \
     of the machine's cores, near 1 it is the limit.";

struct Group {
    title: String,
    rows: Vec<Vec<String>>,
}

/// In the order of their first cells; within a group by topology, then by workers.
fn groups(cells: &[Cell]) -> Vec<Group> {
    let mut keys: Vec<Vec<String>> = Vec::new();
    let mut groups: Vec<Vec<&Cell>> = Vec::new();
    for cell in cells {
        let key: Vec<String> = GROUP.iter().map(|column| column.2(cell, None)).collect();
        match keys.iter().position(|known| *known == key) {
            Some(place) => groups[place].push(cell),
            None => {
                keys.push(key);
                groups.push(vec![cell]);
            }
        }
    }
    keys.into_iter()
        .zip(groups)
        .map(|(key, mut members)| {
            let mut topologies: Vec<Topology> = Vec::new();
            for cell in &members {
                if !topologies.contains(&cell.scenario.topology) {
                    topologies.push(cell.scenario.topology);
                }
            }
            let place = |cell: &Cell| topologies.iter().position(|t| *t == cell.scenario.topology);
            members.sort_by_key(|cell| (place(cell), cell.scenario.workers));
            let straggler = match key[3].as_str() {
                "none" => String::new(),
                slow => format!(", straggler {slow}"),
            };
            let batch = members[0].batch;
            Group {
                title: format!(
                    "link {}, {} for a batch of {batch}, {} elements{straggler}",
                    key[0], key[1], key[2]
                ),
                rows: members
                    .iter()
                    .map(|cell| {
                        let scaling = Scaling::of(cell, cells);
                        FIGURES.iter().map(|column| column.2(cell, scaling)).collect()
                    })
                    .collect(),
            }
        })
        .collect()
}
