//! Pieces of the page: text, tables, figures with their legends.

use std::fmt::Write;

use super::palette::Ink;
use super::plot::{Marker, Stroke};

/// A chart, or several small ones side by side, with everything that explains them.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Unique on the page; letters and hyphens.
    pub id: &'static str,
    pub heading: &'static str,
    /// What is seen, for those who see it and for those who do not.
    pub caption: String,
    pub legend: Vec<LegendEntry>,
    pub panels: Vec<Panel>,
    /// The same figures in digits.
    pub table: Table,
}

/// One image.
#[derive(Clone, Debug)]
pub struct Panel {
    /// What it shows as opposed to the others; empty where there are no others.
    pub title: String,
    /// In a sentence, for those who do not see it.
    pub description: String,
    /// As the plotting library draws it.
    pub svg: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegendEntry {
    pub name: String,
    pub ink: Ink,
    pub stroke: Stroke,
    pub marker: Marker,
}

impl LegendEntry {
    /// For an area of this colour.
    pub fn area(name: &str, ink: Ink) -> LegendEntry {
        LegendEntry { name: name.into(), ink, stroke: Stroke::None, marker: Marker::None }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    pub columns: Vec<String>,
    /// Each as long as the columns.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(columns: &[&str]) -> Table {
        Table { columns: columns.iter().map(|&name| name.to_owned()).collect(), rows: Vec::new() }
    }
}

/// Text as it may stand anywhere in HTML: nothing in a name becomes markup.
pub fn escape(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut escaped, character| {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // Text that turns the direction of what follows, or ends the document for a parser.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\0' => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
        escaped
    })
}

impl Figure {
    pub fn html(&self) -> String {
        let Figure { id, heading, caption, .. } = self;
        let mut html = format!("<figure id=\"{id}\">\n<h2>{}</h2>\n", escape(heading));
        if !self.legend.is_empty() {
            let entries: String = self.legend.iter().map(LegendEntry::html).collect();
            let _ = writeln!(html, "<ul class=\"legend\">{entries}</ul>");
        }
        html.push_str("<div class=\"panels\">\n");
        for (index, panel) in self.panels.iter().enumerate() {
            html.push_str(&panel.html(&format!("{id}-{index}"), heading));
        }
        let _ = writeln!(html, "</div>\n<figcaption>{}</figcaption>", escape(caption));
        if !self.table.rows.is_empty() {
            let _ = writeln!(
                html,
                "<details><summary>The same in digits</summary>{}</details>",
                self.table.html(heading)
            );
        }
        html.push_str("</figure>\n");
        html
    }
}

impl Panel {
    /// The image with a title and a description for screen readers, as wide as there is room for.
    fn html(&self, id: &str, heading: &str) -> String {
        let name = match self.title.as_str() {
            "" => escape(heading),
            title => format!("{}: {}", escape(heading), escape(title)),
        };
        let inner = self.svg.split_once('>').map_or("", |(_, inner)| inner);
        let view = attribute(&self.svg, "viewBox").unwrap_or_default();
        let shown = match self.title.as_str() {
            "" => String::new(),
            title => format!("<h3>{}</h3>\n", escape(title)),
        };
        format!(
            "<div class=\"panel\">{shown}<svg viewBox=\"{view}\" role=\"img\" \
             aria-labelledby=\"{id}-title {id}-text\"><title id=\"{id}-title\">{name}</title>\
             <desc id=\"{id}-text\">{}</desc>{inner}</div>\n",
            escape(&self.description)
        )
    }
}

/// The value of the first attribute of this name.
fn attribute<'a>(svg: &'a str, name: &str) -> Option<&'a str> {
    svg.split_once(&format!("{name}=\""))?.1.split_once('"').map(|(value, _)| value)
}

impl LegendEntry {
    fn html(&self) -> String {
        let ink = self.ink.css();
        let line = match self.stroke {
            Stroke::None => String::new(),
            Stroke::Solid => format!("<path d=\"M0 7h28\" stroke=\"{ink}\" stroke-width=\"2\"/>"),
            Stroke::Dashed => format!(
                "<path d=\"M0 7h28\" stroke=\"{ink}\" stroke-width=\"2\" stroke-dasharray=\"6 4\"/>"
            ),
        };
        let shape = match (self.stroke, self.marker) {
            (Stroke::None, Marker::None) => "M6 1h16v12h-16z",
            (_, Marker::None) => "",
            (_, Marker::Circle) => "M10 7a4 4 0 1 1 8 0a4 4 0 1 1-8 0z",
            (_, Marker::Square) => "M10 3h8v8h-8z",
            (_, Marker::Triangle) => "M14 2l5 9h-10z",
            (_, Marker::Diamond) => "M14 2l5 5l-5 5l-5-5z",
        };
        format!(
            "<li><svg class=\"key\" viewBox=\"0 0 28 14\" aria-hidden=\"true\">{line}<path \
             d=\"{shape}\" fill=\"{ink}\"/></svg>{}</li>",
            escape(&self.name)
        )
    }
}

impl Table {
    pub fn html(&self, caption: &str) -> String {
        let cells = |tag: &str, row: &[String]| {
            row.iter().enumerate().fold(String::new(), |mut html, (column, text)| {
                let (tag, scope) = match (tag, column) {
                    ("td", 0) => ("th", " scope=\"row\""),
                    ("th", _) => ("th", " scope=\"col\""),
                    _ => (tag, ""),
                };
                let _ = write!(html, "<{tag}{scope}>{}</{tag}>", escape(text));
                html
            })
        };
        let rows = self.rows.iter().fold(String::new(), |mut html, row| {
            let _ = writeln!(html, "<tr>{}</tr>", cells("td", row));
            html
        });
        format!(
            "<div class=\"scroll\" tabindex=\"0\"><table><caption>{}</caption>\n<thead><tr>{}</tr>\
             </thead>\n<tbody>\n{rows}</tbody></table></div>\n",
            escape(caption),
            cells("th", &self.columns)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_never_become_markup() {
        let name = "<script>alert('x')</script>&\u{202e}";
        let panel = Panel {
            title: name.into(),
            description: name.into(),
            svg: "<svg width=\"1\" viewBox=\"0 0 1 1\">\n<rect/></svg>".into(),
        };
        let figure = Figure {
            id: "a",
            heading: "b",
            caption: name.into(),
            legend: vec![LegendEntry::area(name, Ink::Text)],
            panels: vec![panel],
            table: Table { columns: vec![name.into()], rows: vec![vec![name.into()]] },
        };
        let html = figure.html();
        assert!(!html.contains("<script") && !html.contains('\u{202e}'), "{html}");
        assert_eq!(html.matches("&lt;script&gt;alert(&#39;x&#39;)").count(), 7, "{html}");
        assert!(html.contains("<svg viewBox=\"0 0 1 1\" role=\"img\""), "{html}");
        assert!(html.contains("<desc id=\"a-0-text\">"), "{html}");
    }
}
