//! Admits calls to the internal port: only calls that present a key which this node accepts.

use sha2::{Digest, Sha256};
use tonic::codegen::http::{HeaderMap, HeaderValue};
use tonic::{Request, Status};

/// The name of the metadata field that contains the key.
pub const KEY_METADATA: &str = "whimbrel-internal-key";

/// Rejects a call without an accepted key before its request is read. Without keys, it admits every call.
#[derive(Clone, Default)]
pub struct Admission {
    key_hashes: Vec<[u8; 32]>,
}

impl Admission {
    /// `previous` is a second key that calls may present.
    pub fn new(internal_key: Option<&str>, previous: Option<&str>) -> Self {
        let keys = internal_key.into_iter().chain(previous);
        Self { key_hashes: keys.map(|key| Sha256::digest(key.as_bytes()).into()).collect() }
    }

    pub fn admit<T>(&self, request: &Request<T>) -> Result<(), Status> {
        self.admit_headers(request.metadata().as_ref())
    }

    pub(crate) fn admit_headers(&self, headers: &HeaderMap) -> Result<(), Status> {
        if self.key_hashes.is_empty() {
            return Ok(());
        }
        let presented = headers.get(KEY_METADATA).map(HeaderValue::as_bytes).unwrap_or_default();
        let hash: [u8; 32] = Sha256::digest(presented).into();
        // Compares all bytes of all hashes, so that the duration reveals nothing about the keys.
        let difference = |key: &[u8; 32]| key.iter().zip(hash).fold(0u8, |sum, (ours, theirs)| sum | (ours ^ theirs));
        let is_known = self.key_hashes.iter().fold(false, |known, key| known | (difference(key) == 0));
        if is_known { Ok(()) } else { Err(Status::unauthenticated("the caller's internal key is missing or wrong")) }
    }
}

impl From<Option<&str>> for Admission {
    fn from(internal_key: Option<&str>) -> Self {
        Self::new(internal_key, None)
    }
}

impl From<&Admission> for Admission {
    fn from(admission: &Admission) -> Self {
        admission.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(admission: &Admission, key: Option<&str>) -> bool {
        let mut request = Request::new(());
        if let Some(key) = key {
            request.metadata_mut().insert(KEY_METADATA, key.parse().unwrap());
        }
        admission.admit(&request).is_ok()
    }

    #[test]
    fn a_caller_presents_the_key_or_the_second_one() {
        let admission = Admission::new(Some("new"), Some("old"));
        assert!(admits(&admission, Some("new")) && admits(&admission, Some("old")));
        assert!(!admits(&admission, Some("other")) && !admits(&admission, Some("")) && !admits(&admission, None));
        assert!(admits(&Admission::default(), None));
    }
}
