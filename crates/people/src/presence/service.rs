//! The service for presence messages and queries of other nodes.

use std::sync::Arc;

use whimbrel_cluster::{Admission, InternalService};

use super::limits::READ_USERS_MAX;
use super::node::PresenceNode;
use super::peers::{AskGateway, ReadPresence, ReportPresence};

/// The service for the calls of [`peers`](super::peers). If a key is set, calls without it are rejected before their request is read.
pub fn presence_service(node: Arc<PresenceNode>, admission: impl Into<Admission>) -> InternalService {
    InternalService::new(admission)
        .answering::<ReportPresence, _, _>(node.clone(), |node, posts| async move { node.take(posts) })
        .answering::<AskGateway, _, _>(node.clone(), |node, (query, forward)| async move {
            node.answer(query, forward).await
        })
        .answering::<ReadPresence, _, _>(node, |node, (centre, shard, uids)| async move {
            if uids.len() > READ_USERS_MAX {
                return Err(format!("{} users in one query; the limit is {READ_USERS_MAX}", uids.len()));
            }
            node.read(centre, shard, uids).await
        })
}
