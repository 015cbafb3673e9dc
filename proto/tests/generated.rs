//! The code in `src/v1` is what the `.proto` file generates. `make generate` writes it; no build needs a generator.
#![allow(clippy::expect_used, reason = "a panic is how a test fails")]

use std::{env, fs, path::Path};

use tonic_build::manual::{Builder, Method, Service};

/// The variable that `make generate` sets.
const WRITE: &str = "FAIRLEAD_GENERATE";

/// Messages, and a client that receives them decoded.
fn messages_and_client(out: &Path) {
    let descriptors = protox::compile(["fairlead/v1/fairlead.proto"], [env!("CARGO_MANIFEST_DIR")]);
    // Commands print these as they are.
    let printed =
        ["PoolMembership", "Problem", "PlanResponse", "PlannedChange", "LostEndpoints", "NodeGroup", "Change"];
    let config = tonic_prost_build::configure().out_dir(out).build_server(false).bytes(".fairlead.v1");
    let derive = "#[derive(serde::Serialize)]";
    let config =
        printed.iter().fold(config, |config, name| config.type_attribute(format!(".fairlead.v1.{name}"), derive));
    config.compile_fds(descriptors.expect("a valid .proto file")).expect("generate messages and client");
}

/// A server whose stream sends messages in wire form, which sessions share.
fn server(out: &Path) {
    let watch = Method::builder()
        .name("watch")
        .route_name("Watch")
        .input_type("crate::v1::ClientMessage")
        .output_type("crate::encoded::EncodedMessage")
        .codec_path("crate::encoded::ServerCodec")
        .client_streaming()
        .server_streaming()
        .build();
    let status = Method::builder()
        .name("status")
        .route_name("Status")
        .input_type("crate::v1::StatusRequest")
        .output_type("crate::v1::StatusResponse")
        .codec_path("tonic_prost::ProstCodec")
        .build();
    let service = Service::builder().name("Fairlead").package("fairlead.v1").method(watch).method(status).build();
    Builder::new().build_client(false).out_dir(out).compile(&[service]);
}

#[test]
fn generated_code_is_up_to_date() {
    for (generate, file) in [(messages_and_client as fn(&Path), "messages.rs"), (server, "server.rs")] {
        let out = tempfile::tempdir().expect("a directory");
        generate(out.path());
        let written = fs::read_dir(out.path()).expect("the output").next().expect("a file").expect("a file");
        let generated = fs::read_to_string(written.path()).expect("generated code");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/v1").join(file);
        if env::var_os(WRITE).is_some() {
            fs::write(&path, &generated).expect("write generated code");
        }
        let checked_in = fs::read_to_string(&path).unwrap_or_default();
        assert!(checked_in == generated, "proto/src/v1/{file} is out of date: run `make generate`");
    }
}
