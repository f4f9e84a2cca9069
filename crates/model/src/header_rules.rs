//! Which headers belong to whom: to one connection, to the call that Whimbrel makes, to a message.

/// Headers that say how bytes lie on one connection: neither a message nor an endpoint may set them.
pub fn belongs_to_the_connection(name: &str) -> bool {
    const EXACT: &[&str] = &[
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ];
    EXACT.contains(&name) || name.starts_with("proxy-")
}

/// Headers that a callback sets itself, those of its connection included: an endpoint's settings may not.
pub fn belongs_to_the_call(name: &str) -> bool {
    name == "content-type"
        || name.starts_with("webhook-")
        || name.starts_with("whimbrel-")
        || belongs_to_the_connection(name)
}

/// Headers that no message has: the call's own, and those by which somebody is known or an answer is chosen. No publisher may bring them,
/// and where another writer of a shared log has put them into a record, they do not travel.
pub fn is_no_messages(name: &str) -> bool {
    const EXACT: &[&str] = &["accept-encoding", "authorization", "content-encoding", "cookie", "user-agent"];
    EXACT.contains(&name) || belongs_to_the_call(name)
}
