//! Escapes text for HTML, so that no name can become markup.

use std::fmt::{self, Write as _};

/// Text with HTML special characters escaped; also valid in a quoted attribute.
pub(super) struct Escaped<T>(pub(super) T);

/// A name like [`Escaped`] that may be wrapped after `/` and `:`.
pub(super) struct WrappableName<T>(pub(super) T);

/// Escapes what is written to it.
struct EscapingWriter<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl<T: fmt::Display> fmt::Display for Escaped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(EscapingWriter(f), "{}", self.0)
    }
}

impl fmt::Write for EscapingWriter<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            match character {
                '&' => self.0.write_str("&amp;"),
                '<' => self.0.write_str("&lt;"),
                '>' => self.0.write_str("&gt;"),
                '"' => self.0.write_str("&quot;"),
                '\'' => self.0.write_str("&#39;"),
                // Control characters and those that change the direction of text.
                character if character.is_control() || ('\u{202a}'..='\u{2069}').contains(&character) => {
                    self.0.write_char('\u{fffd}')
                }
                character => self.0.write_char(character),
            }?;
        }
        Ok(())
    }
}

impl<T: fmt::Display> fmt::Display for WrappableName<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in Escaped(&self.0).to_string().split_inclusive(['/', ':']) {
            write!(f, "{part}<wbr>")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_characters_are_escaped() {
        let text = Escaped("<a href='x' on=\"y\">&amp;\u{202e}\u{7}ü").to_string();
        assert_eq!(text, "&lt;a href=&#39;x&#39; on=&quot;y&quot;&gt;&amp;amp;\u{fffd}\u{fffd}ü");
    }

    #[test]
    fn names_may_be_wrapped_between_their_parts() {
        let name = WrappableName("shop/<b>:http").to_string();
        assert_eq!(name, "shop/<wbr>&lt;b&gt;:<wbr>http<wbr>");
    }
}
