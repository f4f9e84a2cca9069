//! Compiles the messages of the streams between gateways and carriers. `protox` reads the files, so that a build needs no `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["whimbrel/internal/v1/carriers.proto"], ["proto"])?;
    tonic_prost_build::configure().build_client(true).bytes(".whimbrel").compile_fds(descriptors)?;
    Ok(())
}
