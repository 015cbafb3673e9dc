//! Renders the model as HTML. Every text is escaped by [`escaped`].

use std::fmt::Write as _;

use super::model::{Figure, PageModel, PageRow, PageTable};

/// How many rows of a table are shown. The filter finds the others.
pub(super) const MAX_ROWS: usize = 100;

pub(super) fn page(model: &PageModel, filter: &str) -> String {
    format!(
        r#"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Fairlead</title>
<link rel="icon" href="icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="page.css">
<script src="page.js" defer></script>
</head>
<body>
<header>
<h1><img src="icon.svg" alt="" width="28" height="28">Fairlead <small>{version}</small></h1>
<form role="search" action="." method="get">
<label for="q">Filter</label>
<input id="q" name="q" type="search" value="{filter}" placeholder="node, service, address, state"
    autocomplete="off" spellcheck="false">
<button>Filter</button>
</form>
</header>
<main id="live">
{live}</main>
<footer><p id="stale" role="status" hidden>This frontend does not respond. The page shows its last known state.</p>
<p>Each replica shows the nodes that are connected to it. This one started at {started}.</p></footer>
</body>
</html>
"#,
        version = escaped(env!("CARGO_PKG_VERSION")),
        filter = escaped(filter),
        live = live(model, filter),
        started = escaped(&model.started),
    )
}

/// The part of the page that changes.
pub(super) fn live(model: &PageModel, filter: &str) -> String {
    let mut html = String::from("<dl class=\"figures\">\n");
    for Figure { class, name, value, note } in &model.figures {
        let note = if note.is_empty() { String::new() } else { format!("<small> {}</small>", escaped(note)) };
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(html, "<div class=\"{class}\"><dt>{name}</dt><dd>{}{note}</dd></div>", escaped(value));
    }
    html.push_str("</dl>\n");
    for table in &model.tables {
        write_table(&mut html, table, filter);
    }
    html
}

/// Writes a table with the rows that match, up to the row limit.
fn write_table(html: &mut String, table: &PageTable, filter: &str) {
    let PageTable { id, title, columns, empty_text, rows } = table;
    let rows: Vec<_> = rows.iter().filter(|row| matches(filter, &row.cells)).collect();
    let count = rows.len();
    let _ = writeln!(html, "<section aria-labelledby=\"{id}\">\n<h2 id=\"{id}\">{title} <small>{count}</small></h2>");
    if count == 0 {
        let text = if filter.is_empty() { *empty_text } else { "No rows match the filter." };
        let _ = writeln!(html, "<p class=\"empty\">{text}</p>\n</section>");
        return;
    }

    // Wide tables scroll horizontally, also by keyboard. On a narrow screen each row is a list of names and values: the
    // roles keep it a table for screen readers.
    let _ = writeln!(
        html,
        "<div class=\"table\" role=\"region\" aria-labelledby=\"{id}\" tabindex=\"0\"><table role=\"table\">\n\
         <thead role=\"rowgroup\"><tr role=\"row\">"
    );
    for (column, class) in *columns {
        let _ = write!(html, "<th scope=\"col\" role=\"columnheader\" class=\"{class}\">{column}</th>");
    }
    html.push_str("</tr></thead>\n<tbody role=\"rowgroup\">\n");
    for row in rows.into_iter().take(MAX_ROWS) {
        write_row(html, row, columns);
    }
    html.push_str("</tbody></table></div>\n");

    if count > MAX_ROWS {
        let _ = writeln!(html, "<p class=\"more\">{MAX_ROWS} of {count} shown: filter for others.</p>");
    }
    html.push_str("</section>\n");
}

fn write_row(html: &mut String, PageRow { class, cells }: &PageRow, columns: &[(&str, &str)]) {
    let _ = write!(html, "<tr class=\"{class}\" role=\"row\">");
    for (at, (text, (column, class))) in cells.iter().zip(columns).enumerate() {
        let text = escaped(text);
        let _ = match at {
            0 => write!(html, "<th scope=\"row\" role=\"rowheader\" class=\"{class}\">{text}</th>"),
            _ => write!(html, "<td data-of=\"{column}\" role=\"cell\" class=\"{class}\">{text}</td>"),
        };
    }
    html.push_str("</tr>\n");
}

/// Whether a row is shown: each word of the filter is in one of its texts, ignoring case.
fn matches(filter: &str, texts: &[String]) -> bool {
    if filter.is_empty() {
        return true;
    }
    // No word has a space: none is found across two texts.
    let texts = texts.join(" ").to_lowercase();
    filter.to_lowercase().split_whitespace().all(|word| texts.contains(word))
}

/// Text with HTML special characters escaped; also valid in a quoted attribute.
fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            // Control characters and those that change the direction of text.
            character if character.is_control() || ('\u{202a}'..='\u{2069}').contains(&character) => {
                html.push('\u{fffd}');
            }
            character => html.push(character),
        }
    }
    html
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_match_each_word_of_the_filter() {
        let texts = ["xA/B", "Ü%ZZ%2"].map(str::to_owned);
        assert!(matches("a/b ü%zz%2", &texts) && !matches("a/b ü%zz%2", &texts[..1]));
        assert!(matches("", &[]));
    }

    #[test]
    fn special_characters_are_escaped() {
        let text = escaped("<a href='x' on=\"y\">&amp;\u{202e}\u{7}ü");
        assert_eq!(text, "&lt;a href=&#39;x&#39; on=&quot;y&quot;&gt;&amp;amp;\u{fffd}\u{fffd}ü");
    }
}
