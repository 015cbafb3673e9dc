//! Text within HTML: no name that somebody has given to something can become a part of the page.

use std::fmt::{self, Write as _};

/// A text, with all that means something in HTML written so that it does not; also within an attribute in quotes.
pub(super) struct Text<T>(pub(super) T);

/// A name as a [`Text`] that may be broken between its parts, where it is too long for its place.
pub(super) struct Name<T>(pub(super) T);

/// Escapes what is written to it.
struct Escaping<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl<T: fmt::Display> fmt::Display for Text<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping(f), "{}", self.0)
    }
}

impl fmt::Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            match character {
                '&' => self.0.write_str("&amp;"),
                '<' => self.0.write_str("&lt;"),
                '>' => self.0.write_str("&gt;"),
                '"' => self.0.write_str("&quot;"),
                '\'' => self.0.write_str("&#39;"),
                // Shown as what they are: some would turn the text around them.
                character if character.is_control() || ('\u{202a}'..='\u{2069}').contains(&character) => {
                    self.0.write_char('\u{fffd}')
                }
                character => self.0.write_char(character),
            }?;
        }
        Ok(())
    }
}

impl<T: fmt::Display> fmt::Display for Name<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in Text(&self.0).to_string().split_inclusive(['/', ':']) {
            write!(f, "{part}<wbr>")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_means_anything() {
        let text = Text("<a href='x' on=\"y\">&amp;\u{202e}\u{7}ü").to_string();
        assert_eq!(text, "&lt;a href=&#39;x&#39; on=&quot;y&quot;&gt;&amp;amp;\u{fffd}\u{fffd}ü");
    }

    #[test]
    fn names_may_be_broken_between_their_parts() {
        let name = Name("shop/<b>:http").to_string();
        assert_eq!(name, "shop/<wbr>&lt;b&gt;:<wbr>http<wbr>");
    }
}
