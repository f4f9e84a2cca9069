//! Who may ask at the internal port: whoever brings the key that all nodes of the installation share.

use sha2::{Digest, Sha256};
use tonic::{Request, Status};

/// Under which name the key of the internal port travels.
pub const KEY_METADATA: &str = "whimbrel-internal-key";

/// Refuses whoever does not bring the key, where one is set, before the question is looked at.
#[derive(Clone)]
pub struct Admission {
    key_hash: Option<[u8; 32]>,
}

impl Admission {
    pub fn new(internal_key: Option<&str>) -> Self {
        Self { key_hash: internal_key.map(|key| Sha256::digest(key.as_bytes()).into()) }
    }

    pub fn admit<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let Some(expected) = &self.key_hash else { return Ok(()) };
        let brought = request.metadata().get(KEY_METADATA).map(|key| key.as_bytes()).unwrap_or_default();
        let hash: [u8; 32] = Sha256::digest(brought).into();
        // All bytes are compared, and hashes at that, so that the time taken tells nothing about the key.
        let difference = expected.iter().zip(hash).fold(0u8, |sum, (ours, theirs)| sum | (ours ^ theirs));
        if difference == 0 { Ok(()) } else { Err(Status::unauthenticated("the internal key is missing or wrong")) }
    }
}
