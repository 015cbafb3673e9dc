//! Text that others may have written, for a terminal.

/// The text with spaces for characters that change what a terminal shows of other text: control characters, and format
/// characters of Unicode, which are invisible or reverse the direction.
#[must_use]
pub fn printable(text: &str) -> String {
    text.replace(changes_other_text, " ")
}

/// As [`printable`], but line breaks remain.
#[must_use]
pub fn printable_lines(text: &str) -> String {
    text.replace(|c| c != '\n' && changes_other_text(c), " ")
}

fn changes_other_text(c: char) -> bool {
    let is_format = matches!(
        c,
        '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    );
    is_format || c.is_control()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_change_other_text_are_replaced() {
        let text = "ä\u{1b}[2J\n\u{9b}\u{200b}\u{202e}\u{2066}\u{feff}z";
        assert_eq!(printable(text), "ä [2J      z");
        assert_eq!(printable_lines(text), "ä [2J\n     z");
    }
}
