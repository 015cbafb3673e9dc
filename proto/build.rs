//! Compiles the `.proto` file without `protoc`: messages and a client as usual, and a server whose stream sends
//! messages in wire form (`encoded`).

use std::path::Path;

use tonic_build::manual::{Builder, Method, Service};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = "fairlead/v1/fairlead.proto";
    println!("cargo:rerun-if-changed={file}");
    let descriptors = protox::compile([file], ["."])?;
    // `fairlead endpoints` and `fairlead status` print them as they are.
    let printed = [".fairlead.v1.PoolMembership", ".fairlead.v1.Problem"];
    let builder = tonic_prost_build::configure().build_server(false).bytes(".fairlead.v1");
    let derive =
        |builder: tonic_prost_build::Builder, name| builder.type_attribute(name, "#[derive(serde::Serialize)]");
    printed.into_iter().fold(builder, derive).compile_fds(descriptors)?;

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
    let out = std::env::var("OUT_DIR")?;
    let out = Path::new(&out).join("server");
    std::fs::create_dir_all(&out)?;
    Builder::new().build_client(false).out_dir(&out).compile(&[service]);
    Ok(())
}
