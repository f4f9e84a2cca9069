//! Compiles the public gRPC protocol. `protox` reads the files, so that a build needs no `protoc`.

#[cfg(feature = "grpc")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = ["whimbrel/v1/messages.proto", "whimbrel/v1/gateway.proto", "whimbrel/v1/people.proto"];
    let descriptors = protox::compile(files, ["proto"])?;
    tonic_prost_build::configure().build_client(true).bytes(".whimbrel").compile_fds(descriptors)?;
    Ok(())
}

#[cfg(not(feature = "grpc"))]
fn main() {}
