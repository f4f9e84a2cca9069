//! Outbound calls: the role `worker` makes the HTTP callbacks of subscriptions, the role `horn` sends notifications through APNs, FCM,
//! Web Push and HTTP.
//!
//! Both are stateless towards the log: a caller hands them one call and receives its outcome. They keep no queue and repeat nothing
//! beyond a connection that was closed before a request was sent. Every address is checked when it is dialled.

pub mod horn;
pub mod worker;
