//! Rules for header names: which belong to a connection, to a callback, or to a message.

/// Headers of one HTTP connection. Neither a message nor an endpoint's settings may set them.
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

/// Headers that Whimbrel sets in each callback, including those of the connection. An endpoint's settings may not set them.
pub fn belongs_to_the_call(name: &str) -> bool {
    name == "content-type"
        || name.starts_with("webhook-")
        || name.starts_with("whimbrel-")
        || belongs_to_the_connection(name)
}

/// Headers that no message may have: those of the callback, and those for authentication and content negotiation. Publishers may not set
/// them. If another application wrote them to a shared log, Whimbrel does not forward them.
pub fn is_no_messages(name: &str) -> bool {
    const EXACT: &[&str] = &["accept-encoding", "authorization", "content-encoding", "cookie", "user-agent"];
    EXACT.contains(&name) || belongs_to_the_call(name)
}
