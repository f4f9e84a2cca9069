//! What may be said when a connection is closed.

use super::frame::CONTROL_MAX_BYTES;

/// Bytes of the reason: what a control frame has room for beside the code.
pub const CLOSE_REASON_MAX_BYTES: usize = CONTROL_MAX_BYTES - 2;

/// Whether a peer may send the code: those of the protocol, of its registry, of libraries and of applications. 1004 to 1006 and 1015 are
/// never sent.
pub fn is_valid_close_code(code: u16) -> bool {
    matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999)
}

/// As much of the reason as fits, cut between characters.
pub fn shortened_reason(reason: &str) -> &str {
    let mut end = reason.len().min(CLOSE_REASON_MAX_BYTES);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    &reason[..end]
}
