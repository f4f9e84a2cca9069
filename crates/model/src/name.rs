//! The rules for names of topics and subscriptions, and for message ids that publishers choose.

use crate::limits::{BROUGHT_ID_MAX_CHARS, NAME_MAX_CHARS, SYSTEM_NAME_MAX_CHARS};
use crate::push::is_system_hold;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("the name is empty: use 1 to {NAME_MAX_CHARS} characters")]
    Empty,
    #[error("the name is too long: use 1 to {NAME_MAX_CHARS} characters")]
    TooLong,
    #[error("the name contains a character other than A-Z a-z 0-9 . _ -")]
    BadCharacter,
    #[error("the name starts with `_`, which is reserved for Whimbrel")]
    Reserved,
    #[error("`.` and `..` are not allowed as names")]
    Dots,
    #[error("the message id is not 1 to {BROUGHT_ID_MAX_CHARS} characters of A-Z a-z 0-9 _ -")]
    BadId,
    #[error("the message id has a form that is reserved for Whimbrel: use another one")]
    SystemId,
}

/// Checks a name that a user chooses: 1–200 characters of `A-Za-z0-9._-`, not starting with `_`.
pub fn check_topic_name(name: &str) -> Result<(), NameError> {
    check_any_topic_name(name)?;
    if name.starts_with('_') { Err(NameError::Reserved) } else { Ok(()) }
}

/// Checks a name that may be read: like [`check_topic_name`], but names of system topics are valid too.
pub fn check_any_topic_name(name: &str) -> Result<(), NameError> {
    match name {
        "" => return Err(NameError::Empty),
        "." | ".." => return Err(NameError::Dots),
        _ => {}
    }
    if !name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-')) {
        return Err(NameError::BadCharacter);
    }
    let most = if name.starts_with('_') { SYSTEM_NAME_MAX_CHARS } else { NAME_MAX_CHARS };
    if name.len() > most { Err(NameError::TooLong) } else { Ok(()) }
}

/// Checks an id that a publisher chooses: 1–128 characters of `A-Za-z0-9_-`, not of the form of a system hold's id. A publisher that used
/// such an id first would prevent the system's hold.
pub fn check_brought_id(id: &str) -> Result<(), NameError> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    if !(1..=BROUGHT_ID_MAX_CHARS).contains(&id.len()) || !id.bytes().all(allowed) {
        return Err(NameError::BadId);
    }
    if is_system_hold(id) { Err(NameError::SystemId) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_validated() {
        assert_eq!(check_topic_name("orders.eu-1_x"), Ok(()));
        assert_eq!(check_topic_name(""), Err(NameError::Empty));
        assert_eq!(check_topic_name(".."), Err(NameError::Dots));
        assert_eq!(check_topic_name("_events"), Err(NameError::Reserved));
        assert_eq!(check_any_topic_name("_events"), Ok(()));
        assert_eq!(check_topic_name("a/b"), Err(NameError::BadCharacter));
        assert_eq!(check_topic_name("ä"), Err(NameError::BadCharacter));
        assert_eq!(check_topic_name(&"a".repeat(201)), Err(NameError::TooLong));
        assert_eq!(check_brought_id("order-1_A"), Ok(()));
        assert_eq!(check_brought_id("push-1-web"), Ok(()));
        assert_eq!(check_brought_id("notice-1-2-3-00000000000000ff"), Err(NameError::SystemId));
        assert_eq!(check_brought_id("a.b"), Err(NameError::BadId));
        assert_eq!(check_brought_id(&"a".repeat(129)), Err(NameError::BadId));
    }
}
