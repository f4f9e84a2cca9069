//! Compiles the part of etcd's protocol that the engine uses. `protox` reads the file, so that a build of Whimbrel does not need `protoc`.

#[cfg(feature = "etcd")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["etcd.proto"], ["proto"])?;
    tonic_prost_build::configure().build_server(false).compile_fds(descriptors)?;
    Ok(())
}

#[cfg(not(feature = "etcd"))]
fn main() {}
