//! Compiles the protocol of the internal port. `protox` reads the files, so that a build needs no `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = [
        "whimbrel/internal/v1/owners.proto",
        "whimbrel/internal/v1/dispatch.proto",
        "whimbrel/internal/v1/presence.proto",
        "whimbrel/internal/v1/workers.proto",
        "whimbrel/internal/v1/carriers.proto",
    ];
    let descriptors = protox::compile(files, ["proto"])?;
    tonic_prost_build::configure().build_client(true).bytes(".whimbrel").compile_fds(descriptors)?;
    Ok(())
}
