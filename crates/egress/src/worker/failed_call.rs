//! The reason of a failed call: a kind and a sentence.

use std::error::Error;

use whimbrel_model::ports::CallFailure;

use super::limits::DETAIL_BYTES_MAX;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FailedCall {
    pub(super) why: CallFailure,
    pub(super) detail: String,
}

impl FailedCall {
    pub(super) fn new(why: CallFailure, detail: impl Into<String>) -> Self {
        let mut detail = detail.into();
        if detail.len() > DETAIL_BYTES_MAX {
            detail.truncate(detail.floor_char_boundary(DETAIL_BYTES_MAX));
        }
        Self { why, detail }
    }

    /// The connection ended, or the response was not HTTP.
    pub(super) fn broken(error: &hyper::Error) -> Self {
        let mut detail = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            detail.push_str(": ");
            detail.push_str(&error.to_string());
            cause = error.source();
        }
        Self::new(CallFailure::Broken, detail)
    }
}
