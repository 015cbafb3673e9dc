//! The protocol only grows: what an earlier version can send or receive keeps its number, type and meaning. The number
//! and the name of a field that is no longer used are reserved.
//! `testdata/fairlead-0.1.proto` is the protocol as of its first version; a file is added for each release.
#![allow(clippy::expect_used, reason = "a panic is how a test fails")]

use std::{collections::BTreeMap, path::Path};

/// Everything that is visible on the wire: a path such as `message Hello field 3`, and its definition.
fn wire_elements(directory: &str, file: &str) -> BTreeMap<String, String> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
    let set = protox::compile([file], [directory]).expect("a valid .proto file");
    let mut elements = BTreeMap::new();
    for file in &set.file {
        for message in &file.message_type {
            for field in &message.field {
                let path = format!("message {} field {}", message.name(), field.number());
                let kind = (field.label(), field.r#type(), field.type_name());
                elements.insert(path, format!("{} {kind:?}", field.name()));
            }
            for number in message.reserved_range.iter().flat_map(|range| range.start()..range.end()) {
                let path = format!("message {} field {number}", message.name());
                elements.insert(path, format!("reserved {:?}", message.reserved_name));
            }
        }
        for values in &file.enum_type {
            for value in &values.value {
                elements.insert(format!("enum {} value {}", values.name(), value.number()), value.name().to_owned());
            }
        }
        for service in &file.service {
            for method in &service.method {
                let streaming = (method.client_streaming(), method.server_streaming());
                let types = (method.input_type(), method.output_type());
                elements
                    .insert(format!("method {}/{}", service.name(), method.name()), format!("{types:?} {streaming:?}"));
            }
        }
    }
    elements
}

#[test]
fn elements_of_earlier_versions_are_unchanged() {
    let current = wire_elements(".", "fairlead/v1/fairlead.proto");
    let earlier = wire_elements("testdata", "fairlead-0.1.proto");
    assert!(earlier.len() > 100, "{}", earlier.len());
    for (path, content) in earlier {
        let name = content.split(' ').next().unwrap_or_default();
        let is_reserved = |now: &String| now.starts_with("reserved [") && now.contains(&format!("{name:?}"));
        if current.get(&path).is_some_and(is_reserved) {
            continue;
        }
        assert_eq!(current.get(&path), Some(&content), "{path}: peers of the earlier version read it as {content}");
    }
}

/// Without the option, protoc-gen-go asks for a flag that names the package.
#[test]
fn go_package_is_in_the_repository() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let set = protox::compile(["fairlead/v1/fairlead.proto"], [directory]).expect("a valid .proto file");
    let options = set.file[0].options.as_ref().expect("options of the file");

    let repository = env!("CARGO_PKG_REPOSITORY").trim_start_matches("https://");
    assert_eq!(options.go_package(), format!("{repository}/proto/fairlead/v1;fairleadv1"));
}
