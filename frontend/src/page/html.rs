//! Escapes text for HTML, so that no name can become markup.

/// Text with HTML special characters escaped; also valid in a quoted attribute.
pub(super) fn escaped(text: &str) -> String {
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
    fn special_characters_are_escaped() {
        let text = escaped("<a href='x' on=\"y\">&amp;\u{202e}\u{7}ü");
        assert_eq!(text, "&lt;a href=&#39;x&#39; on=&quot;y&quot;&gt;&amp;amp;\u{fffd}\u{fffd}ü");
    }
}
