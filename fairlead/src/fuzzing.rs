//! For fuzz targets: configuration files.

// A panic is how a fuzz target fails.
#![allow(clippy::missing_panics_doc, clippy::expect_used)]

use crate::{
    cli,
    config::{self, Document, TargetRole},
};

/// Reads a configuration for each command that accepts it. A valid configuration has the same settings after it is
/// printed as a file of ours.
pub fn configuration(text: &str) {
    let document = match Document::parse(text) {
        Ok(document) => document,
        Err(error) => return drop(format!("{error:#}")),
    };
    for role in [TargetRole::Local, TargetRole::Backend] {
        let Ok(checked) = cli::check_document(document.clone(), Some(role)) else { continue };
        let printed = config::to_yaml(checked.kind, &checked.settings).expect("settings can be printed");
        let again = Document::parse(&printed).and_then(|document| cli::check_document(document, None));
        let again = again.unwrap_or_else(|error| panic!("{error:#}: {printed}"));
        let values = |list: &[config::Setting]| {
            let mut values: Vec<_> = list.iter().map(|one| (one.field.clone(), one.value.clone())).collect();
            values.sort_by(|one, other| one.0.cmp(&other.0));
            values
        };
        assert_eq!(values(&again.settings), values(&checked.settings), "{printed}");
    }
}
