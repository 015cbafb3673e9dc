//! How much is shown of a text that a client has chosen.

/// The most characters of a text of others in a log line, an error or a problem: an annotation may have 256 KiB.
pub(crate) const MAX_EXCERPT_CHARS: usize = 256;

/// The start of a text that a client may have chosen, for log lines and the status.
pub(crate) fn excerpt(text: &impl ToString) -> String {
    let mut text = text.to_string();
    if let Some((end, _)) = text.char_indices().nth(MAX_EXCERPT_CHARS) {
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_clients_are_short_in_log_lines() {
        assert_eq!(excerpt(&"nft"), "nft");
        let long = excerpt(&"ß".repeat(977 << 10));
        assert_eq!(long.chars().count(), MAX_EXCERPT_CHARS + 1);
    }
}
