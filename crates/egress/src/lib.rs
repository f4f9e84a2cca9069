//! Outbound calls: the role `worker` makes the HTTP callbacks of subscriptions, the role `horn` sends notifications through APNs, FCM, Web
//! Push and HTTP.
//!
//! Both roles are stateless towards the log: a caller passes one call and receives its outcome. They have no queue. They retry only if a
//! kept-alive connection was closed before any part of the request was sent. Every address is checked before it is dialled.

pub mod horn;
pub mod worker;
