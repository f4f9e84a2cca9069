//! Close codes and reasons.

use super::frame::CONTROL_MAX_BYTES;

/// Bytes of a close reason, at most: a control frame without the code.
pub const CLOSE_REASON_MAX_BYTES: usize = CONTROL_MAX_BYTES - 2;

/// Whether a peer may send the code: protocol, registry, libraries, applications. 1004 to 1006 and 1015 must not be sent.
pub fn is_valid_close_code(code: u16) -> bool {
    matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999)
}

/// As much of the reason as fits, without splitting a character.
pub fn shortened_reason(reason: &str) -> &str {
    let mut end = reason.len().min(CLOSE_REASON_MAX_BYTES);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    &reason[..end]
}
