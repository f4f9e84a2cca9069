//! Compiles the protocol of the gRPC door. `protox` reads the files, so that nobody needs `protoc` to build Whimbrel.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["whimbrel/v1/messages.proto"], ["proto"])?;
    tonic_prost_build::configure().build_client(true).bytes(".whimbrel.v1").compile_fds(descriptors)?;
    Ok(())
}
