//! The page: a summary, the runs, the figures.

use std::fmt::Write;

use super::charts::figures;
use super::html::{Table, escape};
use super::numbers::{bytes, short};
use super::palette;
use super::source::{Run, Sources};
use super::summary::sentences;

/// Everything beside the colours. Images keep the size they are drawn for, and so do letters on a
/// telephone; where there is more room, more of them stand in a row.
const STYLE: &str = "
*{box-sizing:border-box}
body{margin:0 auto;max-width:1340px;padding:1rem;background:var(--paper);color:var(--text);
font:1rem/1.5 system-ui,sans-serif;overflow-wrap:break-word}
h1{font-size:1.6rem;margin:.2rem 0 0}
h2{font-size:1.2rem;margin:0 0 .4rem}
h3{font-size:.85rem;font-weight:600;margin:0 0 .2rem}
p,li{max-width:46rem}
.made{color:var(--axis);margin:0 0 1rem}
.lead{font-size:1.1rem;margin:.6rem 0}
.summary{padding:0 0 0 1.1rem}
.summary li{margin:.35rem 0}
nav a{margin-right:1rem;white-space:nowrap}
a{color:var(--data-0)}
figure{margin:2rem 0 0;padding:1rem 0 0;border-top:1px solid var(--grid)}
figcaption{color:var(--axis);font-size:.9rem;max-width:46rem;margin:.4rem 0}
.panels{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,24rem),1fr));gap:1rem}
.panel{min-width:0;max-width:30rem}
.panel svg{display:block;width:100%;height:auto}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;margin:0 0 .6rem;padding:0;
font-size:.9rem}
.key{width:1.75rem;height:.875rem;margin-right:.4rem;vertical-align:-.1em}
details{font-size:.9rem}
summary{cursor:pointer;color:var(--data-0)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;margin:.5rem 0;font-variant-numeric:tabular-nums;font-size:.85rem}
caption{text-align:left;font-weight:600;padding:.2rem 0}
th,td{padding:.25rem .7rem .25rem 0;text-align:left;vertical-align:top;
border-bottom:1px solid var(--grid)}
td{white-space:nowrap}
thead th{min-width:4.5rem;font-weight:600}
tbody th{font-weight:400;white-space:nowrap}
@media print{details{display:none}}
";

/// Sentences that are told first, in one paragraph.
const LEADING: usize = 4;

/// The whole page. It refers to nothing outside itself and has no scripts.
pub fn page(sources: &Sources) -> String {
    let figures = figures(sources);
    let title = title(sources);
    let sentences = sentences(sources);
    let (lead, others) = sentences.split_at(sentences.len().min(LEADING));
    let lead = escape(&lead.join(" "));
    let list = others.iter().fold(String::new(), |mut list, sentence| {
        let _ = writeln!(list, "<li>{}</li>", escape(sentence));
        list
    });
    let links = figures.iter().fold(String::new(), |mut links, figure| {
        let _ = writeln!(links, "<a href=\"#{}\">{}</a>", figure.id, escape(figure.heading));
        links
    });
    let figures: String = figures.iter().map(|figure| figure.html()).collect();
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta \
         name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<meta \
         http-equiv=\"Content-Security-Policy\" content=\"default-src 'none';style-src \
         'unsafe-inline';img-src data:\">\n<link rel=\"icon\" href=\"data:,\">\n\
         <title>{title}</title>\n<style>\n{}{STYLE}</style>\n</head>\n<body>\n<header>\n\
         <h1>{title}</h1>\n<p class=\"made\">annulet {}</p>\n</header>\n<main>\n<section \
         aria-label=\"Summary\">\n<p class=\"lead\">{lead}</p>\n<ul class=\"summary\">\n{list}</ul>\n</section>\n<nav \
         aria-label=\"Figures\">\n{links}</nav>\n{}{figures}</main>\n</body>\n</html>\n",
        palette::css(),
        env!("CARGO_PKG_VERSION"),
        runs_table(&sources.runs),
    )
}

fn title(sources: &Sources) -> String {
    let counted = |count: usize, thing: &str| match count {
        0 => None,
        1 => Some(format!("1 {thing}")),
        _ => Some(format!("{count} {thing}s")),
    };
    let parts = [counted(sources.runs.len(), "run"), counted(sources.cells.len(), "cell")];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    format!("Report on {}", parts.join(" and "))
}

/// A row a finished run.
fn runs_table(runs: &[Run]) -> String {
    let mut table = Table::new(&[
        "run",
        "workers",
        "topology",
        "adapter",
        "data",
        "steps",
        "accuracy",
        "images/s",
        "step p50, ms",
        "step p99, ms",
        "busiest node, a step",
        "seconds",
        "params_sha256",
    ]);
    for run in runs {
        let Some(summary) = &run.summary else { continue };
        let busiest = &summary.busiest_node_bytes_per_step;
        table.rows.push(vec![
            run.name.clone(),
            summary.workers.to_string(),
            summary.topology.clone(),
            summary.adapter.clone(),
            summary.dataset.clone(),
            summary.steps.to_string(),
            format!("{:.2} %", 100.0 * summary.test_accuracy),
            short(summary.images_per_s),
            short(summary.step_ms.p50),
            short(summary.step_ms.p99),
            bytes(busiest.sent + busiest.received),
            short(summary.wall_s),
            summary.params_sha256.chars().take(12).collect(),
        ]);
    }
    if table.rows.is_empty() { String::new() } else { table.html("Runs") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing::{cell, run, simulated};

    fn full() -> Sources {
        let mut hostile = run("<b>\"run\"</b>", 3, 900.0, 0.8);
        hostile.epochs[0].test_loss = f64::NAN;
        Sources {
            runs: vec![run("a", 1, 500.0, 0.9), hostile],
            cells: vec![
                cell("ring", 1, 3_000.0),
                cell("ring", 3, 6_000.0),
                cell("server", 3, 2_000.0),
                simulated("ring", 3, 5_500.0),
                simulated("ring", 1_024, 50_000.0),
            ],
        }
    }

    #[test]
    fn every_chart_is_there_with_its_words() {
        let html = page(&full());
        for id in ["loss", "accuracy", "scaling", "step-time", "busiest-node", "agreement"] {
            assert!(html.contains(&format!("<figure id=\"{id}\">")), "{id}");
            assert!(html.contains(&format!("href=\"#{id}\"")), "{id}");
        }
        let images = html.matches("role=\"img\"").count();
        assert!(images >= 8, "{images}");
        assert_eq!(html.matches("<desc").count(), images);
        assert_eq!(html.matches("<svg").count(), html.matches("</svg>").count());
    }

    #[test]
    fn the_page_refers_to_nothing_but_itself() {
        let html = page(&full());
        assert!(!html.contains("<script") && !html.contains("<b>"), "markup from a name");
        for (index, _) in html.match_indices("//") {
            let around: String = html[index..].chars().take(30).collect();
            assert!(around.starts_with("//www.w3.org/"), "{around}");
        }
        for (index, _) in html.match_indices("href=\"") {
            let target = &html[index + 6..index + 11];
            assert!(target.starts_with('#') || target == "data:", "{target}");
        }
    }

    #[test]
    fn identifiers_are_unique() {
        let html = page(&full());
        let ids = html.split(" id=\"").skip(1).filter_map(|rest| rest.split('"').next());
        let mut ids: Vec<&str> = ids.collect();
        let all = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), all);
    }

    #[test]
    fn a_run_alone_and_nothing_at_all_have_pages() {
        let alone = Sources { runs: vec![run("a", 1, 500.0, 0.9)], cells: Vec::new() };
        assert!(page(&alone).contains("Report on 1 run"));
        assert!(page(&Sources::default()).ends_with("</html>\n"));
    }
}
